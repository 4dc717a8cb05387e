"""docs/deviations.md: what each choice matters that the paper leaves open."""

from __future__ import annotations

import re
from collections.abc import Callable

from doc_tables.blocks import ACCURACIES, NOT_RECORDED, cells_of, markdown_table, means, seeds_of, select, table
from ematrace.analysis.choices import DEFAULT, EXPERIMENT, SCATTER, Change, Quantity, change_of, hold_under
from ematrace.report.data import ReportData
from ematrace.report.formatting import number
from ematrace.report.sections.choices import change_text, comparisons_of, failing_text, measured_figures, names_of
from ematrace.results import Selector

# By the first column of the page's table, its last one: {choice} stands for the change of W / T / D by it. Rows that
# are not here keep their text.
SPCN = {
    "the unit of states, weights and errors": '{locked network} for `"locked"`',
    "level widths above L0": "{upper levels twice as wide} for 512, 256, 128",
    "k of each top-k": "{k 4%} at 4%, {k 16%} at 16%",
    "by value or by magnitude": "{top-k by magnitude}",
    "what follows top-k": "no ReLU {no ReLU}",
    "π in ΔW_fb once or twice": "once {precision once}",
    "tracking of the error variance": ".1: {precision tracked 10x faster}",
    "W_fb at the start; passes": "three passes {three epochs}; never learned {no learned feedback}",
    "order of updates in a settling step": "synchronous {synchronous levels}",
    "SPA's formula": "half as strong {SPA half as strong}, twice {SPA twice as strong}",
    "initial weights": "half {weights half as large}, twice {weights twice as large}",
    "reset between sentences": "never {no reset between sentences}",
    "the probe's intercept": "none {probe without intercept}; λ = 1 instead of .01: {ridge 1}",
    "rules for W_ff (C16)": (
        "Foldiak at its default rate {Foldiak's W_ff}, at a third {Foldiak's W_ff, a third of the rate}; "
        "forward-forward {forward-forward W_ff}, {forward-forward W_ff, a third of the rate}; see [results](results.md)"
    ),
}
BIGRU = {"coding of words it never saw": "transfer {untrained}; zeros {zero}; mean of the trained rows {mean}"}
_FIELD = re.compile(r"\{([^{}]+)\}")
NAMES = [name for template in SPCN.values() for name in _FIELD.findall(template)]


@table("choices-spcn")
def spcn(data: ReportData, block: str) -> str:
    def change(choice: str) -> str:
        figures = [Quantity(Selector("trace_probe", m, {"representation": "l0+traces"})) for m in ACCURACIES]
        found = [change_of(data.table, choice, figure) for figure in figures]
        return NOT_RECORDED if None in found else " / ".join(show(c) for c in found)

    lost = [name for name in data.table.values_of(EXPERIMENT, "choice") if name not in (DEFAULT, *NAMES)]
    if lost:
        raise ValueError(f"deviations.md: choice '{lost[0]}' is in no row of table 'choices-spcn'")
    return _last_column(block, SPCN, change, "choices-spcn")


@table("choices-bigru")
def bigru(data: ReportData, block: str) -> str:
    def transfer(coding: str) -> str:
        return means(data.table, "supervised", ("transfer",), {"unseen": coding})

    return _last_column(block, BIGRU, transfer, "choices-bigru")


def _last_column(block: str, templates: dict[str, str], fill: Callable[[str], str], name: str) -> str:
    """The table of the block with the last column of these rows filled in; the other columns are written by hand."""
    head, *_ = [line for line in block.splitlines() if line.startswith("|")] or [""]
    rows = cells_of(block)
    gone = [key for key in templates if key not in {row[0] for row in rows}]
    if gone:
        raise ValueError(f"deviations.md: table '{name}' has no row '{gone[0]}'")
    for row in rows:
        if row[0] in templates:
            row[-1] = _FIELD.sub(lambda match: fill(match[1]), templates[row[0]])
    return markdown_table([cell.strip() for cell in head.strip().strip("|").split("|")], rows)


@table("choices-claims", EXPERIMENT)
def claims(data: ReportData, _: str) -> str:
    """The default's figures, then changes in the order of the table above; last what scatters by chance."""
    figures, compared = measured_figures(data), comparisons_of(data.claims)
    names = sorted(names_of(data.table), key=[DEFAULT, *NAMES].index)
    held = {name: hold_under(data.table, name, compared) for name in names}
    lines = []
    for name in names:
        found = {id: [change_of(data.table, name, q) for q in quantities] for id, quantities in figures.items()}
        fails = failing_text(held[name], held.get(DEFAULT, {}) if name != DEFAULT else {})
        first = f"*{name}*, the figures themselves" if name == DEFAULT else name
        lines.append((first, *(_joined(changes, name == DEFAULT) for changes in found.values()), fails))
    scatter = {id: [change_of(data.table, DEFAULT, q) for q in quantities] for id, quantities in figures.items()}
    spread = [" / ".join(number(c.scatter if c else None, 3) for c in changes) for changes in scatter.values()]
    lines.append((f"*{SCATTER:g} standard deviations over seeds*", *spread, "–"))
    heads = ("choice", *(f"{id} {data.claims[id].title}" for id in figures), "directions that fail")
    default = select(data.table, EXPERIMENT, "within", {"choice": DEFAULT, "variant": "full"})
    return markdown_table(heads, lines) + f"\n{seeds_of([default])}\n"


def _joined(changes: list[Change | None], is_default: bool) -> str:
    if all(change is None for change in changes):
        return "–"
    return " / ".join("–" if c is None else number(c.value) if is_default else show(c) for c in changes)


def show(change: Change | None) -> str:
    return NOT_RECORDED if change is None else change_text(change, "**{}**".format)
