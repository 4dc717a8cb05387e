"""A metric over the seeds that measured it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from statistics import fmean

from ematrace.intervals import median_interval, seed_interval, wilson_interval

CONFIDENCE = 0.95

Interval = tuple[float, float]


@dataclass(frozen=True)
class Sample:
    """A value per seed. `n` is how many items each was scored on, the fewest over seeds, if it is an accuracy.

    A single seed may have `repetitions` of a timing: they stand in for seeds in intervals, and only there. The value of
    a timing is their mean or their median, and its interval is that of the same.

    >>> sample = Sample((0.25, 0.75))
    >>> sample.mean, round(sample.sd, 3)
    (0.5, 0.354)
    >>> (sample - Sample((0.25, 0.25))).values
    (0.0, 0.5)
    """

    values: tuple[float, ...]
    n: int | None = None
    unit: str = ""
    repetitions: tuple[float, ...] = ()
    n_effective: int | None = None
    """How many independent items would scatter as much, the fewest over seeds."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(float(v) for v in self.values))

    def __sub__(self, other: Sample) -> Sample:
        """Seed by seed; both must be of the same seeds."""
        return Sample(tuple(a - b for a, b in zip(self.values, other.values, strict=True)), unit=self.unit)

    def __neg__(self) -> Sample:
        return Sample(tuple(-value for value in self.values), unit=self.unit)

    @property
    def known(self) -> bool:
        """False if any seed has no value: half a sample is not evidence."""
        return bool(self.values) and all(math.isfinite(v) for v in self.values)

    @property
    def draws(self) -> tuple[float, ...]:
        """What varies: values over seeds, or repetitions on the only seed."""
        return self.repetitions if len(self.values) == 1 and len(self.repetitions) >= 2 else self.values

    @property
    def mean(self) -> float:
        if not self.known:
            return math.nan
        # Identical values keep their exact mean, so that they still compare as equal.
        return self.values[0] if len(set(self.values)) == 1 else math.fsum(self.values) / len(self.values)

    @property
    def sd(self) -> float:
        """Standard deviation (m - 1) over seeds or repetitions; nan for fewer than two."""
        if not self.known or len(self.draws) < 2:
            return math.nan
        m = math.fsum(self.draws) / len(self.draws)
        if len(set(self.draws)) == 1:
            return 0.0
        return math.sqrt(math.fsum((v - m) ** 2 for v in self.draws) / (len(self.draws) - 1))

    @property
    def interval(self) -> Interval | None:
        """95%: Student over seeds (or repetitions); for a single accuracy over sentences where it is known how it
        scatters over them, else over items; else None.

        >>> Sample((2.0,), repetitions=(1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 9.0)).interval  # their median
        (1.0, 9.0)
        """
        if not self.known:
            return None
        if self.draws is not self.values and not math.isclose(self.values[0], fmean(self.draws), rel_tol=1e-9):
            low, high = median_interval(self.draws, CONFIDENCE)
            return None if math.isnan(low) else (low, high)
        if len(self.draws) >= 2:
            return (self.mean, self.mean) if self.sd == 0.0 else seed_interval(self.draws, CONFIDENCE)
        return self.over_sentences or self.over_items

    @property
    def over_items(self) -> Interval | None:
        """The Wilson interval that one run with the mean accuracy would have, were its items independent."""
        return self._over(self.n)

    @property
    def over_sentences(self) -> Interval | None:
        """The same with as many items as scatter like whole sentences; None where that is not known."""
        return self._over(self.n_effective)

    def _over(self, n: int | None) -> Interval | None:
        if not self.known or not n or self.unit != "accuracy":
            return None
        return _wilson(round(self.mean * n), n)


def common_seeds(of: Iterable[Iterable[int]]) -> tuple[int, ...]:
    """Those that all have, in their order.

    >>> common_seeds([(0, 1, 2), {2: 4.5, 1: 4.0}])
    (1, 2)
    """
    found = [set(seeds) for seeds in of]
    return tuple(sorted(set.intersection(*found))) if found else ()


@cache
def _wilson(k: int, n: int) -> Interval:
    """Once for each share: scipy computes a p-value with it, which takes milliseconds."""
    return wilson_interval(k, n, CONFIDENCE)
