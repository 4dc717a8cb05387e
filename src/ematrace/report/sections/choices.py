"""What our own choices matter: accuracy under each, and what it does to the figures of claims."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from ematrace.analysis.choices import (
    CLAIMS,
    DEFAULT,
    EXPERIMENT,
    SCATTER,
    Change,
    Comparison,
    change_of,
    failing,
    under_choice,
)
from ematrace.ledger import Claim, Claims
from ematrace.report.data import ReportData
from ematrace.report.formatting import number
from ematrace.report.parts import Content, Fold, Paragraph, plain_table
from ematrace.report.sections.accuracy import COLUMNS
from ematrace.report.tables import Header, measure_table
from ematrace.results import Selector


def choices(data: ReportData) -> Sequence[Content | None]:
    names = [str(name) for name in data.table.values_of(EXPERIMENT, "choice")]
    rows = [Header(name, EXPERIMENT, where={"choice": name, "variant": "full"}) for name in names]
    return [measure_table(data, rows, COLUMNS, "Accuracy by choice"), claims_by_choice(data, names)]


def claims_by_choice(data: ReportData, names: Sequence[str]) -> Content | None:
    """The figures of claims under the default, and how each choice changes them."""
    figures = {id: figures_of(data.claims[id]) for id in CLAIMS if id in data.claims}
    if DEFAULT not in names or not figures:
        return None
    compared = comparisons_of(data.claims)
    rows: list[list[Content]] = []
    for name in names:
        changes = [[change_of(data.table, name, s) for s in selectors] for selectors in figures.values()]
        cells = [_cell(of_claim, name == DEFAULT) for of_claim in changes]
        rows.append([name, *cells, failing_text(failing(data.table, name, compared))])
    heads = ["choice", *(f"{id} {data.claims[id].title}" for id in figures), "directions that fail"]
    note = Paragraph(
        "First the default's figures, as each claim gives them, then how a choice changes them. A change beyond "
        f"{SCATTER:g} standard deviations over seeds is bold. Directions are those of the claims, by means over seeds."
    )
    table = plain_table(heads, rows, "Figures of claims by choice", "words")
    return Fold("What each choice does to the figures of claims", [note, table])


def _cell(changes: Sequence[Change | None], is_default: bool) -> Content:
    bold = Markup("<b>{}</b>").format
    texts = ("–" if c is None else number(c.value) if is_default else change_text(c, bold) for c in changes)
    return "–" if all(change is None for change in changes) else Markup(" / ").join(texts)


def change_text(change: Change, bold: Callable[[str], str]) -> str:
    """`−.007`, bold beyond the scatter over seeds; `±.000` for nothing."""
    text = number(change.difference, 3, signed=True)
    text = f"±{text}" if text == number(0.0, 3) else text
    return bold(text) if change.beyond_scatter else text


def failing_text(claims: Sequence[str] | None) -> str:
    return "–" if claims is None else ", ".join(claims) or "none"


def figures_of(claim: Claim) -> list[Selector]:
    """The claim's own figures that `choices` measures again."""
    return [figure.of for figure in claim.figure if under_choice(figure.of, DEFAULT) is not None]


def comparisons_of(claims: Claims) -> list[Comparison]:
    """The directions of these claims, where they compare two measurements."""
    return [
        (id, d.left, d.op, d.right)
        for id in CLAIMS
        if id in claims
        for d in claims[id].direction
        if isinstance(d.right, Selector) and d.op in ("<", ">") and not d.by and d.over is None
    ]
