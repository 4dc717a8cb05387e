"""The ledger in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from ematrace.ledger import Claim, Claims, LedgerRow, load_claims
from ematrace.ledger.verdicts import OPEN, Verdict
from ematrace.report.formatting import plural
from ematrace.report.verdicts import (
    LOOKS,
    checks_line,
    count_verdicts,
    local_agreement,
    ours_lines,
    why_undecided,
)

COLUMN = 39  # characters of a claim's id and title in a list
MEANINGS: Mapping[Verdict, str] = {
    "reproduced": "direction and figure hold (* the grammar was chosen knowing it)",
    "direction only": "its figure is missed",
    "not reproduced": "the paper claims this, and our runs do not show it:",
    "undecided": "the interval excludes neither side",
    "open": "not measured yet",
}
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
    look = LOOKS[row.verdict]
    return Text(f"{look.sign} {row.verdict}{'*' if row.fitted and row.figure else ''}", style=look.style)


def _drawn(row: LedgerRow) -> str:
    return f"{row.robustness.all.holds}/{row.robustness.all.conditions}" if row.robustness else "–"


@dataclass(frozen=True)
class VerdictList:
    """Every claim by its verdict, in as many columns as fit."""

    rows: Sequence[LedgerRow]
    claims: Claims

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(f"{plural(len(self.rows), 'claim')}, by verdict", style="bold")
        for verdict, n in sorted(count_verdicts(self.rows), key=lambda counted: counted[0] == OPEN):
            look, means = LOOKS[verdict], MEANINGS.get(verdict, "")
            head = (f"{look.sign} {n} {verdict}", look.style)
            yield Text.assemble(head, (f"  {means}" if means else "", "dim"), no_wrap=True, overflow="ellipsis")
            of_verdict = [row for row in self.rows if row.verdict == verdict]
            untested = [row for row in of_verdict if verdict == OPEN and not self.claims[row.id].selectors]
            yield self._columns([row for row in of_verdict if row not in untested], options.max_width)
            if untested:
                yield Text(f"  {Claims(tuple(self.claims[row.id] for row in untested)).ids}: no experiment yet")
        yield Text("ematrace ledger C10 shows one claim with all its figures, --long all claims", style="dim")

    def _columns(self, rows: Sequence[LedgerRow], width: int) -> Table:
        entries = [f"{row.id}{'*' if row.fitted and row.figure else ''}" for row in rows]
        titles = [self.claims[row.id].title or row.claim for row in rows]
        count = max(1, (width - 2) // COLUMN)
        table = Table.grid(padding=(0, 1, 0, 0))
        for _ in range(count):
            table.add_column(width=6, justify="left", no_wrap=True)
            table.add_column(width=COLUMN - 8, no_wrap=True, overflow="ellipsis")
        cells = [cell for entry, title in zip(entries, titles, strict=True) for cell in (f"  {entry}", title)]
        for i in range(0, len(cells), 2 * count):
            table.add_row(*cells[i : i + 2 * count])
        return table


def claims_table(rows: Sequence[LedgerRow], claims: Claims) -> Table:
    """A line for each of a few claims: the verdict, and what this machine's run says."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("id", no_wrap=True, style="bold")
    table.add_column("claim", no_wrap=True, overflow="ellipsis", max_width=COLUMN - 7)
    table.add_column("verdict", no_wrap=True)
    table.add_column("this machine's run", no_wrap=True)
    for row in rows:
        table.add_row(row.id, claims[row.id].title or row.claim, _verdict(row), local_agreement(row))
    return table


def ledger_table(rows: Sequence[LedgerRow], claims: Claims | None = None) -> LedgerView:
    """Every claim with the paper's number, ours, and the verdict; fits the width it is printed at.

    `claims` are those that the rows were made from, by default the package's.

    >>> from rich.console import Console
    >>> from ematrace.ledger import Claim, Claims, build_ledger
    >>> from ematrace.results import Table
    >>> claims = Claims((Claim("X1", "extension", "Traces hold roles.", "-"),))
    >>> Console(width=80).print(ledger_table(build_ledger(Table([]), claims), claims))  # doctest: +NORMALIZE_WHITESPACE
    id  claim                 ours (95% interval)   seeds  verdict       drawn  here
    ────────────────────────────────────────────────────────────────────────────────
    X1  Traces hold roles.    no predicates yet         –  ○ open            –  –
        paper: -
    * the grammar was chosen knowing this figure
    drawn: random grammars in which every direction holds
    here: what this machine's own run says
    1 claims: ○ 1 open
    """
    return LedgerView(tuple(rows), load_claims() if claims is None else claims)


def verdict_summary(rows: Sequence[LedgerRow]) -> Text:
    """One line: how many claims have each verdict.

    >>> from ematrace.ledger import Claims, build_ledger, load_claims
    >>> from ematrace.results import Table
    >>> claims = Claims(tuple(load_claims())[:3])
    >>> verdict_summary(build_ledger(Table([]), claims)).plain
    '3 claims: ○ 3 open'
    """
    text = Text(f"{len(rows)} claims: ")
    for i, (verdict, n) in enumerate(count_verdicts(rows)):
        look = LOOKS[verdict]
        text.append(" · " if i else "").append(f"{look.sign} {n} {verdict}", style=look.style)
    return text
