"""Small charts that need no script: dots and bars in rows, drawn by CSS, and lines, drawn by SVG.

No number is in a chart alone: tables have them all, or the text beside the marks. Horizontal places are percentages
and vertical ones pixels, so a chart takes any width without scaling its text. What a series looks like is a CSS class
in rows and legends (`m0`, `m1`, ...), and in SVG a symbol of the page (`m0` and, hollow, `h0`) or a class (`s0`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, TypeAlias

from ematrace.report.data import ReportData
from ematrace.report.formatting import over_seeds, short
from ematrace.report.parts import Part
from ematrace.results import Interval, Sample, Selector

N_STYLES = 6  # series that look different; page.html.j2 has a symbol and style.css a colour for each
MOST_TICKS = 5  # that fit side by side on a phone
PLANE_PX = 190  # height of a line chart, below its title
PLANE_TOP = 22
NARROWEST = 0.2  # percent, of a bar that is drawn
CAP = 2  # percent of a line chart, the width of the bar across the end of an interval
LARGEST = 1e300  # number that an axis shows; files may hold any
PLANE_LEFT = 11.0  # percent, for the numbers of the y axis


@dataclass(frozen=True)
class Mark:
    x: float
    y: float
    style: int
    hollow: bool = False
    kind: ClassVar[str] = "mark"


@dataclass(frozen=True)
class Path:
    """Lines between places, percent across and pixels down."""

    places: str
    style: str


@dataclass(frozen=True)
class Text:
    x: float
    y: float
    text: str
    style: str = ""
    kind: ClassVar[str] = "text"


Shape: TypeAlias = Mark | Text


@dataclass(frozen=True)
class Key:
    """A line of the legend."""

    name: str
    style: int
    hollow: bool = False
    guide: bool = False


@dataclass(frozen=True)
class Axis:
    """From numbers to percent of the width."""

    low: float
    high: float
    ticks: Sequence[float]
    log: bool = False
    label: Callable[[float], str] = "{:g}".format

    def share(self, x: float) -> float:
        """0 at the low end, 1 at the high one; what lies outside is put at the edge.

        >>> Axis(1, 100, (), log=True).share(10), Axis(0, 2, ()).share(3)
        (0.5, 1.0)
        """
        low, high = self.low, self.high
        if self.log:
            low, high, x = math.log(low), math.log(high), math.log(x) if x > 0 else -math.inf
        return min(1.0, max(0.0, (x - low) / (high - low)))

    def percent(self, x: float) -> float:
        return round(100 * self.share(x), 2)


def linear_axis(low: float, high: float, label: Callable[[float], str] = "{:g}".format) -> Axis:
    """With round ticks.

    >>> linear_axis(0, 1).ticks, linear_axis(0, 7200).ticks
    ((0.0, 0.25, 0.5, 0.75, 1.0), (0.0, 2000.0, 4000.0, 6000.0))
    """
    high = min(high, LARGEST) if high > low else low + 1.0
    decade = 10.0 ** math.floor(math.log10(high - low))
    steps = [decade * factor for factor in (0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0)]
    step = next(s for s in steps if math.floor(high / s + 1e-9) - math.ceil(low / s - 1e-9) < MOST_TICKS)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return Axis(low, high, tuple(float(f"{step * i:.10g}") for i in range(first, last + 1)), label=label)


def log_axis(low: float, high: float, label: Callable[[float], str] = "{:g}".format) -> Axis:
    """With ticks at round numbers, 1 among them if it is inside.

    >>> log_axis(0.95, 1.28).ticks, log_axis(0.6, 6.0).ticks, log_axis(0.95, 168.0).ticks
    ((1.0, 1.1, 1.2), (1.0, 2.0, 5.0), (1.0, 10.0, 100.0))
    """
    low = min(max(low, 1 / LARGEST), LARGEST / 2)
    high = min(high, LARGEST) if high > low else 2 * low
    steps = (0.1, 0.25, 0.5) if low >= 0.5 and high <= 10 else ()  # else they would crowd at one end
    even = [[step * i for i in range(1, 1 + int(high / step))] for step in steps]
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    thin = [[10.0**e for e in decades if e % every == 0] for every in (1, 2, 3, 5, 10, 20, 50, 100, 200)]
    for ticks in (*even, [m * 10.0**e for e in decades for m in (1, 2, 5)], *thin):
        shown = tuple(float(f"{tick:.10g}") for tick in ticks if low <= tick <= high)
        if 2 <= len(shown) <= MOST_TICKS:
            return Axis(low, high, shown, log=True, label=label)
    return Axis(low, high, (low, high), log=True, label=label)


@dataclass(frozen=True)
class Lane:
    """A line of a row, in percent of the width: a mark, the paper's (hollow), a bar, an interval."""

    style: int
    mark: float | None = None
    paper: float | None = None
    bar: Interval | None = None
    ends: Interval | None = None

    def places(self, base: float) -> str:
        """As style.css takes them; an end of a bar that is the base needs not be said.

        >>> Lane(0, mark=97.26, ends=(95.0, 99.5)).places(0.0), Lane(0, bar=(12.5, 40.0)).places(12.5)
        ('--x:97.3%;--l:95%;--h:99.5%', '--b:40%')
        """
        (a, b), (low, high) = (pair or (None, None) for pair in (self.bar, self.ends))
        a, b = (None if end == base else end for end in (a, b))
        named = {"x": self.mark, "p": self.paper, "a": a, "b": b, "l": low, "h": high}
        return ";".join(f"--{name}:{short(x)}%" for name, x in named.items() if x is not None)


@dataclass(frozen=True)
class Row:
    """A label, what is drawn beside it (on a phone below it), and a number at the end."""

    label: str
    lanes: Sequence[Lane]
    value: str = ""
    apart: bool = False


@dataclass(frozen=True)
class RowChart(Part):
    caption: str
    rows: Sequence[Row]
    axis: Axis
    x_title: str
    keys: Sequence[Key] = ()
    reference: float | None = None
    """Percent, of a dashed line through all rows."""
    macro = "row_chart"
    template = "charts.html.j2"

    @property
    def ticks(self) -> list[tuple[float, str]]:
        return [(self.axis.percent(tick), self.axis.label(tick)) for tick in self.axis.ticks]

    @property
    def grid(self) -> str:
        """As style.css takes it: the place of the reference, and of as many lines as there can be ticks."""
        places = [f"{short(x)}%" for x, _ in self.ticks] or ["0%"]
        places += places[-1:] * (MOST_TICKS - len(places))
        at = "" if self.reference is None else f"--at:{short(self.reference)}%;"
        return f"{at}--grid:{','.join(places)}"

    @property
    def base(self) -> float:
        return self.reference or 0.0

    @property
    def style(self) -> str:
        """CSS classes: numbers at the end, bars, and bars one below the other."""
        lanes = [lane for row in self.rows for lane in row.lanes]
        has = {
            "valued": any(row.value for row in self.rows),
            "bars": any(lane.bar for lane in lanes),
            "thin": len(lanes) > len(self.rows),
        }
        return " ".join(["rows", *(name for name, there in has.items() if there)])


@dataclass(frozen=True)
class Series:
    """One mark in each row of a dot chart: ours, and the paper's number if it has one."""

    name: str
    samples: Sequence[Sample | None]
    papers: Sequence[float | None] = ()


def dot_chart(
    caption: str,
    labels: Sequence[str],
    series: Sequence[Series],
    *,
    x_title: str = "accuracy",
    axis: Axis | None = None,
    groups: Sequence[int] = (),
    values: Sequence[str] = (),
) -> RowChart:
    """A row of marks with intervals for each label, the paper's hollow; a gap between rows of different `groups`."""
    shown = [s for s in series if any(f is not None and f.known for f in s.samples)]
    axis = axis or linear_axis(0.0, 1.0)
    rows = []
    for i, label in enumerate(labels):
        lanes = []
        for lane, one in enumerate(shown):
            sample, paper = one.samples[i], one.papers[i] if one.papers else None
            known = sample if sample is not None and sample.known else None
            lanes.append(
                Lane(
                    lane % N_STYLES,
                    None if known is None else axis.percent(known.mean),
                    None if paper is None else axis.percent(paper),
                    ends=None if known is None else _whisker(axis, known.interval),
                )
            )
        apart = bool(groups) and i > 0 and groups[i] != groups[i - 1]
        rows.append(Row(label, lanes, values[i] if values else "", apart))
    keys = [Key(one.name, lane) for lane, one in enumerate(shown)] if len(shown) > 1 else []
    if any(paper is not None for one in shown for paper in one.papers):
        keys = [*keys, Key("paper", 0, hollow=True)] if keys else [Key("ours", 0), Key("paper", 0, hollow=True)]
    return RowChart(caption, rows, axis, x_title, keys)


def _whisker(axis: Axis, ends: Interval | None) -> Interval | None:
    """style.css draws bars across the ends, longer than a mark is wide: an interval inside its mark shows too."""
    return None if ends is None or ends[0] == ends[1] else (axis.percent(ends[0]), axis.percent(ends[1]))


@dataclass(frozen=True)
class Bar:
    """Its value, the range over repetitions, and the text beside it."""

    label: str
    value: float
    low: float
    high: float
    text: str


def bar_chart(
    caption: str,
    bars: Sequence[Bar],
    axis: Axis,
    x_title: str,
    *,
    base: float = 0.0,
    reference: float | None = None,
) -> RowChart:
    """Bars from `base`, with their range and number."""
    rows = []
    for bar in bars:
        lane = Lane(0, bar=_span(axis, base, bar.value), ends=_whisker(axis, (bar.low, bar.high)))
        rows.append(Row(bar.label, [lane], bar.text))
    return RowChart(caption, rows, axis, x_title, reference=None if reference is None else axis.percent(reference))


def _span(axis: Axis, one: float, other: float) -> Interval:
    left, right = sorted((axis.percent(one), axis.percent(other)))
    return left, right


@dataclass(frozen=True)
class Fall:
    """A step of a waterfall: by how much the level falls, in parts, and the interval of the whole step."""

    label: str
    parts: Sequence[float]
    ends: Interval | None
    text: str


def waterfall_chart(
    caption: str, start: tuple[str, float], falls: Sequence[Fall], end: str, x_title: str, parts: Sequence[str]
) -> RowChart:
    """From a level, step by step, to another. The parts of a step are drawn one below the other, each from where the
    one before it ends, so that a part that rises shows, too. The line across is the interval of where the step ends."""
    moves = [part for fall in falls for part in fall.parts]
    levels = [start[1] - moved for moved in accumulate(moves, initial=0.0)]
    begun = levels[:: len(parts)]  # where each step begins
    ends = [level - end for level, fall in zip(begun, falls, strict=False) for end in fall.ends or ()]
    low, high = min(levels + ends), max(levels + ends)
    axis = linear_axis(low - 0.06 * (high - low), high + 0.06 * (high - low))
    level = start[1]
    rows = [Row(start[0], [Lane(N_STYLES - 1, axis.percent(level))], f"{level:.2f}")]
    for fall in falls:
        before, spans = level, []
        for part in fall.parts:
            spans.append(_span(axis, level, level - part))
            level -= part
        whisker = None if fall.ends is None else _whisker(axis, (before - fall.ends[1], before - fall.ends[0]))
        wide = [span if span[1] - span[0] >= NARROWEST else None for span in spans]
        last = len(wide) - 1
        lanes = [Lane(lane, bar=span, ends=whisker if lane == last else None) for lane, span in enumerate(wide)]
        rows.append(Row(fall.label, lanes, fall.text))
    rows.append(Row(end, [Lane(N_STYLES - 1, axis.percent(level))], f"{level:.2f}"))
    return RowChart(caption, rows, axis, x_title, [Key(name, lane) for lane, name in enumerate(parts)])


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    ends: Interval | None = None


@dataclass(frozen=True)
class Line:
    name: str
    points: Sequence[Point]
    marks: bool = True


@dataclass(frozen=True)
class LineChart(Part):
    """Lines with a bar for the interval at each point; one without marks is a level or a guide."""

    caption: str
    lines: Sequence[Line]
    x_axis: Axis
    y_axis: Axis
    x_title: str
    y_title: str
    macro = "line_chart"
    template = "charts.html.j2"
    height: ClassVar[int] = PLANE_TOP + PLANE_PX + 40

    @property
    def keys(self) -> list[Key]:
        return [Key(line.name, *_style(i), guide=not line.marks) for i, line in enumerate(self.lines)]

    def place(self, x: float, y: float) -> tuple[float, int]:
        across = PLANE_LEFT + (98 - PLANE_LEFT) * self.x_axis.share(x)
        return round(across, 2), round(PLANE_TOP + PLANE_PX * (1 - self.y_axis.share(y)))

    @property
    def paths(self) -> list[Path]:
        """The grid, and for each line a path and one for its intervals."""
        bottom = PLANE_TOP + PLANE_PX
        levels = [self.place(self.x_axis.low, tick)[1] for tick in self.y_axis.ticks]
        across = [self.place(tick, self.y_axis.low)[0] for tick in self.x_axis.ticks]
        grid = [f"M{PLANE_LEFT:g} {short(y)}H100" for y in levels] + [f"M{short(x)} {bottom}v4" for x in across]
        paths = [Path("".join(grid), "grid")]
        for i, line in enumerate(self.lines):
            style, hollow = _style(i)
            places = [self.place(point.x, point.y) for point in line.points]
            kind = f"s{style} line" + ("" if line.marks else " guide") + (" dashed" if hollow else "")
            paths.append(Path("M" + "L".join(f"{short(x)} {short(y)}" for x, y in places), kind))
            if intervals := "".join(self._intervals(line)):
                paths.append(Path(intervals, f"s{style}"))
        return paths

    def _intervals(self, line: Line) -> Iterator[str]:
        """A line down with a bar across either end."""
        for point in line.points:
            if point.ends is not None and point.ends[0] < point.ends[1]:
                (x, low), (_, high) = (self.place(point.x, end) for end in point.ends)
                across = f"h{CAP}m-{CAP // 2} 0"
                yield f"M{short(x - CAP // 2)} {short(low)}{across}V{short(high)}m-{CAP // 2} 0h{CAP}"

    @property
    def shapes(self) -> list[Shape]:
        """Everything else: text and marks."""
        bottom = PLANE_TOP + PLANE_PX
        shapes: list[Shape] = [Text(0, 12, self.y_title, "start"), Text(98, bottom + 34, self.x_title, "end")]
        for tick in self.y_axis.ticks:
            _, y = self.place(self.x_axis.low, tick)
            shapes.append(Text(PLANE_LEFT - 1.5, y + 4, self.y_axis.label(tick), "end"))
        for tick in self.x_axis.ticks:
            x, _ = self.place(tick, self.y_axis.low)
            shapes.append(Text(x, bottom + 17, self.x_axis.label(tick)))
        return [*shapes, *(shape for i, line in enumerate(self.lines) for shape in self._marks(i, line))]

    def _marks(self, i: int, line: Line) -> Iterator[Shape]:
        style, hollow = _style(i)
        for point in line.points if line.marks else ():
            yield Mark(*self.place(point.x, point.y), style, hollow)


def line_chart(caption: str, lines: Sequence[Line], x_title: str, y_title: str) -> LineChart:
    """With axes that fit the points, the one across logarithmic."""
    xs = [point.x for line in lines for point in line.points]
    ys = [end for line in lines for p in line.points for end in (p.y, *(p.ends or ()))]
    spread = (max(ys) - min(ys)) or 1.0
    low = 0.0 if min(ys) >= 0 and min(ys) < 0.2 * max(ys) else min(ys) - 0.05 * spread
    axis = log_axis(min(xs), max(xs) if max(xs) > min(xs) else math.nextafter(min(xs), math.inf))
    return LineChart(caption, lines, axis, linear_axis(low, max(ys) + 0.05 * spread), x_title, y_title)


def measured_points(data: ReportData, selectors: Mapping[float, Selector]) -> list[Point]:
    """Of each selector that has a value, with its interval over seeds."""
    found = {x: data.sample(selector) for x, selector in selectors.items()}
    return [Point(x, sample.mean, over_seeds(sample)) for x, sample in found.items() if sample and sample.known]


def _style(i: int) -> tuple[int, bool]:
    """Of the i-th series: after all styles are used up, the same with hollow marks."""
    return i % N_STYLES, i >= N_STYLES
