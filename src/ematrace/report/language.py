"""Perplexity tables in the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich import box
from rich.bar import Bar
from rich.console import Group
from rich.table import Table
from rich.text import Text

from ematrace.evaluation import Evaluation, Score

BAR = 16  # characters of the longest bar


def evaluation_tables(result: Evaluation, name: str) -> Group:
    """Overall beside the models without context, then by domain and by position."""
    overall = _table("model")
    for label, score in {name: result.total, **result.baselines}.items():
        overall.add_row(label, *_cells(score))
    summary = f"{result.total.documents:,} documents, {result.bits_per_byte:.3f} bits per byte; ± is 95% over documents"
    parts: list[Table | Text] = [overall, Text(summary, style="dim")]
    if len(result.domains) > 1:
        domains = _table("domain")
        for label, score in sorted(result.domains.items(), key=lambda item: -item[1].tokens):
            domains.add_row(label, *_cells(score))
        parts.append(domains)
    parts.append(_positions(result.positions))
    return Group(*parts)


def _table(first: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, overflow="fold", min_width=14)
    for heading in ("tokens", "perplexity", "nats per token"):
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _cells(score: Score) -> tuple[str, str, str]:
    low, high = score.interval
    spread = "" if math.isnan(low) else f" ± {(high - low) / 2:.3f}"
    return f"{score.tokens:,}", f"{score.perplexity:,.1f}", f"{score.cross_entropy:.3f}{spread}"


def _positions(positions: Mapping[int, Score]) -> Table:
    table = _table("position")
    table.columns[0].no_wrap = True  # on a narrow terminal the bars give way, not what they stand for
    table.add_column("", max_width=BAR)
    highest = max(score.cross_entropy for score in positions.values())
    for start, score in sorted(positions.items()):
        end = max(2 * start - 1, 0)
        label = f"{start:,}" if end <= start else f"{start:,} to {end:,}"
        table.add_row(label, *_cells(score), Bar(highest, 0, score.cross_entropy, color="cyan"))
    return table
