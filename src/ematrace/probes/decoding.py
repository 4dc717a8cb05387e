"""Which words does a representation still hold? Targets k steps back, and a decoder of whole prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import comb

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

BLOCK_ROWS = 512  # vectors decoded together
TABLE_SIZE = 2**16  # subset sums kept for one length
SPARE_WORDS = 4  # L positions hold at most L words; noise may lift a few others above the weakest


def lagged_words(sentences: Sequence[Sequence[str]], lag: int) -> tuple[NDArray[np.bool_], NDArray[np.str_]]:
    """Targets of the probe "which word stood `lag` tokens back?".

    Tokens are ordered as the sentences are, one after the other. The mask [n_tokens] marks tokens t with a
    word at t - lag in their own sentence; the words are the targets, one per marked token. A negative lag
    looks ahead.

    >>> lagged_words([["the", "cat", "sees"], ["a", "dog"]], 1)[1].tolist()
    ['the', 'cat', 'a']
    """
    mask = [0 <= t - lag < len(words) for words in sentences for t in range(len(words))]
    targets = [words[t - lag] for words in sentences for t in range(len(words)) if 0 <= t - lag < len(words)]
    return np.array(mask, dtype=np.bool_), np.array(targets, dtype=np.str_)


class PeelingDecoder:
    """One trace vector in, a whole prefix out: h = Σ_i α(1-α)^i x_{t-i} is read back into its words.

    With codes K [V, d] the vector is h = cK + noise, where c_w = Σ α(1-α)^i over the positions i of word w.
    Least squares gives c (well posed when the codes are independent, so V ≤ d). Positions are then peeled off
    newest first: position i goes to a word, whose weight falls by α(1-α)^i. What is left of every word must
    be a sum of weights of older positions, so a partial answer that has placed 0..i costs at least

        f = Σ_w min_{S ⊆ {i+1, ..., L-1}} (left_w - Σ_{j ∈ S} α(1-α)^j)²

    and the `beam` cheapest are kept. For α ≥ 1/2 exact weights leave no choice: the newest exceeds all
    others together. For small α a repeated word outweighs the newest and neighbours differ little; there f
    tells orders apart, since hardly any other set of positions adds up to c_w. Of the answers left at the end
    the nearest to h wins.

    A vector of length L costs O(Vd) for c, O(L³ · beam) to peel (the log of a table of subset sums is at most
    of order L) and O(Vd · beam) to choose, where exhaustive search would take V^L. Beyond 16 positions only
    the smaller sets S fit in TABLE_SIZE, so that words repeated many times are placed less surely.

    >>> import numpy as np
    >>> words = ["the", "cat", "sees", "dog"]
    >>> codes = np.random.default_rng(0).standard_normal((4, 8))
    >>> trace = np.zeros(8)
    >>> for word in ["the", "cat", "sees", "the", "dog"]:
    ...     trace = 0.9 * trace + 0.1 * codes[words.index(word)]
    >>> [words[i] for i in PeelingDecoder(0.1, codes).decode_batch(trace[None], [5])[0]]  # newest first
    ['dog', 'the', 'sees', 'cat', 'the']
    """

    def __init__(self, alpha: float, codebook: NDArray[np.floating], beam: int = 16) -> None:
        if not 0 < alpha < 1:
            raise ValueError(f"alpha must lie between 0 and 1, got {alpha}")
        if beam < 1:
            raise ValueError(f"beam must be positive, got {beam}")
        K = np.asarray(codebook, dtype=np.float64)
        if K.ndim != 2 or 0 in K.shape or not np.isfinite(K).all():
            raise ValueError("codebook must be a finite [words, d] array")
        self.alpha, self.codebook, self.beam = alpha, K, beam
        # Dependent codes share their weight (minimum norm) and cannot be told apart.
        self._to_weights = np.linalg.pinv(K, rcond=1e-6).astype(np.float64)
        self._sums_by_size: list[list[Floats]] = [[np.zeros(1)]]
        self._tables: list[Floats] = [np.zeros(1)]

    def decode_batch(self, H: NDArray[np.floating], lengths: Sequence[int] | NDArray[np.integer]) -> Indices:
        """Decode the rows of H [N, d] to word indices [N, max(lengths)], newest first, -1 beyond a length."""
        vectors, L = np.asarray(H, dtype=np.float64), np.asarray(lengths, dtype=np.intp)
        if vectors.ndim != 2 or vectors.shape[1] != self.codebook.shape[1]:
            raise ValueError(f"H must be [N, {self.codebook.shape[1]}], got {list(vectors.shape)}")
        if L.shape != (len(vectors),) or (L < 0).any():
            raise ValueError(f"lengths must be {len(vectors)} counts of tokens, none negative")
        if not np.isfinite(vectors).all():
            raise ValueError("H holds NaN or infinite values")
        words = np.full((len(vectors), L.max(initial=0)), -1, dtype=np.intp)
        for length in np.unique(L[L > 0]).tolist():
            rows = np.flatnonzero(length == L)
            for start in range(0, len(rows), BLOCK_ROWS):
                block = rows[start : start + BLOCK_ROWS]
                words[block, :length] = self._peel(vectors[block], length)
        return words

    def _peel(self, H: Floats, length: int) -> Indices:
        c = H @ self._to_weights
        n, k = len(H), min(length + SPARE_WORDS, c.shape[1])
        each = np.arange(n)[:, None]
        candidates = np.argsort(-c, axis=1, kind="stable")[:, :k]
        left = c[each, candidates][:, None]  # [n, beam, k]
        paths = np.zeros((n, 1, 0), dtype=np.intp)  # [n, beam, i], indices into candidates
        weights = self.alpha * (1 - self.alpha) ** np.arange(length)
        for i, a in enumerate(weights.tolist()):
            without, given = self._misfit(left, i + 1, length), self._misfit(left - a, i + 1, length)
            f = (without.sum(axis=2, keepdims=True) - without + given).reshape(n, -1)
            best = np.argpartition(f, min(self.beam, f.shape[1]) - 1, axis=1)[:, : self.beam]
            parent, word = np.divmod(best, k)
            left = left[each, parent]
            left[each, np.arange(best.shape[1]), word] -= a
            paths = np.concatenate([paths[each, parent], word[..., None]], axis=2)
        answers = candidates[each[..., None], paths]
        explained = np.zeros((n, answers.shape[1], len(self.codebook)))
        for i, a in enumerate(weights.tolist()):
            explained[each, np.arange(answers.shape[1]), answers[..., i]] += a
        distance = np.square(H[:, None] - explained @ self.codebook).sum(axis=2)
        return np.asarray(answers[np.arange(n), distance.argmin(axis=1)])

    def _misfit(self, left: Floats, start: int, length: int) -> Floats:
        """Squared distance of each weight to the nearest sum of weights of positions start..length-1."""
        table, scale = self._subset_sums(length - start), (1 - self.alpha) ** start
        x = left / scale
        i = np.searchsorted(table, x)
        below, above = table[np.maximum(i - 1, 0)], table[np.minimum(i, len(table) - 1)]
        return np.square(scale * np.minimum(np.abs(x - below), np.abs(x - above)))

    def _subset_sums(self, n: int) -> Floats:
        """Sorted sums of α(1-α)^j over subsets of j = 0..n-1, the small subsets first, up to TABLE_SIZE sums.

        S(n, size) = (1-α) S(n-1, size) ∪ (α + (1-α) S(n-1, size-1)).
        """
        for m in range(len(self._tables), n + 1):
            older = [(1 - self.alpha) * sums for sums in self._sums_by_size[-1]]
            counts = accumulate(comb(m, size) for size in range(m + 1))
            by_size = [older[0]] + [
                np.concatenate([*older[size : size + 1], self.alpha + older[size - 1]])
                for size in range(1, sum(count <= TABLE_SIZE for count in counts))
            ]
            self._sums_by_size.append(by_size)
            self._tables.append(np.sort(np.concatenate(by_size)))
        return self._tables[n]
