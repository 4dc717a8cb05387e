"""Control tasks: how well would the probe do if it only memorised words? (Hewitt & Liang 2019)"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray


def label_weights(labels: Iterable[str], classes: Sequence[str]) -> NDArray[np.float64]:
    """Share of each class among `labels`: the `weights` that Hewitt & Liang draw from.

    >>> label_weights(["agent", "agent", "patient", "agent"], classes=["agent", "patient", "verb"])
    array([0.75, 0.25, 0.  ])
    """
    counts = Counter(labels)
    if unknown := sorted(set(counts) - set(classes)):
        raise ValueError(f"labels not in classes: {', '.join(map(repr, unknown[:5]))}")
    if not counts:
        raise ValueError("no labels to take a distribution from")
    shares = np.array([counts[name] for name in classes], dtype=np.float64)
    return np.asarray(shares / shares.sum(), dtype=np.float64)


def control_labels(
    words: Iterable[str],
    classes: Sequence[str],
    seed: int,
    weights: Sequence[float] | NDArray[np.floating] | None = None,
) -> NDArray[np.str_]:
    """One label per token that depends on the word type alone: C(word) ~ weights (uniform when not given).

    The draw is the inverse distribution function at a hash of (seed, word), so training and test sets with the
    same classes and weights agree on every word, however they are split.

    >>> control_labels(["cat", "dog", "sees", "cat"], classes=["agent", "patient"], seed=0).tolist()
    ['patient', 'patient', 'agent', 'patient']
    """
    p = np.ones(len(classes)) if weights is None else np.asarray(weights, dtype=np.float64)
    if p.shape != (len(classes),) or not np.isfinite(p).all() or (p < 0).any() or p.sum() == 0:
        raise ValueError(f"weights must be {len(classes)} finite shares, none negative and not all zero")
    cumulative = np.cumsum(p) / p.sum()
    cumulative[np.flatnonzero(p)[-1] :] = 1.0
    tokens = list(words)
    drawn = {
        word: classes[int(np.searchsorted(cumulative, _uniform(word, seed), side="right"))] for word in set(tokens)
    }
    return np.array([drawn[word] for word in tokens], dtype=np.str_)


def selectivity(task_accuracy: float, control_accuracy: float) -> float:
    """Accuracy on the task minus accuracy on its control task; near zero means that the probe memorises.

    >>> round(selectivity(task_accuracy=0.79, control_accuracy=0.25), 2)
    0.54
    """
    return task_accuracy - control_accuracy


def _uniform(word: str, seed: int) -> float:
    digest = blake2b(f"{seed}\0{word}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53
