"""Reading packed tokens: memory-mapped shards, verified against their index when opened."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ematrace.files import read_json
from ematrace.text.tokenizers import tokenizer_fingerprint

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SCHEMA = 1
INDEX = "index.json"
_FIELDS: dict[str, type] = {
    "key": str,
    "source": str,
    "split": str,
    "tokenizer": str,
    "vocab_size": int,
    "eos_id": int,
    "dtype": str,
    "n_tokens": int,
    "n_documents": int,
    "shards": list,
    "offsets": dict,
}
_CHUNK = 2**22


class PackedTokens:
    """A corpus as one array of tokens; every document ends with end-of-text.

    Window i of length L holds tokens i·L … i·L + L: L inputs, and one more so that every input has a target.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     size = Path(folder, "tale.txt").write_text("the cat sees the dog " * 10)
    ...     tokenizer = train_bpe(open_source(f"{folder}/tale.txt"), vocab_size=280)
    ...     made = pack(f"{folder}/tale.txt", tokenizer, f"{folder}/packed")
    ...     packed = PackedTokens.open(f"{folder}/packed", tokenizer)
    ...     packed.n_tokens, tokenizer.decode(packed.tokens(0, 4))
    (52, 'the cat sees the')
    """

    def __init__(self, folder: Path, index: dict[str, Any]) -> None:
        self.folder = folder
        self.index = index
        self.n_tokens: int = index["n_tokens"]
        self.n_documents: int = index["n_documents"]
        self.vocab_size: int = index["vocab_size"]
        self.eos_id: int = index["eos_id"]
        content = [index["tokenizer"], self.n_tokens, [shard["sha256"] for shard in index["shards"]]]
        self.fingerprint = hashlib.sha256(json.dumps(content).encode()).hexdigest()
        self._shards = [np.memmap(folder / s["file"], dtype=index["dtype"], mode="r") for s in index["shards"]]
        self._shard_starts = np.cumsum([0] + [len(shard) for shard in self._shards])
        self._offsets = np.memmap(folder / index["offsets"]["file"], dtype="<i8", mode="r")

    @classmethod
    def open(cls, folder: str | Path, tokenizer: PreTrainedTokenizerFast) -> PackedTokens:
        """ValueError if a file is damaged or another tokenizer was used."""
        folder = Path(folder)
        index = read_index(folder)
        _check_files(folder, index)
        _check_tokenizer(folder, index, tokenizer)
        return cls(folder, index)

    def tokens(self, start: int, stop: int) -> np.ndarray:
        """Tokens start … stop-1 of the corpus, int64, across shards."""
        if not 0 <= start <= stop <= self.n_tokens:
            raise IndexError(f"{self.folder}: tokens {start} to {stop} of {self.n_tokens}")
        result = np.empty(stop - start, dtype=np.int64)
        shard = int(np.searchsorted(self._shard_starts, start, side="right")) - 1
        filled = 0
        while filled < len(result):
            first = start + filled - self._shard_starts[shard]
            part = self._shards[shard][first : first + len(result) - filled]
            result[filled : filled + len(part)] = part
            filled += len(part)
            shard += 1
        return result

    def n_windows(self, length: int) -> int:
        if length < 1:
            raise ValueError(f"sequence length is {length}, must be positive")
        if length + 1 > self.n_tokens:
            raise ValueError(
                f"{self.index['source']}: a sequence of {length} tokens and its target do not fit in a corpus of "
                f"{self.n_tokens} ({self.index['split']} split); give more text or a smaller --length"
            )
        return (self.n_tokens - 1) // length

    def window(self, i: int, length: int) -> np.ndarray:
        self._check_window(i, length)
        return self.tokens(i * length, i * length + length + 1)

    def windows(self, numbers: Iterable[int], length: int) -> np.ndarray:
        """The windows of these numbers, [N, length + 1]."""
        return np.stack([self.window(int(i), length) for i in numbers])

    def document_starts(self, i: int, length: int) -> np.ndarray:
        """Positions p in [0, length) such that input p of window i is the first token of a document."""
        self._check_window(i, length)
        starts = self._offsets[:-1]
        first, last = np.searchsorted(starts, [i * length, (i + 1) * length])
        return np.asarray(starts[first:last]) - i * length

    def counts(self) -> np.ndarray:
        """How often each token occurs, int64 [vocab_size]."""
        counts = np.zeros(self.vocab_size, dtype=np.int64)
        for start in range(0, self.n_tokens, _CHUNK):
            part = self.tokens(start, min(start + _CHUNK, self.n_tokens))
            counts += np.bincount(part, minlength=self.vocab_size)
        return counts

    def _check_window(self, i: int, length: int) -> None:
        if not 0 <= i < (n := self.n_windows(length)):
            raise IndexError(f"{self.folder}: window {i} of {n}")


def read_index(folder: Path) -> dict[str, Any]:
    path = folder / INDEX
    try:
        index: dict[str, Any] = read_json(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such file; not a folder of packed tokens") from None
    if index.get("schema") != SCHEMA:
        raise ValueError(f"{path}: schema: {index.get('schema')!r} instead of {SCHEMA}")
    for field, kind in _FIELDS.items():
        if not isinstance(index.get(field), kind):
            raise ValueError(f"{path}: {field}: missing or not {kind.__name__}")
    if index["dtype"] not in ("<u2", "<u4"):
        raise ValueError(f"{path}: dtype: {index['dtype']!r} is neither <u2 nor <u4")
    for entry in _files(index):
        if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in ("file", "sha256")):
            raise ValueError(f"{path}: shards, offsets: each needs a file and a sha256")
        if not isinstance(entry.get("bytes"), int) or not _inside(entry["file"]):
            raise ValueError(f"{path}: {entry['file']}: without a size, or outside the folder")
    width = np.dtype(index["dtype"]).itemsize
    if sum(entry["bytes"] for entry in index["shards"]) != index["n_tokens"] * width:
        raise ValueError(f"{path}: n_tokens: {index['n_tokens']} is not what the shards hold")
    if index["offsets"]["bytes"] != 8 * (index["n_documents"] + 1):
        raise ValueError(f"{path}: n_documents: {index['n_documents']} is not what the offsets hold")
    return index


def _files(index: dict[str, Any]) -> list[Any]:
    return [*index["shards"], index["offsets"]]


def _inside(name: str) -> bool:
    path = Path(name)
    return not path.is_absolute() and ".." not in path.parts


def _check_files(folder: Path, index: dict[str, Any]) -> None:
    again = "delete the folder to pack it again"
    for entry in _files(index):
        path = folder / entry["file"]
        if not path.is_file():
            raise FileNotFoundError(f"{path}: missing; {again}")
        if (size := path.stat().st_size) != entry["bytes"]:
            raise ValueError(f"{path}: {size} bytes instead of {entry['bytes']}; {again}")
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != entry["sha256"]:
                raise ValueError(f"{path}: checksum differs from {INDEX}; {again}")


def _check_tokenizer(folder: Path, index: dict[str, Any], tokenizer: PreTrainedTokenizerFast) -> None:
    if len(tokenizer) != index["vocab_size"]:
        raise ValueError(
            f"{folder}: packed with a vocabulary of {index['vocab_size']}, but the tokenizer has {len(tokenizer)}"
        )
    if (found := tokenizer_fingerprint(tokenizer)) != index["tokenizer"]:
        raise ValueError(
            f"{folder}: packed with tokenizer {index['tokenizer'][:16]}, but this tokenizer is {found[:16]} "
            f"(both have {len(tokenizer)} entries)"
        )
