"""Does a predicate of `claims.toml` hold on the cells we have?

A direction predicate rests on the 95% interval of a difference, the best that the two sides allow:

| left and right                                     | interval of the difference             | method     |
|----------------------------------------------------|----------------------------------------|------------|
| same experiment, a value per seed in both          | Student on per-seed differences        | paired     |
| two experiments, two seeds or more in each         | Welch                                  | welch      |
| one value and its tokens in each                   | Newcombe                               | newcombe   |
| seeds on one side, tokens on the other             | variances of the means added, normal   | mixed      |
| a ratio across experiments on one side             | the same, Student if all is over seeds | delta      |
| a selector and a number                            | Student or Wilson                      | one-sample |
| a single value without tokens, or no variation     | none: the means are compared           | point      |

Repetitions of a timing on a single seed take the place of seeds. Bounds (`<=`, `>=`) use the interval of left alone,
`==` the values themselves.

A predicate that does not hold is *refuted* if the whole interval lies on the other side, or outside the paper's band.
If the interval excludes neither, it is *undecided*. With `against`, what lies between the two bounds is undecided,
too. `not >` and `==` are never undecided: the one asks for
significance, the other has no interval. Nor is a point: without an interval the means decide, so a claim that needs
one says how many `seeds` it takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scipy.special import ndtri, stdtrit

from ematrace.intervals import (
    newcombe_difference_interval,
    paired_difference_interval,
    welch_difference_interval,
)
from ematrace.ledger.claims import Direction, PaperFigure
from ematrace.results import Interval, Sample, Selection, Selector
from ematrace.results.sample import CONFIDENCE

# A value on the bound is inside it, whatever binary fractions make of the bound.
TINY = 1e-9
ABSOLUTE_TOLERANCE = {"accuracy": 0.03, "cross_entropy": 0.05}
PERPLEXITY_TOLERANCE = 0.10

Lookup = Callable[[Selector], Selection | None]


@dataclass(frozen=True)
class Check:
    """One predicate, evaluated.

    `right` is the other side's mean, the number, or the paper's figure; `difference` is left - right, no `by`.
    `interval` is that of the difference in a comparison, that of left in a bound or a figure predicate.
    `holds` is None where a selector finds nothing (named in `missing`) or a ratio is undefined. `undecided`: it does
    not hold, but the interval does not exclude that it does.

    >>> from ematrace.results import Selector
    >>> direction = Direction(Selector.parse("my_probe/transfer"), ">", 0.5)
    >>> check = check_direction(direction, lambda selector: None)  # nothing was measured
    >>> check.predicate, check.holds, check.missing
    ('my_probe/transfer > 0.5', None, ('my_probe/transfer',))
    """

    kind: str
    predicate: str
    left: float | None
    right: float | None
    difference: float | None
    interval: Interval | None
    method: str | None
    holds: bool | None
    missing: tuple[str, ...] = ()
    undecided: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "predicate": self.predicate,
            "left": self.left,
            "right": self.right,
            "difference": self.difference,
            "interval": None if self.interval is None else list(self.interval),
            "method": self.method,
            "holds": self.holds,
            "missing": list(self.missing),
            "undecided": self.undecided,
        }


@dataclass(frozen=True)
class _Measured:
    """A mean, its interval if there is one, and how that was found."""

    mean: float
    interval: Interval | None
    method: str


@dataclass(frozen=True)
class _Estimate(_Measured):
    """A sample, or a ratio of two, with what is known of its noise.

    `variance` is that of the mean, on `df` degrees of freedom (infinite for tokens); None if it is not known.
    `sample` has the values; None if only the moments are left, as in a ratio across experiments. `selection` says
    which cells they are from.
    """

    variance: float | None
    df: float
    sample: Sample | None
    selection: Selection | None


def _estimate(sample: Sample, selection: Selection | None) -> _Estimate:
    interval, m = sample.interval, len(sample.draws)
    if m >= 2:
        method = "one-sample" if sample.sd > 0 else "point"
        return _Estimate(sample.mean, interval, method, sample.sd**2 / m, m - 1, sample, selection)
    if interval is not None:
        variance = ((interval[1] - interval[0]) / 2 / _quantile(math.inf)) ** 2
        return _Estimate(sample.mean, interval, "one-sample", variance, math.inf, sample, selection)
    return _Estimate(sample.mean, None, "point", None, math.inf, sample, selection)


def _of(selection: Selection) -> _Estimate:
    return _estimate(selection.sample, selection)


def _quantile(df: float) -> float:
    p = (1 + CONFIDENCE) / 2
    return float(ndtri(p)) if math.isinf(df) else float(stdtrit(df, p))


def _combined_df(parts: tuple[tuple[float, float], ...]) -> float:
    """Welch-Satterthwaite degrees of freedom of a sum of (variance, df); a part over tokens has infinitely many."""
    total = sum(v for v, _ in parts)
    # Shares of the variance, so that tiny variances do not underflow when squared.
    inverse = sum((v / total) ** 2 / df for v, df in parts)
    return 1 / inverse if inverse > 0 else math.inf


def _from_moments(mean: float, parts: tuple[tuple[float | None, float], ...], method: str) -> _Estimate:
    """An estimate whose variance is the sum of the parts'; a part of unknown variance leaves a bare point."""
    known = tuple((v, df) for v, df in parts if v is not None)
    if len(known) < len(parts):
        return _Estimate(mean, None, "point", None, math.inf, None, None)
    variance = sum(v for v, _ in known)
    if variance == 0.0:
        return _Estimate(mean, None, "point", 0.0, math.inf, None, None)
    df = _combined_df(known)
    half = _quantile(df) * math.sqrt(variance)
    return _Estimate(mean, (mean - half, mean + half), method, variance, df, None, None)


def _pairs(a: _Estimate, b: _Estimate) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Values that stand against each other: seeds of one experiment, or repetitions on the same seed of it."""
    if a.selection is None or b.selection is None or a.sample is None or b.sample is None:
        return None
    if not a.selection.is_paired_with(b.selection) or not len(a.sample.draws) == len(b.sample.draws) >= 2:
        return None
    return a.sample.draws, b.sample.draws


def _difference(a: _Estimate, b: _Estimate) -> _Measured:
    """a - b, by the table at the top of this file."""
    u, v = a.sample, b.sample
    if u is None or v is None:
        return _from_moments(a.mean - b.mean, ((a.variance, a.df), (b.variance, b.df)), "delta")
    if (pairs := _pairs(a, b)) is not None:
        differences = Sample(tuple(p - q for p, q in zip(*pairs, strict=True)))
        if differences.sd == 0.0:
            return _Measured(differences.mean, None, "point")
        return _Measured(differences.mean, paired_difference_interval(*pairs), "paired")
    mean = u.mean - v.mean
    if len(u.draws) >= 2 and len(v.draws) >= 2 and (u.sd > 0 or v.sd > 0):
        return _Measured(mean, welch_difference_interval(u.draws, v.draws), "welch")
    if u.over_items and v.over_items and u.n and v.n and len(u.draws) == len(v.draws) == 1:
        interval = newcombe_difference_interval(round(u.mean * u.n), u.n, round(v.mean * v.n), v.n)
        return _Measured(mean, interval, "newcombe")
    return _from_moments(mean, ((a.variance, a.df), (b.variance, b.df)), "mixed")


def _ratio(a: _Estimate, b: _Estimate) -> _Estimate | None:
    """a / b: per seed within an experiment, else the ratio of means by the delta method; None if b is zero."""
    if b.mean == 0.0 or (b.sample is not None and 0.0 in b.sample.draws):
        return None
    if (pairs := _pairs(a, b)) is not None:
        return _estimate(Sample(tuple(p / q for p, q in zip(*pairs, strict=True))), a.selection)
    # var(a/b) = var(a)/b^2 + a^2 var(b)/b^4
    parts = (
        (None if a.variance is None else a.variance / b.mean**2, a.df),
        (None if b.variance is None else a.mean**2 * b.variance / b.mean**4, b.df),
    )
    return _from_moments(a.mean / b.mean, parts, "delta")


def _find(selectors: tuple[Selector, ...], lookup: Lookup) -> tuple[dict[Selector, Selection], tuple[str, ...]]:
    """The selections found, and the selectors whose cells are missing or have a seed without a value."""
    found = {s: selection for s in selectors if (selection := lookup(s)) is not None and selection.sample.known}
    return found, tuple(str(s) for s in dict.fromkeys(selectors) if s not in found)


def compare_points(op: str, left: float, right: float, by: float = 0.0) -> bool:
    """The op on bare numbers, with `right + by` on the right."""
    if op == "==":
        return left == right
    if op == "within":
        return abs(left - right) < by
    return _gap_holds(op, left - right - by, TINY * max(abs(left), abs(right), abs(by)))


def _gap_holds(op: str, gap: float, tiny: float) -> bool:
    match op:
        case ">":
            return gap > tiny
        case "<":
            return gap < -tiny
        case "not >" | "<=":
            return gap <= tiny
        case ">=":
            return gap >= -tiny
    raise ValueError(f"unknown op {op!r}")


def _equal_everywhere(left: _Estimate, right: Selection | float) -> bool:
    """Seed by seed where the seeds are the same ones, else every value on both sides is the same number."""
    values = left.sample.values if left.sample is not None else (left.mean,)
    if not isinstance(right, Selection):
        return all(v == right for v in values)
    others = right.sample.values
    same_seeds = left.selection is not None and left.selection.seeds == right.seeds
    if same_seeds and len(values) == len(others):
        return values == others
    return len({*values, *others}) == 1


def check_direction(direction: Direction, lookup: Lookup) -> Check:
    """Evaluate a direction predicate.

    >>> from ematrace.results import Metric, Selection, Selector
    >>> measured = tuple(Metric(value, unit="accuracy", n=500) for value in (0.71, 0.74, 0.69))
    >>> direction = Direction(Selector.parse("my_probe/transfer"), ">", 0.5)
    >>> check = check_direction(direction, lambda selector: Selection(selector, (0, 1, 2), measured, ()))
    >>> check.holds, [round(end, 2) for end in check.interval]  # of the difference, over seeds
    (True, [0.15, 0.28])
    """
    found, missing = _find(direction.selectors, lookup)
    left: _Estimate | None = None
    if not missing:
        left = _of(found[direction.left])
        if direction.over is not None:
            left = _ratio(left, _of(found[direction.over]))
    if left is None:
        method = None if missing else "undefined ratio"
        return Check("direction", direction.text, None, None, None, None, method, None, missing)
    other = found[direction.right] if isinstance(direction.right, Selector) else direction.right
    right = other.sample.mean if isinstance(other, Selection) else other
    interval, method, holds, undecided = _compare(direction, left, other, right)
    gap = left.mean - right
    return Check("direction", direction.text, left.mean, right, gap, interval, method, holds, undecided=undecided)


def _compare(
    direction: Direction, left: _Estimate, other: Selection | float, right: float
) -> tuple[Interval | None, str, bool, bool]:
    """The interval that decides, how it was found, whether the predicate holds, and whether it is undecided."""
    op, by = direction.op, direction.by
    if op == "==":
        return None, "exact", _equal_everywhere(left, other), False
    if op in ("<=", ">="):
        lo, hi = left.interval or (left.mean, left.mean)
        worst, best = (hi, lo) if op == "<=" else (lo, hi)
        holds = compare_points(op, worst, right)
        bound = right if direction.against is None else direction.against
        return left.interval, "bound", holds, not holds and compare_points(op, best, bound)
    interval: Interval | None
    if isinstance(other, Selection):
        difference = _difference(left, _of(other))
        interval, method = difference.interval, difference.method
    elif left.interval is None or left.method == "point":
        interval, method = None, "point"
    else:
        interval, method = (left.interval[0] - right, left.interval[1] - right), left.method
    lo, hi = interval or (left.mean - right, left.mean - right)
    if op == "within":
        holds = -by < lo and hi < by
        return interval, method, holds, not holds and interval is not None and lo <= by and hi >= -by
    tiny = TINY * max(abs(left.mean), abs(right), abs(by))
    worst, best = (hi, lo) if op == "<" else (lo, hi)
    holds = _gap_holds(op, worst - by, tiny)
    # An end of the interval on the bound does not exclude the predicate, as it does not show it.
    bound = by if direction.against is None else direction.against
    points = interval is None and direction.against is None
    excluded = op == "not >" or points or not _gap_holds(f"{op}=", best - bound, tiny)
    return interval, method, holds, not holds and not excluded


def tolerance_band(paper: float, kind: str) -> Interval:
    """What counts as the paper's figure.

    >>> tolerance_band(0.5, "accuracy"), tolerance_band(50.0, "perplexity"), tolerance_band(2.0, "speed")
    ((0.47, 0.53), (45.0, 55.0), (2.0, inf))
    """
    if kind == "speed":
        return (paper, math.inf)
    width = PERPLEXITY_TOLERANCE * abs(paper) if kind == "perplexity" else ABSOLUTE_TOLERANCE[kind]
    return (paper - width, paper + width)


def check_figure(figure: PaperFigure, lookup: Lookup) -> Check:
    """Evaluate a figure predicate: all of our interval must lie in the band; if none of it does, it is refuted.

    >>> from ematrace.results import Metric, Selection, Selector
    >>> measured = tuple(Metric(value, unit="accuracy", n=500) for value in (0.78, 0.79, 0.79))
    >>> figure = PaperFigure(Selector.parse("my_probe/transfer"), paper=0.79, kind="accuracy")
    >>> check = check_figure(figure, lambda selector: Selection(selector, (0, 1, 2), measured, ()))
    >>> check.holds, [round(end, 2) for end in check.interval], tolerance_band(0.79, "accuracy")
    (True, [0.77, 0.8], (0.76, 0.8200000000000001))
    """
    found, missing = _find(figure.selectors, lookup)
    ours: _Measured | None = None
    if not missing:
        ours = of = _of(found[figure.of])
        if figure.minus is not None:
            ours = _difference(of, _of(found[figure.minus]))
        elif figure.over is not None:
            ours = _ratio(of, _of(found[figure.over]))
    if ours is None:
        method = None if missing else "undefined ratio"
        return Check("figure", figure.text, None, figure.paper, None, None, method, None, missing)
    lo, hi = ours.interval or (ours.mean, ours.mean)
    low, high = figure.band or tolerance_band(figure.paper, figure.kind)
    tiny = TINY * max(1.0, abs(figure.paper))
    holds = lo >= low - tiny and hi <= high + tiny
    undecided = not holds and hi >= low - tiny and lo <= high + tiny
    gap = ours.mean - figure.paper
    found_by = (ours.mean, figure.paper, gap, ours.interval, ours.method)
    return Check("figure", figure.text, *found_by, holds, undecided=undecided)
