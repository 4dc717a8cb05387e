"""Writing packed tokens: once per source and tokenizer, atomically."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from ematrace.files import write_atomically
from ematrace.text.corpora import open_source
from ematrace.text.documents import Document, Source, check_split
from ematrace.text.packed import INDEX, SCHEMA, PackedTokens, read_index
from ematrace.text.tokenizers import DocumentEncoder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SHARD_TOKENS = 2**26
_BATCH_DOCUMENTS = 1024
_BATCH_CHARACTERS = 2**22


def cache_folder() -> Path:
    """$EMATRACE_CACHE, or ~/.cache/ematrace."""
    return Path(os.environ.get("EMATRACE_CACHE") or "~/.cache/ematrace").expanduser()


def pack(
    source: Source | str,
    tokenizer: PreTrainedTokenizerFast,
    folder: str | Path | None = None,
    split: str = "all",
) -> PackedTokens:
    """Tokens of `source` in `folder` (default: in the cache); a pack of the same text and tokenizer is reused.

    An older pack in `folder` stays as it is until the new one is complete: the token files lie in a folder of their
    own, and replacing `index.json`, which names that folder, is the last step.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     size = Path(folder, "tale.txt").write_text("the cat sees the dog " * 10)
    ...     tokenizer = train_bpe(open_source(f"{folder}/tale.txt"), vocab_size=280)
    ...     packed = pack(f"{folder}/tale.txt", tokenizer, f"{folder}/packed")
    ...     packed.n_documents, packed.n_windows(length=16), len(packed.window(0, length=16))
    (1, 3, 17)
    """
    from filelock import FileLock

    source = open_source(source)
    check_split(split)
    encoder = DocumentEncoder(tokenizer)
    share = None if split == "all" else source.validation_share
    made_of = {"schema": SCHEMA, "source": source.identity(), "tokenizer": encoder.fingerprint}
    parts = [made_of, split, share] + (["tails"] if source.held_out_tails and split != "all" else [])
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    if folder is None:
        folder = cache_folder() / "packs" / key[:32]
        if (cached := _cached_pack(folder, tokenizer)) is not None:
            return cached
    folder = Path(folder)

    is_new = not folder.exists()
    _refuse_foreign(folder)
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / f"data-{uuid.uuid4().hex}"
    try:
        with FileLock(folder / ".lock"):  # of several processes that want the same pack, one writes it
            if not _has_pack(folder, key):
                about = {"schema": SCHEMA, "key": key, "source": source.spec, "split": split, "validation_share": share}
                index = about | _write_data(data, source.part(split), encoder)
                _check_not_empty(index, source)
                write_atomically(folder / INDEX, (json.dumps(index, indent=1) + "\n").encode())
                _remove_other_data(folder, data)
    except BaseException as error:
        shutil.rmtree(data, ignore_errors=True)
        if is_new and {child.name for child in folder.iterdir()} <= {".lock"}:  # no other process is writing here
            shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            raise OSError(error.errno, f"cannot write: {error.strerror}", str(folder)) from error
        raise
    return PackedTokens.open(folder, tokenizer)


def _cached_pack(folder: Path, tokenizer: PreTrainedTokenizerFast) -> PackedTokens | None:
    """The pack in a folder of the cache; a damaged one is removed, since it can be made again."""
    if not (folder / INDEX).exists():
        return None
    try:
        return PackedTokens.open(folder, tokenizer)
    except (ValueError, OSError):
        shutil.rmtree(folder, ignore_errors=True)
        return None


def _refuse_foreign(folder: Path) -> None:
    """ValueError unless the folder is new, empty or has a pack."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder}: is a file; packing needs a folder")
    if folder.is_dir() and not (folder / INDEX).is_file():
        others = sorted(child.name for child in folder.iterdir() if not child.name.startswith((".", "data-")))
        if others:
            raise ValueError(f"{folder}: holds {others[0]} and no packed tokens; give an empty or a new folder")


def _has_pack(folder: Path, key: str) -> bool:
    try:
        return bool(read_index(folder)["key"] == key)
    except FileNotFoundError:
        return False


def _remove_other_data(folder: Path, data: Path) -> None:
    """Delete the pack that was replaced, and files of killed processes."""
    for child in folder.glob("data-*"):
        if child != data:
            shutil.rmtree(child, ignore_errors=True)


def _check_not_empty(index: dict[str, Any], source: Source) -> None:
    if index["n_documents"]:
        return
    if next(iter(source), None) is None:
        raise ValueError(f"{source.spec}: empty corpus, no document has any text")
    raise ValueError(
        f"{source.spec}: no document falls into the {index['split']} split (validation share "
        f"{source.validation_share}); with so few documents, give a larger share or separate validation text "
        "(--validation-share, --validation)"
    )


def _write_data(data: Path, documents: Iterable[Document], encoder: DocumentEncoder) -> dict[str, Any]:
    """Write the tokens and the offsets of documents; returns their entries for the index."""
    data.mkdir()
    dtype = "<u2" if encoder.vocab_size <= 2**16 else "<u4"
    n_documents = 0
    with ExitStack() as stack:
        shards = stack.enter_context(closing(_ShardWriter(data, dtype, SHARD_TOKENS)))
        offsets = stack.enter_context(closing(_HashedFile(data / "offsets.bin")))
        offsets.write(np.zeros(1, dtype="<i8").tobytes())
        for batch in batches(documents):
            encoded = encoder.encode([document.text for document in batch])
            ends = shards.n_tokens + np.cumsum([len(ids) for ids in encoded])
            shards.write(np.concatenate(encoded))
            offsets.write(ends.astype("<i8").tobytes())
            n_documents += len(batch)
        files = {"shards": shards.finish(), "offsets": offsets.finish()}
    return {
        "tokenizer": encoder.fingerprint,
        "vocab_size": encoder.vocab_size,
        "eos_id": encoder.eos_id,
        "dtype": dtype,
        "n_tokens": shards.n_tokens,
        "n_documents": n_documents,
        **files,
    }


def batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Groups large enough to keep all cores busy and small enough for memory."""
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document.text)
        if len(batch) >= _BATCH_DOCUMENTS or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


class _HashedFile:
    """A file that is hashed as it is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] = path.open("xb")
        self._digest = hashlib.sha256()
        self.n_bytes = 0

    def write(self, content: bytes) -> None:
        self._file.write(content)
        self._digest.update(content)
        self.n_bytes += len(content)

    def finish(self) -> dict[str, Any]:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        name = f"{self.path.parent.name}/{self.path.name}"
        return {"file": name, "bytes": self.n_bytes, "sha256": self._digest.hexdigest()}

    def close(self) -> None:
        with suppress(OSError):  # after a failed write the rest cannot be written either
            self._file.close()


class _ShardWriter:
    """Tokens to files of `shard_tokens` each, the last one shorter."""

    def __init__(self, folder: Path, dtype: str, shard_tokens: int) -> None:
        self.folder, self.dtype, self.shard_tokens = folder, dtype, shard_tokens
        self.n_tokens = 0
        self._entries: list[dict[str, Any]] = []
        self._file: _HashedFile | None = None

    def write(self, ids: np.ndarray) -> None:
        while len(ids):
            if self._file is None:
                self._file = _HashedFile(self.folder / f"tokens-{len(self._entries):05d}.bin")
            room = self.shard_tokens - self.n_tokens % self.shard_tokens
            part, ids = ids[:room], ids[room:]
            self._file.write(part.astype(self.dtype).tobytes())
            self.n_tokens += len(part)
            if len(part) == room:
                self._finish_shard()

    def finish(self) -> list[dict[str, Any]]:
        self._finish_shard()
        return self._entries

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _finish_shard(self) -> None:
        if self._file is not None:
            self._entries.append(self._file.finish())
            self._file = None
