"""How numbers, intervals and verdicts are put into words: the same in the terminal and on the page."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ematrace.ledger import VERDICTS, Finding, LedgerRow, Provenance, Share
from ematrace.ledger.results import Interval

MINUS = "\N{MINUS SIGN}"
MEASURES = {"within": "W", "transfer": "T", "deep": "D"}
# More figures than this, and a claim without a figure predicate shows only how many predicates hold.
MAX_BARE_FIGURES = 4


@dataclass(frozen=True)
class Look:
    """A verdict must be told apart without its colour, so each has a sign of its own."""

    sign: str
    name: str
    style: str


LOOKS = {
    "reproduced": Look("✓", "reproduced", "bold blue"),
    "direction only": Look("→", "direction", "cyan"),
    "not reproduced": Look("✗", "failed", "bold red"),
    "not testable here": Look("⊘", "untestable", "magenta"),
    "open": Look("○", "open", "dim"),
    "answered: yes": Look("✓", "reproduced", "bold blue"),
    "answered: no": Look("✗", "failed", "bold red"),
    "answered: mixed": Look("→", "direction", "cyan"),
}


def look_of(verdict: str) -> Look:
    return LOOKS.get(verdict, Look("?", "open", ""))


def decimals_for(x: float) -> int:
    """Three up to 1, where accuracies live, and fewer the larger a number is."""
    size = abs(x)
    return 3 if size <= 1 else 2 if size < 10 else 1 if size < 100 else 0


TINY = 0.0005  # would be .000


def digits(x: float) -> int | None:
    """Decimals for a figure and its interval; None where powers of ten say more."""
    return None if 0 < abs(x) < TINY else decimals_for(x)


def number(x: float | None, decimals: int | None = None, signed: bool = False) -> str:
    """`.973`, `1.000`, `−.012`, `12.3`, `20,500`; a dash for what is not known.

    >>> number(0.9731), number(1.0), number(20500.0), number(None)
    ('.973', '1.000', '20,500', '–')
    """
    if x is None or math.isnan(x):
        return "–"
    if 0 < abs(x) < TINY and decimals is None:
        text = f"{abs(x):.1e}"
    else:
        text = f"{abs(x):,.{decimals_for(x) if decimals is None else decimals}f}"
    zero = not text.strip("0.,")
    sign = "" if zero else MINUS if x < 0 else "+" if signed else ""
    return sign + (text[1:] if text.startswith("0.") else text)


def interval(ends: Interval | None, decimals: int | None = None) -> str:
    """`.970–.976`; with "to" where a minus sign would meet the dash."""
    if ends is None:
        return "–"
    if decimals is None and max(map(abs, ends)) >= TINY:
        decimals = max(map(decimals_for, ends))
    lo, hi = (number(end, decimals) for end in ends)
    return f"{lo} to {hi}" if MINUS in lo + hi else f"{lo}–{hi}"


def share(value: Share | None) -> str:
    """`17/20 (85%)`."""
    return "–" if value is None else f"{value.holds}/{value.conditions} ({value.to_json()['share']:.0%})"


def plural(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def short_names(names: Sequence[str]) -> list[str]:
    """Names of figures within one claim, without what they all share.

    >>> short_names(["trace_probe/l0.within", "trace_probe/l0.deep"])
    ['W', 'D']
    >>> short_names(["x/level0.within", "x/level1.within"])
    ['level0', 'level1']
    """
    parts = [_split(name) for name in names]
    one_stem = len({stem for stem, _ in parts}) == 1
    one_rest = len({rest for _, rest in parts}) == 1
    shown = []
    for stem, rest in parts:
        short = ".".join(MEASURES.get(piece, piece) for piece in rest.split(".") if piece != "role")
        if one_stem and short:
            shown.append(short)
        else:
            shown.append(stem if one_rest or not short else f"{stem} {short}")
    return shown


def _split(name: str) -> tuple[str, str]:
    """`a/l0.within` to (l0, within); a difference or a ratio to its sign and what it is of."""
    first, *others = re.split(r" ([-/]) ", name, maxsplit=1)
    stem, _, rest = first.partition("/")[2].partition(".")
    if not others:
        return stem, rest
    return ("difference", f"Δ{MEASURES.get(rest, rest)}") if others[0] == "-" else ("ratio", "")


def ours_lines(finding: Finding) -> list[tuple[str, str, str]]:
    """(name, mean, interval) of each figure that the paper has a number for, else of each figure if they are few."""
    figures = [c for c in finding.checks if c.kind == "figure"]
    if figures:
        names = short_names([c.predicate.rpartition(" = ")[0] for c in figures])
        found = [(n, c.left, c.interval) for n, c in zip(names, figures, strict=True) if c.left is not None]
    elif len(finding.ours) <= MAX_BARE_FIGURES:
        names = short_names(list(finding.ours))
        found = [(n, x, finding.interval[ref]) for n, (ref, x) in zip(names, finding.ours.items(), strict=True)]
    else:
        found = []
    return [(name, number(x), _spread(ends, decimals_for(x))) for name, x, ends in found]


def _spread(ends: Interval | None, decimals: int) -> str:
    """Nothing for a figure that no seed changes: its interval has no width."""
    return "" if ends is None or ends[0] == ends[1] else interval(ends, decimals)


def checks_line(finding: Finding) -> str:
    """`7 of 8 predicates hold`."""
    known = [c for c in finding.checks if c.holds is not None]
    if not known:
        return ""
    return f"{sum(c.holds is True for c in known)} of {plural(len(finding.checks), 'predicate')} hold"


def why_undecided(finding: Finding) -> str:
    """What an open claim waits for, by experiment, or why a claim is not testable; nothing for one that is decided."""
    names = dict.fromkeys(ref.partition("/")[0] for check in finding.checks for ref in check.missing)
    if finding.verdict == "open" and names:
        return f"waits for {', '.join(names)}"
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


def commit_of(run: Provenance) -> str:
    if run.commit is None:
        return "no commit"
    return f"commit {run.commit[:9]}{' with changes' if run.dirty else ''}"


def hardware_of(run: Provenance) -> str:
    cores = run.hardware.get("cores")
    shown = [run.hardware.get("gpu"), run.hardware.get("cpu"), None if cores is None else f"{cores} cores"]
    return ", ".join(str(item) for item in shown if item) or "hardware not known"


def count_verdicts(rows: Iterable[LedgerRow]) -> list[tuple[str, int]]:
    """(verdict, rows), in the order of VERDICTS, without those that do not occur."""
    counts = Counter(row.verdict for row in rows)
    return [(verdict, counts[verdict]) for verdict in VERDICTS if counts[verdict]]
