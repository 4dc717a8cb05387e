"""Does a predicate of `claims.toml` hold on the figures we have?

A direction predicate rests on the 95% interval of a difference, the best that the two figures allow:

| left and right                                 | interval of the difference             | method     |
|------------------------------------------------|----------------------------------------|------------|
| same file, a value per seed in both            | Student on per-seed differences        | paired     |
| two files, two seeds or more in each           | Welch                                  | welch      |
| one value and its tokens in each               | Newcombe                               | newcombe   |
| seeds on one side, tokens on the other         | variances of the means added, normal   | mixed      |
| a ratio across files on one side               | the same, Student if all is over seeds | delta      |
| a figure and a number                          | Student or Wilson                      | one-sample |
| a single value without tokens, or no variation | none: the means are compared           | point      |

Bounds (`<=`, `>=`) use the interval of left alone, `==` the values themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy.special import ndtri, stdtrit

from ematrace.ledger.claims import Direction, PaperFigure
from ematrace.ledger.results import CONFIDENCE, Figure, Interval
from ematrace.probes.intervals import (
    newcombe_difference_interval,
    paired_difference_interval,
    welch_difference_interval,
)

# A value on the bound is inside it, whatever binary fractions make of the bound.
TINY = 1e-9
ABSOLUTE_TOLERANCE = {"accuracy": 0.03, "cross_entropy": 0.05}
PERPLEXITY_TOLERANCE = 0.10


@dataclass(frozen=True)
class Evidence:
    """A figure and the result it stands in; two figures of one file share their seeds."""

    figure: Figure
    path: Path
    seeds: tuple[int, ...]


Lookup = Callable[[str], Evidence | None]


@dataclass(frozen=True)
class Check:
    """One predicate, evaluated.

    `right` is the other figure, the number, or the paper's figure; `difference` is left - right, no `by`.
    `interval` is that of the difference in a comparison, that of left in a bound or a figure predicate.
    `holds` is None where a figure is missing (named in `missing`) or a ratio is undefined.
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
        }


@dataclass(frozen=True)
class _Measured:
    """A mean, its interval if there is one, and how that was found."""

    mean: float
    interval: Interval | None
    method: str


@dataclass(frozen=True)
class _Estimate(_Measured):
    """A figure, or a ratio of two, with what is known of its noise.

    `variance` is that of the mean, on `df` degrees of freedom (infinite for tokens); None if it is not known.
    `evidence` has the values per seed; None if only the moments are left, as in a ratio across files.
    """

    variance: float | None
    df: float
    evidence: Evidence | None


def _estimate(evidence: Evidence) -> _Estimate:
    figure = evidence.figure
    interval, m = figure.interval, len(figure.values)
    if m >= 2:
        method = "one-sample" if figure.sd > 0 else "point"
        return _Estimate(figure.mean, interval, method, figure.sd**2 / m, m - 1, evidence)
    if interval is not None:
        variance = ((interval[1] - interval[0]) / 2 / _quantile(math.inf)) ** 2
        return _Estimate(figure.mean, interval, "one-sample", variance, math.inf, evidence)
    return _Estimate(figure.mean, None, "point", None, math.inf, evidence)


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
        return _Estimate(mean, None, "point", None, math.inf, None)
    variance = sum(v for v, _ in known)
    if variance == 0.0:
        return _Estimate(mean, None, "point", 0.0, math.inf, None)
    df = _combined_df(known)
    half = _quantile(df) * math.sqrt(variance)
    return _Estimate(mean, (mean - half, mean + half), method, variance, df, None)


def _per_seed(a: Evidence | None, b: Evidence | None) -> bool:
    if a is None or b is None:
        return False
    return a.path == b.path and a.seeds == b.seeds and len(a.figure.values) == len(b.figure.values) >= 2


def _difference(a: _Estimate, b: _Estimate) -> _Measured:
    """a - b, by the table at the top of this file."""
    x, y = a.evidence, b.evidence
    if x is None or y is None:
        return _from_moments(a.mean - b.mean, ((a.variance, a.df), (b.variance, b.df)), "delta")
    u, v = x.figure, y.figure
    if _per_seed(x, y):
        differences = Figure(tuple(p - q for p, q in zip(u.values, v.values, strict=True)))
        if differences.sd == 0.0:
            return _Measured(differences.mean, None, "point")
        return _Measured(differences.mean, paired_difference_interval(u.values, v.values), "paired")
    mean = u.mean - v.mean
    if len(u.values) >= 2 and len(v.values) >= 2 and (u.sd > 0 or v.sd > 0):
        return _Measured(mean, welch_difference_interval(u.values, v.values), "welch")
    if len(u.values) == len(v.values) == 1 and u.n and v.n:
        interval = newcombe_difference_interval(round(u.mean * u.n), u.n, round(v.mean * v.n), v.n)
        return _Measured(mean, interval, "newcombe")
    return _from_moments(mean, ((a.variance, a.df), (b.variance, b.df)), "mixed")


def _ratio(a: _Estimate, b: _Estimate) -> _Estimate | None:
    """a / b: per seed within a file, else the ratio of means by the delta method; None if b is zero."""
    x, y = a.evidence, b.evidence
    if b.mean == 0.0 or (y is not None and 0.0 in y.figure.values):
        return None
    if x is not None and y is not None and _per_seed(x, y):
        values = tuple(p / q for p, q in zip(x.figure.values, y.figure.values, strict=True))
        return _estimate(Evidence(Figure(values), x.path, x.seeds))
    # var(a/b) = var(a)/b^2 + a^2 var(b)/b^4
    parts = (
        (None if a.variance is None else a.variance / b.mean**2, a.df),
        (None if b.variance is None else a.mean**2 * b.variance / b.mean**4, b.df),
    )
    return _from_moments(a.mean / b.mean, parts, "delta")


def _find(refs: tuple[str, ...], lookup: Lookup) -> tuple[dict[str, Evidence], tuple[str, ...]]:
    """The figures found, and the names of those that are missing or have a seed without a value."""
    found = {ref: evidence for ref in refs if (evidence := lookup(ref)) is not None and evidence.figure.known}
    return found, tuple(ref for ref in dict.fromkeys(refs) if ref not in found)


def compare_points(op: str, left: float, right: float, by: float = 0.0) -> bool:
    """The op on bare numbers, with `right + by` on the right."""
    if op == "==":
        return left == right
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


def _equal_everywhere(left: _Estimate, right: Evidence | float) -> bool:
    """Seed by seed where the seeds are the same ones, else every value on both sides is the same number."""
    values = left.evidence.figure.values if left.evidence is not None else (left.mean,)
    if not isinstance(right, Evidence):
        return all(v == right for v in values)
    others = right.figure.values
    same_seeds = left.evidence is not None and left.evidence.seeds == right.seeds
    if same_seeds and len(values) == len(others):
        return values == others
    return len({*values, *others}) == 1


def check_direction(direction: Direction, lookup: Lookup) -> Check:
    """Evaluate a direction predicate."""
    found, missing = _find(direction.refs, lookup)
    left: _Estimate | None = None
    if not missing:
        left = _estimate(found[direction.left])
        if direction.over is not None:
            left = _ratio(left, _estimate(found[direction.over]))
    if left is None:
        method = None if missing else "undefined ratio"
        return Check("direction", direction.text, None, None, None, None, method, None, missing)

    op, by = direction.op, direction.by
    other = found[direction.right] if isinstance(direction.right, str) else direction.right
    right = other.figure.mean if isinstance(other, Evidence) else other
    interval: Interval | None
    if op == "==":
        interval, method, holds = None, "exact", _equal_everywhere(left, other)
    elif op in ("<=", ">="):
        interval, method = left.interval, "bound"
        lo, hi = interval or (left.mean, left.mean)
        holds = compare_points(op, hi if op == "<=" else lo, right)
    else:
        if isinstance(other, Evidence):
            difference = _difference(left, _estimate(other))
            interval, method = difference.interval, difference.method
        elif left.interval is None or left.method == "point":
            interval, method = None, "point"
        else:
            interval, method = (left.interval[0] - right, left.interval[1] - right), left.method
        lo, hi = interval or (left.mean - right, left.mean - right)
        tiny = TINY * max(abs(left.mean), abs(right), abs(by))
        holds = _gap_holds(op, (hi if op == "<" else lo) - by, tiny)
    return Check("direction", direction.text, left.mean, right, left.mean - right, interval, method, holds)


def tolerance_band(paper: float, kind: str) -> Interval:
    """What counts as the paper's figure."""
    if kind == "speed":
        return (paper, math.inf)
    width = PERPLEXITY_TOLERANCE * abs(paper) if kind == "perplexity" else ABSOLUTE_TOLERANCE[kind]
    return (paper - width, paper + width)


def check_figure(figure: PaperFigure, lookup: Lookup) -> Check:
    """Evaluate a figure predicate: the whole interval of ours must lie in the band."""
    found, missing = _find(figure.refs, lookup)
    ours: _Measured | None = None
    if not missing:
        ours = of = _estimate(found[figure.of])
        if figure.minus is not None:
            ours = _difference(of, _estimate(found[figure.minus]))
        elif figure.over is not None:
            ours = _ratio(of, _estimate(found[figure.over]))
    if ours is None:
        method = None if missing else "undefined ratio"
        return Check("figure", figure.text, None, figure.paper, None, None, method, None, missing)
    lo, hi = ours.interval or (ours.mean, ours.mean)
    low, high = tolerance_band(figure.paper, figure.kind)
    tiny = TINY * max(1.0, abs(figure.paper))
    holds = lo >= low - tiny and hi <= high + tiny
    gap = ours.mean - figure.paper
    return Check("figure", figure.text, ours.mean, figure.paper, gap, ours.interval, ours.method, holds)
