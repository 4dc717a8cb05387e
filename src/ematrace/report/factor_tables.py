"""Every cell of an experiment, whatever it is about: factors as columns, then metrics, each over seeds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from ematrace.report.data import ReportData
from ematrace.report.formatting import seed_count
from ematrace.report.parts import DataTable, TableCell, TableRow
from ematrace.report.tables import MAX_COLUMNS, Header, ours_cell, paired_head, paper_cell
from ematrace.results import Selection, Selector, StoredCell, Table
from ematrace.results.schema import Factor

Points = dict[str, list[StoredCell]]
"""The cells of every seed, by what was varied."""


def experiment_tables(data: ReportData, experiment: str, factor: str | None = None) -> list[DataTable]:
    """The evidence of an experiment: a table for each set of factors, without the claims' default factors; only of
    cells that have `factor`, if it is given. Cells of different factors have little to say side by side."""
    cells = [s for s in data.table.evidence.get(experiment, ()) if factor is None or factor in s.cell.factors]
    own = _points_of(data.own.evidence.get(experiment, ()))
    by_names: dict[frozenset[str], Points] = {}
    for key, point in _points_of(cells).items():
        by_names.setdefault(frozenset(point[0].cell.factors.keys() - data.claims.defaults.keys()), {})[key] = point
    return [_table(data, experiment, names, points, own) for names, points in by_names.items()]


def _points_of(cells: Iterable[StoredCell]) -> Points:
    points: Points = {}
    for stored in cells:
        points.setdefault(json.dumps(dict(stored.cell.factors), sort_keys=True), []).append(stored)
    return points


def _table(data: ReportData, experiment: str, varied: frozenset[str], points: Points, own: Points) -> DataTable:
    names = [name for name in next(iter(points.values()))[0].cell.factors if name in varied]
    metrics = list(dict.fromkeys(m for point in points.values() for stored in point for m in stored.cell.metrics))
    found = {
        key: [Table(point).select(Selector(experiment, metric)) for metric in metrics] for key, point in points.items()
    }
    figures = {key: [None if s is None else data.paper_of(s) for s in of] for key, of in found.items()}
    papers = [any(paper is not None for paper in of) for of in zip(*figures.values(), strict=True)]
    body = []
    for key, selections in found.items():
        where = {name: points[key][0].cell.factors[name] for name in names}
        cells = [TableCell(factor_text(value), "line", "" if i else "row") for i, value in enumerate(where.values())]
        for metric, selection, paper, has_paper in zip(metrics, selections, figures[key], papers, strict=True):
            cells += [paper_cell(paper)] if has_paper else []
            cells.append(_ours(Selector(experiment, metric, where), selection, own.get(key, ())))
        counts = dict.fromkeys(seed_count(selection.sample) for selection in selections if selection is not None)
        body.append(TableRow([*cells, TableCell(", ".join(counts))]))
    label = f"{experiment} by {', '.join(names)}" if names else experiment
    dense = " dense" if len(metrics) + sum(papers) > MAX_COLUMNS else ""
    head = paired_head([Header(metric) for metric in metrics], papers, names)
    return DataTable(label, head, body, f"figures means{dense}")


def _ours(selector: Selector, selection: Selection | None, own: Sequence[StoredCell]) -> TableCell:
    """With what this machine measured where another's cells are the evidence."""
    if selection is None:
        return ours_cell(selector, None)
    here = None if selection.local else Table(own).sample(Selector(selector.experiment, selector.metric))
    return ours_cell(selector, selection.sample, here)


def factor_text(value: Factor) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
