"""Cells and verdicts as terminal tables and as one self-contained HTML page. Nothing is measured here."""

from ematrace.report.page import render_report, write_report
from ematrace.report.terminal import ledger_table, verdict_summary

__all__ = ["ledger_table", "render_report", "verdict_summary", "write_report"]
