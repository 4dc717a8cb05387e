"""Which roles are read, and from what: role by role, from the position, from the word or its context."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ematrace.report.charts import Series, dot_chart
from ematrace.report.data import ReportData
from ematrace.report.parts import Content
from ematrace.report.sections.accuracy import column_series
from ematrace.report.tables import Header, measure_table, measured_rows, selector_of, value_table
from ematrace.results import Selector

SYSTEMS = [
    Header("SPCN, L0 + traces", "trace_probe", where={"representation": "l0+traces"}),
    Header("BiGRU, unseen words untrained", "supervised", where={"unseen": "untrained"}),
    Header("BiGRU, unseen words 0", "supervised", where={"unseen": "zero"}),
    Header("BiGRU, unseen words mean", "supervised", where={"unseen": "mean"}),
]
INPUTS = [
    Header("intact", where={"input": "intact"}),
    Header("word hidden", where={"input": "context_only"}),
    Header("context hidden", where={"input": "word_only"}),
    Header("word swapped in its class", where={"input": "swapped"}),
    Header("new word of its class", where={"input": "novel"}),
    Header("known word of another class", where={"input": "other_class"}),
]


def by_role(data: ReportData) -> Sequence[Content | None]:
    names = dict.fromkeys(
        str(role) for experiment in ("trace_probe", "supervised") for role in data.table.values_of(experiment, "role")
    )
    rows = [Header(role, metric="role_transfer", where={"role": role}) for role in names]
    rows = measured_rows(data, rows, SYSTEMS)
    if not rows:
        return []

    def ours(row: Header) -> float:
        sample = data.sample(selector_of(row, SYSTEMS[0]))
        return sample.mean if sample is not None and sample.known else -math.inf

    def starred(row: Header) -> Header:
        in_paper = any(data.paper(selector_of(row, system)) is not None for system in SYSTEMS)
        return Header(f"★ {row.label}", metric=row.metric, where=row.where) if in_paper else row

    rows = [starred(row) for row in sorted(rows, key=lambda row: -ours(row))]
    chart = dot_chart(
        "Accuracy on transfer by role",
        [row.label for row in rows],
        column_series(data, rows, SYSTEMS),
        x_title="accuracy on transfer",
    )
    return [chart, measure_table(data, rows, SYSTEMS, "Transfer accuracy by role", "role")]


def position(data: ReportData) -> Sequence[Content | None]:
    selectors = {
        "position 0 is det_agent": Selector("position", "first_word_share", {"role": "det_agent"}),
        "position 0 is det_patient": Selector("position", "first_word_share", {"role": "det_patient"}),
        "position only, W": Selector("position", "within", {"features": "position"}),
        "position only, T": Selector("position", "transfer", {"features": "position"}),
        "position only, D": Selector("position", "deep", {"features": "position"}),
    }
    found = {label: selector for label, selector in selectors.items() if data.select(selector) is not None}
    if not found:
        return []
    samples, papers = [data.sample(s) for s in found.values()], [data.paper(s) for s in found.values()]
    series = [Series("ours", samples, papers)]
    return [
        dot_chart("Roles at position 0, and accuracy from it", list(found), series, x_title="share or accuracy"),
        value_table(data, found, "Position alone"),
    ]


def shortcuts(data: ReportData) -> Sequence[Content | None]:
    roles = data.table.values_of("shortcuts", "role")
    rows = [
        Header("all content words", "shortcuts", "content_accuracy"),
        Header("the same, SPCN's probe", "shortcuts", "spcn_content_accuracy"),
        *(Header(str(role), "shortcuts", "role_accuracy", {"role": role}, group=1) for role in roles),
    ]
    rows = measured_rows(data, rows, INPUTS)
    if not rows:
        return []
    return [
        dot_chart(
            "Accuracy by what is seen, of the BiGRU unless SPCN is named",
            [row.label for row in rows],
            column_series(data, rows, INPUTS),
            groups=[row.group for row in rows],
        ),
        measure_table(data, rows, INPUTS, "Shortcuts of the BiGRU and of SPCN's probe"),
    ]
