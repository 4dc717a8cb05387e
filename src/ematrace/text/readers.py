"""Documents of one file: plain text, JSON lines, treebanks; compressed or not. Errors name the file and the line."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from ematrace.text.documents import Document

_TEXT = (".txt", ".raw", ".md")
_COMPRESSED = (".xz", ".gz", ".zst")
SUPPORTED = f"{', '.join((*_TEXT, '.jsonl', '.conllu'))}, also with {', '.join(_COMPRESSED)}"


def is_supported(path: Path) -> bool:
    return _kind(path)[1] in (*_TEXT, ".jsonl", ".conllu")


def read_documents(path: Path, name: str, alone: bool) -> Iterator[Document]:
    """Documents of one file, whose ids start with `name`; `alone` if it is the only file of the corpus.

    Domain: the row's field (JSON lines), else the file's stem; for plain text in several files the folder's name,
    since there one file is one document.
    """
    stem, kind = _kind(path)
    with _errors_naming(path), _open(path) as file:
        if kind == ".jsonl":
            yield from _json_lines(path, file, name, stem)
        elif kind == ".conllu":
            yield from _treebank(path, file, name, stem)
        else:
            text = _decode(file.read(), path, 0).removeprefix("\ufeff")
            if text:
                yield Document(text, name, stem if alone else path.resolve().parent.name or stem)


def _kind(path: Path) -> tuple[str, str]:
    """('train', '.jsonl') of train.jsonl.xz"""
    plain = path.with_suffix("") if path.suffix.lower() in _COMPRESSED else path
    return plain.stem, plain.suffix.lower()


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    suffix = path.suffix.lower()
    if suffix == ".xz":
        with lzma.open(path, "rb") as file:
            yield cast(IO[bytes], file)
    elif suffix == ".gz":
        with gzip.open(path, "rb") as file:
            yield cast(IO[bytes], file)
    elif suffix == ".zst":
        try:
            import pyarrow
        except ImportError:
            raise ValueError(f"{path}: reading .zst needs pyarrow (pip install pyarrow)") from None
        with pyarrow.CompressedInputStream(pyarrow.OSFile(str(path)), "zstd") as raw:
            yield io.BufferedReader(raw)
    else:
        with path.open("rb") as file:
            yield file


@contextmanager
def _errors_naming(path: Path) -> Iterator[None]:
    """The decompressors' own errors do not name the file."""
    try:
        yield
    except EOFError:
        raise OSError(f"{path}: compressed file ends too early") from None
    except (lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        raise OSError(f"{path}: broken compressed file: {error}") from None
    except OSError as error:
        if error.filename is not None or str(path) in str(error):
            raise
        raise OSError(f"{path}: {error}") from None


def _decode(raw: bytes, path: Path, offset: int) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 at byte {offset + error.start}") from None


def _lines(path: Path, file: IO[bytes]) -> Iterator[tuple[int, str]]:
    offset = 0
    for number, raw in enumerate(file, start=1):
        yield number, _decode(raw, path, offset)
        offset += len(raw)


def _json_lines(path: Path, file: IO[bytes], name: str, stem: str) -> Iterator[Document]:
    for number, line in _lines(path, file):
        if not line.strip():
            continue
        try:
            row = json.loads(line.removeprefix("\ufeff"))
        except (ValueError, RecursionError) as error:  # a plain ValueError: an integer of thousands of digits
            nested = isinstance(error, RecursionError)
            reason = "nested too deeply" if nested else getattr(error, "msg", "an integer of too many digits")
            raise ValueError(f"{path}:{number}: not JSON: {reason}") from None
        document = document_of_row(row, f"{path}:{number}", f"{name}:{number}", stem)
        if document.text:
            yield document


def document_of_row(row: Any, where: str, default_id: str, default_domain: str) -> Document:
    """A row of a dataset: `text`, and where present `id` and `source` or `domain`."""
    if not isinstance(row, dict):
        raise ValueError(f"{where}: not an object with a field text")
    text = row.get("text")
    if not isinstance(text, str):
        problem = "is missing" if "text" not in row else f"is {type(text).__name__}, not a string"
        raise ValueError(f"{where}: field text {problem}")
    values = [row.get("id"), row.get("source", row.get("domain"))]
    id, domain = (
        default if value is None else str(value)
        for value, default in zip(values, (default_id, default_domain), strict=True)
    )
    for field, value in (("text", text), ("id", id), ("source", domain)):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{where}: field {field} has half a surrogate pair at character {error.start}") from None
    return Document(text, id, domain)


def _treebank(path: Path, file: IO[bytes], name: str, stem: str) -> Iterator[Document]:
    """Sentences between two `# newdoc` make a document; a file without any is one."""
    try:
        import conllu
    except ImportError:
        raise ValueError(f"{path}: reading treebanks needs conllu (pip install conllu)") from None

    sentences: list[str] = []
    id = f"{name}:1"
    line, n_documents = 0, 0
    for line, block in _blocks(path, file):
        try:
            sentence = conllu.parse(block)[0]
        except (conllu.exceptions.ParseException, IndexError) as error:
            raise ValueError(f"{path}:{line}: not CoNLL-U: {str(error).splitlines()[0]}") from None
        metadata = sentence.metadata
        begins = [key for key in metadata if key.startswith("newdoc")]
        if begins and sentences:
            yield Document(" ".join(sentences), id, stem)
            sentences = []
        if begins or not n_documents:
            n_documents += 1
            id = str(metadata.get("newdoc id") or f"{name}:{n_documents}")
        sentences.append(metadata.get("text") or _surface(sentence))
    if sentences:
        yield Document(" ".join(sentences), id, stem)


def _surface(sentence: Any) -> str:
    """The text as spelled by the rows, for treebanks without `# text` comments (CoNLL-U 1)."""
    text, covered = "", 0
    for token in sentence:
        if isinstance(token["id"], tuple):
            _, kind, last = token["id"]
            if kind == ".":  # an empty node
                continue
            covered = last  # 1-2 don't: do and n't follow as 1 and 2
        elif token["id"] <= covered:
            continue
        text += token["form"]
        if (token.get("misc") or {}).get("SpaceAfter") != "No":
            text += " "
    return text.rstrip()


def _blocks(path: Path, file: IO[bytes]) -> Iterator[tuple[int, str]]:
    """Sentences of a treebank, each with the number of its first line."""
    block: list[str] = []
    first = 1
    for number, line in _lines(path, file):
        if line.strip():
            first = first if block else number
            block.append(line)
        elif block:
            yield first, "".join(block)
            block = []
    if block:
        yield first, "".join(block)
