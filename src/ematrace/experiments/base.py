"""What an experiment is: a grid of factors, and a function that measures one point of it on one seed.

>>> def measure(ctx, width):
...     return {"area": width**2 + ctx.seed}
>>> squares = Experiment("squares", "Areas of squares", grid=factorial(width=[2, 3]), measure=measure)
>>> point = squares.points("cpu", seeds=2)[-1]
>>> point
Point(factors={'width': 3}, seed=1)
>>> rows_of(squares.measure(Context(seed=point.seed), **point.factors))[0].metrics["area"].value
10.0
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from ematrace.results import Factors, Metric, Row
from ematrace.results.schema import Factor

T = TypeVar("T")
Scale = Literal["cpu", "gpu"]
Device: TypeAlias = Literal["cuda", "cpu"]
"""Where a point runs. What is meant for a GPU (its scale) may also run on cores."""
Measured: TypeAlias = Sequence[Row] | Mapping[str, Metric | float]
"""Rows, each with factors of its own; or the metrics of a single one."""
NO_DEFAULT = ""


@dataclass(frozen=True)
class Point:
    """One point of a grid on one seed: what one file of results holds.

    >>> list(factorial(width=[2, 3])("cpu", seeds=1))
    [Point(factors={'width': 2}, seed=0), Point(factors={'width': 3}, seed=0)]
    """

    factors: Factors
    seed: int = 0


Grid: TypeAlias = Callable[[str, int], Iterable[Point]]
"""grid(scale, seeds) -> points."""


def factorial(**levels: Sequence[Factor]) -> Grid:
    """Every combination of the levels, on seeds 0, 1, ...; without levels, the seeds alone.

    >>> [p.factors for p in factorial(context=["ema", "none"], width=[64])("cpu", 1)]
    [{'context': 'ema', 'width': 64}, {'context': 'none', 'width': 64}]
    """

    def grid(scale: str, seeds: int) -> Iterable[Point]:
        for seed in range(seeds):
            for values in product(*levels.values()):
                yield Point(dict(zip(levels, values, strict=True)), seed)

    return grid


@dataclass(frozen=True)
class Experiment:
    """One table or figure, as data.

    >>> def measure(ctx, width):
    ...     return {"area": number(width**2, unit="m²")}
    >>> squares = Experiment("squares", "Areas of squares", grid=factorial(width=[2, 3]), measure=measure)
    >>> for point in squares.points("cpu", seeds=1):
    ...     print(point.factors, squares.measure(Context(seed=point.seed), **point.factors)["area"].value)
    {'width': 2} 4.0
    {'width': 3} 9.0
    """

    name: str
    """Of its folder of results, and in selectors; for the package's own also of its file."""
    title: str
    grid: Grid
    measure: Callable[..., Measured]
    """measure(ctx, **factors). It prints nothing and writes no result."""
    needs: Literal["cpu", "gpu", "any"] = "cpu"
    """`any` runs at the scale that is asked for; the others have one scale."""
    data: str | None = None
    """Default text source, which `--data` replaces. None: it reads no text; NO_DEFAULT: `--data` has to name one."""
    seeds: int = 1
    """How many by default: intervals within one seed are over tokens. Recorded results have more."""
    seconds: float = 60.0
    """Expected for one point, on one core or on the GPU; with `seconds_of`, for the toy that runs without a GPU."""
    seconds_of: Callable[[Point, Mapping[str, Any], Device, int], float] | None = None
    """seconds_of(point, settings, device, sharing) of a point for a GPU, which as many processes share."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Plain JSON that `measure` reads from `ctx.settings`. Recorded; when it changes, a point is measured again."""
    derived: Callable[[Point, Mapping[str, Any]], Mapping[str, Any]] | None = None
    """Settings that follow from the point and the other settings."""
    group: str | None = None
    """Points of one group with the same factors and seed run in one process, where `ctx.share` serves them all."""
    alone: bool = False
    """It measures speed: nothing of ours runs at the same time."""
    robustness: Grid | None = None
    """The same measurement under drawn conditions: `ematrace reproduce robustness`."""
    quick_draws: int = 0
    """How many of those run by default."""
    claims: str = ""
    """Claims of its own, in the format of claims.toml."""

    def scale(self, asked: str) -> Scale:
        """The scale it runs at when another is asked for."""
        if self.needs == "any":
            return "gpu" if asked == "gpu" else "cpu"
        return self.needs

    def points(self, scale: str, seeds: int) -> list[Point]:
        return list(self.grid(scale, seeds))

    def is_toy_for(self, where: Factors) -> bool:
        """Whether without a GPU it has no point with these factors, such as a size, and only shows that it runs.

        Factors that only rows have are passed over.
        """
        points = self.points("cpu", 1) if self.needs == "any" else []
        fitting = (all(p.factors.get(name, value) == value for name, value in where.items()) for p in points)
        return self.needs == "any" and not any(fitting)

    def resolve_settings(self, point: Point, changed: Mapping[str, Any]) -> dict[str, Any]:
        """What a point is measured with, and its file says; `changed` are the settings with changes in them."""
        return merged(changed, self.derived(point, changed) if self.derived else {})


@dataclass
class Context:
    """What `measure` is given beside its factors; nothing in it belongs to one experiment.

    >>> ctx = Context(seed=3, settings={"tokens": 1000})
    >>> ctx.share(sorted, (3, 1, 2)) is ctx.share(sorted, (3, 1, 2))  # made once
    True
    """

    seed: int = 0
    scale: str = "cpu"
    device: str = "cpu"
    """For torch: cpu or cuda."""
    data: str | None = None
    """The text source, where the experiment reads text."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    progress: Callable[[float], None] = lambda share: None
    """Call it with the share that is done, from 0 to 1."""
    scratch: Path | None = None
    """Where temporary folders belong (`TemporaryDirectory(dir=ctx.scratch)`): gone even if this process is killed."""
    memo: dict[Hashable, Any] = field(default_factory=dict)

    def share(self, factory: Callable[..., T], *args: Hashable) -> T:
        """factory(*args), made once for all points of a group: they run in one process, one after the other."""
        key = (factory, args)
        if key not in self.memo:
            self.memo[key] = factory(*args)
        made: T = self.memo[key]
        return made


def accuracy(
    value: float, n: int, better: Literal["low", "high"] | None = "high", n_effective: int | None = None
) -> Metric:
    """A share of n items; unknown if there were none.

    >>> accuracy(0.79, n=500)
    Metric(value=0.79, unit='accuracy', n=500, better='high')
    >>> accuracy(0.0, n=0).value is None
    True
    """
    return Metric(value if n else None, unit="accuracy", n=n, better=better, n_effective=n_effective)


def cross_entropy(nats: float | None, n: int | None = None) -> Metric:
    """A mean over n tokens, None if they were not counted; unknown if `nats` is None or not finite.

    >>> cross_entropy(4.5, n=500)
    Metric(value=4.5, unit='nats', n=500, better='low')
    >>> cross_entropy(None).value is None  # there was nothing to validate on
    True
    """
    return number(math.nan if nats is None else nats, "nats", "low", n)


def perplexity(value: float, n: int | None = None) -> Metric:
    """exp of the mean cross-entropy of n tokens, None if they were not counted; unknown if it is not finite.

    >>> perplexity(90.0, n=500)
    Metric(value=90.0, unit='perplexity', n=500, better='low')
    >>> perplexity(float("inf")).value is None
    True
    """
    return number(value, "perplexity", "low", n)


def rows_of(measured: Measured) -> list[Row]:
    """What `measure` returned, as rows. A plain number is a metric; one that is not finite is unknown."""
    if not isinstance(measured, Mapping):
        return list(measured)
    return [Row({}, {name: m if isinstance(m, Metric) else number(m) for name, m in measured.items()})]


def number(value: float, unit: str = "", better: Literal["low", "high"] | None = None, n: int | None = None) -> Metric:
    """A metric that is no accuracy; unknown if it is not finite.

    >>> number(float("nan")).value is None
    True
    """
    value = float(value)
    return Metric(value if math.isfinite(value) else None, unit=unit, n=n, better=better)


def merged(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with changes in their place, also inside nested mappings.

    >>> merged({"spcn": {"k": 0.08, "eta": 0.01}, "tokens": 5}, {"spcn": {"k": 0.02}})
    {'spcn': {'k': 0.02, 'eta': 0.01}, 'tokens': 5}
    """
    out = dict(settings)
    for name, value in changes.items():
        nested = isinstance(value, Mapping) and isinstance(out.get(name), Mapping)
        out[name] = merged(out[name], value) if nested else value
    return out
