"""docs/gap.md, and the picture's text in README.md: the chain from SPEN to GPT-2 and what is beside it."""

from __future__ import annotations

from doc_tables.blocks import table
from ematrace.report.all_units import network_lines, network_rows
from ematrace.report.data import ReportData
from ematrace.report.formatting import markdown_table
from ematrace.report.gap_findings import (
    NOT_RECORDED,
    chain_rows,
    details,
    findings,
    place_rows,
    recall_finding,
    second_rows,
    second_step_rows,
    share_rows,
    split_rows,
    verdict_on_traces,
)
from ematrace.report.gradient_cost import gradient_rows, gradient_share_rows, start_rows, verdict_lines
from ematrace.report.gradient_halves import halves_rows
from ematrace.report.learning_rates import best_rate_rows
from ematrace.report.predictions import context_rows, prediction_rows, worth_rows


@table("gap-findings")
def gap_findings(data: ReportData, block: str) -> str:
    return findings(data)


@table("gap-verdict")
def gap_verdict(data: ReportData, block: str) -> str:
    return verdict_on_traces(data)


@table("gap-recall", "gap")
def gap_recall(data: ReportData, block: str) -> str:
    return recall_finding(data)


@table("gap-gradient-cost", "gap_units", "gap_kept", "gap_sizes", "gap_130m")
def gap_gradient_cost(data: ReportData, block: str) -> str:
    return _table_of(gradient_rows(data))


@table("gap-gradient-share", "gap", "gap_units", "gap_sizes")
def gap_gradient_share(data: ReportData, block: str) -> str:
    return _table_of(gradient_share_rows(data))


@table("gap-start", "gap_start")
def gap_start(data: ReportData, block: str) -> str:
    return _table_of(start_rows(data))


@table("gap-halves", "gap_halves")
def gap_halves(data: ReportData, block: str) -> str:
    return _table_of(halves_rows(data))


@table("gap-all-units", "gap_all_units")
def gap_all_units(data: ReportData, block: str) -> str:
    return _table_of(network_rows(data)) + "\n" + "".join(f"- {line}\n" for line in network_lines(data))


@table("gap-predictions", "gap_predictions")
def gap_predictions(data: ReportData, block: str) -> str:
    return _table_of(prediction_rows(data))


@table("gap-predictions-context", "gap_predictions")
def gap_predictions_context(data: ReportData, block: str) -> str:
    return _table_of(context_rows(data))


@table("gap-predictions-worth", "gap_predictions")
def gap_predictions_worth(data: ReportData, block: str) -> str:
    return _table_of(worth_rows(data))


@table("gap-gradient", "gap_units", "gap_kept")
def gap_gradient(data: ReportData, block: str) -> str:
    return "".join(f"- {line}\n" for line in verdict_lines(data)) or f"{NOT_RECORDED}\n"


@table("gap-rates")
def gap_rates(data: ReportData, block: str) -> str:
    return _table_of(best_rate_rows(data.cells))


@table("gap-details")
def gap_details(data: ReportData, block: str) -> str:
    return details(data)


@table("gap-chain")
def gap_chain(data: ReportData, block: str) -> str:
    return _table_of(chain_rows(data))


@table("gap-split")
def gap_split(data: ReportData, block: str) -> str:
    return _table_of(split_rows(data))


@table("gap-places")
def gap_places(data: ReportData, block: str) -> str:
    return _table_of(place_rows(data))


@table("gap-shares")
def gap_shares(data: ReportData, block: str) -> str:
    return _table_of(share_rows(data))


@table("gap-second")
def gap_second(data: ReportData, block: str) -> str:
    return _table_of(second_rows(data))


@table("gap-second-steps")
def gap_second_steps(data: ReportData, block: str) -> str:
    return _table_of(second_step_rows(data))


def _table_of(found: tuple[list[str], list[list[str]]] | None) -> str:
    return f"{NOT_RECORDED}\n" if found is None else markdown_table(*found)
