"""docs/gap-recall.md: recall in made-up text."""

from __future__ import annotations

from doc_tables.blocks import NOT_RECORDED, markdown_table, table
from ematrace.analysis.gap_made_pairs import EXPERIMENT
from ematrace.report.data import ReportData
from ematrace.report.gap_made_pairs import made_pairs, switch_recall_tables


@table("gap-made-contexts", EXPERIMENT)
def contexts(data: ReportData, _: str) -> str:
    found = made_pairs(data)
    return f"{markdown_table(*found.contexts)}\n{found.rules}\n" if found else f"{NOT_RECORDED}\n"


@table("gap-made-switches", EXPERIMENT)
def switches(data: ReportData, _: str) -> str:
    if (found := switch_recall_tables(data)) is None:
        return f"The three switches are {NOT_RECORDED}.\n"
    return f"{markdown_table(*found.arms)}\n{markdown_table(*found.effects)}\n{found.causes}\n"
