"""Charts of benchmarks: bars against peers, lines over length and context. Shares of ceilings stand in the tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ematrace.bench import Run, Spread, Timed, label
from ematrace.bench.tables import duration, three_digits, times
from ematrace.report.charts import (
    MOST_TICKS,
    Axis,
    Bar,
    Line,
    LineChart,
    Point,
    RowChart,
    bar_chart,
    linear_axis,
    log_axis,
)

Lines = dict[str, list[tuple[int, Timed]]]


def points_of(run: Run, axis: str) -> Lines:
    """The times that differ only in the factor `axis`, as lines over it; a line has at least two points."""
    lines: Lines = {}
    for timed in run.timed:
        at = timed.factors.get(axis)
        if isinstance(at, int) and at > 0:
            others = {name: value for name, value in timed.factors.items() if name != axis}
            lines.setdefault(label(others), []).append((at, timed))
    return {name: sorted(points, key=lambda point: point[0]) for name, points in lines.items() if len(points) > 1}


def ratio_bars(ratios: Mapping[str, Spread]) -> RowChart | None:
    """Times over times, on a logarithmic axis from 1, so that twice and half are equally long."""
    bars = [Bar(name, spread[0], spread[1], spread[2], times(spread)) for name, spread in ratios.items()]
    if not bars:
        return None
    axis = log_axis(min(0.95, *(b.low for b in bars)), max(1.05, *(b.high for b in bars)), "{:g}x".format)
    caption = "Time over time, within repetitions"
    return bar_chart(caption, bars, axis, "time over time (1x: the same)", base=1.0, reference=1.0)


def length_lines(lines: Lines) -> LineChart:
    """Time against length, both logarithmic: linear cost is a line as steep as the guide."""
    longest, last = next(iter(lines.values()))[-1]
    lengths = [at for points in lines.values() for at, _ in points]
    seconds = [s for points in lines.values() for _, t in points for s in (t.timing.fastest, t.timing.slowest)]
    guide = [Point(end, last.timing.median * end / longest) for end in (min(lengths), max(lengths))]
    drawn = [*_lines(lines, lambda timed, s: s), Line("proportional to length", guide, marks=False)]
    y_axis = log_axis(min(seconds), max(seconds), lambda s: duration(s).replace(".00", "").replace(".0", ""))
    return LineChart("Time against length", drawn, _length_axis(lengths), y_axis, "length in tokens", "time")


def context_lines(lines: Lines) -> LineChart:
    """Tokens a second against the tokens that were read before."""
    contexts = [at for points in lines.values() for at, _ in points]
    rates = [timed.tokens / timed.timing.fastest for points in lines.values() for _, timed in points]
    y_axis = linear_axis(0.0, max(rates), lambda rate: f"{three_digits(rate / 1e3)}K" if rate >= 1e4 else f"{rate:g}")
    drawn = _lines(lines, lambda timed, s: timed.tokens / s)
    caption = "Tokens per second against context"
    return LineChart(caption, drawn, _length_axis(contexts), y_axis, "context in tokens", "tokens/s")


def _length_axis(places: Sequence[int]) -> Axis:
    """Ticks at lengths that were measured, as many as fit on a phone, the longest among them."""
    distinct = sorted(set(places))
    step = -(-len(distinct) // MOST_TICKS)
    return Axis(distinct[0], distinct[-1], distinct[::-step][::-1], log=True, label=_length)


def _length(tokens: float) -> str:
    return f"{tokens / 1024:g}K" if tokens >= 1024 and tokens % 1024 == 0 else f"{tokens:,g}"


def _lines(lines: Lines, figure_of: Callable[[Timed, float], float]) -> list[Line]:
    """A line per contender at its medians, with bars to its fastest and slowest repetition."""
    drawn = []
    for name, points in lines.items():
        marks = []
        for at, timed in points:
            low, high = sorted(figure_of(timed, s) for s in (timed.timing.fastest, timed.timing.slowest))
            median = figure_of(timed, timed.timing.median)
            marks.append(Point(at, median, (low, high)))
        drawn.append(Line(name, marks))
    return drawn
