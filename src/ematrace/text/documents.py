"""Documents, and sources of them: a fixed order, and a position that can be saved and restored."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SPLITS = ("train", "validation", "all")


def check_split(split: str) -> None:
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}, must be one of {', '.join(SPLITS)}")


def in_split(id: str, split: str, validation_share: float) -> bool:
    """A document's split depends on its id alone, not on its place in the corpus."""
    if split == "all":
        return True
    name = id.encode(errors="surrogateescape")  # a file's name need not be UTF-8
    fraction = int.from_bytes(hashlib.sha256(name).digest()[:8]) / 2**64
    return (fraction < validation_share) == (split == "validation")


@dataclass(frozen=True)
class Document:
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
    """Documents in a fixed order; can be iterated any number of times."""

    spec: str
    validation_share: float = 0.01
    """Share of the documents in the validation split."""

    @abstractmethod
    def __iter__(self) -> Iterator[Document]: ...

    def part(self, split: str) -> Iterator[Document]:
        """The documents of one split: "train", "validation" or "all"."""
        check_split(split)
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
