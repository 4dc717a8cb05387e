"""Language models in the terminal: perplexity tables, and streamed tokens with the surprise of each."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.bar import Bar
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from ematrace.evaluation import Evaluation, Score

if TYPE_CHECKING:
    from ematrace.spen import SpenStream, Surprise

LONGEST_CHARACTER = 4  # bytes in UTF-8, and so tokens
BAR = 16  # characters of the longest bar
CALM, STARTLED = 1.0, 12.0  # nats between which a token's colour goes from green to red


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


def coloured_token(text: str, nats: float) -> Text:
    """A token as it stands in the text, from green (expected) to red (a surprise)."""
    if math.isnan(nats):
        return Text(text, style="dim")
    share = min(max((nats - CALM) / (STARTLED - CALM), 0.0), 1.0)
    red, green = round(80 + 175 * share), round(200 - 140 * share)
    return Text(text, style=f"rgb({red},{green},80)")


class StreamPrinter:
    """Tokens as they are streamed: coloured text, or a line for each with its surprise and uncertainty."""

    def __init__(self, console: Console, layout: str, tokenizer: Any) -> None:
        self.console, self.layout, self.tokenizer = console, layout, tokenizer
        self._unfinished: list[tuple[int, float]] = []  # tokens, with their nats, that make up part of a character
        self.tokens, self.nats, self.uncertainty = 0, 0.0, 0.0
        if layout == "tsv":
            print("token\tnats\tuncertainty", flush=True)

    def show(self, ids: Sequence[int], surprise: Surprise) -> None:
        uncertainty = [None] * len(ids) if surprise.uncertainty is None else surprise.uncertainty[0].tolist()
        for token, nats, doubt in zip(ids, surprise.nats[0].tolist(), uncertainty, strict=True):
            if not math.isnan(nats):
                self.tokens += 1
                self.nats += nats
                self.uncertainty += doubt or 0.0
            text = self.tokenizer.decode([token])
            if self.layout == "text":
                self._print(token, nats)
            elif self.layout == "json":
                print(json.dumps({"token": text, "nats": None if math.isnan(nats) else nats, "uncertainty": doubt}))
            else:
                quoted = json.dumps(text, ensure_ascii=False)
                print(f"{quoted}\t{nats:.4f}\t{'' if doubt is None else f'{doubt:.6f}'}")
        sys.stdout.flush()

    def _print(self, token: int, nats: float) -> None:
        """A character whose bytes are several tokens appears with the last of them, coloured by their sum."""
        self._unfinished.append((token, nats))
        text = self.tokenizer.decode([token for token, _ in self._unfinished])
        if text.endswith("\ufffd") and len(self._unfinished) < LONGEST_CHARACTER:
            return
        whole = math.fsum(nats for _, nats in self._unfinished)
        self._unfinished.clear()
        self.console.print(coloured_token(text, whole), end="", soft_wrap=True)

    def close(self, stream: SpenStream, errors: Console) -> None:
        """A summary on standard error, so that a program that reads the tokens does not see it."""
        if not self.tokens:
            return
        if self.layout == "text":
            self.console.print()
        mean = self.nats / self.tokens
        doubt = f", mean uncertainty {self.uncertainty / self.tokens:.4f}" if stream.pghu is not None else ""
        state = f"state {stream.state_bytes():,} bytes"
        errors.print(f"{self.tokens:,} tokens, perplexity {math.exp(min(mean, 700)):,.1f}{doubt}, {state}")
