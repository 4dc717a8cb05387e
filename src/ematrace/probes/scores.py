"""Correct predictions by role, as integer counts: what a Wilson interval needs."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Labels = Sequence[str] | NDArray[Any]


@dataclass(frozen=True)
class Scores:
    """`per_role[role] = (correct, n)`, by true role.

    >>> scores = Scores({"agent": (8, 10), "patient": (3, 6)})
    >>> scores.accuracy, scores.subset(["patient"]).accuracy
    (0.6875, 0.5)
    """

    per_role: dict[str, tuple[int, int]]

    @property
    def correct(self) -> int:
        return sum(correct for correct, _ in self.per_role.values())

    @property
    def n(self) -> int:
        return sum(n for _, n in self.per_role.values())

    @property
    def accuracy(self) -> float:
        """correct / n over all tokens; nan when there are none."""
        return self.correct / self.n if self.n else math.nan

    def subset(self, roles: Collection[str]) -> Scores:
        """The scores of tokens whose true role is in `roles`; a role that never occurs counts (0, 0)."""
        return Scores({role: self.per_role.get(role, (0, 0)) for role in dict.fromkeys(roles)})


def score_roles(predicted: Labels, true: Labels, classes: Sequence[str] | None = None) -> Scores:
    """Compare label arrays, or integer code arrays when `classes` names the codes.

    >>> scores = score_roles(predicted=["agent", "agent", "verb"], true=["agent", "patient", "verb"])
    >>> scores.per_role
    {'agent': (1, 1), 'patient': (0, 1), 'verb': (1, 1)}
    """
    p, t = np.asarray(predicted), np.asarray(true)
    if p.ndim != 1 or p.shape != t.shape:
        raise ValueError(f"predicted and true must be equally long sequences, got {p.shape} and {t.shape}")
    right = p == t
    if classes is None:
        names, codes = np.unique(t, return_inverse=True)
        roles = [str(name) for name in names]
    else:
        roles, codes = list(classes), t
        if codes.dtype.kind not in "iu" or p.dtype.kind not in "iu":
            raise ValueError("with classes, predicted and true must be integer codes")
        if codes.size and not 0 <= codes.min() <= codes.max() < len(roles):
            raise ValueError(f"true codes must lie in 0..{len(roles) - 1}")
    n = np.bincount(codes, minlength=len(roles))
    correct = np.bincount(codes[right], minlength=len(roles))
    return Scores({role: (int(correct[i]), int(n[i])) for i, role in enumerate(roles)})
