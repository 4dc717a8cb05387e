"""SPCN as the paper writes it: dense float64 vectors, one line per equation. The specification, not the fast version.

The kernels are tested against this class. It is slow on purpose: no sparsity, no lazy decay, no in-place tricks.
Matrices are [post, pre], as in the paper.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ematrace.spcn.kernels import Rule

if TYPE_CHECKING:
    from ematrace.spcn.model import SPCN

Vector = npt.NDArray[np.float64]


def top_k(x: Vector, k: int) -> Vector:
    """Keep the k largest, ties to the lowest index, zero the rest."""
    kept = np.argsort(-x, kind="stable")[:k]
    out = np.zeros_like(x)
    out[kept] = x[kept]
    return out


class ReferenceHierarchy:
    """One direction of SPCN. `step(word)` settles, then commits: learns if asked, and integrates the traces."""

    def __init__(
        self,
        W_ff: list[Vector],
        W_lat: list[Vector],
        ks: list[int],
        rule: Rule,
        window: int,
        alpha_fast: list[float],
        alpha_slow: list[float],
    ) -> None:
        self.W_ff, self.W_lat, self.ks, self.rule, self.window = W_ff, W_lat, ks, rule, window
        self.alpha_fast, self.alpha_slow = alpha_fast, alpha_slow
        self.widths = [W.shape[0] for W in W_lat]
        above = [*self.widths[1:], 0]
        self.W_fb = [np.zeros((d, up)) for d, up in zip(self.widths, above, strict=True)]
        self.variance = [np.ones(d) for d in self.widths]
        self.pi = [np.ones(d) for d in self.widths]
        self.start_sentence()

    def start_sentence(self) -> None:
        self.x = [np.zeros(d) for d in self.widths]
        self.fast = [np.zeros(d) for d in self.widths]
        self.slow = [np.zeros(d) for d in self.widths]
        self.buffer: list[deque[Vector]] = [deque(maxlen=self.window) for _ in self.widths]

    def predict(self, level: int, x: list[Vector]) -> Vector:
        """x̂^(l) = W_fb^(l) x^(l+1)"""
        if level + 1 == len(x):
            return np.zeros(self.widths[level])
        return self.W_fb[level] @ x[level + 1]

    def spa(self, level: int, x: list[Vector]) -> Vector:
        """c_spa: attention from the precision-weighted error to the best of the buffered states."""
        if not self.rule.spa or not self.buffer[level]:
            return np.zeros(self.widths[level])
        past = np.stack(self.buffer[level])
        query = self.pi[level] * (x[level] - self.predict(level, x))
        scores = past @ query / np.sqrt(self.widths[level])
        best = np.argsort(-scores, kind="stable")[: self.rule.spa_top]
        share = np.exp(scores[best] - scores[best].max())
        return np.asarray(self.rule.spa_gain * (share / share.sum()) @ past[best])

    def drive_terms(self, level: int, word: Vector, x: list[Vector]) -> dict[str, Vector]:
        """The terms of Eq. 1; their sum is the argument of top-k."""
        below = word if level == 0 else x[level - 1]
        return {
            "feedforward": self.rule.alpha * self.W_ff[level] @ below,
            "feedback": self.rule.beta * self.predict(level, x),
            "lateral": self.rule.gamma * self.W_lat[level] @ x[level],
            "spa": self.spa(level, x),
        }

    def drive(self, level: int, word: Vector, x: list[Vector]) -> Vector:
        return np.sum(list(self.drive_terms(level, word, x).values()), axis=0)  # type: ignore[no-any-return]

    def activate(self, level: int, drive: Vector) -> Vector:
        if self.rule.by_magnitude:
            x = np.where(top_k(np.abs(drive), self.ks[level]) != 0, drive, 0.0)
        else:
            x = top_k(drive, self.ks[level])
        if self.rule.rectify:
            x = np.maximum(x, 0.0)
        length = np.linalg.norm(x)
        wanted = np.sqrt(np.count_nonzero(x)) if self.rule.per_active else 1.0
        return wanted * x / length if self.rule.normalise and length > 0 else x

    def settle(self, word: Vector) -> None:
        for _ in range(self.rule.settle_steps):
            before = list(self.x) if self.rule.synchronous else self.x
            for level in range(len(self.x)):
                self.x[level] = self.activate(level, self.drive(level, word, before))

    def learn(self) -> None:
        for level in range(len(self.x) - 1):
            error = self.x[level] - self.predict(level, self.x)
            gate = self.pi[level] ** self.rule.precision_power
            hebb = np.outer(gate * error, self.x[level + 1])
            self.W_fb[level] += self.rule.eta * hebb - self.rule.decay * self.W_fb[level]  # Eq. 3
            active = max(np.count_nonzero(self.x[level]), 1)
            usual = active / self.widths[level] if self.rule.per_active else 1.0  # the unit of the variance
            self.variance[level] += self.rule.variance_rate * (error**2 / usual - self.variance[level])
            self.pi[level] = np.clip(1 / self.variance[level], self.rule.pi_min, self.rule.pi_max)

    def one_hot(self, word: int) -> Vector:
        """Zeros for -1, a word without feed-forward drive."""
        out = np.zeros(self.W_ff[0].shape[1])
        if word >= 0:
            out[word] = 1.0
        return out

    def step(self, word: int, learning: bool) -> None:
        self.settle(self.one_hot(word))
        self.commit(learning)

    def commit(self, learning: bool) -> None:
        """What follows settling: PGHU, the buffer of SPA, the traces."""
        if learning:
            self.learn()
        for level, x in enumerate(self.x):
            self.buffer[level].append(x)
            a_f, a_s = self.alpha_fast[level], self.alpha_slow[level]
            self.fast[level] = (1 - a_f) * self.fast[level] + a_f * x  # Eq. 4
            self.slow[level] = (1 - a_s) * self.slow[level] + a_s * x  # Eq. 5


def reference_of(model: SPCN, side: str = "forward") -> ReferenceHierarchy:
    """The dense float64 hierarchy with a fitted model's present weights and settings."""
    fast = list(model.alpha_fast[: len(model.widths)])
    reference = ReferenceHierarchy(
        W_ff=[W.astype(np.float64) for W in model.W_ff(side)],
        W_lat=[W.astype(np.float64) for W in model.W_lat(side)],
        ks=list(model.ks_),
        rule=model.rule_,
        window=model.spa_window,
        alpha_fast=fast,
        alpha_slow=[model.slow_ratio * rate for rate in fast],
    )
    for level, W in enumerate(model.W_fb(side)):
        reference.W_fb[level] = W.astype(np.float64)
    weights = model.weights_[side]
    for level, d in enumerate(model.widths):
        reference.pi[level] = weights.precision[level, :d].astype(np.float64)
        reference.variance[level] = weights.variance[level, :d].astype(np.float64)
    return reference
