"""Accuracy on the formal grammar: representations, dimensions, ablations and learning rules, beside the controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ematrace.report.data import ReportData
from ematrace.report.factor_tables import factor_text
from ematrace.report.parts import Content, Paragraph
from ematrace.report.plots import BLUE, GREEN, GREY, PURPLE, VERMILION, Plot, Series, dot_plot
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
MARKS = {"within": (BLUE, "circle"), "transfer": (VERMILION, "square"), "deep": (GREEN, "diamond")}

REPRESENTATIONS = {"l0": "L0 activation", "traces": "traces", "l0+traces": "L0 + traces"}
NETWORK_CONTROLS = {"no_feedback": "no learned feedback", "no_spa_no_lateral": "no SPA, no lateral"}
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
# Every SPCN table has all controls and the BiGRU below it; plots after the first have these only.
BRIEF_CONTROLS = ("majority", "onehot", "ema_onehot", "ema_merged")


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


def brief_control_rows(group: int) -> list[Header]:
    return rows_by("controls", "features", {name: ONE_HOT_CONTROLS[name] for name in BRIEF_CONTROLS}, group)


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


def column_series(
    data: ReportData, rows: Sequence[Header], columns: Sequence[Header], marks: Sequence[tuple[str, str]]
) -> list[Series]:
    """The columns of a table as the series of a dot plot."""
    return [
        Series(column.label, *mark, samples_of(data, rows, column), papers_of(data, rows, column))
        for column, mark in zip(columns, marks, strict=True)
    ]


def accuracy_plot(data: ReportData, id: str, rows: Sequence[Header], what: str) -> Plot | None:
    columns = metric_columns({metric: ACCURACIES[metric] for metric in MARKS})
    rows = measured_rows(data, rows, columns)
    if not rows:
        return None
    series = column_series(data, rows, columns, list(MARKS.values()))
    alt = f"Dot plot: accuracy within, on transfer and on deep roles, by {what}. The table has the numbers."
    return dot_plot(id, [row.label for row in rows], series, alt, groups=[row.group for row in rows])


def representations(data: ReportData) -> Sequence[Content | None]:
    ours = with_others(data, rows_by("trace_probe", "representation", REPRESENTATIONS))
    rows = [*ours, *control_rows(data, 1)]
    task = {"control_task": "accuracy on random labels", "selectivity": "selectivity (W minus that)"}
    selective = measure_table(data, rows, metric_columns(task), "Control task and selectivity")
    note = Paragraph(
        "The control task gives every word a random role; a probe that does well on it memorises words "
        "(Hewitt and Liang 2019)."
    )
    return [
        accuracy_plot(data, "plot-representations", rows, "representation, with controls and BiGRU"),
        measure_table(data, rows, COLUMNS, "Accuracy by representation, controls and BiGRU"),
        note if selective else None,
        selective,
    ]


def dimension(data: ReportData) -> Sequence[Content | None]:
    if "dimension_control" not in data.table.experiments:
        return []
    labels: dict[str, dict[str, Factor]] = {
        "L0 activation, 1024-d": {"representation": "l0", "dimensions": 1024},
        "traces to 1024-d": {"representation": "traces", "dimensions": 1024},
        "traces to 512-d": {"representation": "traces", "dimensions": 512},
        "L0 to 512-d": {"representation": "l0", "dimensions": 512},
    }
    rows = with_others(data, [Header(label, "dimension_control", where=where) for label, where in labels.items()])
    parameters = metric_columns({"parameters": "parameters of the probe"})
    return [
        accuracy_plot(data, "plot-dimension", [*rows, *brief_control_rows(1)], "representation and dimension"),
        measure_table(data, [*rows, *control_rows(data, 1)], COLUMNS, "Accuracy by dimension"),
        measure_table(data, rows, parameters, "Parameters of the probe"),
    ]


def ablations(data: ReportData) -> Sequence[Content | None]:
    if "ablations" not in data.table.experiments:
        return []
    variants = {
        "full": "full (L0 + traces)",
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
    parts += other_rows(data, "ablations", [*parts, *levels])
    rows = [*parts, *levels, *control_rows(data, 2)]
    return [
        accuracy_plot(data, "plot-ablations", [*parts, *brief_control_rows(2)], "what is left of the network"),
        accuracy_plot(data, "plot-levels", levels, "level of the hierarchy"),
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
    if not measured_rows(data, rows, [*COLUMNS, *ratios, *ranks]):
        return []
    shown = measured_rows(data, rows, ratios)
    series = column_series(data, shown, ratios, [(PURPLE, "circle"), (GREY, "square")])
    alt = "Dot plot: participation ratio of weights and codes by learning rule, on a logarithmic axis."
    x_title = "participation ratio (1 = collapsed)"
    ratio = dot_plot("plot-rules-pr", [row.label for row in shown], series, alt, x_title=x_title, log=True)
    return [
        accuracy_plot(data, "plot-rules", [*rows, *brief_control_rows(1)], "feed-forward rule"),
        ratio if shown else None,
        measure_table(data, [*rows, *control_rows(data, 1)], COLUMNS, "Accuracy by feed-forward rule"),
        measure_table(data, rows, [*ratios, *ranks], "Participation ratio and effective rank by feed-forward rule"),
    ]
