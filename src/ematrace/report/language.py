"""Perplexity tables in the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich import box
from rich.bar import Bar
from rich.console import Group
from rich.table import Table
from rich.text import Text

from ematrace.evaluation import Evaluation, Score, difference

BAR = 16  # characters of the longest bar


def evaluation_tables(result: Evaluation, name: str) -> Group:
    """Overall beside the models without context, then by domain and by position."""
    overall = _table("model")
    for label, score in {name: result.total, **result.baselines}.items():
        overall.add_row(label, *_cells(score))
    documents = f"{result.total.documents:,} document{'s' * (result.total.documents != 1)}"
    summary = f"{documents}, {result.bits_per_byte:.3f} bits per byte; ± is 95% over {result.total.interval_over}"
    parts: list[Table | Text] = [overall, Text(summary, style="dim")]
    if len(result.domains) > 1:
        domains = _table("domain")
        for label, score in sorted(result.domains.items(), key=lambda item: -item[1].tokens):
            domains.add_row(label, *_cells(score))
        parts.append(domains)
    parts.append(_positions(result.positions))
    return Group(*parts)


def comparison_table(results: Mapping[str, Evaluation]) -> Group:
    """Models side by side on the same text, and how much each differs from the first, paired."""
    first, *others = results
    differences = {name: difference(results[name], results[first]) for name in others}
    per_byte = any(found.unit == "bits per byte" for found in differences.values())
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("model", overflow="fold", min_width=14)
    for heading in ("tokens", "bits per byte" if per_byte else "nats per token", "minus the first"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, result in results.items():
        score = f"{result.bits_per_byte:.4f}" if per_byte else _cells(result.total)[2]
        shown = with_spread(differences[name].mean, differences[name].interval, "+.4f") if name in differences else ""
        table.add_row(name, f"{result.total.tokens:,}", score, shown)
    unigram = results[first].baselines.get("unigram")
    if unigram is not None and not per_byte:
        table.add_row("unigram", f"{unigram.tokens:,}", _cells(unigram)[2], "")
    over = differences[others[0]].over
    note = f"differences: paired, both models on the same text; ± is 95% over {over}; negative is better than {first}"
    return Group(table, Text(note, style="dim"))


def with_spread(value: float, interval: tuple[float, float], form: str = ".3f") -> str:
    """A figure with half the width of its interval, if it has one."""
    low, high = interval
    return f"{value:{form}}" + ("" if math.isnan(low) else f" ± {(high - low) / 2:{form.lstrip('+')}}")


def _table(first: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, overflow="fold", min_width=14)
    for heading in ("tokens", "perplexity", "nats per token"):
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _cells(score: Score) -> tuple[str, str, str]:
    return f"{score.tokens:,}", f"{score.perplexity:,.1f}", with_spread(score.cross_entropy, score.interval)


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
