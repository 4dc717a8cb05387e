"""One-hot controls: what a linear probe reads when no network stands between the words and the probe.

Every function returns float32 features [n_tokens, d] for all tokens of all sentences, concatenated in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ematrace.baselines.tokens import Ints, Tokens, tokenize

Sentences = Sequence[Sequence[str]]
Features = NDArray[np.float32]

ALPHAS = (0.5, 0.075)
"""The paper's fast and slow trace."""


def _one_hot(ids: Ints, d: int) -> Features:
    out = np.zeros((len(ids), d), dtype=np.float32)
    out[np.arange(len(ids)), ids] = 1.0
    return out


def current_token(sentences: Sentences, vocabulary: Sequence[str]) -> Features:
    """The word itself and nothing around it."""
    return _one_hot(tokenize(sentences, vocabulary).ids, len(vocabulary))


def _at_offset(tokens: Tokens, offset: int) -> tuple[Ints, Ints]:
    """Tokens that have a neighbour `offset` places on in their own sentence, and that neighbour's word."""
    t, length = tokens.positions, np.repeat(tokens.lengths, tokens.lengths)
    here = np.flatnonzero((t + offset >= 0) & (t + offset < length))
    return here, tokens.ids[here + offset]


def _ema_features(tokens: Tokens, d: int, alphas: Sequence[float], bidirectional: bool, with_current: bool) -> Features:
    if any(not 0.0 <= alpha <= 1.0 for alpha in alphas):
        raise ValueError(f"alphas must lie in [0, 1], got {tuple(alphas)}")
    blocks = list(product((-1, 1) if bidirectional else (-1,), alphas))
    out = np.zeros((len(tokens.ids), d * (len(blocks) + with_current)), dtype=np.float32)
    if with_current:
        out[np.arange(len(out)), tokens.ids] = 1.0
    # The closed form h_t = sum_k alpha (1 - alpha)^k x_{t-k}: a one-hot x adds one number per lag, where a filter
    # would run over every column.
    for block, (sign, alpha) in enumerate(blocks, start=int(with_current)):
        for lag in range(max(tokens.lengths, default=0)):
            here, word = _at_offset(tokens, sign * lag)
            out[here, block * d + word] += alpha * (1.0 - alpha) ** lag
    return out


def ema_of_onehots(
    sentences: Sentences,
    vocabulary: Sequence[str],
    alphas: Sequence[float] = ALPHAS,
    bidirectional: bool = True,
    with_current: bool = True,
) -> Features:
    """Traces h_t = (1 - alpha) h_{t-1} + alpha x_t of one-hot words x, from 0 at each sentence's edge.

    Columns: [x_t | forward trace per alpha | backward trace per alpha], each block as wide as the vocabulary.
    """
    return _ema_features(tokenize(sentences, vocabulary), len(vocabulary), alphas, bidirectional, with_current)


def merged_ema(
    sentences: Sentences,
    vocabulary: Sequence[str],
    function_words: Sequence[str],
    alphas: Sequence[float] = ALPHAS,
    bidirectional: bool = True,
    with_current: bool = True,
) -> Features:
    """`ema_of_onehots` after every content word has become one and the same symbol.

    Symbols: the function words in the order of the vocabulary, then the one for content. What this reaches is reached
    without knowing a single content word.
    """
    if missing := set(function_words) - set(vocabulary):
        raise ValueError(f"function words {sorted(missing)} are not in the vocabulary")
    tokens = tokenize(sentences, vocabulary)
    is_function = np.isin(np.array(vocabulary), list(function_words))
    content = int(is_function.sum())
    merge = np.where(is_function, np.cumsum(is_function) - 1, content)
    merged = Tokens(merge[tokens.ids], tokens.lengths)
    return _ema_features(merged, content + 1, alphas, bidirectional, with_current)


def window(sentences: Sentences, vocabulary: Sequence[str], radius: int) -> Features:
    """One-hot words at t - radius, ..., t, ..., t + radius; zeros beyond the sentence."""
    if radius < 0:
        raise ValueError(f"radius must not be negative, got {radius}")
    tokens = tokenize(sentences, vocabulary)
    d = len(vocabulary)
    out = np.zeros((len(tokens.ids), (2 * radius + 1) * d), dtype=np.float32)
    for block, offset in enumerate(range(-radius, radius + 1)):
        here, word = _at_offset(tokens, offset)
        out[here, block * d + word] = 1.0
    return out


def position(sentences: Sentences, max_length: int = 16) -> Features:
    """Position from the start of the sentence, nothing else; positions from `max_length` - 1 on share a column."""
    if max_length < 1:
        raise ValueError(f"max_length must be positive, got {max_length}")
    lengths = np.fromiter(map(len, sentences), dtype=np.int64, count=len(sentences))
    from_start = Tokens(np.zeros(int(lengths.sum()), dtype=np.int64), lengths).positions
    return _one_hot(np.minimum(from_start, max_length - 1), max_length)


Control = Callable[[Sentences, Sequence[str], Sequence[str]], Features]

ONE_HOT_CONTROLS: dict[str, Control] = {
    "position": lambda sentences, vocabulary, function_words: position(sentences),
    "current_token": lambda sentences, vocabulary, function_words: current_token(sentences, vocabulary),
    "ema": lambda sentences, vocabulary, function_words: ema_of_onehots(sentences, vocabulary),
    "merged_ema": merged_ema,
    "window_1": lambda sentences, vocabulary, function_words: window(sentences, vocabulary, 1),
    "window_2": lambda sentences, vocabulary, function_words: window(sentences, vocabulary, 2),
}
"""name -> f(sentences, vocabulary, function_words); the rows of the control table."""
