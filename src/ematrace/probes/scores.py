"""Correct predictions by role, as integer counts, also by sentence: what intervals over tokens and sentences need."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ematrace.intervals import effective_trials

Labels = Sequence[str] | NDArray[Any]


@dataclass(frozen=True)
class Scores:
    """`per_role[role] = (correct, n)`, by true role.

    >>> scores = Scores({"agent": (8, 10), "patient": (3, 6)})
    >>> scores.accuracy, scores.subset(["patient"]).accuracy
    (0.6875, 0.5)
    """

    per_role: dict[str, tuple[int, int]]
    by_sentence: NDArray[np.int16] | None = field(default=None, compare=False, repr=False)
    """[sentences, roles, 2] the same counts of every sentence, roles in the order of `per_role`; None if not known."""

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
        chosen = {role: self.per_role.get(role, (0, 0)) for role in dict.fromkeys(roles)}
        if self.by_sentence is None:
            return Scores(chosen)
        at, order = [i for i, role in enumerate(self.per_role) if role in chosen], list(self.per_role)
        counts = np.zeros((len(self.by_sentence), len(chosen), 2), np.int16)
        counts[:, [list(chosen).index(order[i]) for i in at]] = self.by_sentence[:, at]
        return Scores(chosen, counts)

    def of_sentences(self, kept: NDArray[np.bool_]) -> Scores:
        """The scores of some of the sentences; the others stay, without tokens, so that resampling sees the same."""
        if self.by_sentence is None:
            raise ValueError("these scores are not known by sentence")
        counts = np.where(kept[:, None, None], self.by_sentence, np.int16(0))
        totals = counts.sum(0, dtype=np.int64).tolist()
        return Scores({role: (c, n) for role, (c, n) in zip(self.per_role, totals, strict=True)}, counts)

    @cached_property
    def n_effective(self) -> int | None:
        """As many independent tokens would scatter as much as these do over sentences; None if not known."""
        if self.by_sentence is None or not self.n:
            return None
        correct, n = self.by_sentence.sum(1, dtype=np.int64).T
        return int(effective_trials(correct, n))

    @cached_property
    def n_effective_per_role(self) -> dict[str, int]:
        """The same of every role that occurs; empty if not known."""
        if self.by_sentence is None:
            return {}
        found = effective_trials(self.by_sentence[:, :, 0], self.by_sentence[:, :, 1])
        return {role: int(m) for (role, (_, n)), m in zip(self.per_role.items(), found, strict=True) if n}


def score_roles(
    predicted: Labels,
    true: Labels,
    classes: Sequence[str] | None = None,
    lengths: Sequence[int] | None = None,
) -> Scores:
    """Compare label arrays, or integer code arrays when `classes` names the codes.

    `lengths` of the sentences that the tokens are of make the scores known by sentence.

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
    sentence = np.zeros(len(t), np.int64) if lengths is None else np.repeat(np.arange(len(lengths)), lengths)
    if len(sentence) != len(t):
        raise ValueError(f"lengths sum to {len(sentence)}, but there are {len(t)} labels")
    shape = (1 if lengths is None else len(lengths), len(roles))
    cells = sentence * len(roles) + codes
    counts = [np.bincount(at, minlength=math.prod(shape)).reshape(shape) for at in (cells[right], cells)]
    correct, n = (count.sum(0) for count in counts)
    by_sentence = None if lengths is None else np.stack(counts, axis=-1).astype(np.int16)
    return Scores({role: (int(correct[i]), int(n[i])) for i, role in enumerate(roles)}, by_sentence)
