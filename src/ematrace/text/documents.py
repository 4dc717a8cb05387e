"""Documents, and sources of them: a fixed order, and a position that can be saved and restored."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

SPLITS = ("train", "validation", "all")


def check_split(split: str) -> None:
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}, must be one of {', '.join(SPLITS)}")


def hash_fraction(id: str) -> float:
    """A document's place in [0, 1), by its id alone."""
    name = id.encode(errors="surrogateescape")  # a file's name need not be UTF-8
    return int.from_bytes(hashlib.sha256(name).digest()[:8]) / 2**64


def in_split(id: str, split: str, validation_share: float) -> bool:
    """A document's split depends on its id alone, not on its place in the corpus."""
    return split == "all" or (hash_fraction(id) < validation_share) == (split == "validation")


@dataclass(frozen=True)
class Document:
    """A text of a corpus.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     size = Path(folder, "tale.txt").write_text("Once upon a time.")
    ...     print(*open_source(folder))
    Document(text='Once upon a time.', id='tale.txt', domain='tale')
    """

    text: str
    id: str  # stable: the split into training and validation is a hash of it
    domain: str  # perplexity is also reported by domain


class DocumentCursor(ABC):
    """An iteration over a source whose position can be saved and restored."""

    @abstractmethod
    def __iter__(self) -> Iterator[Document]: ...

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Position of the next document, JSON-serialisable."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Source(ABC):
    """Documents in a fixed order; can be iterated any number of times.

    >>> class Numbers(Source):
    ...     spec, validation_share = "numbers", 0.2
    ...     def __iter__(self):
    ...         return (Document(f"{n} and {n + 1}", id=str(n), domain="counting") for n in range(10))
    ...     def identity(self):
    ...         return {"spec": self.spec, "n": 10}
    >>> [document.text for document in Numbers().part("validation")]
    ['8 and 9', '9 and 10']
    """

    spec: str
    validation_share: float = 0.01
    """Share of the documents in the validation split."""
    held_out_tails: bool = False
    """The validation split is instead the end of every document, this share of it: for text that is one document."""

    @abstractmethod
    def __iter__(self) -> Iterator[Document]: ...

    def part(self, split: str) -> Iterator[Document]:
        """The documents of one split: "train", "validation" or "all"."""
        check_split(split)
        if self.held_out_tails and split != "all":
            parts = (_without_or_only_tail(d, split, self.validation_share) for d in self)
            return (d for d in parts if d.text)
        return (d for d in self if in_split(d.id, split, self.validation_share))

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """What determines the text, JSON-serialisable: equal identity, equal documents."""

    def text_fingerprint(self) -> str:
        """Equal for the same files, whether given as a glob, a folder or a relative path."""
        identity = self.identity()
        return hashlib.sha256(json.dumps(identity.get("files") or identity, sort_keys=True).encode()).hexdigest()

    def cursor(self) -> DocumentCursor:
        return CountingCursor(self)


def _without_or_only_tail(document: Document, split: str, share: float) -> Document:
    text = document.text
    at = round(len(text) * (1 - share))
    for separator in ("\n", " "):  # a line or a word stays whole, unless that made the tail twice as long
        start = text.rfind(separator, 0, at) + 1
        if start > 2 * at - len(text) and start:
            at = start
            break
    return replace(document, text=text[at:] if split == "validation" else text[:at])


class CountingCursor(DocumentCursor):
    """Restores a position by reading and dropping the documents before it."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.n_read = 0

    def __iter__(self) -> Iterator[Document]:
        skip = self.n_read
        for i, document in enumerate(self.source):
            if i >= skip:
                self.n_read = i + 1
                yield document

    def state_dict(self) -> dict[str, Any]:
        return {"n_read": self.n_read}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.n_read = int(state["n_read"])
