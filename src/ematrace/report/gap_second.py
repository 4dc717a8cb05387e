"""A second implementation of some arms beside the first: for page and docs."""

from __future__ import annotations

from ematrace.analysis.gap_second import agreements
from ematrace.analysis.plan import MARGIN
from ematrace.report.data import ReportData
from ematrace.report.formatting import Rows, with_interval
from ematrace.report.gap import GapData, text_name


def second_rows(data: ReportData) -> Rows | None:
    """A second implementation against the first, by text and arm; None where it has no arm of theirs on two seeds."""
    gap = data.derived(GapData)
    rows = []
    for text in gap.scores.texts:
        for one in agreements(data.table, gap.scores, text):
            nats = [with_interval(sample, signed=True) for sample in (one.difference, one.on_recall)]
            rows.append([text_name(text), one.arm.text, *nats, one.verdict, str(len(one.difference.values))])
    heads = ["text", "arm", "second implementation minus first, nats", "on repeated pairs"]
    return Rows([*heads, f"within ±{MARGIN:g} nats", "seeds"], rows) if rows else None
