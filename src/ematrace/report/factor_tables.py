"""Every cell of an experiment, whatever it is about: factors as columns, then metrics, each over seeds."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from ematrace.report.data import ReportData
from ematrace.report.formatting import seed_count
from ematrace.report.parts import DataTable, TableCell, TableRow
from ematrace.report.tables import MAX_COLUMNS, Header, ours_cell, paired_head, paper_cell
from ematrace.results import Factors, Sample, Selector, StoredCell, Table
from ematrace.results.schema import Factor


@dataclass(frozen=True)
class Entry:
    """One metric at one point: the paper's number, ours, and this machine's own."""

    paper: float | None
    sample: Sample | None
    own: Sample | None = None


Lookup = Callable[[str, str], Entry]
"""From a point's key and a metric."""


def experiment_tables(data: ReportData, experiment: str) -> list[DataTable]:
    """The evidence of an experiment: a table for each set of factors, without the claims' default factors."""
    points = points_of(data.table.evidence.get(experiment, ()), ())
    own = points_of(data.own.evidence.get(experiment, ()), ())

    def look(key: str, metric: str) -> Entry:
        selector = Selector(experiment, metric)
        selection = Table(points[key]).select(selector)
        if selection is None:
            return Entry(None, None)
        other = None if selection.local else Table(own.get(key, ())).sample(selector)
        return Entry(data.paper_of(selection), selection.sample, other)

    return tables_of(experiment, points, look, hidden=data.claims.defaults.keys())


def points_of(cells: Iterable[StoredCell], hidden: Collection[str]) -> dict[str, list[StoredCell]]:
    """The cells by what was varied, seeds and `hidden` factors apart."""
    points: dict[str, list[StoredCell]] = {}
    for stored in cells:
        factors = {name: value for name, value in stored.cell.factors.items() if name not in hidden}
        points.setdefault(json.dumps(factors, sort_keys=True), []).append(stored)
    return points


def tables_of(
    experiment: str,
    points: dict[str, list[StoredCell]],
    look: Lookup,
    hidden: Collection[str],
    count: str = "seeds",
) -> list[DataTable]:
    """A table for each set of factors; cells of different ones have little to say side by side."""
    by_names: dict[tuple[str, ...], list[str]] = {}
    for key, cells in points.items():
        names = tuple(name for name in cells[0].cell.factors if name not in hidden)
        by_names.setdefault(names, []).append(key)
    tables = []
    for names, keys in by_names.items():
        metrics = list(dict.fromkeys(m for key in keys for stored in points[key] for m in stored.cell.metrics))
        rows = [(points[key][0].cell.factors, {metric: look(key, metric) for metric in metrics}) for key in keys]
        label = f"{experiment} by {', '.join(names)}" if names else experiment
        tables.append(_table(label, experiment, names, metrics, rows, count))
    return tables


def _table(
    label: str,
    experiment: str,
    names: Sequence[str],
    metrics: Sequence[str],
    rows: Sequence[tuple[Factors, dict[str, Entry]]],
    count: str,
) -> DataTable:
    papers = [any(entries[metric].paper is not None for _, entries in rows) for metric in metrics]
    body = []
    for factors, entries in rows:
        cells = [TableCell(factor_text(factors[name]), "line", "" if i else "row") for i, name in enumerate(names)]
        for metric, has_paper in zip(metrics, papers, strict=True):
            entry = entries[metric]
            if has_paper:
                cells.append(paper_cell(entry.paper))
            cells.append(ours_cell(Selector(experiment, metric, factors), entry.sample, entry.own))
        counts = dict.fromkeys(seed_count(e.sample) for e in entries.values() if e.sample is not None)
        body.append(TableRow([*cells, TableCell(", ".join(counts), "num quiet")]))
    dense = " dense" if len(metrics) + sum(papers) > MAX_COLUMNS else ""
    head = paired_head([Header(metric) for metric in metrics], papers, names, count)
    return DataTable(label, head, body, f"figures{dense}")


def factor_text(value: Factor) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
