"""Plots of benchmarks: bars against the ceilings and against peers, lines over length and context."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import cycle
from typing import Any

import plotly.graph_objects as go

from ematrace.bench import BenchmarkRecord, Row
from ematrace.bench.record import Spread
from ematrace.bench.tables import count, duration, duration_range, percent, times
from ematrace.report.plots import BLUE, GREEN, GREY, HEADROOM_PX, PURPLE, VERMILION, Plot, _figure, _rows_axis

LABEL_WIDTH = 24  # characters
ROOM = 0.2  # of an axis, for the figures right of its bars
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
# "SPEN T=1024" is a point of the line SPEN at length 1024; "GPT-2 context=128" one at that context.
POINT = re.compile(r"(?P<name>.+) (?P<axis>T|context)=(?P<at>[\d,]+)")

Lines = dict[str, list[tuple[int, Row]]]


def points_of(record: BenchmarkRecord, axis: str) -> Lines:
    """The rows that are points over `axis`, "T" or "context", as a line per contender; none for a single place."""
    lines: Lines = {}
    for row in record.rows:
        if (match := POINT.fullmatch(row.name)) and match["axis"] == axis:
            lines.setdefault(match["name"], []).append((int(match["at"].replace(",", "")), row))
    if len({at for points in lines.values() for at, _ in points}) < 2:
        return {}
    return {name: sorted(points, key=lambda point: point[0]) for name, points in lines.items()}


@dataclass(frozen=True)
class Measured:
    """A bar: its value, the range over repetitions, and what it says beside it and on hover."""

    label: str
    value: float
    low: float
    high: float
    text: str
    hover: str


def share_bars(id: str, record: BenchmarkRecord, rows: Sequence[Row]) -> Plot | None:
    """The share of the measured ceiling that limits each row; its slowest repetition has the lowest share."""
    reached = [(row, *nearest) for row in rows if (nearest := record.share_of_ceiling(row)) is not None]
    bars = [
        Measured(
            row.name,
            share,
            share * row.timing.median / row.timing.slowest,
            share * row.timing.median / row.timing.fastest,
            percent(share),
            f"{row.name}: {percent(share)} of {ceiling}; {in_words(row)}",
        )
        for row, ceiling, share in reached
    ]
    if not bars:
        return None
    groups = [f"of the measured {ceiling} rate" for _, ceiling, _ in reached]
    figure = _bar_figure(bars, groups, reference=1.0)
    longest = max(1.0, *(bar.high for bar in bars))
    figure.update_xaxes(title={"text": "share of the ceiling"}, tickformat=".0%", range=[0, (1 + ROOM) * longest])
    figure.update_layout(showlegend=True)
    alt = "Bars: what share of the measured ceiling each contender reaches."
    return Plot(id, figure, alt, caption="Share of the measured ceiling")


def token_bars(id: str, rows: Sequence[Row]) -> Plot | None:
    bars = [
        Measured(
            row.name,
            row.tokens_per_second,
            row.tokens / row.timing.slowest,
            row.tokens / row.timing.fastest,
            count(row.tokens_per_second),
            f"{row.name}: {in_words(row)}",
        )
        for row in rows
        if row.tokens
    ]
    if not bars:
        return None
    figure = _bar_figure(bars, ["tokens/s"] * len(bars))
    longest = max(bar.high for bar in bars)
    figure.update_xaxes(title={"text": "tokens per second"}, range=[0, (1 + ROOM) * longest], nticks=MOST_TICKS)
    return Plot(id, figure, "Bars: tokens per second of each contender.", caption="Tokens per second")


def ratio_bars(id: str, ratios: Mapping[str, Spread]) -> Plot | None:
    """How many times as fast, on a logarithmic axis from 1, so that twice and half are equally long."""
    bars = [
        Measured(name, spread[0], spread[1], spread[2], times(spread).split()[0], f"{name}: {times(spread)}")
        for name, spread in ratios.items()
        if spread[1] > 0
    ]
    if not bars:
        return None
    figure = _bar_figure(bars, ["ratio"] * len(bars), base=1.0, reference=1.0)
    low, high = min(0.95, *(bar.low for bar in bars)), max(1.05, *(bar.high for bar in bars))
    span = math.log10(high / low)
    ends = [math.log10(low) - (0.05 * span if low < 0.95 else 0), math.log10(high) + ROOM * span]
    ticks = ratio_ticks(low, high)
    x_axis = {"type": "log", "range": ends, "tickvals": ticks, "ticktext": [f"{tick:g}x" for tick in ticks]}
    figure.update_xaxes(title={"text": "times as fast (1x: the same)"}, **x_axis)
    alt = "Bars from 1: how many times as fast, median and range within repetitions."
    return Plot(id, figure, alt, caption="Against peers, within repetitions")


def ratio_ticks(low: float, high: float) -> list[float]:
    """Round numbers for a logarithmic axis, as many as fit on a phone, 1 among them.

    >>> ratio_ticks(0.95, 1.28), ratio_ticks(0.6, 6.0), ratio_ticks(0.95, 168.0)
    ([1.0, 1.1, 1.2], [1.0, 2.0, 5.0], [1.0, 10.0, 100.0])
    """
    even = [[step * i for i in range(1, int(high / step) + 1)] for step in (0.1, 0.25, 0.5)]
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    rounds = [[m * 10.0**e for e in decades for m in mantissas] for mantissas in ((1, 2, 5), (1,))]
    for ticks in (*even, *rounds):
        shown = [round(tick, 10) for tick in ticks if low <= tick <= high]
        if 2 <= len(shown) <= MOST_TICKS:
            return shown
    return [1.0]


def _bar_figure(
    bars: Sequence[Measured], groups: Sequence[str], *, base: float = 0.0, reference: float | None = None
) -> go.Figure:
    """Horizontal bars from `base`, a colour per group, with the figure right of the range, where nothing crosses it."""
    data: list[Any] = []
    for group, colour in zip(dict.fromkeys(groups), (BLUE, VERMILION, GREEN), strict=False):
        own = [(i, bar) for i, bar in enumerate(bars) if groups[i] == group]
        data.append(
            go.Bar(
                name=group,
                orientation="h",
                y=[i for i, _ in own],
                x=[bar.value - base for _, bar in own],
                base=base,
                error_x=_spread([bar for _, bar in own], GREY),
                marker={"color": colour},
                customdata=[escape(bar.hover) for _, bar in own],
                hovertemplate="%{customdata}<extra></extra>",
            )
        )
    data.append(
        go.Scatter(
            mode="text",
            x=[max(bar.high, base) for bar in bars],
            y=list(range(len(bars))),
            text=[f" {bar.text}" for bar in bars],
            textposition="middle right",
            cliponaxis=False,
            showlegend=False,
            hoverinfo="skip",
        )
    )
    labels = [wrapped(bar.label) for bar in bars]
    lines = max(label.count("<br>") + 1 for label in labels)
    line = {"color": GREY, "width": 1.5, "dash": "dot"}
    upright = {"type": "line", "x0": reference, "x1": reference, "y0": 0, "y1": 1, "yref": "paper", "line": line}
    return _figure(
        data,
        height=(10 + 17 * lines) * len(bars) + HEADROOM_PX,
        showlegend=False,
        yaxis=_rows_axis(range(len(bars)), labels),
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


def _spread(bars: Sequence[Measured], colour: str) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "array": [bar.high - bar.value for bar in bars],
        "arrayminus": [bar.value - bar.low for bar in bars],
        "color": colour,
        "thickness": 1.5,
        "width": 3,
    }


def length_lines(id: str, lines: Lines) -> Plot:
    """Time against length, both logarithmic: linear cost is a line as steep as the dotted one."""
    data = _lines(lines, lambda row, seconds: seconds)
    longest, row = next(iter(lines.values()))[-1]
    ends = [f(at for points in lines.values() for at, _ in points) for f in (min, max)]
    data.append(
        go.Scatter(
            name="proportional to length",
            mode="lines",
            x=ends,
            y=[row.timing.median * end / longest for end in ends],
            line={"color": GREY, "dash": "dot", "width": 1.5},
            hoverinfo="skip",
        )
    )
    y_axis = {"title": {"text": "time"}, "type": "log", "tickformat": "~s", "ticksuffix": "s", "dtick": 1}
    figure = _line_figure(data, lines, "length in tokens", y_axis)
    return Plot(id, figure, "Lines: time against length, both axes logarithmic.", caption="Time against length")


def context_lines(id: str, lines: Lines) -> Plot:
    """Tokens a second against the tokens that were read before."""
    data = _lines(lines, lambda row, seconds: row.tokens / seconds)
    y_axis = {"title": {"text": "tokens per second"}, "rangemode": "tozero", "zeroline": False}
    figure = _line_figure(data, lines, "context in tokens", y_axis)
    return Plot(id, figure, "Lines: tokens per second against context.", caption="Tokens per second against context")


def _lines(lines: Lines, figure_of: Callable[[Row, float], float]) -> list[go.Scatter]:
    """A line per contender at its medians, with bars to its fastest and slowest repetition."""
    data = []
    for (name, points), (colour, dash, symbol) in zip(lines.items(), cycle(LOOKS)):
        marks = []
        for _, row in points:
            low, high = sorted(figure_of(row, s) for s in (row.timing.fastest, row.timing.slowest))
            marks.append(Measured(row.name, figure_of(row, row.timing.median), low, high, "", in_words(row)))
        data.append(
            go.Scatter(
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


def in_words(row: Row) -> str:
    tokens = f", {count(row.tokens_per_second)} tokens/s" if row.tokens else ""
    return f"{duration(row.timing.median)} ({duration_range(row.timing)}){tokens}"


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
    return _figure(data, 420, xaxis=x_axis, yaxis=y_axis, showlegend=True)
