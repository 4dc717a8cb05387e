"""Text that is made so that recall is all there is to it, and what can be said about it without a model.

In every window each symbol a has a successor f(a) of its own, drawn uniformly; the next symbol is f(x_t) with
probability `follow`, else any, uniformly. Windows share nothing. Near symbols have been seen more often, since f runs
in cycles: what could be known by distance is in the best loss, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from ematrace.experiments.recall import Ids

Nats = NDArray[np.float64]


@dataclass(frozen=True)
class MadeText:
    symbols: int = 32
    length: int = 64
    """Targets of a window."""
    follow: float = 0.75

    def draw(self, n: int, rng: np.random.Generator) -> Ids:
        """Windows [n, length + 1].

        >>> MadeText(symbols=4, length=6, follow=1.0).draw(1, np.random.default_rng(6))  # then only f is left
        array([[3, 1, 2, 2, 2, 2, 2]])
        """
        rows = np.arange(n)
        successor = rng.integers(self.symbols, size=(n, self.symbols))
        follows = rng.random((n, self.length)) < self.follow
        others = rng.integers(self.symbols, size=(n, self.length))
        windows = np.empty((n, self.length + 1), np.int64)
        windows[:, 0] = rng.integers(self.symbols, size=n)
        for t in range(self.length):
            windows[:, t + 1] = np.where(follows[:, t], successor[rows, windows[:, t]], others[:, t])
        return windows

    def bayes_nats(self, windows: Ids) -> Nats:
        """Of each target [n, length] under the best prediction.

        Given the c_b times that b followed a, f(a) is b with a probability proportional to r^c_b, where r is how much
        more likely b is to follow a if it is f(a): every other successor of a has the same probability.
        """
        by_chance = (1 - self.follow) / self.symbols
        log_r = math.log((self.follow + by_chance) / by_chance)
        rows = np.arange(len(windows))
        followed = np.zeros((len(windows), self.symbols, self.symbols))
        nats = np.empty((len(windows), self.length))
        for t in range(self.length):
            a, b = windows[:, t], windows[:, t + 1]
            log_odds = log_r * followed[rows, a]
            odds = np.exp(log_odds - log_odds.max(1, keepdims=True))
            nats[:, t] = -np.log(self.follow * odds[rows, b] / odds.sum(1) + by_chance)
            followed[rows, a, b] += 1
        return nats

    def counting_nats(self, windows: Ids) -> Nats:
        """Of each target for a reader who counts the symbols of the window so far and knows no pair: (c_b + λ) / (t +
        symbols λ) after t symbols, with the λ that is best for all targets of these windows."""
        one_hot = windows[:, :-1, None] == np.arange(self.symbols)
        counts = np.take_along_axis(np.cumsum(one_hot, axis=1), windows[:, 1:, None], 2)[..., 0]
        seen = np.arange(1, self.length + 1)

        def nats(log_lam: float) -> Nats:
            lam = math.exp(log_lam)
            found: Nats = -np.log((counts + lam) / (seen + self.symbols * lam))
            return found

        best = minimize_scalar(lambda log_lam: nats(log_lam).mean(), bounds=(-5, 5), method="bounded")
        return nats(float(best.x))
