"""What varies: seeds, and drawn grammars."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from ematrace.report.charts import Bar, bar_chart, linear_axis
from ematrace.report.data import ReportData
from ematrace.report.formatting import decimals_for, interval, number, over_seeds
from ematrace.report.parts import Content, Paragraph, code, plain_table
from ematrace.report.sections.accuracy import ONE_HOT_CONTROLS, REPRESENTATIONS, SUPERVISED
from ematrace.report.verdicts import LETTERS
from ematrace.results import Factors, Selector


def seed_spread(data: ReportData) -> Sequence[Content | None]:
    systems: list[tuple[str, str, Factors]] = [
        *((label, "trace_probe", {"representation": name}) for name, label in REPRESENTATIONS.items()),
        (ONE_HOT_CONTROLS["ema_onehot"], "controls", {"features": "ema_onehot"}),
        (SUPERVISED["untrained"], "supervised", {"unseen": "untrained"}),
    ]
    wanted = [
        (f"{label}, {LETTERS[metric]}", Selector(experiment, metric, where))
        for label, experiment, where in systems
        for metric in ("within", "transfer", "deep")
    ]
    found = [(label, s) for label, ref in wanted if (s := data.sample(ref)) and s.known and len(s.values) > 1]
    if not found:
        return [Paragraph("No metric has more than one seed yet.", "missing")]
    rows = []
    for label, s in found:
        decimals = decimals_for(s.mean)
        spread = [number(s.mean, decimals), number(s.sd), interval((min(s.values), max(s.values)), decimals)]
        rows.append([label, *spread, interval(over_seeds(s), decimals), interval(s.over_items, decimals)])
    heads = ["metric", "mean", "sd over seeds", "least–most", "95% of the mean", "95% by tokens, one run"]
    return [plain_table(heads, rows, "Spread over seeds")]


def robustness(data: ReportData) -> Sequence[Content | None]:
    if not data.draws:
        command = code("ematrace reproduce robustness")
        return [Paragraph(Markup("robustness is not run yet: {}").format(command), "missing")]
    judged = [(row, row.robustness.all) for row in data.rows if row.robustness is not None]
    bars = [Bar(row.id, s.holds / s.conditions, 0.0, 0.0, f"{s.holds}/{s.conditions}") for row, s in judged]
    axis = linear_axis(0.0, 1.0, "{:.0%}".format)
    caption = "Share of drawn grammars in which all directions of a claim hold"
    return [bar_chart(caption, bars, axis, "share of drawn grammars") if bars else None]
