"""A benchmark's record on the terminal."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ematrace.bench.measure import Timing
from ematrace.bench.record import BenchmarkRecord, Row, Spread

UNITS = {1.0: "s", 1e-3: "ms", 1e-6: "µs", 1e-9: "ns"}
DASH = "–"
PIPE_WIDTH = 130
WORDS = (
    "",
    "benchmark",
    "row",
    "ratio",
    "figure",
    "note",
    "needs",
    "runs here",
    "what",
)  # heads of columns that hold no numbers


def at_least_wide(console: Console) -> Console:
    """Room for all columns in a file or a pipe, for which rich takes 80 characters where nobody says otherwise."""
    if console.is_terminal or "COLUMNS" in os.environ or console.width >= PIPE_WIDTH:
        return console
    return Console(width=PIPE_WIDTH)


def three_digits(x: float) -> str:
    """Three digits that count, without powers of ten where people write none.

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


def record_tables(record: BenchmarkRecord) -> Group:
    """Rows with their rates and shares of the ceilings; then ratios, figures, ceilings and what was checked."""
    parts: list[RenderableType] = [Text(record.title, style="bold")]
    if record.rows:
        parts.append(_rows_table(record))
    if record.ratios:
        ratios = [(name, times(spread)) for name, spread in record.ratios.items()]
        parts.append(table_of(["ratio", "median (range) within repetitions"], ratios))
    if record.figures:
        parts.append(table_of(["figure", "value"], [(name, three_digits(x)) for name, x in record.figures.items()]))
    return Group(
        *parts, *(Text(line, style="dim") for line in (*map(ceiling, record.ceilings.items()), *record.checks))
    )


def ceiling(item: tuple[str, float]) -> str:
    """A measured ceiling in words.

    >>> ceiling(("copy_bytes_per_second", 4.3e12)), ceiling(("matmul_flops_per_second", 7.9e14))
    ('measured copy: 4.30 TB/s', 'measured matmul: 790 TFLOP/s')
    """
    name, value = item
    for unit, words in {"_bytes_per_second": "B/s", "_flops_per_second": "FLOP/s"}.items():
        if name.endswith(unit):
            prefix, scale = ("T", 1e12) if value >= 1e12 else ("G", 1e9)
            what = name.removesuffix(unit).replace("_", " ")
            return f"measured {what}: {three_digits(value / scale)} {prefix}{words}"
    return f"measured {name.replace('_', ' ')}: {three_digits(value)}"


def _rows_table(record: BenchmarkRecord) -> Table:
    def shown(amount: float, scale: float = 1.0) -> str:
        return three_digits(amount / scale) if amount else DASH

    fast = any(row.operations_per_second >= 1e12 for row in record.rows)
    prefix, scale = ("T", 1e12) if fast else ("G", 1e9)
    columns: dict[str, Callable[[Row], str]] = {
        "median": lambda row: duration(row.timing.median),
        "spread": lambda row: duration_range(row.timing),
        "tokens/s": lambda row: count(row.tokens_per_second) if row.tokens else DASH,
        "GB/s": lambda row: shown(row.bytes_per_second, 1e9),
        "of copy": lambda row: percent(record.shares(row).get("copy")),
        "of read": lambda row: percent(record.shares(row).get("read")),
        f"{prefix}FLOP/s": lambda row: shown(row.operations_per_second, scale),
        "of matmul": lambda row: percent(record.shares(row).get("matmul")),
        "note": lambda row: row.note or DASH,
    }
    cells = {head: [cell(row) for row in record.rows] for head, cell in columns.items()}
    used = {head: column for head, column in cells.items() if any(text != DASH for text in column)}
    names = [row.name for row in record.rows]
    return table_of(["", *used], zip(names, *used.values(), strict=True))


def table_of(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Names and notes are folded where the terminal is narrow, numbers never."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in heads:
        words = head in WORDS
        table.add_column(head, overflow="fold", justify="left" if words else "right", no_wrap=not words)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def summary_table(records: Iterable[BenchmarkRecord]) -> Table:
    """All benchmarks of a run: a line per contender, and one per ratio to a peer."""
    lines: list[tuple[str, str, str, str, str, str]] = []
    for record in records:
        for row in record.rows:
            nearest = record.share_of_ceiling(row)
            share = DASH if nearest is None else f"{percent(nearest[1])} {nearest[0]}"
            tokens = count(row.tokens_per_second) if row.tokens else DASH
            lines.append((record.benchmark, row.name, duration(row.timing.median), tokens, share, DASH))
        lines += [(record.benchmark, name, DASH, DASH, DASH, times(spread)) for name, spread in record.ratios.items()]
    return table_of(["benchmark", "row", "median", "tokens/s", "of ceiling", "against peer"], lines)
