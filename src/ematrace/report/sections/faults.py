"""Faults made on purpose, by how they ended."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from ematrace.files import show_path
from ematrace.report.data import ReportData
from ematrace.report.formatting import fold_paths
from ematrace.report.parts import Content, Paragraph, code, plain_table
from ematrace.results import Selector

EXPERIMENT = "faults"
KINDS = {
    "damage": "a file that is read, damaged",
    "kill": "SIGKILL while it writes",
    "disk": "the disk full",
    "pipe": "the reader of its output gone",
}
OUTCOMES = {
    "trials": "trials",
    "failures": "failures",
    "refused": "refused in one line",
    "recovered": "recovered",
    "harmless": "without effect",
    "changed": "other output, from a file without a checksum",
}


def faults(data: ReportData) -> Sequence[Content | None]:
    """Sums over everything that a kind of fault was tried on."""
    found = [str(kind) for kind in data.table.values_of(EXPERIMENT, "kind")]
    rows: list[list[Content]] = []
    for kind in found:
        targets = data.table.values_of(EXPERIMENT, "target", kind=kind)
        sums = []
        for outcome in OUTCOMES:
            selectors = (Selector(EXPERIMENT, outcome, {"kind": kind, "target": target}) for target in targets)
            sums.append(sum(sample.mean for s in selectors if (sample := data.sample(s)) is not None and sample.known))
        rows.append([KINDS.get(kind, kind), *(f"{total:,.0f}" for total in sums)])
    if not rows:
        return []
    evidence = data.table.evidence[EXPERIMENT]
    files = fold_paths(show_path(stored.path) for stored in evidence)
    where = Markup("By target, and each kind of failure by name: {}. Again: {}").format(
        Markup(", ").join(map(code, files)), code(evidence[0].cell.provenance.command)
    )
    return [plain_table(["fault", *OUTCOMES.values()], rows, "Faults by kind"), Paragraph(where, "tag")]
