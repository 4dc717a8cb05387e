"""docs/gap.md, and the picture's text in README.md: the chain from SPEN to GPT-2 and what is beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from doc_tables.blocks import markdown_table, table
from doc_tables.gap_prose import NOT_RECORDED, details, findings, recall_finding, verdict_on_traces
from doc_tables.gap_rows import best_rate_rows, chain_rows, place_rows, second_step_rows, share_rows, split_rows
from ematrace.report.data import ReportData
from ematrace.report.formatting import Rows
from ematrace.report.gap_all_units import network_lines, network_rows
from ematrace.report.gap_context import (
    context_rows,
    context_share_rows,
    recall_part_rows,
    recall_saved_rows,
)
from ematrace.report.gap_halves import halves_rows
from ematrace.report.gap_predictions import context_rows as context_of_predictions
from ematrace.report.gap_predictions import prediction_rows, worth_rows
from ematrace.report.gap_recall_beyond import beyond_count_rows, beyond_distance_rows, beyond_rows, together_rows
from ematrace.report.gap_second import second_rows
from ematrace.report.gradient_cost import gradient_rows, gradient_share_rows, start_rows, verdict_lines

Build = Callable[[ReportData], Rows | None]
# By the name of the block: what makes its rows, and the experiments that it waits for.
ROWS: Mapping[str, tuple[Build, tuple[str, ...]]] = {
    "gap-chain": (chain_rows, ()),
    "gap-split": (split_rows, ()),
    "gap-places": (place_rows, ()),
    "gap-shares": (share_rows, ()),
    "gap-context": (context_rows, ()),
    "gap-context-shares": (context_share_rows, ()),
    "gap-recall-parts": (recall_part_rows, ()),
    "gap-recall-saved": (recall_saved_rows, ()),
    "gap-recall-beyond": (beyond_rows, ()),
    "gap-recall-beyond-distance": (beyond_distance_rows, ()),
    "gap-recall-beyond-count": (beyond_count_rows, ()),
    "gap-together": (together_rows, ()),
    "gap-second": (second_rows, ()),
    "gap-second-steps": (second_step_rows, ()),
    "gap-rates": (best_rate_rows, ()),
    "gap-start": (start_rows, ("gap_start",)),
    "gap-gradient-cost": (gradient_rows, ("gap_units", "gap_kept", "gap_sizes", "gap_130m")),
    "gap-gradient-share": (gradient_share_rows, ("gap", "gap_units", "gap_sizes")),
    "gap-halves": (halves_rows, ("gap_halves",)),
    "gap-predictions": (prediction_rows, ("gap_predictions",)),
    "gap-predictions-context": (context_of_predictions, ("gap_predictions",)),
    "gap-predictions-worth": (worth_rows, ("gap_predictions",)),
}


def _register(name: str, build: Build, experiments: tuple[str, ...]) -> None:
    @table(name, *experiments)
    def write(data: ReportData, block: str) -> str:
        return _table_of(build(data))


for _name, (_build, _experiments) in ROWS.items():
    _register(_name, _build, _experiments)


@table("gap-findings")
def gap_findings(data: ReportData, block: str) -> str:
    return findings(data)


@table("gap-verdict")
def gap_verdict(data: ReportData, block: str) -> str:
    return verdict_on_traces(data)


@table("gap-recall", "gap")
def gap_recall(data: ReportData, block: str) -> str:
    return recall_finding(data)


@table("gap-details")
def gap_details(data: ReportData, block: str) -> str:
    return details(data)


@table("gap-all-units", "gap_all_units")
def gap_all_units(data: ReportData, block: str) -> str:
    return _table_of(network_rows(data)) + "\n" + "".join(f"- {line}\n" for line in network_lines(data))


@table("gap-gradient", "gap_units", "gap_kept")
def gap_gradient(data: ReportData, block: str) -> str:
    return "".join(f"- {line}\n" for line in verdict_lines(data)) or f"{NOT_RECORDED}\n"


def _table_of(found: Rows | None) -> str:
    return f"{NOT_RECORDED}\n" if found is None else markdown_table(*found)
