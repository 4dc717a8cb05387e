"""README.md and docs/gap.md: the chain from SPEN to GPT-2."""

from __future__ import annotations

from doc_tables.blocks import markdown, table
from ematrace.report.data import ReportData
from ematrace.report.gap_findings import (
    NOT_RECORDED,
    chain_rows,
    details,
    findings,
    place_rows,
    second_rows,
    share_rows,
)


@table("gap-findings")
def gap_findings(data: ReportData, block: str) -> str:
    return findings(data)


@table("gap-details")
def gap_details(data: ReportData, block: str) -> str:
    return details(data)


@table("gap-chain")
def gap_chain(data: ReportData, block: str) -> str:
    return _table_of(chain_rows(data))


@table("gap-places")
def gap_places(data: ReportData, block: str) -> str:
    return _table_of(place_rows(data))


@table("gap-shares")
def gap_shares(data: ReportData, block: str) -> str:
    return _table_of(share_rows(data))


@table("gap-second")
def gap_second(data: ReportData, block: str) -> str:
    return _table_of(second_rows(data))


def _table_of(found: tuple[list[str], list[list[str]]] | None) -> str:
    return f"{NOT_RECORDED}\n" if found is None else markdown(*found)
