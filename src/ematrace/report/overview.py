"""The top of the page: what we found in a few sentences, and every claim with its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ematrace.ledger import Check, LedgerRow, Share
from ematrace.report.data import ReportData
from ematrace.report.formatting import digits, fold_paths, interval, number, plural, share
from ematrace.report.parts import DataTable, TableCell, TableRow
from ematrace.report.verdicts import (
    Look,
    checks_line,
    count_verdicts,
    local_agreement,
    look_of,
    ours_lines,
    why_undecided,
)

TITLE = "ematrace: a paper's claims, and what we found"
QUESTION = "What does a context mechanism keep of the past, structure or content, and what does it cost?"
LONG_NAME = 12  # characters of a name that would push the numbers out of their column


@dataclass(frozen=True)
class ClaimPart:
    """Claims of one part of the paper: what they are called, the heading, and a short name."""

    name: str
    noun: str
    heading: str
    short: str


PARTS = (
    ClaimPart("small", "small-scale claims", "Small scale: SPCN on the formal grammar", "small scale"),
    ClaimPart("large", "large-scale claims", "Large scale: SPEN", "large scale"),
    ClaimPart("extension", "questions for future work", "What the paper leaves as future work", "future work"),
)


@dataclass(frozen=True)
class ClaimView:
    """A claim as the page shows it: a row of the verdict table, and what opens under it."""

    row: LedgerRow
    lines: Sequence[tuple[str, str, str]]

    @property
    def look(self) -> Look:
        return look_of(self.row.verdict)

    @property
    def stacked(self) -> bool:
        return max((len(name) for name, _, _ in self.lines), default=0) > LONG_NAME

    @property
    def note(self) -> str:
        """Under the numbers: what is missing, or instead of numbers how many predicates hold."""
        return why_undecided(self.row) or ("" if self.lines else checks_line(self.row))

    @property
    def paper(self) -> list[str]:
        """Numbers that two spaces keep apart stand on a line each."""
        return self.row.paper.split("  ")

    @property
    def drawn(self) -> str:
        return share(self.row.robustness.all) if self.row.robustness else ""

    @property
    def here(self) -> str:
        return local_agreement(self.row) if self.row.ours else ""

    @property
    def evidence(self) -> list[str]:
        return fold_paths(self.row.evidence)

    @property
    def summary(self) -> str:
        return checks_line(self.row) or plural(len(self.row.checks), "predicate")

    @property
    def predicates(self) -> DataTable:
        """What the verdict rests on."""
        each = dict(self.row.robustness.each) if self.row.robustness else {}
        heads = ("predicate", "left", "right", "difference", "95% interval", "method", "holds", "drawn")
        head = TableRow([TableCell(h, "num" if 0 < i < 5 else "", "col") for i, h in enumerate(heads)])
        body = [predicate_row(check, each.get(check.predicate)) for check in self.row.checks]
        return DataTable(f"Predicates of {self.row.id}", [head], body, "")

    @property
    def local(self) -> str:
        """This machine's own finding, where another is the evidence."""
        own = self.row.local
        if own is None or own.evidence == self.row.evidence:
            return ""
        seeds = plural(own.n_seeds, "seed") if own.n_seeds else "no seed"
        files = ", ".join(fold_paths(own.evidence))
        return f"This machine alone: {own.verdict}, {checks_line(own)}, {seeds} ({files})."


def predicate_row(check: Check, drawn: Share | None) -> TableRow:
    decimals = None if check.left is None else digits(check.left)
    of = "left" if check.kind == "figure" or check.method == "bound" else "difference"
    ends = "–" if check.interval is None else f"{interval(check.interval, decimals)} ({of})"
    holds = {True: ("✓ holds", "line"), False: ("✗ fails", "line fails"), None: ("○ open", "line")}
    return TableRow(
        [
            TableCell(check.predicate, "predicate", "row"),
            TableCell(number(check.left), "num"),
            TableCell(number(check.right), "num"),
            TableCell(number(check.difference, decimals, signed=True), "num"),
            TableCell(ends, "num"),
            TableCell(check.method or "–", "line"),
            TableCell(*holds[check.holds]),
            TableCell(share(drawn), "line"),
        ]
    )


@dataclass(frozen=True)
class PartView:
    """The claims of one part. One of which nothing was run takes one line until someone asks for it."""

    part: ClaimPart
    claims: Sequence[ClaimView]

    @property
    def folded(self) -> bool:
        return self.part.name != "small" and all(view.row.verdict == "open" for view in self.claims)

    @property
    def fold_line(self) -> str:
        return f"{plural(len(self.claims), 'claim')}, all open"

    @property
    def sentence(self) -> str:
        counts = count_verdicts(view.row for view in self.claims)
        if len(counts) == 1:
            return f"All {len(self.claims)} {self.part.noun}: {counts[0][0]}."
        return f"Of {len(self.claims)} {self.part.noun}: " + ", ".join(f"{n} {v}" for v, n in counts) + "."


@dataclass(frozen=True)
class Overview:
    """What the ledger says."""

    data: ReportData

    @property
    def parts(self) -> list[PartView]:
        """The parts that have claims."""
        claims = {claim.id: claim for claim in self.data.claims}
        views = [ClaimView(row, ours_lines(row, claims[row.id])) for row in self.data.rows]
        groups = [PartView(part, [v for v in views if claims[v.row.id].part == part.name]) for part in PARTS]
        return [group for group in groups if group.claims]

    @property
    def counts(self) -> list[tuple[str, Look, int]]:
        return [(verdict, look_of(verdict), n) for verdict, n in count_verdicts(self.data.rows)]

    @property
    def drawn(self) -> str:
        """How the claims fare on drawn grammars, in one sentence."""
        shares = [row.robustness.all for row in self.data.rows if row.robustness is not None]
        if not shares:
            return ""
        always = sum(s.holds == s.conditions for s in shares)
        return (
            f"On {max(s.conditions for s in shares)} randomly drawn grammars, all directions hold in every one of "
            f"them for {always} of the {plural(len(shares), 'claim')} that were tested on them."
        )

    @property
    def missed(self) -> list[LedgerRow]:
        return [row for row in self.data.rows if row.verdict == "not reproduced"]
