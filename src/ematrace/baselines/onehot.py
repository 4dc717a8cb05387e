"""One-hot controls: what a linear probe reads from the words alone, without a network.

Every function returns float32 features [n_tokens, d] for all tokens of all sentences, concatenated in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ematrace.baselines.tokens import Ints, Tokens, tokenize

__all__ = ["current_token", "ema_of_onehots", "merged_ema", "position", "window"]

Sentences = Sequence[Sequence[str]]
Features = NDArray[np.float32]

ALPHAS = (0.5, 0.075)
"""The paper's fast and slow trace."""


def _one_hot(ids: Ints, d: int) -> Features:
    out = np.zeros((len(ids), d), dtype=np.float32)
    out[np.arange(len(ids)), ids] = 1.0
    return out


def current_token(sentences: Sentences, vocabulary: Sequence[str]) -> Features:
    """The word itself and nothing around it.

    >>> current_token([["a", "cat"], ["cat"]], vocabulary=["a", "cat"])
    array([[1., 0.],
           [0., 1.],
           [0., 1.]], dtype=float32)
    """
    return _one_hot(tokenize(sentences, vocabulary).ids, len(vocabulary))


def _at_offset(tokens: Tokens, offset: int) -> tuple[Ints, Ints]:
    """Tokens that have a neighbour `offset` places on in their own sentence, and that neighbour's word."""
    t, length = tokens.positions, np.repeat(tokens.lengths, tokens.lengths)
    here = np.flatnonzero((t + offset >= 0) & (t + offset < length))
    return here, tokens.ids[here + offset]


def _ema_features(tokens: Tokens, d: int) -> Features:
    """[x_t | forward trace per alpha | backward trace per alpha]."""
    blocks = list(product((-1, 1), ALPHAS))
    out = np.zeros((len(tokens.ids), d * (1 + len(blocks))), dtype=np.float32)
    out[np.arange(len(out)), tokens.ids] = 1.0
    # The closed form h_t = sum_k alpha (1 - alpha)^k x_{t-k}: a one-hot x adds one number per lag, where a filter
    # would run over every column.
    for block, (sign, alpha) in enumerate(blocks, start=1):
        for lag in range(max(tokens.lengths, default=0)):
            here, word = _at_offset(tokens, sign * lag)
            out[here, block * d + word] += alpha * (1.0 - alpha) ** lag
    return out


def ema_of_onehots(sentences: Sentences, vocabulary: Sequence[str]) -> Features:
    """Traces h_t = (1 - alpha) h_{t-1} + alpha x_t of one-hot words x, starting from 0 in each sentence.

    Columns: [x_t | forward trace per alpha | backward trace per alpha], each block as wide as the vocabulary.

    >>> ema_of_onehots([["a", "cat"]], vocabulary=["a", "cat"])[:, :4]  # the word, then its trace at α = 0.5
    array([[1.  , 0.  , 0.5 , 0.  ],
           [0.  , 1.  , 0.25, 0.5 ]], dtype=float32)
    """
    return _ema_features(tokenize(sentences, vocabulary), len(vocabulary))


def merged_ema(sentences: Sentences, vocabulary: Sequence[str], function_words: Sequence[str]) -> Features:
    """`ema_of_onehots` with all content words merged into one symbol.

    Symbols: the function words in the order of the vocabulary, then the one for content. A probe of this knows no
    content word.

    >>> vocabulary = ["a", "cat", "dog"]
    >>> features = [merged_ema([["a", noun]], vocabulary, function_words=["a"]) for noun in ("cat", "dog")]
    >>> (features[0] == features[1]).all().item()
    True
    """
    if missing := set(function_words) - set(vocabulary):
        raise ValueError(f"function words {sorted(missing)} are not in the vocabulary")
    tokens = tokenize(sentences, vocabulary)
    is_function = np.isin(np.array(vocabulary), list(function_words))
    content = int(is_function.sum())
    merge = np.where(is_function, np.cumsum(is_function) - 1, content)
    merged = Tokens(merge[tokens.ids], tokens.lengths)
    return _ema_features(merged, content + 1)


def window(sentences: Sentences, vocabulary: Sequence[str], radius: int) -> Features:
    """One-hot words at t - radius, ..., t, ..., t + radius; zeros beyond the sentence.

    >>> window([["a", "cat"]], vocabulary=["a", "cat"], radius=1)  # before, here, after
    array([[0., 0., 1., 0., 0., 1.],
           [1., 0., 0., 1., 0., 0.]], dtype=float32)
    """
    if radius < 0:
        raise ValueError(f"radius must not be negative, got {radius}")
    tokens = tokenize(sentences, vocabulary)
    d = len(vocabulary)
    out = np.zeros((len(tokens.ids), (2 * radius + 1) * d), dtype=np.float32)
    for block, offset in enumerate(range(-radius, radius + 1)):
        here, word = _at_offset(tokens, offset)
        out[here, block * d + word] = 1.0
    return out


def position(sentences: Sentences, max_length: int) -> Features:
    """Position from the start of the sentence, nothing else; positions from `max_length` - 1 on share a column.

    >>> position([["a", "big", "cat"]], max_length=2)
    array([[1., 0.],
           [0., 1.],
           [0., 1.]], dtype=float32)
    """
    if max_length < 1:
        raise ValueError(f"max_length must be positive, got {max_length}")
    lengths = np.fromiter(map(len, sentences), dtype=np.int64, count=len(sentences))
    from_start = Tokens(np.zeros(int(lengths.sum()), dtype=np.int64), lengths).positions
    return _one_hot(np.minimum(from_start, max_length - 1), max_length)
