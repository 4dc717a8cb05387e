"""Does a predicate of `claims.toml` hold on the cells we have?

A direction predicate rests on the 95% interval of a difference, the best that the two sides allow:

| left and right                                     | interval of the difference             | method     |
|----------------------------------------------------|----------------------------------------|------------|
| same experiment (or `paired`), the same seeds      | Student on per-seed differences        | paired     |
| the same with other seeds as well, three shared    | the same, on the shared seeds          | paired     |
| two experiments or settings, or fewer shared seeds | Welch                                  | welch      |
| one value in each, or over tokens                  | Newcombe (see below)                   | newcombe   |
| seeds on one side, tokens on the other             | variances of the means added, normal   | mixed      |
| a ratio across experiments on one side             | the same, Student if all is over seeds | delta      |
| a selector and a number                            | Student or Wilson                      | one-sample |
| a single value without tokens, or no variation     | none: the means are compared           | point      |

Tokens of a sentence are not independent. Where a single seed is judged, an interval rests on `n_effective` items, as
many as scatter like whole sentences; over tokens, as in the paper, on all of them.

Repetitions of a timing on a single seed take the place of seeds. Bounds (`<=`, `>=`) use the interval of left alone,
`==` the values themselves.

A predicate that does not hold is *refuted* if the whole interval lies on the other side, or outside the paper's band.
If the interval excludes neither, it is *undecided*. With `against`, what lies between the two bounds is undecided,
too. `not >` and `==` are never undecided: the one asks for
significance, the other has no interval. Nor is a point: without an interval the means decide, so a claim that needs
one says how many `seeds` it takes. With `unless` a predicate holds if either of two does, and is refuted if both are.

`p_against` is the one-sided p-value against a predicate, below .025 where its interval refutes it: for claims whose
comparisons are corrected as a family. With `unless` it is the larger of the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from scipy.special import ndtr, ndtri, stdtr, stdtrit

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
LEAST_SHARED = 3
"""Seeds for which the others of two arms are left out."""

Lookup = Callable[[Selector], Selection | None]


@dataclass(frozen=True)
class Check:
    """One predicate, evaluated.

    `left` and `right` are the means of all seeds of either side; `right` may be the number, or the paper's figure.
    `difference` is left - right, no `by`; of pairs, on the seeds that both sides have.
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
    p_against: float | None = None
    beside: Check | None = None
    """The alternative of `unless`; or, where the interval is over tokens, the same predicate over seeds."""

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
            "p_against": self.p_against,
            "beside": None if self.beside is None else self.beside.to_json(),
        }


@dataclass(frozen=True)
class _Measured:
    """A mean, its interval if there is one, how that was found, and its degrees of freedom (infinite for tokens)."""

    mean: float
    interval: Interval | None
    method: str
    df: float


@dataclass(frozen=True)
class _Estimate(_Measured):
    """A sample, or a ratio of two, with what is known of its noise.

    `variance` is that of the mean; None if it is not known.
    `sample` has the values; None if only the moments are left, as in a ratio across experiments. `selection` says
    which cells they are from.
    """

    variance: float | None
    sample: Sample | None
    selection: Selection | None


def _estimate(sample: Sample, selection: Selection | None) -> _Estimate:
    interval, m = sample.interval, len(sample.draws)
    if m >= 2:
        method = "one-sample" if sample.sd > 0 else "point"
        return _Estimate(sample.mean, interval, method, m - 1, sample.sd**2 / m, sample, selection)
    if interval is not None:
        variance = ((interval[1] - interval[0]) / 2 / _quantile(math.inf)) ** 2
        return _Estimate(sample.mean, interval, "one-sample", math.inf, variance, sample, selection)
    return _Estimate(sample.mean, None, "point", math.inf, None, sample, selection)


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
        return _Estimate(mean, None, "point", math.inf, None, None, None)
    variance = sum(v for v, _ in known)
    if variance == 0.0:
        return _Estimate(mean, None, "point", math.inf, 0.0, None, None)
    df = _combined_df(known)
    half = _quantile(df) * math.sqrt(variance)
    return _Estimate(mean, (mean - half, mean + half), method, df, variance, None, None)


def _pairs(a: _Estimate, b: _Estimate, paired: bool = False) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Values that stand against each other: of one experiment, on the seeds that both have; or repetitions on the only
    seed.

    With `paired`, also seeds that two experiments share, if both say that they had the same data.
    """
    if a.selection is None or b.selection is None or a.sample is None or b.sample is None:
        return None
    if paired and a.selection.selector.experiment != b.selection.selector.experiment:
        return a.selection.paired_values(b.selection)
    if len(a.selection.seeds) == len(b.selection.seeds) == 1:
        draws = a.sample.draws, b.sample.draws
        return draws if a.selection.is_paired_with(b.selection) and len(draws[0]) == len(draws[1]) >= 2 else None
    u = dict(zip(a.selection.seeds, a.sample.values, strict=True))
    v = dict(zip(b.selection.seeds, b.sample.values, strict=True))
    shared = [seed for seed in u if seed in v]
    if len(shared) < (2 if u.keys() == v.keys() else LEAST_SHARED):
        return None
    if not a.selection.on(shared).is_paired_with(b.selection.on(shared)):
        return None
    return tuple(u[seed] for seed in shared), tuple(v[seed] for seed in shared)


def _difference(a: _Estimate, b: _Estimate, paired: bool = False) -> _Measured:
    """a - b, by the table at the top of this file."""
    u, v = a.sample, b.sample
    if u is None or v is None:
        return _from_moments(a.mean - b.mean, ((a.variance, a.df), (b.variance, b.df)), "delta")
    if (pairs := _pairs(a, b, paired)) is not None:
        differences = Sample(tuple(p - q for p, q in zip(*pairs, strict=True)))
        if differences.sd == 0.0:
            return _Measured(differences.mean, None, "point", math.inf)
        return _Measured(differences.mean, paired_difference_interval(*pairs), "paired", len(differences.values) - 1)
    mean = u.mean - v.mean
    if len(u.draws) >= 2 and len(v.draws) >= 2 and (u.sd > 0 or v.sd > 0):
        df = _combined_df(tuple((e.variance, e.df) for e in (a, b) if e.variance is not None))
        return _Measured(mean, welch_difference_interval(u.draws, v.draws), "welch", df)
    if len(u.draws) == len(v.draws) == 1:
        of_one_run = _newcombe(u, v, u.n_effective or u.n, v.n_effective or v.n)
        if of_one_run is not None:
            return of_one_run
    return _from_moments(mean, ((a.variance, a.df), (b.variance, b.df)), "mixed")


def _newcombe(u: Sample, v: Sample, n_u: int | None, n_v: int | None) -> _Measured | None:
    """Of one run of each with the mean accuracies, on so many items; None where they are not accuracies."""
    if not (u.over_items and v.over_items and n_u and n_v):
        return None
    interval = newcombe_difference_interval(round(u.mean * n_u), n_u, round(v.mean * n_v), n_v)
    return _Measured(u.mean - v.mean, interval, "newcombe", math.inf)


def _ratio(a: _Estimate, b: _Estimate) -> _Estimate | None:
    """a / b: per seed within an experiment, else the ratio of means by the delta method; None if b is zero."""
    if b.mean == 0.0 or (b.sample is not None and 0.0 in b.sample.draws):
        return None
    if (pairs := _pairs(a, b)) is not None:
        ratios = Sample(tuple(p / q for p, q in zip(*pairs, strict=True)))
        return _estimate(ratios, a.selection and b.selection and a.selection.on(b.selection.seeds))
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
    if direction.unless is not None:
        return _either(direction, lookup)
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
    check = _compare(direction, left, other)
    if direction.interval == "tokens":
        return replace(check, beside=check_direction(msgspec.structs.replace(direction, interval="seeds"), lookup))
    return check


def _either(direction: Direction, lookup: Lookup) -> Check:
    """Holds if one of the two does, is refuted if both are."""
    assert direction.unless is not None
    alone = msgspec.structs.replace(direction, unless=None)
    first, second = check_direction(alone, lookup), check_direction(direction.unless, lookup)
    known = first.p_against is not None and second.p_against is not None
    p_against = max(first.p_against or 0.0, second.p_against or 0.0) if known else None
    both = replace(first, predicate=direction.text, beside=second, p_against=p_against)
    if first.holds is None or second.holds is None:
        return replace(both, holds=None, undecided=False, missing=tuple(dict.fromkeys(first.missing + second.missing)))
    holds = first.holds or second.holds
    return replace(both, holds=holds, undecided=not holds and (first.undecided or second.undecided))


def _compare(direction: Direction, left: _Estimate, other: Selection | float) -> Check:
    op, by = direction.op, direction.by
    right = other.sample.mean if isinstance(other, Selection) else other

    def check(found: _Measured, interval: Interval | None, method: str, *outcome: Any) -> Check:
        holds, undecided, p_against = outcome
        gap = left.mean - right if found is left else found.mean  # of pairs: on the seeds that both have
        return Check(
            "direction", direction.text, left.mean, right, gap, interval, method, holds,
            undecided=undecided, p_against=p_against,
        )  # fmt: skip

    if op == "==":
        return check(left, None, "exact", _equal_everywhere(left, other), False, None)
    if op in ("<=", ">="):
        lo, hi = left.interval or (left.mean, left.mean)
        worst, best = (hi, lo) if op == "<=" else (lo, hi)
        holds = compare_points(op, worst, right)
        bound = right if direction.against is None else direction.against
        undecided = not holds and compare_points(op, best, bound)
        return check(left, left.interval, "bound", holds, undecided, _p_against(op, left, bound))
    found = _difference_from(direction, left, other)
    lo, hi = found.interval or (found.mean, found.mean)
    if op == "within":
        holds = -by < lo and hi < by
        undecided = not holds and found.interval is not None and lo <= by and hi >= -by
        return check(found, found.interval, found.method, holds, undecided, None)
    tiny = TINY * max(abs(left.mean), abs(right), abs(by))
    worst, best = (hi, lo) if op == "<" else (lo, hi)
    holds = _gap_holds(op, worst - by, tiny)
    # An end of the interval on the bound does not exclude the predicate, as it does not show it.
    bound = by if direction.against is None else direction.against
    points = found.interval is None and direction.against is None
    excluded = op == "not >" or points or not _gap_holds(f"{op}=", best - bound, tiny)
    p_against = _p_against(op, found, bound)
    return check(found, found.interval, found.method, holds, not holds and not excluded, p_against)


def _difference_from(direction: Direction, left: _Estimate, other: Selection | float) -> _Measured:
    """left - other, with the interval that the direction asks for; a bare mean where there is none."""
    if not isinstance(other, Selection):
        mean = left.mean - other
        if left.interval is None or left.method == "point":
            return _Measured(mean, None, "point", math.inf)
        return _Measured(mean, (left.interval[0] - other, left.interval[1] - other), left.method, left.df)
    if direction.interval == "tokens" and left.sample is not None:
        over_tokens = _newcombe(left.sample, other.sample, left.sample.n, other.sample.n)
        return over_tokens or _Measured(left.mean - other.sample.mean, None, "point", math.inf)
    return _difference(left, _of(other), direction.paired)


def _p_against(op: str, found: _Measured, bound: float) -> float | None:
    """How likely a mean so far on the wrong side of the bound would be if the true one were on it, by the interval."""
    if op == "not >":
        return None
    wrong = found.mean - bound if op.startswith("<") else bound - found.mean
    lo, hi = found.interval or (found.mean, found.mean)
    half = (found.mean - lo if op.startswith("<") else hi - found.mean) if wrong > 0 else (hi - lo) / 2
    if half == 0.0:
        return 0.0 if wrong > 0 else 1.0
    t = wrong / half * _quantile(found.df)
    return float(ndtr(-t)) if math.isinf(found.df) else float(stdtr(found.df, -t))


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
