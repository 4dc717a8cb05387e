"""One claim alone in the terminal: the paper's figure, ours, every predicate, the control, the evidence."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ematrace.ledger import Check, Claim, Direction, LedgerRow, PaperFigure, tolerance_band
from ematrace.ledger.verdicts import NOT_TESTABLE
from ematrace.report.formatting import digits, fold_paths, interval, number, plural
from ematrace.report.verdicts import (
    ALWAYS_NAMED,
    LOOKS,
    MAX_BARE,
    local_agreement,
    ours_lines,
    outcome,
    short_names,
    why_undecided,
)
from ematrace.results import AmbiguousSelection, Selector
from ematrace.results import Table as Results
from ematrace.results.schema import SCALES

METHODS = {"welch": "Welch", "newcombe": "Newcombe", "delta": "delta method"}
NOT_JUDGED = (LOOKS[NOT_TESTABLE].sign, "", "dim")
LETTERS = re.compile(r"Δ?[WTD]")
LEGEND = "accuracy: W within grammar A, T on transfer to grammar B, D on deep roles"


def claim_card(row: LedgerRow, claim: Claim, cells: Results) -> RenderableType:
    """`cells` are those of the claims' default factors, which the row was made from."""
    look = LOOKS[row.verdict]
    head = Text.assemble((f"{row.id}  ", "bold"), (f"{look.sign} {row.verdict}", look.style))
    lines = Table.grid(padding=(0, 2))
    lines.add_column(style="dim", no_wrap=True)
    lines.add_column(ratio=1, overflow="fold")
    for label, shown in _lines(row, claim, cells):
        lines.add_row(label, shown)
    return Group(head, Text(f"The paper says: {row.claim}"), "", lines)


def _lines(row: LedgerRow, claim: Claim, cells: Results) -> Iterator[tuple[str, RenderableType]]:
    yield "paper", Text(row.paper)
    if claim.quote:
        yield f"line {claim.line}", Text(f"“{claim.quote}”", style="italic")
    if ours := _ours(row, claim, cells):
        yield "ours", ours
    if not claim.selectors and not claim.not_testable:
        yield "", Text("no experiment tests it yet")
        return
    names = dict(zip(claim.selectors, short_names(claim.selectors), strict=True))
    waits = _waits(row, names)
    if (why := why_undecided(row)) and not (waits and row.verdict == "open"):
        yield "why", Text(why)
    if waits:
        yield "results", Text(waits)
        yield "to run it", Text(row.command)
    for files in _ambiguous(claim, cells):
        yield "left out", Text(files)
    judged = row.verdict != NOT_TESTABLE  # else what was measured is shown, and no sign says that it holds or fails
    unjudged = "" if judged else ", not judged"
    checks = row.checks[: len(claim.direction)]
    if measured := [(d, c) for d, c in zip(claim.direction, checks, strict=True) if not c.missing]:
        yield f"directions{unjudged}", _table(_direction(d, c, names, judged) for d, c in measured)
    checks = row.checks[len(claim.direction) :]
    of_figures = zip(claim.figure, checks, short_names(claim.figure), strict=True)
    if found := [(f, c, name) for f, c, name in of_figures if not c.missing]:
        yield f"figures{unjudged}", _table(_figure(f, c, name, judged) for f, c, name in found)
    if claim.note:
        yield "note", Text(claim.note)
    if claim.written:
        yield "written", Text(claim.written)
    if row.fitted and row.figure:
        yield "", Text("the grammar was chosen knowing this figure", style="dim")
    if row.ours and any(LETTERS.fullmatch(word) for name in names.values() for word in name.split()):
        yield "", Text(LEGEND, style="dim")
    if row.robustness is not None:
        holds, conditions = row.robustness.all.holds, row.robustness.all.conditions
        yield "drawn", Text(f"every direction holds in {holds} of {conditions} randomly drawn grammars")
    if claim.control is not None:
        yield "control", _control(claim, cells)
    yield "here", _here(row, claim, cells)
    if row.evidence:
        yield "evidence", Text("\n".join(fold_paths(row.evidence)))
    if claim.selectors and not waits:
        yield "to run it", Text(row.command)


def _ours(row: LedgerRow, claim: Claim, cells: Results) -> Text:
    """Means with their intervals; how many seeds, and where."""
    found = [f"{name} {mean}{f' ({ends})' if ends else ''}" for name, mean, ends in ours_lines(row, claim)]
    seeds = [selection.seeds for selector in claim.selectors if (selection := cells.find(selector)) is not None]
    counted = {sum(seed >= claim.first_seed for seed in each) for each in seeds} - {0}
    *fewer, most = sorted(counted) or [row.n_seeds or 0]
    counts = [" and ".join([*map(str, fewer), plural(most, "seed")])] if row.n_seeds else []
    scale = [row.scale.upper()] if row.scale in SCALES else [f"{row.scale} scale"] if row.scale else []
    return Text("\n".join([*found, ", ".join(counts + scale)]).strip("\n"))


def _waits(row: LedgerRow, names: dict[Selector, str]) -> str:
    """How many comparisons have results, and what the others wait for; nothing where all have."""
    waiting = [check.missing for check in row.checks if check.missing]
    if not waiting:
        return ""
    missing = [selector for selector in names if any(str(selector) in texts for texts in waiting)]
    experiments = ", ".join(dict.fromkeys(selector.experiment for selector in missing))
    known, of = len(row.checks) - len(waiting), plural(len(row.checks), "comparison")
    others, wait = ("the other", "waits") if len(waiting) == 1 else ("the others", "wait")
    shown = f"for {known} of {of}; {others} {wait}" if known else f"none yet: {of} {wait}"
    shown += f" for {experiments}"
    if known and len(missing) <= MAX_BARE:
        shown += f" ({', '.join(names[selector] for selector in missing)})"
    return shown


def _ambiguous(claim: Claim, cells: Results) -> list[str]:
    """Pairs of files that cannot both count."""
    found = []
    for selector in claim.selectors:
        try:
            cells.select(selector)
        except AmbiguousSelection as error:
            found.append(error.files)
    return list(dict.fromkeys(found))


def _table(rows: Iterator[tuple[Text, Text]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(ratio=3, overflow="fold")
    table.add_column(ratio=2, overflow="fold", style="dim")
    for row in rows:
        table.add_row(*row)
    return table


def _direction(direction: Direction, check: Check, names: dict[Selector, str], judged: bool) -> tuple[Text, Text]:
    sign, _, style = outcome(check) if judged else NOT_JUDGED
    shown, spread = _compared(direction, check, names), _spread(check)
    if direction.interval == "tokens" and check.beside is not None:
        over_seeds = f"{outcome(check.beside)[1]}: " if judged else ""
        spread += f"; over seeds {over_seeds}{_spread(check.beside)}"
    while direction.unless is not None and check.beside is not None:
        direction, check = direction.unless, check.beside
        shown += f" or {_compared(direction, check, names)}"
        spread += f"; {_spread(check)}"
    return Text.assemble((sign, style), f" {shown}"), Text(spread)


def _compared(direction: Direction, check: Check, names: dict[Selector, str]) -> str:
    left = names[direction.left] + (f" / {names[direction.over]}" if direction.over else "")
    right = f"{names[direction.right]} " if isinstance(direction.right, Selector) else ""
    margin = f" ± {number(direction.by)}" if direction.op == "within" else f" {number(direction.by, signed=True)}"
    by = margin if direction.by else ""
    bound = f"{right}{number(check.right)}" if right else f"{direction.right:g}"
    return f"{left} {number(check.left)} {direction.op} {bound}{by}"


def _spread(check: Check) -> str:
    """The interval that decides a direction: of the difference, or of the left side for a bound."""
    if check.difference is None:
        return "not measured" if check.missing else "division by zero"
    if check.method in ("bound", "exact"):
        return "" if check.interval is None else f"interval {interval(check.interval)}"
    ends = "" if check.interval is None else f" ({interval(check.interval, digits(check.difference))})"
    method = METHODS.get(check.method or "", check.method) if ends else "no interval"
    return f"{number(check.difference, signed=True)}{ends}, {method}"


def _figure(figure: PaperFigure, check: Check, name: str, judged: bool) -> tuple[Text, Text]:
    low, _ = band = figure.band or tolerance_band(figure.paper, figure.kind)
    allowed = f"at least {number(low)}" if figure.kind == "speed" else f"in {interval(band)}"
    sign, _, style = outcome(check) if judged else NOT_JUDGED
    ends = "" if check.interval is None or check.left is None else f" ({interval(check.interval, digits(check.left))})"
    return Text.assemble((sign, style), f" {name} {number(check.left)}{ends}"), Text(
        f"paper {number(figure.paper)}; ours must be {allowed}"
    )


def _control(claim: Claim, cells: Results) -> Text:
    assert claim.control is not None
    found = []
    for selector, name in zip(claim.control.of, short_names(claim.control.of), strict=True):
        selection = cells.find(selector)
        if selection is not None:
            measured = selection.sample
            unit = f" {measured.unit}" if selector.metric in ALWAYS_NAMED else ""
            found.append(f"{name if len(claim.control.of) > 1 else ''} {number(measured.mean)}{unit}".strip())
    missing = f"not measured; ematrace reproduce {claim.control.of[0].experiment}"
    return Text(f"{claim.control.what}: {'  '.join(found) or missing}")


def _here(row: LedgerRow, claim: Claim, cells: Results) -> Text:
    """This machine's own run beside the evidence."""
    if row.local is None:
        return Text("not run on this machine")
    agreement = local_agreement(row)
    text = f"this machine's run {'is ' if agreement == 'incomplete' else ''}{agreement}"
    if row.local.evidence == row.evidence:
        return Text(text)
    ours = "  ".join(f"{name} {mean}" for name, mean, _ in ours_lines(row.local, claim))
    seeds = plural(row.local.n_seeds, "seed") if row.local.n_seeds else "nothing measured"
    settings = ", with other settings than the evidence" if _has_other_settings(claim, cells) else ""
    return Text(f"{text}; {ours + ', ' if ours else ''}{seeds}{settings}")


def _has_other_settings(claim: Claim, cells: Results) -> bool:
    """Whether this machine's run was another measurement: a toy, say."""
    own = cells.local()
    for selector in claim.selectors:
        evidence, ours = cells.find(selector), own.find(selector)
        if evidence and ours and evidence.cells[0].cell.settings != ours.cells[0].cell.settings:
            return True
    return False
