"""README.md and docs/gap.md: the chain from SPEN to GPT-2."""

from __future__ import annotations

from doc_tables.blocks import markdown, table
from ematrace.report.data import ReportData
from ematrace.report.gap_findings import NOT_RECORDED, chain_rows, details, findings


@table("gap-findings")
def gap_findings(data: ReportData, block: str) -> str:
    return findings(data)


@table("gap-details")
def gap_details(data: ReportData, block: str) -> str:
    return details(data)


@table("gap-chain")
def gap_chain(data: ReportData, block: str) -> str:
    found = chain_rows(data)
    return f"{NOT_RECORDED}\n" if found is None else markdown(*found)
