"""Accuracy on the formal grammar: representations, dimensions, ablations and learning rules, beside the controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ematrace.report.charts import RowChart, Series, dot_chart, log_axis
from ematrace.report.data import ReportData
from ematrace.report.factor_tables import factor_text
from ematrace.report.parts import Content, Paragraph
from ematrace.report.tables import Header, measure_table, measured_rows, metric_columns, selector_of
from ematrace.results import Factors, Sample
from ematrace.results.schema import Factor

ACCURACIES = {
    "within": "within A (W)",
    "transfer": "transfer to B (T)",
    "deep": "deep roles (D)",
    "deep_strict": "D without rel_pron",
}
COLUMNS = metric_columns(ACCURACIES)
DRAWN = metric_columns({metric: ACCURACIES[metric] for metric in ("within", "transfer", "deep")})

REPRESENTATIONS = {"l0": "L0 activation", "traces": "traces", "l0+traces": "L0 + traces"}
NETWORK_CONTROLS = {
    "no_feedback": "no learned feedback",
    "no_spa_no_lateral": "no SPA, no lateral",
    "no_feedback_no_spa": "no learned feedback, no SPA",
    "no_feedback_no_spa_no_lateral": "no learned feedback, no SPA, no lateral",
}
ONE_HOT_CONTROLS = {
    "majority": "majority role",
    "position": "position",
    "onehot": "the word",
    "window1": "words ±1",
    "window2": "words ±2",
    "window3": "words ±3",
    "ema_onehot": "EMA of one-hots",
    "ema_merged": "EMA, content merged",
}
UNTRAINED = {"untrained_bigru": "untrained BiGRU"}
SUPERVISED = {"untrained": "BiGRU", "zero": "BiGRU, unseen 0", "mean": "BiGRU, unseen mean"}
# The control that matters most stands in every SPCN table; all of them are in a section of their own.
MAIN_CONTROL = "ema_onehot"


def rows_by(experiment: str, factor: str, labels: Mapping[str, str], group: int = 0) -> list[Header]:
    """A row for each of these values of a factor."""
    return [Header(label, experiment, where={factor: value}, group=group) for value, label in labels.items()]


def other_rows(data: ReportData, experiment: str, known: Sequence[Header], group: int = 0) -> list[Header]:
    """A row for every other point of the experiment with an accuracy, so that a new condition is not lost."""
    seen: list[Factors] = [row.where for row in known if row.experiment == experiment]
    rows = []
    for stored in data.table.evidence.get(experiment, ()):
        factors = {n: v for n, v in stored.cell.factors.items() if n not in data.claims.defaults}
        if "within" in stored.cell.metrics and not any(where.items() <= factors.items() for where in seen):
            seen.append(factors)
            label = ", ".join(map(factor_text, factors.values()))
            rows.append(Header(label, experiment, where=factors, group=group))
    return rows


def with_others(data: ReportData, rows: Sequence[Header]) -> list[Header]:
    return [*rows, *other_rows(data, rows[0].experiment, rows, rows[0].group)]


def main_control(group: int) -> list[Header]:
    return rows_by("controls", "features", {MAIN_CONTROL: ONE_HOT_CONTROLS[MAIN_CONTROL]}, group)


def control_rows(data: ReportData, group: int) -> list[Header]:
    """Everything that belongs beside SPCN: parts of it switched off, features without a network, the BiGRU."""
    network = rows_by("controls", "features", NETWORK_CONTROLS, group)
    one_hot = rows_by("controls", "features", ONE_HOT_CONTROLS, group + 1)
    untrained = rows_by("controls", "features", UNTRAINED, group + 2)
    others = other_rows(data, "controls", [*network, *one_hot, *untrained], group + 1)
    supervised = with_others(data, rows_by("supervised", "unseen", SUPERVISED, group + 2))
    return [*network, *one_hot, *others, *untrained, *supervised]


def samples_of(data: ReportData, rows: Sequence[Header], column: Header) -> list[Sample | None]:
    return [data.sample(selector_of(row, column)) for row in rows]


def papers_of(data: ReportData, rows: Sequence[Header], column: Header) -> list[float | None]:
    return [data.paper(selector_of(row, column)) for row in rows]


def column_series(data: ReportData, rows: Sequence[Header], columns: Sequence[Header]) -> list[Series]:
    """The columns of a table as the series of a dot chart."""
    return [Series(c.label, samples_of(data, rows, c), papers_of(data, rows, c)) for c in columns]


def accuracy_chart(data: ReportData, rows: Sequence[Header], what: str) -> RowChart | None:
    rows = measured_rows(data, rows, DRAWN)
    if not rows:
        return None
    groups = [row.group for row in rows]
    return dot_chart(
        f"Accuracy by {what}", [row.label for row in rows], column_series(data, rows, DRAWN), groups=groups
    )


def representations(data: ReportData) -> Sequence[Content | None]:
    ours = with_others(data, rows_by("trace_probe", "representation", REPRESENTATIONS))
    bigru = rows_by("supervised", "unseen", {"untrained": SUPERVISED["untrained"]}, 2)
    rows = [*ours, *main_control(1), *bigru]
    task = {"control_task": "accuracy on random labels", "selectivity": "selectivity (W minus that)"}
    selective = measure_table(data, ours, metric_columns(task), "Control task and selectivity")
    note = Paragraph(
        "The control task gives every word a random role; a probe that does well on it memorises words "
        "(Hewitt and Liang 2019)."
    )
    return [
        accuracy_chart(data, rows, "representation"),
        measure_table(data, rows, COLUMNS, "Accuracy by representation"),
        note if selective else None,
        selective,
    ]


def controls(data: ReportData) -> Sequence[Content | None]:
    rows = control_rows(data, 0)
    return [accuracy_chart(data, rows, "control"), measure_table(data, rows, COLUMNS, "Accuracy of the controls")]


def dimension(data: ReportData) -> Sequence[Content | None]:
    labels: dict[str, dict[str, Factor]] = {
        "L0 activation, 1024-d": {"representation": "l0", "dimensions": 1024},
        "traces to 1024-d": {"representation": "traces", "dimensions": 1024},
        "traces to 512-d": {"representation": "traces", "dimensions": 512},
        "L0 to 512-d": {"representation": "l0", "dimensions": 512},
    }
    rows = with_others(data, [Header(label, "dimension_control", where=where) for label, where in labels.items()])
    shown = [*rows, *main_control(1)]
    parameters = metric_columns({"parameters": "parameters of the probe"})
    return [
        accuracy_chart(data, shown, "representation and dimension"),
        measure_table(data, shown, COLUMNS, "Accuracy by dimension"),
        measure_table(data, rows, parameters, "Parameters of the probe"),
    ]


def ablations(data: ReportData) -> Sequence[Content | None]:
    variants = {
        "full": "full (L0 + traces)",
        "activation": "activation of L0",
        "forward_only": "forward only",
        "backward_only": "backward only",
        "fast_only": "fast traces only",
        "slow_only": "slow traces only",
        "no_spa": "no SPA",
        "no_spa_no_slow": "no SPA, no slow",
    }
    numbers = sorted(data.table.values_of("ablations", "level"), key=str)
    levels = [Header(f"traces of L{n}", "ablations", where={"level": n}, group=1) for n in numbers]
    parts = rows_by("ablations", "variant", variants)
    same = rows_by("ablations", "variant", {"traces": "the traces of L0"})
    parts += other_rows(data, "ablations", [*parts, *same, *levels])
    rows = [*parts, *levels, *main_control(2)]
    return [
        accuracy_chart(data, rows, "what is left of the network, and by level"),
        measure_table(data, rows, COLUMNS, "Accuracy by ablation and level"),
    ]


def rules(data: ReportData) -> Sequence[Content | None]:
    labels = {
        "frozen": "frozen random",
        "sanger": "Sanger",
        "foldiak": "Földiák",
        "pghu": "PGHU",
        "forward_forward": "forward-forward",
    }
    ratios = metric_columns({"weight_pr": "participation ratio, weights", "code_pr": "participation ratio, codes"})
    ranks = metric_columns({"weight_rank": "effective rank, weights", "code_rank": "effective rank, codes"})
    rows = with_others(data, rows_by("feedforward_rules", "rule", labels))
    shown = [*rows, *main_control(1)]
    return [
        accuracy_chart(data, shown, "feed-forward rule"),
        ratio_chart(data, measured_rows(data, rows, ratios), ratios),
        measure_table(data, shown, COLUMNS, "Accuracy by feed-forward rule"),
        measure_table(data, rows, [*ratios, *ranks], "Participation ratio and effective rank by feed-forward rule"),
    ]


def ratio_chart(data: ReportData, rows: Sequence[Header], columns: Sequence[Header]) -> RowChart | None:
    series = column_series(data, rows, columns)
    known = [f.mean for one in series for f in one.samples if f is not None and f.known and f.mean > 0]
    if not known:
        return None
    axis = log_axis(min(1.0, *known), 1.1 * max(known))
    title = "participation ratio (1 = collapsed)"
    labels = [row.label for row in rows]
    return dot_chart("Participation ratio by feed-forward rule", labels, series, x_title=title, axis=axis)
