"""The ledger in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from ematrace.ledger import Claim, Claims, LedgerRow, load_claims
from ematrace.report.verdicts import (
    checks_line,
    count_verdicts,
    local_agreement,
    look_of,
    ours_lines,
    why_undecided,
)

# From this width on, the paper's numbers have a column of their own.
WIDE = 130


@dataclass(frozen=True)
class LedgerView:
    """A table that is laid out when the width is known, and the counts of verdicts under it."""

    rows: Sequence[LedgerRow]
    claims: Claims

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.table(wide=options.max_width >= WIDE)
        yield verdict_summary(self.rows)

    def table(self, wide: bool) -> Table:
        table = Table(
            box=box.SIMPLE_HEAD,
            leading=1,
            padding=(0, 1, 0, 0),
            pad_edge=False,
            show_edge=False,
            expand=True,
            caption="* the grammar was chosen knowing this figure\n"
            "drawn: random grammars in which every direction holds\n"
            "here: what this machine's own run says",
            caption_justify="left",
        )
        table.add_column("id", no_wrap=True, style="bold")
        table.add_column("claim", ratio=5, overflow="fold")
        if wide:
            table.add_column("paper", ratio=3, overflow="fold", style="dim")
        table.add_column("ours (95% interval)", ratio=5 if not wide else 4, overflow="fold")
        table.add_column("seeds", justify="right", no_wrap=True)
        table.add_column("verdict", min_width=12, max_width=None if wide else 13)
        table.add_column("drawn", justify="right", no_wrap=True)
        table.add_column("here", max_width=10)
        for row in self.rows:
            claim = Text(row.claim)
            if not wide:
                claim.append(f"\npaper: {row.paper}", style="dim")
            paper = [Text(row.paper)] if wide else []
            seeds, here = str(row.n_seeds or "–"), local_agreement(row) if row.ours else "–"
            table.add_row(
                row.id, claim, *paper, _ours(row, self.claims[row.id]), seeds, _verdict(row), _drawn(row), here
            )
        return table


def _ours(row: LedgerRow, claim: Claim) -> Text:
    text = Text()
    for name, mean, ends in ours_lines(row, claim):
        text.append("\n" if text else "").append(f"{name} ").append(mean, style="bold")
        text.append(f" {ends}" if ends else "", style="dim")
    other = why_undecided(row) or ("" if text else checks_line(row))
    if other:
        text.append("\n" if text else "").append(other, style="dim")
    return text


def _verdict(row: LedgerRow) -> Text:
    look = look_of(row.verdict)
    return Text(f"{look.sign} {row.verdict}{'*' if row.fitted and row.figure else ''}", style=look.style)


def _drawn(row: LedgerRow) -> str:
    return f"{row.robustness.all.holds}/{row.robustness.all.conditions}" if row.robustness else "–"


def ledger_table(rows: Sequence[LedgerRow], claims: Claims | None = None) -> LedgerView:
    """Every claim with the paper's number, ours, and the verdict; fits the width it is printed at.

    `claims` are those that the rows were made from, by default the package's.
    """
    return LedgerView(tuple(rows), load_claims() if claims is None else claims)


def verdict_summary(rows: Sequence[LedgerRow]) -> Text:
    """One line: how many claims have each verdict."""
    text = Text(f"{len(rows)} claims: ")
    for i, (verdict, n) in enumerate(count_verdicts(rows)):
        look = look_of(verdict)
        text.append(" · " if i else "").append(f"{look.sign} {n} {verdict}", style=look.style)
    return text
