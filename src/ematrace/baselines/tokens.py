"""Sentences of words as one flat array of word indices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Tokens:
    """All tokens of a list of sentences, concatenated."""

    ids: Ints
    """[n_tokens] index of each word in the vocabulary"""
    lengths: Ints
    """[n_sentences]"""

    @property
    def starts(self) -> Ints:
        """[n_sentences] where each sentence begins in `ids`."""
        return np.cumsum(self.lengths) - self.lengths

    @property
    def positions(self) -> Ints:
        """[n_tokens] position of each token in its sentence, from 0."""
        return np.arange(len(self.ids)) - np.repeat(self.starts, self.lengths)

    def by_length(self) -> list[Ints]:
        """One array [length, n] of token indices for each sentence length above 0; column = sentence, in order."""
        starts = self.starts
        return [
            np.arange(length)[:, None] + starts[self.lengths == length][None, :]
            for length in np.unique(self.lengths)
            if length > 0
        ]


def word_index(vocabulary: Sequence[str]) -> dict[str, int]:
    index = {word: i for i, word in enumerate(vocabulary)}
    if len(index) != len(vocabulary):
        twice = next(word for i, word in enumerate(vocabulary) if index[word] != i)
        raise ValueError(f"vocabulary lists {twice!r} twice")
    return index


def tokenize(sentences: Sequence[Sequence[str]], vocabulary: Sequence[str]) -> Tokens:
    """Look up every word; ValueError names a word that is not in the vocabulary, and its sentence."""
    index = word_index(vocabulary)
    lengths = np.fromiter(map(len, sentences), dtype=np.int64, count=len(sentences))
    try:
        flat = map(index.__getitem__, chain.from_iterable(sentences))
        ids = np.fromiter(flat, dtype=np.int64, count=int(lengths.sum()))
    except KeyError as error:
        word = error.args[0]
        where = next(i for i, sentence in enumerate(sentences) if word in sentence)
        raise ValueError(f"unknown word {word!r} in sentence {where}") from None
    return Tokens(ids, lengths)
