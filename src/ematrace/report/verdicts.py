"""Verdicts and findings as text: the same in the terminal and on the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ematrace.ledger import VERDICTS, Check, Claim, Finding, LedgerRow, PaperFigure
from ematrace.ledger.verdicts import Verdict
from ematrace.report.formatting import digits, interval, number, plural
from ematrace.results import Interval, Selector

# Metrics of the formal grammar have letters: W, T and D, as in the paper's tables.
LETTERS = {"within": "W", "transfer": "T", "deep": "D", "role_within": "W", "role_transfer": "T"}
# What a reader knows these experiments, metrics and values of factors by.
READABLE = {
    "trace_probe": "SPCN",
    "supervised": "BiGRU",
    "l0": "activation",
    "spen": "SPEN",
    "spen_eager": "SPEN from Python",
    "gpt2": "GPT-2",
    "tokens_per_second": "tokens/s",
    "first_word_share": "share at position 0",
}
ALWAYS_NAMED = ("tokens_per_second",)  # its name is the unit, without which a number says nothing
# More metrics than this, and a claim without a figure predicate shows only how many predicates hold.
MAX_BARE = 4


@dataclass(frozen=True)
class Look:
    """Verdicts must differ without colour, so each has a sign of its own."""

    sign: str
    name: str
    style: str


LOOKS: Mapping[Verdict, Look] = {
    "reproduced": Look("✓", "reproduced", "bold blue"),
    "direction only": Look("→", "direction", "cyan"),
    "not reproduced": Look("✗", "failed", "bold red"),
    "undecided": Look("◐", "undecided", "yellow"),
    "not testable here": Look("⊘", "untestable", "magenta"),
    "open": Look("○", "open", "dim"),
    "answered: yes": Look("✓", "reproduced", "bold blue"),
    "answered: no": Look("✗", "failed", "bold red"),
    "answered: mixed": Look("→", "direction", "cyan"),
}


def count_verdicts(rows: Iterable[LedgerRow]) -> list[tuple[Verdict, int]]:
    """(verdict, rows), in the order of VERDICTS, without those that do not occur."""
    counts = Counter(row.verdict for row in rows)
    return [(verdict, counts[verdict]) for verdict in VERDICTS if counts[verdict]]


def short_names(operands: Sequence[Selector | PaperFigure]) -> list[str]:
    """Names for the numbers of one claim, made of what sets them apart.

    >>> within, deep = (Selector("trace_probe", m, {"representation": "l0"}) for m in ("within", "deep"))
    >>> short_names([within, deep])
    ['W', 'D']
    >>> short_names([Selector("ablations", "within", {"level": i}) for i in (0, 1)])
    ['level 0', 'level 1']
    >>> short_names([Selector("spen_streaming", "tokens_per_second", {"model": name}) for name in ("spen", "gpt2")])
    ['SPEN tokens/s', 'GPT-2 tokens/s']
    """
    selectors = [o.of if isinstance(o, PaperFigure) else o for o in operands]
    names = [_name(operand, selector, selectors) for operand, selector in zip(operands, selectors, strict=True)]
    return names if len(set(names)) == len(names) else [_full_name(operand) for operand in operands]


def _name(operand: Selector | PaperFigure, selector: Selector, among: Sequence[Selector]) -> str:
    peers = [s for s in among if s.experiment == selector.experiment]
    pieces = [selector.experiment] if len(peers) < len(among) else []
    for factor, value in selector.where.items():
        if any(peer.where.get(factor) != value for peer in peers):
            named = f"{value}-d" if factor == "dimensions" else f"{factor} {value}".replace("_", " ")
            pieces.append(value if isinstance(value, str) else named)
    apart = any(peer.metric != selector.metric for peer in peers)
    if apart or not pieces or selector.metric in ALWAYS_NAMED:
        pieces.append(LETTERS.get(selector.metric, selector.metric))
    pieces = [READABLE.get(piece, piece) for piece in pieces]
    if isinstance(operand, PaperFigure) and operand.minus:
        pieces[-1] = f"Δ{pieces[-1]}"
    if isinstance(operand, PaperFigure) and operand.over:
        pieces = ["ratio"] if len(among) == 1 else ["ratio", *pieces]
    return " ".join(pieces)


def _full_name(operand: Selector | PaperFigure) -> str:
    if isinstance(operand, Selector):
        return str(operand)
    other = f" - {operand.minus}" if operand.minus else f" / {operand.over}" if operand.over else ""
    return f"{operand.of}{other}"


def ours_lines(finding: Finding, claim: Claim) -> list[tuple[str, str, str]]:
    """(name, mean, interval) of each number that the paper has too; else of each that a predicate needs, if few."""
    checks = [check for check in finding.checks if check.kind == "figure"]
    found: list[tuple[str, float, Interval | None]]
    if checks:
        names = short_names(claim.figure)
        found = [(n, c.left, c.interval) for n, c in zip(names, checks, strict=True) if c.left is not None]
    elif len(finding.ours) <= MAX_BARE:
        names = short_names([Selector.parse(text) for text in finding.ours])
        found = [(n, x, finding.interval[text]) for n, (text, x) in zip(names, finding.ours.items(), strict=True)]
    else:
        found = []
    return [(name, number(x), _spread(ends, digits(x))) for name, x, ends in found]


def _spread(ends: Interval | None, decimals: int | None) -> str:
    """Nothing for a number that no seed changes: its interval has no width."""
    return "" if ends is None or ends[0] == ends[1] else interval(ends, decimals)


def checks_line(finding: Finding) -> str:
    """`7 of 8 predicates hold`."""
    known = [c for c in finding.checks if c.holds is not None]
    if not known:
        return ""
    return f"{sum(c.holds is True for c in known)} of {plural(len(finding.checks), 'predicate')} hold"


def outcome(check: Check) -> tuple[str, str, str]:
    """Sign, word and style of a predicate."""
    if check.undecided:
        return "◐", "undecided", "yellow"
    return {True: ("✓", "holds", "blue"), False: ("✗", "fails", "bold red"), None: ("○", "open", "dim")}[check.holds]


def why_undecided(finding: Finding) -> str:
    """What an open claim waits for, by experiment, or why a claim is not testable or undecided; nothing for others."""
    missing = [Selector.parse(text).experiment for check in finding.checks for text in check.missing]
    if finding.verdict == "open" and missing:
        return f"waits for {', '.join(dict.fromkeys(missing))}"
    if finding.verdict == "undecided":
        return finding.why or "the interval excludes neither side"
    return finding.why or ""


def local_agreement(row: LedgerRow) -> str:
    """Does this machine's own run come to the same verdict?"""
    if row.local is None:
        return "not run"
    if row.local.evidence == row.evidence:
        return "is the evidence"
    if row.local.verdict == row.verdict:
        return "agrees"
    if row.local.verdict == "open":
        return "incomplete"
    return f"differs: {row.local.verdict}"
