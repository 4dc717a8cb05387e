"""A run of a benchmark on the terminal."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ematrace.bench.cells import FACTORS
from ematrace.bench.compare import Run, Spread, Timed
from ematrace.bench.measure import Timing

UNITS = {1.0: "s", 1e-3: "ms", 1e-6: "µs", 1e-9: "ns"}
DASH = "–"
WHY_EXCEEDED = "the machine was busier when the ceiling was measured, or the data fit a cache"
PIPE_WIDTH = 130
NAMED_FIRST = ("median", "spread")  # the other heads are units, which follow their number
READABLE = 24  # characters of a column of text that is not wrapped further
WIDEST = 10_000  # characters; what rich would take away from a table is not wanted
SUMMARY_LEGEND = (
    "of ceiling: share of the measured ceiling that a time comes nearest to; "
    "a / b: how many times as long a takes as b. What the words mean stands below each benchmark's own tables."
)
WORDS = ("", "benchmark", "what", "time over time", "figure", "needs", "runs here")  # heads of columns of text


def at_least_wide(console: Console) -> Console:
    """Wide enough for all columns: rich assumes 80 characters for a file or a pipe."""
    if console.is_terminal or "COLUMNS" in os.environ or console.width >= PIPE_WIDTH:
        return console
    return Console(width=PIPE_WIDTH)


def three_digits(x: float) -> str:
    """Three significant digits, without powers of ten down to a thousandth.

    >>> [three_digits(x) for x in (0.0, 0.04321, 1.5, 21.34, 489_123.0, 1.2e-7)]
    ['0', '0.0432', '1.50', '21.3', '489,123', '1.2e-07']
    """
    size = abs(x)
    if size >= 1:
        return f"{x:,.{2 if size < 9.995 else 1 if size < 99.95 else 0}f}"
    return f"{x:.3g}"


def duration(seconds: float) -> str:
    """In the unit that leaves one to three digits before the point.

    >>> [duration(x) for x in (75.0, 0.0123, 2.5e-4, 4e-7)]
    ['75.0 s', '12.3 ms', '250 µs', '400 ns']
    """
    scale = next((scale for scale in UNITS if seconds >= scale), 1e-9)
    return f"{three_digits(seconds / scale)} {UNITS[scale]}"


def duration_range(timing: Timing) -> str:
    """`11.9–14.2 ms`, in the unit of each end."""
    fast, slow = duration(timing.fastest), duration(timing.slowest)
    if fast.split()[1] == slow.split()[1]:
        fast = fast.split()[0]
    return f"{fast}–{slow}"


def count(x: float) -> str:
    """A rate of tokens as people say it.

    >>> [count(x) for x in (46.21, 5312.0, 489_123.0, 2.5e6)]
    ['46.2', '5,312', '489K', '2.50M']
    """
    return f"{three_digits(x / 1e6)}M" if x >= 1e6 else f"{x / 1e3:,.0f}K" if x >= 1e5 else three_digits(x)


def times(spread: Spread) -> str:
    """`1.45x (1.09–1.70)`."""
    median, lowest, highest = map(three_digits, spread)
    return f"{median}x ({lowest}–{highest})"


def percent(share: float | None) -> str:
    return DASH if share is None else f"{100 * share:.{0 if share >= 0.1 else 1}f}%"


def run_tables(run: Run) -> Group:
    """Times with their rates and shares of the ceilings; ratios; other figures; ceilings, checks and notes."""
    parts: list[RenderableType] = [Text(title(run), style="bold")]
    if run.timed:
        parts.append(_times_table(run))
    if run.ratios:
        parts.append(_ratio_table(run))
    if run.figures:
        parts.append(table_of(["figure", "value"], [(name, figure(x)) for name, x in run.figures.items()]))
    exceeded = [f"measured {name}: exceeded, so that shares of it are left out: {WHY_EXCEEDED}" for name in run.too_low]
    lines = (*map(ceiling, run.ceilings.items()), *exceeded, *run.about.checks, *run.about.notes, *legend(run))
    return Group(*parts, *(Text(line, style="dim") for line in lines))


def title(run: Run) -> str:
    return f"{run.about.title} (toy sizes: the times say nothing)" if run.about.quick else run.about.title


def legend(run: Run) -> list[str]:
    """What the lines of its tables mean."""
    lines = []
    if run.timed:
        lines.append("spread: from the fastest repetition to the slowest")
    if any(run.shares(timed) for timed in run.timed):
        lines.append("of copy, of read, of matmul: share of what was measured for a plain one in this run")
    if run.ratios:
        lines.append("a / b: how many times as long a takes as b, compared within each repetition")
    used = {name for cell in run.cells for name in cell.factors if "ceiling" not in cell.factors}
    return lines + [f"{name}: {meaning}" for name, meaning in FACTORS.items() if name in used - {"contender"}]


def figure(value: float | None) -> str:
    return DASH if value is None else three_digits(value)


def ceiling(item: tuple[str, float]) -> str:
    """A measured ceiling in words.

    >>> ceiling(("copy", 4.3e12)), ceiling(("matmul", 7.9e14))
    ('measured copy: 4.30 TB/s', 'measured matmul: 790 TFLOP/s')
    """
    name, rate = item
    unit = "FLOP/s" if name == "matmul" else "B/s"
    prefix, scale = ("T", 1e12) if rate >= 1e12 else ("G", 1e9)
    return f"measured {name}: {three_digits(rate / scale)} {prefix}{unit}"


def _times_table(run: Run) -> RenderableType:
    def shown(amount: float, scale: float = 1.0) -> str:
        return three_digits(amount / scale) if amount else DASH

    fast = any(timed.operations_per_second >= 1e12 for timed in run.timed)
    prefix, scale = ("T", 1e12) if fast else ("G", 1e9)
    columns: dict[str, Callable[[Timed], str]] = {
        "median": lambda timed: duration(timed.timing.median),
        "spread": lambda timed: duration_range(timed.timing),
        "tokens/s": lambda timed: count(timed.tokens_per_second) if timed.tokens else DASH,
        "GB/s": lambda timed: shown(timed.bytes_per_second, 1e9),
        "of copy": lambda timed: percent(run.shares(timed).get("copy")),
        "of read": lambda timed: percent(run.shares(timed).get("read")),
        f"{prefix}FLOP/s": lambda timed: shown(timed.operations_per_second, scale),
        "of matmul": lambda timed: percent(run.shares(timed).get("matmul")),
    }
    cells = {head: [cell(timed) for timed in run.timed] for head, cell in columns.items()}
    used = {head: column for head, column in cells.items() if any(text != DASH for text in column)}
    return Fitting(["", *used], list(zip([timed.label for timed in run.timed], *used.values(), strict=True)))


def _ratio_table(run: Run) -> Table:
    ratios = [(name, times(spread)) for name, spread in run.ratios.items()]
    return table_of(["time over time", "median (range)"], ratios)


@dataclass(frozen=True)
class Fitting:
    """A table where there is room for it, else a list: the first cell of a row, and below it the others by name."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        narrowest = table_of(self.heads, [(name[:READABLE], *values) for name, *values in self.rows])
        if Measurement.get(console, options.update(max_width=WIDEST), narrowest).maximum <= options.max_width:
            yield table_of(self.heads, self.rows)
            return
        yield Text()
        for name, *values in self.rows:
            known = [(head, value) for head, value in zip(self.heads[1:], values, strict=True) if value != DASH]
            phrases = [f"{head} {value}" if head in NAMED_FIRST else f"{value} {head}" for head, value in known]
            yield Text(name)
            yield Padding(Text(", ".join(phrases)), (0, 0, 0, 4))
        yield Text()


def table_of(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Words are wrapped on a narrow terminal, numbers never."""
    table, rows = Table(box=box.SIMPLE_HEAD, pad_edge=False), list(rows)
    for i, head in enumerate(heads):
        words = head in WORDS
        least = min(READABLE, max((len(row[i]) for row in rows), default=0)) if words else None
        justify: Literal["left", "right"] = "left" if words else "right"
        table.add_column(head, overflow="fold", justify=justify, no_wrap=not words, min_width=least)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def summary(runs: Iterable[Run]) -> Group:
    """All benchmarks: a line per time, and one per ratio."""
    return Group(*(_summary_of(run) for run in runs), Text(SUMMARY_LEGEND, style="dim"))


def _summary_of(run: Run) -> Group:
    lines: list[tuple[str, str, str, str]] = []
    for timed in run.timed:
        nearest = run.share_of_ceiling(timed)
        share = DASH if nearest is None else f"{percent(nearest[1])} {nearest[0]}"
        tokens = count(timed.tokens_per_second) if timed.tokens else DASH
        lines.append((timed.label, duration(timed.timing.median), tokens, share))
    parts: list[RenderableType] = [Text.assemble((run.benchmark, "bold"), f"  {title(run)}")]
    if lines:
        parts.append(table_of(["what", "median", "tokens/s", "of ceiling"], lines))
    return Group(*parts, *([_ratio_table(run)] if run.ratios else []))
