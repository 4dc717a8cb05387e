"""Plots of benchmarks: bars against ceilings and peers, lines over length and context."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import cycle
from typing import TYPE_CHECKING, Any

from ematrace.bench import Run, Spread, Timed, label
from ematrace.bench.tables import count, duration, duration_range, percent, times
from ematrace.report.plots import (
    BLUE,
    GREEN,
    GREY,
    HEADROOM_PX,
    PURPLE,
    VERMILION,
    Plot,
    bar,
    make_figure,
    rows_axis,
    scatter,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

LABEL_WIDTH = 24  # characters
MARGIN = 0.2  # of an axis, for the numbers right of its bars
MOST_TICKS = 5  # that fit side by side on a phone
LOOKS = (
    (BLUE, "solid", "circle"),
    (VERMILION, "dash", "square"),
    (GREEN, "dot", "diamond"),
    (PURPLE, "dashdot", "cross"),
    (GREY, "longdash", "x"),
    (BLUE, "dot", "circle-open"),
    (VERMILION, "solid", "square-open"),
    (GREEN, "dashdot", "diamond-open"),
    (PURPLE, "dash", "cross-open"),
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


@dataclass(frozen=True)
class Bar:
    """Its value, the range over repetitions, the text beside it and the one on hover."""

    label: str
    value: float
    low: float
    high: float
    text: str
    hover: str


def share_bars(id: str, run: Run, rows: Sequence[Timed]) -> Plot | None:
    """The share of the ceiling that limits each row; its slowest repetition has the lowest share."""
    reached = [(timed, *nearest) for timed in rows if (nearest := run.share_of_ceiling(timed)) is not None]
    bars = [
        Bar(
            timed.label,
            share,
            share * timed.timing.median / timed.timing.slowest,
            share * timed.timing.median / timed.timing.fastest,
            percent(share),
            f"{timed.label}: {percent(share)} of {ceiling}; {in_words(timed)}",
        )
        for timed, ceiling, share in reached
    ]
    if not bars:
        return None
    groups = [f"of the measured {ceiling} rate" for _, ceiling, _ in reached]
    figure = _bar_figure(bars, groups, reference=1.0)
    longest = max(1.0, *(b.high for b in bars))
    figure.update_xaxes(title={"text": "share of the ceiling"}, tickformat=".0%", range=[0, (1 + MARGIN) * longest])
    figure.update_layout(showlegend=True)
    alt = "Bars: what share of the measured ceiling each contender reaches."
    return Plot(id, figure, alt, caption="Share of the measured ceiling")


def token_bars(id: str, rows: Sequence[Timed]) -> Plot | None:
    bars = [
        Bar(
            timed.label,
            timed.tokens_per_second,
            timed.tokens / timed.timing.slowest,
            timed.tokens / timed.timing.fastest,
            count(timed.tokens_per_second),
            f"{timed.label}: {in_words(timed)}",
        )
        for timed in rows
        if timed.tokens
    ]
    if not bars:
        return None
    figure = _bar_figure(bars, ["tokens/s"] * len(bars))
    longest = max(b.high for b in bars)
    figure.update_xaxes(title={"text": "tokens per second"}, range=[0, (1 + MARGIN) * longest], nticks=MOST_TICKS)
    return Plot(id, figure, "Bars: tokens per second of each contender.", caption="Tokens per second")


def ratio_bars(id: str, ratios: Mapping[str, Spread]) -> Plot | None:
    """Times over times, on a logarithmic axis from 1, so that twice and half are equally long."""
    bars = [
        Bar(name, spread[0], spread[1], spread[2], times(spread).split()[0], f"{name}: {times(spread)}")
        for name, spread in ratios.items()
    ]
    if not bars:
        return None
    figure = _bar_figure(bars, ["ratio"] * len(bars), base=1.0, reference=1.0)
    low, high = min(0.95, *(b.low for b in bars)), max(1.05, *(b.high for b in bars))
    span = math.log10(high / low)
    ends = [math.log10(low) - (0.05 * span if low < 0.95 else 0), math.log10(high) + MARGIN * span]
    ticks = ratio_ticks(low, high)
    x_axis = {"type": "log", "range": ends, "tickvals": ticks, "ticktext": [f"{tick:g}x" for tick in ticks]}
    figure.update_xaxes(title={"text": "time over time (1x: the same)"}, **x_axis)
    alt = "Bars from 1: the time of one contender over that of another, median and range within repetitions."
    return Plot(id, figure, alt, caption="Time over time, within repetitions")


def ratio_ticks(low: float, high: float) -> list[float]:
    """Round numbers for a logarithmic axis, as many as fit on a phone, 1 among them.

    >>> ratio_ticks(0.95, 1.28), ratio_ticks(0.6, 6.0), ratio_ticks(0.95, 168.0)
    ([1.0, 1.1, 1.2], [1.0, 2.0, 5.0], [1.0, 10.0, 100.0])
    """
    even = [[step * i for i in range(1, 1 + int(min(high, 10) / step))] for step in (0.1, 0.25, 0.5)]
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    rounds = [[m * 10.0**e for e in decades for m in mantissas] for mantissas in ((1, 2, 5), (1,))]
    for ticks in (*even, *rounds):
        shown = [float(f"{tick:.10g}") for tick in ticks if low <= tick <= high]
        if 2 <= len(shown) <= MOST_TICKS:
            return shown
    return [1.0]


def _bar_figure(
    bars: Sequence[Bar], groups: Sequence[str], *, base: float = 0.0, reference: float | None = None
) -> go.Figure:
    """Horizontal bars from `base`, a colour per group; the number stands right of the range."""
    data: list[Any] = []
    for group, colour in zip(dict.fromkeys(groups), (BLUE, VERMILION, GREEN), strict=False):
        own = [(i, b) for i, b in enumerate(bars) if groups[i] == group]
        data.append(
            bar(
                name=group,
                orientation="h",
                y=[i for i, _ in own],
                x=[b.value - base for _, b in own],
                base=base,
                error_x=_spread([b for _, b in own], GREY),
                marker={"color": colour},
                customdata=[escape(b.hover) for _, b in own],
                hovertemplate="%{customdata}<extra></extra>",
            )
        )
    data.append(
        scatter(
            mode="text",
            x=[max(b.high, base) for b in bars],
            y=list(range(len(bars))),
            text=[f" {b.text}" for b in bars],
            textposition="middle right",
            cliponaxis=False,
            showlegend=False,
            hoverinfo="skip",
        )
    )
    labels = [wrapped(b.label) for b in bars]
    lines = max(label.count("<br>") + 1 for label in labels)
    line = {"color": GREY, "width": 1.5, "dash": "dot"}
    upright = {"type": "line", "x0": reference, "x1": reference, "y0": 0, "y1": 1, "yref": "paper", "line": line}
    return make_figure(
        data,
        height=(10 + 17 * lines) * len(bars) + HEADROOM_PX,
        showlegend=False,
        yaxis=rows_axis(range(len(bars)), labels),
        bargap=1 - 0.75 / lines,
        barmode="overlay",
        shapes=[] if reference is None else [upright],
    )


def wrapped(name: str) -> str:
    """A name on lines short enough for a phone; one without spaces may break where it has underscores.

    >>> wrapped("learning_over_reservoirpy_run"), wrapped("ema_traces chunked")
    ('learning over<br>reservoirpy run', 'ema_traces chunked')
    """
    words = name if " " in name else name.replace("_", " ")
    return "<br>".join(escape(line) for line in textwrap.wrap(words, LABEL_WIDTH, break_on_hyphens=False))


def _spread(bars: Sequence[Bar], colour: str) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "array": [b.high - b.value for b in bars],
        "arrayminus": [b.value - b.low for b in bars],
        "color": colour,
        "thickness": 1.5,
        "width": 3,
    }


def length_lines(id: str, lines: Lines) -> Plot:
    """Time against length, both logarithmic: linear cost is a line as steep as the dotted one."""
    data = _lines(lines, lambda timed, seconds: seconds)
    longest, last = next(iter(lines.values()))[-1]
    ends = [f(at for points in lines.values() for at, _ in points) for f in (min, max)]
    data.append(
        scatter(
            name="proportional to length",
            mode="lines",
            x=ends,
            y=[last.timing.median * end / longest for end in ends],
            line={"color": GREY, "dash": "dot", "width": 1.5},
            hoverinfo="skip",
        )
    )
    y_axis = {"title": {"text": "time"}, "type": "log", "tickformat": "~s", "ticksuffix": "s", "dtick": 1}
    figure = _line_figure(data, lines, "length in tokens", y_axis)
    return Plot(id, figure, "Lines: time against length, both axes logarithmic.", caption="Time against length")


def context_lines(id: str, lines: Lines) -> Plot:
    """Tokens a second against the tokens that were read before."""
    data = _lines(lines, lambda timed, seconds: timed.tokens / seconds)
    y_axis = {"title": {"text": "tokens per second"}, "rangemode": "tozero", "zeroline": False}
    figure = _line_figure(data, lines, "context in tokens", y_axis)
    return Plot(id, figure, "Lines: tokens per second against context.", caption="Tokens per second against context")


def _lines(lines: Lines, figure_of: Callable[[Timed, float], float]) -> list[dict[str, Any]]:
    """A line per contender at its medians, with bars to its fastest and slowest repetition."""
    data = []
    for (name, points), (colour, dash, symbol) in zip(lines.items(), cycle(LOOKS)):
        marks = []
        for _, timed in points:
            low, high = sorted(figure_of(timed, s) for s in (timed.timing.fastest, timed.timing.slowest))
            marks.append(Bar(timed.label, figure_of(timed, timed.timing.median), low, high, "", in_words(timed)))
        data.append(
            scatter(
                name=escape(name),
                mode="lines+markers",
                x=[at for at, _ in points],
                y=[mark.value for mark in marks],
                error_y=_spread(marks, colour),
                line={"color": colour, "dash": dash, "width": 2},
                marker={"color": colour, "symbol": symbol, "size": 8},
                customdata=[escape(f"{mark.label}: {mark.hover}") for mark in marks],
                hovertemplate="%{customdata}<extra></extra>",
            )
        )
    return data


def in_words(timed: Timed) -> str:
    tokens = f", {count(timed.tokens_per_second)} tokens/s" if timed.tokens else ""
    return f"{duration(timed.timing.median)} ({duration_range(timed.timing)}){tokens}"


def _line_figure(data: Sequence[Any], lines: Lines, x_title: str, y_axis: dict[str, Any]) -> go.Figure:
    places = sorted({at for points in lines.values() for at, _ in points})
    step = math.ceil(len(places) / MOST_TICKS)
    x_axis = {
        "title": {"text": x_title},
        "type": "log",
        "tickvals": places[::-step][::-1],
        "ticktext": [f"{at:,}" for at in places[::-step][::-1]],
        "zeroline": False,
    }
    return make_figure(data, 420, xaxis=x_axis, yaxis=y_axis, showlegend=True)
