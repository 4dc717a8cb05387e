"""What varies: seeds, and drawn grammars."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from ematrace.ledger import Share
from ematrace.report.data import ReportData
from ematrace.report.factor_tables import Entry, points_of, tables_of
from ematrace.report.formatting import decimals_for, interval, number, over_seeds, share
from ematrace.report.parts import MAX_DEPTH, Block, Content, Fold, Paragraph, code, plain_table, value_text
from ematrace.report.plots import condition_scatter, share_bars, strips
from ematrace.report.provenance import draws_line
from ematrace.report.sections.accuracy import ONE_HOT_CONTROLS, REPRESENTATIONS, SUPERVISED
from ematrace.report.verdicts import LETTERS
from ematrace.results import Factors, Sample, Selector, StoredCell, Table

DRAW = "draw"
LARGEST = 1e300
# What the scatter plot and the table of draws show of each.
SHOWN = {
    "L0 + traces, W": Selector("trace_probe", "within", {"representation": "l0+traces"}),
    "L0 + traces, T": Selector("trace_probe", "transfer", {"representation": "l0+traces"}),
    "L0, W": Selector("trace_probe", "within", {"representation": "l0"}),
    "L0, T": Selector("trace_probe", "transfer", {"representation": "l0"}),
}


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
    alt = "Strip plot: each seed's accuracy less the mean, over the band that the number of tokens explains."
    rows = []
    for label, s in found:
        decimals = decimals_for(s.mean)
        spread = [number(s.mean, decimals), number(s.sd), interval((min(s.values), max(s.values)), decimals)]
        rows.append([label, *spread, interval(over_seeds(s), decimals), interval(s.over_items, decimals)])
    heads = ["metric", "mean", "sd over seeds", "least–most", "95% of the mean", "95% by tokens, one run"]
    return [
        strips("plot-spread", [label for label, _ in found], [s for _, s in found], alt),
        plain_table(heads, rows, "Spread over seeds"),
    ]


def robustness(data: ReportData) -> Sequence[Content | None]:
    if not data.draws:
        command = code("ematrace reproduce robustness")
        return [Paragraph(Markup("robustness is not run yet: {}").format(command), "missing")]
    parts: list[Content] = []
    judged = [(row, row.robustness) for row in data.rows if row.robustness is not None]
    if judged:
        shares = [(r.all.holds, r.all.conditions) for _, r in judged]
        alt = "Bar chart: share of drawn grammars in which all directions of a claim hold, by claim."
        texts = [f"{row.id}: {row.claim}" for row, _ in judged]
        parts.append(share_bars("plot-shares", [row.id for row, _ in judged], shares, texts, alt))
        rows = [[row.id, row.claim, _whole(share(r.all)), _weakest(r.each)] for row, r in judged]
        heads = ["id", "claim", "all directions hold", "the predicate that holds least often"]
        parts.append(plain_table(heads, rows, "Claims over drawn grammars", "words"))
    draws = [Draw.of(seed, table, data) for seed, table in data.draws.items()]
    cells = _cells_of_draws(data)
    sources = Block([draws_line(stored for found in cells.values() for stored in found)], "sources")
    everything = Fold(f"All metrics over {len(draws)} draws", _metrics_over_draws(data, cells))
    return [*parts, *_draw_parts(draws), everything, sources]


def _whole(text: str) -> Markup:
    return Markup('<span class="whole">{}</span>').format(text)


def _weakest(each: Sequence[tuple[str, Share]]) -> Markup:
    text, least = min(each, key=lambda pair: pair[1].holds / pair[1].conditions)
    return code(text) + " " + _whole(share(least))


@dataclass(frozen=True)
class Draw:
    """One drawn grammar: what was drawn, and what was measured on it."""

    parameters: Mapping[str, Any]
    accuracies: Mapping[str, float | None]

    @classmethod
    def of(cls, seed: int, table: Table, data: ReportData) -> Draw:
        cell = table.cells[0].cell
        grammar = cell.settings.get("grammar")
        return cls(
            {
                DRAW: seed,
                **{name: cell.factors[name] for name in of_draw(table.cells) if name not in data.claims.robustness},
                **(flatten(grammar) if isinstance(grammar, Mapping) else {}),
            },
            {label: _finite(table.sample(selector)) for label, selector in SHOWN.items()},
        )


def _finite(sample: Sample | None) -> float | None:
    return sample.mean if sample is not None and sample.known else None


def of_draw(cells: Sequence[StoredCell]) -> list[str]:
    """The factors that are the same in all cells of a draw: they belong to the draw, not to what was measured on it."""
    first = cells[0].cell.factors if cells else {}
    return [name for name, value in first.items() if all(s.cell.factors.get(name) == value for s in cells)]


def _draw_parts(draws: Sequence[Draw]) -> list[Content]:
    """Accuracy against each number that was drawn, and the table of all draws."""
    names = list(dict.fromkeys(name for draw in draws for name in draw.parameters))
    columns: dict[str, list[float | None]] = {}
    for name in names:
        values = [_as_number(draw.parameters.get(name)) for draw in draws]
        is_parameter = name != DRAW and not name.endswith("seed")
        if is_parameter and len({v for v in values if v is not None}) > 1:
            columns[name] = values
    shown = [label for label in SHOWN if any(draw.accuracies[label] is not None for draw in draws)]
    parts: list[Content] = []
    if columns and shown:
        series = [(label, [draw.accuracies[label] for draw in draws]) for label in shown]
        alt = "Scatter plot: accuracy of the activation with and without traces against a parameter of the grammar."
        parts.append(condition_scatter("plot-conditions", columns, series, alt))
    rows = [
        [
            *(_show(draw.parameters.get(name)) for name in names),
            *(number(draw.accuracies[label]) for label in shown),
        ]
        for draw in draws
    ]
    table = plain_table([*names, *shown], rows, "Drawn grammars")
    return [*parts, Fold(f"All {len(draws)} draws", [table])]


def _cells_of_draws(data: ReportData) -> dict[str, list[StoredCell]]:
    """The evidence on all draws, by experiment."""
    cells: dict[str, list[StoredCell]] = {}
    for table in data.draws.values():
        for experiment, evidence in table.evidence.items():
            cells.setdefault(experiment, []).extend(evidence)
    return cells


def _metrics_over_draws(data: ReportData, cells: Mapping[str, list[StoredCell]]) -> list[Content]:
    """Mean and interval over draws of everything that was measured on them, an experiment in each fold."""
    folds: list[Content] = []
    for experiment, found in cells.items():
        hidden = {name for table in data.draws.values() for name in of_draw(table.evidence.get(experiment, ()))}
        points = points_of(found, hidden)

        def look(key: str, metric: str, points: Mapping[str, list[StoredCell]] = points) -> Entry:
            metrics = [s.cell.metrics[metric] for s in points[key] if metric in s.cell.metrics]
            counts = [m.n for m in metrics if m.n is not None]
            values = tuple(math.nan if m.value is None else m.value for m in metrics)
            return Entry(None, Sample(values, min(counts) if counts else None, metrics[0].unit) if metrics else None)

        tables = tables_of(experiment, points, look, hidden, "draws", data.claims.robustness)
        folds.append(Fold(experiment, tables))
    return folds


def flatten(record: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """
    >>> flatten({"shares": {"passive": 0.5}})
    {'shares.passive': 0.5}
    """
    flat: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, Mapping) and depth < MAX_DEPTH:
            flat |= {f"{name}.{inner}": leaf for inner, leaf in flatten(value, depth + 1).items()}
        else:
            flat[name] = value
    return flat


def _as_number(value: object) -> float | None:
    """A number that a plot can show; settings may hold anything that JSON can."""
    if not isinstance(value, int | float) or isinstance(value, bool) or abs(value) > LARGEST:
        return None
    return float(value)


def _show(value: object) -> str:
    return number(value) if isinstance(value, float) else value_text(value)
