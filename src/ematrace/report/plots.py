"""Plotly figures from samples. Fonts, text colours and legends are set in page.js, by theme and width.

Plotly reads tags in its texts, so every text that may come from a file is escaped here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from ematrace.report.formatting import decimals_for, interval, number, over_seeds, plural
from ematrace.report.parts import Part
from ematrace.results import Sample

if TYPE_CHECKING:
    import plotly.graph_objects as go

# Okabe and Ito's colours, those with enough contrast on white and on near-black alike.
BLUE, VERMILION, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#808080"
ROW_PX = 28
HEADROOM_PX = 96


@dataclass(frozen=True)
class Plot(Part):
    """A figure, what it shows in words, and optionally several x's for its points to choose from."""

    id: str
    figure: go.Figure
    alt: str
    choices: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    caption: str = ""
    macro = "plot"

    def spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = json.loads(self.figure.to_json())
        spec["layout"].pop("template", None)
        if self.choices:
            spec["choices"] = [
                {"label": name, "title": escape(name), "x": list(xs)} for name, xs in self.choices.items()
            ]
        return spec


@dataclass(frozen=True)
class Panels(Part):
    """Plots side by side."""

    plots: Sequence[Plot]
    macro = "panels"

    def children(self) -> Iterable[object]:
        return self.plots


@dataclass(frozen=True)
class Series:
    """One mark per row of a dot plot: ours, and the paper's number if it has one."""

    name: str
    colour: str
    symbol: str
    samples: Sequence[Sample | None]
    papers: Sequence[float | None]


def make_figure(data: Sequence[dict[str, Any]], height: int, **layout: Any) -> go.Figure:
    """Traces as plain data, checked by plotly, without plotly's own look."""
    import plotly.graph_objects as go  # here: the terminal tables of this package do without

    return go.Figure(list(data), {"template": "none", "height": height, "showlegend": len(data) > 1, **layout})


def scatter(**trace: Any) -> dict[str, Any]:
    return {"type": "scatter", **trace}


def bar(**trace: Any) -> dict[str, Any]:
    return {"type": "bar", **trace}


def _hover(sample: Sample) -> str:
    """Mean and intervals, for the hover text."""
    decimals = decimals_for(sample.mean)
    seeds, tokens = over_seeds(sample), sample.over_items
    parts = [f"<b>{number(sample.mean)}</b>"]
    if seeds:
        noun = "seed" if len(sample.values) > 1 else "repetition"
        parts.append(f"{plural(len(sample.draws), noun)}: {interval(seeds, decimals)}")
    if tokens:
        parts.append(f"tokens: {interval(tokens, decimals)}")
    return "<br>".join(parts)


def _error(samples: Sequence[Sample], colour: str) -> dict[str, Any]:
    """Bars to the ends of each sample's interval."""
    ends = [f.interval or (f.mean, f.mean) for f in samples]
    return {
        "type": "data",
        "symmetric": False,
        "array": [hi - f.mean for (_, hi), f in zip(ends, samples, strict=True)],
        "arrayminus": [f.mean - lo for (lo, _), f in zip(ends, samples, strict=True)],
        "color": colour,
        "thickness": 1.5,
        "width": 3,
    }


def rows_axis(places: Sequence[float], labels: Sequence[str]) -> dict[str, Any]:
    """Categories as numbers, top to bottom, so that series can stand beside each other in a row."""
    return {
        "tickvals": list(places),
        "ticktext": list(labels),
        "range": [max(places, default=0) + 0.6, -0.6],
        "automargin": True,
        "zeroline": False,
        "showgrid": True,
    }


def dot_plot(
    id: str,
    labels: Sequence[str],
    series: Sequence[Series],
    alt: str,
    *,
    x_title: str = "accuracy",
    x_range: tuple[float, float] | None = (-0.01, 1.01),
    log: bool = False,
    groups: Sequence[int] | None = None,
) -> Plot:
    """Rows of marks with intervals, the paper's hollow; a gap between rows of different `groups`."""
    places: list[float] = []
    for i in range(len(labels)):
        gap = 0.5 if i and groups and groups[i] != groups[i - 1] else 0.0
        places.append(places[-1] + 1 + gap if i else 0.0)
    shown = [s for s in series if any(f is not None and f.known for f in s.samples)]
    step = 0.0 if len(shown) < 2 else min(0.24, 0.66 / (len(shown) - 1))
    offsets = [(i - (len(shown) - 1) / 2) * step for i in range(len(shown))]
    rows = [[(label, place + offset) for label, place in zip(labels, places, strict=True)] for offset in offsets]
    data = [_our_marks(s, at) for s, at in zip(shown, rows, strict=True)]
    hollow = [_paper_marks(s, at) for s, at in zip(shown, rows, strict=True) if any(p is not None for p in s.papers)]
    if hollow:
        mark = {"color": GREY, "symbol": "circle-open", "size": 13, "line": {"width": 1.5}}
        data.append(scatter(name="paper (hollow)", mode="markers", x=[None], y=[None], marker=mark))
    x_axis: dict[str, Any] = {"title": {"text": x_title}, "zeroline": False}
    if log:
        x_axis |= {"type": "log", "dtick": "D2"}
    elif x_range is not None:
        x_axis["range"] = list(x_range)
    else:
        x_axis["rangemode"] = "tozero"
    figure = make_figure(
        data + hollow,
        height=round(ROW_PX * (max(places, default=0) + 1.2) * max(1.0, len(shown) / 3)) + HEADROOM_PX,
        showlegend=len(data) > 1,
        xaxis=x_axis,
        yaxis=rows_axis(places, [escape(label) for label in labels]),
    )
    return Plot(id, figure, alt)


def _our_marks(series: Series, rows: Sequence[tuple[str, float]]) -> dict[str, Any]:
    """`rows` are the label and the place of each."""
    known = [(row, f) for row, f in zip(rows, series.samples, strict=True) if f is not None and f.known]
    edge = {"color": series.colour, "width": 1}
    return scatter(
        name=escape(series.name),
        mode="markers",
        x=[f.mean for _, f in known],
        y=[place for (_, place), _ in known],
        error_x=_error([f for _, f in known], series.colour),
        marker={"color": series.colour, "symbol": series.symbol, "size": 9, "line": edge},
        cliponaxis=False,
        customdata=[f"{escape(f'{label}, {series.name}')}: {_hover(f)}" for (label, _), f in known],
        hovertemplate="%{customdata}<extra></extra>",
    )


def _paper_marks(series: Series, rows: Sequence[tuple[str, float]]) -> dict[str, Any]:
    known = [(row, p) for row, p in zip(rows, series.papers, strict=True) if p is not None]
    return scatter(
        name=escape(f"{series.name}, paper"),
        mode="markers",
        showlegend=False,
        x=[p for _, p in known],
        y=[place for (_, place), _ in known],
        marker={"color": series.colour, "symbol": f"{series.symbol}-open", "size": 13, "line": {"width": 1.5}},
        customdata=[f"{escape(f'{label}, {series.name}')}: paper <b>{number(p)}</b>" for (label, _), p in known],
        hovertemplate="%{customdata}<extra></extra>",
    )


@dataclass(frozen=True)
class Curve:
    """A line over the lags, with the interval as a bar at each."""

    name: str
    colour: str
    dash: str
    symbol: str
    points: Sequence[tuple[int, Sample]]


def curves(id: str, lines: Sequence[Curve], level: tuple[str, Sample] | None, alt: str, caption: str = "") -> Plot:
    """Accuracy against lag; `level` is a horizontal line with a name."""
    data = [
        scatter(
            name=line.name,
            mode="lines+markers",
            x=[lag for lag, _ in line.points],
            y=[f.mean for _, f in line.points],
            error_y=_error([f for _, f in line.points], line.colour),
            line={"color": line.colour, "dash": line.dash, "width": 2},
            marker={"color": line.colour, "symbol": line.symbol, "size": 8},
            customdata=[f"{line.name}, lag {lag}: {_hover(f)}" for lag, f in line.points],
            hovertemplate="%{customdata}<extra></extra>",
        )
        for line in lines
    ]
    lags = [lag for line in lines for lag, _ in line.points]
    if level is not None and lags:
        name, sample = level
        ends = [min(lags) - 0.3, max(lags) + 0.3]
        data.append(
            scatter(
                name=name,
                mode="lines",
                x=ends,
                y=[sample.mean] * 2,
                line={"color": GREY, "width": 3},
                customdata=[f"{name}: {_hover(sample)}"] * 2,
                hovertemplate="%{customdata}<extra></extra>",
            )
        )
    x_axis = {"title": {"text": "words back (lag)"}, "dtick": 1, "zeroline": False}
    y_axis = {"title": {"text": "accuracy"}, "range": [-0.02, 1.04], "zeroline": False}
    # Room for five lines of legend, so that panels side by side have axes of one height.
    figure = make_figure(data, 400, xaxis=x_axis, yaxis=y_axis, showlegend=True, margin={"b": 150})
    return Plot(id, figure, alt, caption=caption)


def share_bars(
    id: str, labels: Sequence[str], shares: Sequence[tuple[int, int]], texts: Sequence[str], alt: str
) -> Plot:
    """In how many of how many conditions each row holds; `texts` say what it is, on hover."""
    data = [
        bar(
            orientation="h",
            y=list(range(len(labels))),
            x=[holds / n for holds, n in shares],
            text=[f"{holds}/{n}" for holds, n in shares],
            textposition="outside",
            cliponaxis=False,
            marker={"color": BLUE},
            customdata=[f"{h} of {n}: {escape(text)}" for text, (h, n) in zip(texts, shares, strict=True)],
            hovertemplate="%{customdata}<extra></extra>",
        )
    ]
    figure = make_figure(
        data,
        height=22 * len(labels) + HEADROOM_PX,
        xaxis={"title": {"text": "share of drawn grammars"}, "range": [0, 1.1], "tickformat": ".0%"},
        yaxis=rows_axis(range(len(labels)), [escape(label) for label in labels]),
        bargap=0.3,
    )
    return Plot(id, figure, alt)


def strips(id: str, labels: Sequence[str], samples: Sequence[Sample], alt: str) -> Plot:
    """Every seed's distance from the mean, over the band that tokens alone would explain."""
    bands = [(i, f, tokens) for i, f in enumerate(samples) if (tokens := f.over_items) is not None]
    band = bar(
        name="95% by tokens (Wilson, one run)",
        orientation="h",
        y=[i for i, _, _ in bands],
        base=[lo - f.mean for _, f, (lo, _) in bands],
        x=[hi - lo for _, _, (lo, hi) in bands],
        width=0.62,
        marker={"color": GREY, "opacity": 0.35},
        customdata=[f"{escape(labels[i])}, tokens: {interval(ends, decimals_for(f.mean))}" for i, f, ends in bands],
        hovertemplate="%{customdata}<extra></extra>",
    )
    points = [(i, f, v) for i, f in enumerate(samples) for v in f.values]
    dots = scatter(
        name="one seed",
        mode="markers",
        x=[v - f.mean for _, f, v in points],
        y=[i for i, _, _ in points],
        marker={"color": BLUE, "symbol": "line-ns-open", "size": 11, "line": {"width": 2}},
        customdata=[f"{escape(labels[i])}: {number(v)}" for i, _, v in points],
        hovertemplate="%{customdata}<extra></extra>",
    )
    figure = make_figure(
        [band, dots],
        height=ROW_PX * len(labels) + HEADROOM_PX,
        xaxis={"title": {"text": "distance from the mean"}, "zeroline": True, "tickformat": "+.3f"},
        yaxis=rows_axis(range(len(labels)), [escape(label) for label in labels]),
    )
    return Plot(id, figure, alt)


def condition_scatter(
    id: str,
    parameters: Mapping[str, Sequence[float | None]],
    series: Sequence[tuple[str, Sequence[float | None]]],
    alt: str,
) -> Plot:
    """One mark per drawn condition and series; the reader chooses the parameter on the x axis."""
    first = next(iter(parameters))
    marks = [(BLUE, "circle"), (VERMILION, "square"), (BLUE, "circle-open"), (VERMILION, "square-open")]
    data = [
        scatter(
            name=escape(name),
            mode="markers",
            x=list(parameters[first]),
            y=list(values),
            marker={"color": colour, "symbol": symbol, "size": 9, "line": {"color": colour, "width": 1.5}},
            hovertemplate=f"{escape(name)}: %{{y:.3f}} at %{{x:.3g}}<extra></extra>",
        )
        for (name, values), (colour, symbol) in zip(series, marks, strict=False)
    ]
    x_axis = {"title": {"text": escape(first)}, "zeroline": False}
    y_axis = {"title": {"text": "accuracy"}, "zeroline": False}
    return Plot(id, make_figure(data, 420, xaxis=x_axis, yaxis=y_axis), alt, choices=parameters)
