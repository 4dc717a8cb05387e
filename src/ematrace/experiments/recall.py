"""Which tokens a context could have helped with: those that complete a pair of tokens seen before in the same window.

A target x_t is a *recall* token if (x_{t-1}, x_t) occurred earlier in its window. Zoology (Arora et al. 2023, arXiv
2312.04927) also asks that the pair be rare in the training text, at most 1,250 times, so that it is not known by heart.

Recall tokens are chosen knowing the target: whoever copies gains on them, and loses where the token before the target
was there earlier with another one after it. So these *misses* are a slice of their own, and where the token before is
new, nothing could be copied. What retrieval is worth is what hits and misses give together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array

from ematrace.results import Metric, Row

Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]

RARE = 1250  # Zoology's bound on a pair's count in the training text,
ZOOLOGY_TOKENS = 10_000_000_000  # which had so many tokens
DISTANCES = (1, 17, 65, 257)  # lower bounds of the ranges
COUNTS = (0, 1, 10, 100, RARE + 1)
STRETCHES = 32  # of neighbouring windows


def pair_codes(windows: Ids, vocab_size: int) -> Ids:
    """(x_{t-1}, x_t) as one number, for each target t = 1 ... T of windows [N, T+1].

    >>> pair_codes(np.array([[1, 2, 1, 2]]), vocab_size=10)
    array([[12, 21, 12]])
    """
    return windows[:, :-1] * vocab_size + windows[:, 1:]


def distance_to_last(codes: Ids) -> Ids:
    """Steps since the same code occurred last in its row; 0 where it did not.

    >>> distance_to_last(np.array([[7, 8, 7, 7]]))
    array([[0, 0, 2, 1]])
    """
    order = np.argsort(codes, axis=1, kind="stable")
    ordered = np.take_along_axis(codes, order, 1)
    steps = np.diff(order, axis=1) * (np.diff(ordered, axis=1) == 0)
    distance = np.zeros_like(codes)
    np.put_along_axis(distance, order[:, 1:], steps, 1)
    return distance


def in_own_document(windows: Ids, distance: Ids, end_of_text: int) -> Mask:
    """Of targets whose pair occurred `distance` steps before (0: never): whether no text ended in between.

    >>> in_own_document(np.array([[5, 6, 0, 5, 6, 5, 6]]), np.array([[0, 0, 0, 3, 0, 2]]), end_of_text=0)
    array([[False, False, False, False, False,  True]])
    """
    ended = np.cumsum(windows == end_of_text, axis=1)
    at = np.arange(1, windows.shape[1])[None, :]
    first = np.take_along_axis(ended, np.maximum(at - distance - 1, 0), 1)  # where the earlier pair begins
    inside: Mask = (distance > 0) & (first == ended[:, 1:])
    return inside


class PairCounts(NamedTuple):
    """The pairs that occur in a text, as codes in rising order, and how often each does."""

    codes: Ids
    counts: Ids

    @classmethod
    def of(cls, text: Iterable[Ids], vocab_size: int) -> Self:
        """`text` is stretches of tokens that overlap by one.

        >>> PairCounts.of([np.array([1, 2, 1]), np.array([1, 2])], vocab_size=10)
        PairCounts(codes=array([12, 21]), counts=array([2, 1]))
        """
        total = csr_array((vocab_size, vocab_size), dtype=np.int64)
        for part in text:
            ones = np.ones(len(part) - 1, dtype=np.int64)
            total = total + coo_array((ones, (part[:-1], part[1:])), shape=total.shape).tocsr()  # adds equal pairs up
        before, after = total.nonzero()  # row by row, and in each row in order
        return cls(before.astype(np.int64) * vocab_size + after, total.data)

    def look_up(self, codes: Ids) -> Ids:
        """How often the pairs with these codes occur."""
        if not len(self.codes):
            return np.zeros_like(codes)
        at = np.minimum(np.searchsorted(self.codes, codes), len(self.codes) - 1)
        return np.where(self.codes[at] == codes, self.counts[at], 0)


def recall_rows(
    nats: NDArray[np.float64],
    distance: Ids,
    count: Ids,
    context_seen: Mask,
    own_document: Mask,
    bounds: Mapping[str, int],
    others: Mapping[str, NDArray[np.float64]],
) -> list[Row]:
    """Mean nats of all targets and of each slice.

    context_seen   the token before the target occurred earlier in the window
    own_document   the pair occurred earlier in the same document
    bounds   pairs up to so many in the training text are rare, by the name of the slice
    others   nats of other models on the same targets, by metric
    """
    seen = distance > 0
    slices = {"all": np.ones_like(seen), "recall": seen, "other": ~seen}
    slices |= {"miss": context_seen & ~seen, "new_context": ~context_seen, "recall_in_document": seen & own_document}
    for name, bound in bounds.items():
        slices |= {f"{name}_recall": seen & (count <= bound), f"{name}_rest": ~(seen & (count <= bound))}
    rows = [
        Row({"slice": name}, {metric: _mean(values, mask) for metric, values in {"nats": nats, **others}.items()})
        for name, mask in slices.items()
    ]
    rows += [
        Row({"distance": of}, {"recall_nats_by_distance": _mean(nats, mask)})
        for of, mask in _ranges(distance, DISTANCES)
    ]
    parts = {"recall_nats_by_count": seen, "other_nats_by_count": ~seen}
    rows += [
        Row({"pair_count": of}, {metric: _mean(nats, part & mask) for metric, part in parts.items()})
        for of, mask in _ranges(count, COUNTS)
    ]
    return rows


def stretch_rows(nats: NDArray[np.float64], distance: Ids) -> Iterator[Row]:
    """Of stretches of the text, for intervals over the text: a seed's models all read the same one."""
    seen = distance > 0
    masks = {"nats_in_stretch": np.ones_like(seen), "recall_nats_in_stretch": seen}
    for i, at in enumerate(np.array_split(np.arange(len(nats)), min(STRETCHES, len(nats)))):
        yield Row({"stretch": i}, {name: _mean(nats[at], mask[at]) for name, mask in masks.items()})


def _mean(nats: NDArray[np.float64], mask: Mask) -> Metric:
    n = int(mask.sum())
    return Metric(float(nats[mask].mean()) if n else None, unit="nats", n=n, better="low")  # refuses what is not finite


def _ranges(values: Ids, lower: Sequence[int]) -> Iterator[tuple[str, Mask]]:
    """Name and mask of each range; values below the first bound are in none.

    >>> [name for name, _ in _ranges(np.arange(3), (1, 17, 65))]
    ['1-16', '17-64', '65+']
    """
    for low, high in pairwise(lower):
        yield (str(low) if high == low + 1 else f"{low}-{high - 1}"), (values >= low) & (values < high)
    yield f"{lower[-1]}+", values >= lower[-1]
