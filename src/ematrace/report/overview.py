"""The top of the page: what we found in a few sentences, and every claim with its verdict."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from ematrace.ledger import Check, LedgerRow, Share
from ematrace.ledger.claims import Control
from ematrace.report.commands import Command, command_of
from ematrace.report.data import ReportData
from ematrace.report.findings import FINDINGS, FindingView, build_finding, gap_finding
from ematrace.report.formatting import digits, fold_paths, interval, number, plural, share
from ematrace.report.verdicts import (
    LOOKS,
    Look,
    checks_line,
    count_verdicts,
    local_agreement,
    ours_lines,
    outcome,
    short_names,
    why_undecided,
)

TITLE = "EMA traces: a paper's claims, and what we found"
QUESTION = "What does a context mechanism keep of the past, structure or content, and what does it cost?"
MOST_PREDICATES, MOST_OPEN = 9, 3  # of a claim that are shown; open ones have no numbers
LONG_NAME = 12  # characters of a name that would push the numbers out of their column


PARTS = {"small": "SPCN, small scale", "large": "SPEN, large scale", "extension": "left by the paper as future work"}


@dataclass(frozen=True)
class ClaimView:
    """A claim as the page shows it: a row of the verdict table, and what opens under it."""

    row: LedgerRow
    lines: Sequence[tuple[str, str, str]]
    part: str
    quote: str
    """The paper's words, with their line."""
    remark: str
    control: str
    command: Command | None

    @property
    def look(self) -> Look:
        return LOOKS[self.row.verdict]

    @property
    def refuted(self) -> bool:
        return self.row.verdict == "not reproduced"

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
    def failing(self) -> str:
        failed = sum(check.holds is False and not check.undecided for check in self.row.checks)
        undecided = sum(check.undecided for check in self.row.checks)
        rest = f", {undecided} undecided" if undecided else ""
        return f"{failed} of {plural(len(self.row.checks), 'predicate')} {'fails' if failed == 1 else 'fail'}{rest}"

    @property
    def predicates(self) -> list[PredicateView]:
        """Of many, those that fail or are undecided first."""
        each = dict(self.row.robustness.each) if self.row.robustness else {}
        common = set(self.common_factors)
        return [PredicateView.of(check, each.get(check.predicate), common) for check in self._shown]

    @cached_property
    def _shown(self) -> list[Check]:
        checks = self.row.checks
        most = MOST_PREDICATES if len(checks) <= MOST_PREDICATES or self.row.ours else MOST_OPEN
        chosen = sorted(range(len(checks)), key=lambda i: (not _tells(checks[i]), i))[:most]
        return [checks[i] for i in sorted(chosen)]

    @property
    def hidden(self) -> str:
        """`14 more, none of which fails`: the predicates that are not shown."""
        left = len(self.row.checks) - len(self._shown)
        if not left or not self.row.ours:
            return f"{left} more" if left else ""
        telling = sum(map(_tells, self.row.checks)) - sum(map(_tells, self._shown))
        return f"{left} more, {f'{telling} of which fail or are undecided' if telling else 'none of which fails'}"

    @property
    def common_factors(self) -> list[str]:
        """Said once, where all cells of many predicates have them."""
        return common_factors([check.predicate for check in self.row.checks])

    @property
    def local(self) -> str:
        """This machine's own finding, where another is the evidence."""
        own = self.row.local
        if own is None or own.evidence == self.row.evidence:
            return ""
        seeds = plural(own.n_seeds, "seed") if own.n_seeds else "no seed"
        files = ", ".join(fold_paths(own.evidence))
        return f"This machine alone: {own.verdict}, {checks_line(own)}, {seeds} ({files})."


def _tells(check: Check) -> bool:
    """Whether it stands in the way of the claim."""
    return check.undecided or check.holds is False


@dataclass(frozen=True)
class PredicateView:
    """What a verdict rests on, and the numbers in it."""

    text: str
    holds: str
    fails: bool
    numbers: str

    @classmethod
    def of(cls, check: Check, drawn: Share | None, common: Set[str] = frozenset()) -> PredicateView:
        sign, word, _ = outcome(check)
        shown = numbers_of(check, drawn)
        if check.beside is not None:
            beside = cls.of(check.beside, None)
            what = "Over seeds" if check.predicate == f"{check.beside.predicate} over tokens" else "Or"
            shown = f"{shown}. {what}: {beside.holds}; {beside.numbers}"
        text = without_repetition(without_factors(check.predicate, common))
        return cls(text, f"{sign} {word}", word == "fails", shown)


def numbers_of(check: Check, drawn: Share | None) -> str:
    """`.986 against .981: +.005 (95% .005–.006), paired; drawn 12/12`. The interval stands behind what it is of: the
    difference or, for a figure and a bound, the left side."""
    if check.left is None:
        return ""
    decimals = digits(check.left)
    spread = "" if check.interval is None else f" (95% {interval(check.interval, decimals)})"
    of_left = check.kind == "figure" or check.method == "bound"
    text = number(check.left) + (spread if of_left else "")
    if check.right is not None:
        text += f" against {number(check.right)}"
    if check.difference is not None:
        text += f": {number(check.difference, decimals, signed=True)}{'' if of_left else spread}"
    if check.method:
        text += f", {check.method}"
    return text if drawn is None else f"{text}; drawn {drawn.holds}/{drawn.conditions}"


FACTORS = re.compile(r"\{([^{}]*)\}")
MANY = 8  # predicates


def common_factors(predicates: Sequence[str]) -> list[str]:
    """
    >>> common_factors(["a/nats{k=1, text=c4} < a/nats{k=2, text=c4}"] * MANY)
    ['text=c4']
    """
    groups = [match.split(", ") for text in predicates for match in FACTORS.findall(text)]
    if len(predicates) < MANY or not groups:
        return []
    return [factor for factor in groups[0] if all(factor in group for group in groups)]


def without_factors(predicate: str, factors: Set[str]) -> str:
    """
    >>> without_factors("a/nats{k=1, text=c4} < 3", {"text=c4"})
    'a/nats{k=1} < 3'
    """

    def shorten(match: re.Match[str]) -> str:
        left = [factor for factor in match[1].split(", ") if factor not in factors]
        return f"{{{', '.join(left)}}}" if left else ""

    return FACTORS.sub(shorten, predicate) if factors else predicate


REPEATED = re.compile(r"(\w+/\w+)(\{[^{}]*\} (?:<=?|>=?|within) )\1(?=\{)")


def without_repetition(predicate: str) -> str:
    """
    >>> without_repetition("a/nats{k=1} < a/nats{k=2} + 0.01")
    'a/nats{k=1} < {k=2} + 0.01'
    """
    return REPEATED.sub(r"\1\2", predicate)


@dataclass(frozen=True)
class Overview:
    """What the ledger says."""

    data: ReportData

    @cached_property
    def claims(self) -> list[ClaimView]:
        claims = {claim.id: claim for claim in self.data.claims}
        return [
            ClaimView(
                row,
                ours_lines(row, claim),
                claim.part,
                f"“{claim.quote}” (line {claim.line})" if claim.quote else "",
                f"{claim.note} Predicates written: {claim.written}.".strip() if claim.written else claim.note,
                self._control(claim.control),
                command_of(claim, self.data),
            )
            for row in self.data.rows
            for claim in (claims[row.id],)
        ]

    def _control(self, control: Control | None) -> str:
        """What simpler means reach, and how far."""
        if control is None:
            return ""
        found = [(name, self.data.sample(s)) for name, s in zip(short_names(control.of), control.of, strict=True)]
        return f"{control.what}: " + ", ".join(f"{name} {number(s.mean)}" for name, s in found if s is not None)

    @property
    def findings(self) -> list[FindingView]:
        """What is measured first: the page opens with an answer. A wide toy comes last."""
        views = (gap_finding(self.data), *(build_finding(finding, self.data) for finding in FINDINGS))
        found = [view for view in views if view is not None]
        return sorted(found, key=lambda view: (view.command is not None, view.command is not None and view.wide))

    @property
    def parts(self) -> list[tuple[str, str]]:
        """The parts of the paper that have claims: name and heading."""
        present = {claim.part for claim in self.claims}
        return [(name, heading) for name, heading in PARTS.items() if name in present]

    @property
    def counts(self) -> list[tuple[str, Look, int]]:
        return [(verdict, LOOKS[verdict], n) for verdict, n in count_verdicts(self.data.rows)]

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
    def refuted(self) -> list[ClaimView]:
        return [claim for claim in self.claims if claim.refuted]
