"""What our own choices matter: what each does to the figures of claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from markupsafe import Markup

from ematrace.analysis.choices import (
    CLAIMS,
    DEFAULT,
    EXPERIMENT,
    SCATTER,
    SHOWN,
    Change,
    Comparison,
    Quantity,
    change_of,
    depends_on_choice,
    hold_under,
)
from ematrace.ledger import Claim, Claims, holds_at_points
from ematrace.report.data import ReportData
from ematrace.report.formatting import number
from ematrace.report.parts import Content, Paragraph, plain_table
from ematrace.results import Table

EXPLAINED = {
    "C05": "C05: T / D of the traces.",
    "C18": "C18: nouns read from the slow trace one / three words later.",
    "C42": "C42: worst distortion after top-k, of words / of states of L0.",
    "C43": "C43: accuracy on a new word less that on a known one / over chance, context less word.",
}


def choices(data: ReportData) -> Sequence[Content | None]:
    return claims_by_choice(data, names_of(data.table))


def names_of(table: Table) -> list[str]:
    """Of the choices that were measured, the default first."""
    names = [str(name) for name in table.values_of(EXPERIMENT, "choice")]
    return sorted(names, key=lambda name: name != DEFAULT)


def claims_by_choice(data: ReportData, names: Sequence[str]) -> Sequence[Content]:
    """The figures of claims under the default, and how each choice changes them."""
    figures = measured_figures(data)
    if DEFAULT not in names or not figures:
        return []
    held = {name: hold_under(data.table, name, comparisons_of(data.claims)) for name in names}
    rows: list[list[Content]] = []
    for name in names:
        changes = [[change_of(data.table, name, q) for q in quantities] for quantities in figures.values()]
        cells = [_cell(of_claim, name == DEFAULT) for of_claim in changes]
        rows.append([name, *cells, failing_text(held[name], held[DEFAULT] if name != DEFAULT else {})])
    heads = ["choice", *(f"{id} {data.claims[id].title}" for id in figures), "directions that fail"]
    note = Paragraph(
        "First the default's figures, as each claim gives them, then how a choice changes them. A change beyond "
        f"{SCATTER:g} standard deviations over seeds is bold. Directions are those of the claims, by means over seeds; "
        "of a choice, those that do not fail or hold as by default. "
        + " ".join(text for id, text in EXPLAINED.items() if id in figures)
    )
    table = plain_table(heads, rows, "Figures of claims by choice", "words")
    return [note, table]


def _cell(changes: Sequence[Change | None], is_default: bool) -> Content:
    bold = Markup("<b>{}</b>").format
    texts = ("–" if c is None else number(c.value) if is_default else change_text(c, bold) for c in changes)
    return "–" if all(change is None for change in changes) else Markup(" / ").join(texts)


def change_text(change: Change, bold: Callable[[str], str]) -> str:
    """`−.007`, bold beyond the scatter over seeds; `±.000` for nothing."""
    text = number(change.difference, 3, signed=True)
    text = f"±{text}" if text == number(0.0, 3) else text
    return bold(text) if change.beyond_scatter else text


def failing_text(held: Mapping[str, bool], by_default: Mapping[str, bool]) -> str:
    """Claims of which a direction fails; beside a default of which some do, only in what differs from it."""
    failing = [claim for claim, holds in held.items() if not holds]
    known = [claim for claim, holds in by_default.items() if not holds]
    if not held or not known:
        return ", ".join(failing) or ("none" if held else "–")
    more = [claim for claim in failing if claim not in known]
    less = [claim for claim in known if held.get(claim)]
    parts = [f"{word} {', '.join(claims)}" for word, claims in (("also", more), ("not", less)) if claims]
    return ", ".join(parts) or "the same"


def measured_figures(data: ReportData) -> Mapping[str, Sequence[Quantity]]:
    """By claim, those that have a value under the default."""
    figures = {id: figures_of(data.claims[id]) for id in CLAIMS if id in data.claims}
    return {id: found for id, found in figures.items() if any(change_of(data.table, DEFAULT, q) for q in found)}


def figures_of(claim: Claim) -> Sequence[Quantity]:
    """The claim's own figures that depend on the network, or what is shown in their place."""
    figures = [Quantity(f.of, f.minus, f.over) for f in claim.figure if depends_on_choice([f.of])]
    return SHOWN.get(claim.id, figures)


def comparisons_of(claims: Claims) -> list[Comparison]:
    """The directions of these claims that depend on the network."""
    return [
        Comparison(id, direction.selectors, partial(holds_at_points, direction))
        for id in CLAIMS
        if id in claims
        for direction in claims[id].direction
        if depends_on_choice(direction.selectors)
    ]
