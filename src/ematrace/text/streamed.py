"""Training windows from a stream of documents, for corpora larger than the disk; resumes exactly."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ematrace.text.corpora import open_source
from ematrace.text.documents import Document, DocumentCursor, Source, check_split, in_split
from ematrace.text.tokenizers import DocumentEncoder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Small, since a resumed stream encodes up to one group again.
_GROUP_DOCUMENTS = 64
_GROUP_CHARACTERS = 2**19
State = dict[str, Any]


class StreamedTokens:
    """The windows of `PackedTokens`, in order, without packing first.

    A position is that of the next window's first token: the source's position before that token's document, and how
    many tokens of the document precede it. `state_dict` is plain JSON.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     size = Path(folder, "tale.txt").write_text("the cat sees the dog " * 10)
    ...     tokenizer = train_bpe(open_source(folder), vocab_size=280)
    ...     for window in StreamedTokens(folder, tokenizer, length=16):  # 16 inputs, and a target for the last
    ...         print(len(window), tokenizer.decode(window[:3]), "...", tokenizer.decode(window[-3:]))
    17 the cat sees ...  dog the cat
    17  cat sees the ...  the cat sees
    17  sees the dog ...  cat sees the
    """

    def __init__(
        self,
        source: Source | str,
        tokenizer: PreTrainedTokenizerFast,
        length: int,
        split: str = "all",
    ) -> None:
        if length < 1:
            raise ValueError(f"sequence length is {length}, must be positive")
        self.source = open_source(source)
        check_split(split)
        self.tokenizer = tokenizer
        self.length = length
        self.split = split
        self._position: State | None = None  # of the next window; None at the beginning
        self._resumes = False

    def state_dict(self) -> State:
        return {"source": self.source.spec, "length": self.length, "split": self.split, "position": self._position}

    def load_state_dict(self, state: State) -> None:
        """The next iteration continues from there; later ones start at the beginning."""
        for field, ours in (("source", self.source.spec), ("length", self.length), ("split", self.split)):
            if state[field] != ours:
                raise ValueError(f"state of the stream: {field}: {state[field]!r}, but this stream has {ours!r}")
        self._position, self._resumes = state["position"], True

    def __iter__(self) -> Iterator[np.ndarray]:
        if not self._resumes:
            self._position = None
        self._resumes = False
        return self._windows()

    def _windows(self) -> Iterator[np.ndarray]:
        cursor = self.source.cursor()
        skip, resumed = 0, self._position is not None
        if self._position is not None:
            cursor.load_state_dict(self._position["documents"])
            skip = self._position["token"]
        parts: deque[tuple[State, int, np.ndarray]] = deque()  # position before a document, tokens gone, tokens left
        available, n_windows = 0, 0
        for before, ids in self._encoded(cursor):
            parts.append((before, skip, ids[skip:]))
            available += len(ids) - skip
            skip = 0
            while available > self.length:
                window = np.concatenate(_front(parts, self.length + 1))
                _drop(parts, self.length)  # the last token is also the first of the next window
                available -= self.length
                self._position = {"documents": parts[0][0], "token": parts[0][1]}
                n_windows += 1
                yield window
        if not n_windows and not resumed:
            raise ValueError(
                f"{self.source.spec}: a sequence of {self.length} tokens and its target do not fit in a corpus of "
                f"{available} ({self.split} split)"
            )

    def _encoded(self, cursor: DocumentCursor) -> Iterator[tuple[State, np.ndarray]]:
        encoder = DocumentEncoder(self.tokenizer)
        for group in self._groups(cursor):
            encoded = encoder.encode([document.text for _, document in group])
            yield from zip([before for before, _ in group], encoded, strict=True)

    def _groups(self, cursor: DocumentCursor) -> Iterator[list[tuple[State, Document]]]:
        group: list[tuple[State, Document]] = []
        characters = 0
        before = cursor.state_dict()
        for document in cursor:
            if in_split(document.id, self.split, self.source.validation_share):
                group.append((before, document))
                characters += len(document.text)
            before = cursor.state_dict()
            if len(group) >= _GROUP_DOCUMENTS or characters >= _GROUP_CHARACTERS:
                yield group
                group, characters = [], 0
        if group:
            yield group


def _front(parts: deque[tuple[State, int, np.ndarray]], n: int) -> list[np.ndarray]:
    taken = []
    for _, _, ids in parts:
        taken.append(ids[:n])
        n -= len(taken[-1])
        if not n:
            break
    return taken


def _drop(parts: deque[tuple[State, int, np.ndarray]], n: int) -> None:
    while n >= len(parts[0][2]):
        n -= len(parts.popleft()[2])
    before, gone, ids = parts[0]
    parts[0] = (before, gone + n, ids[n:])


def starts_after(window: np.ndarray, eos_id: int) -> np.ndarray:
    """Positions of a window's inputs that begin a document: those after an end-of-text in the same window.

    Whether the first input begins one cannot be told from the window.
    """
    return np.flatnonzero(window[:-2] == eos_id) + 1
