"""Every cell of an experiment, whatever it is about: factors as columns, then metrics, each over seeds."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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


def experiment_tables(data: ReportData, experiment: str, factor: str | None = None) -> list[DataTable]:
    """The evidence of an experiment: a table for each set of factors, without the claims' default factors; only of
    cells that have `factor`, if it is given."""
    cells = [s for s in data.table.evidence.get(experiment, ()) if factor is None or factor in s.cell.factors]
    points = points_of(cells, ())
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
    shared: Factors | None = None,
) -> list[DataTable]:
    """A table for each set of factors; cells of different ones have little to say side by side.

    `shared` are factors that all cells have, which need no column.
    """
    by_names: dict[frozenset[str], list[str]] = {}
    for key, cells in points.items():
        by_names.setdefault(frozenset(cells[0].cell.factors) - set(hidden), []).append(key)
    tables = []
    for varied_names, keys in by_names.items():
        names = [name for name in points[keys[0]][0].cell.factors if name in varied_names]
        metrics = list(dict.fromkeys(m for key in keys for stored in points[key] for m in stored.cell.metrics))
        body = []
        entries = [{metric: look(key, metric) for metric in metrics} for key in keys]
        papers = [any(row[metric].paper is not None for row in entries) for metric in metrics]
        for key, row in zip(keys, entries, strict=True):
            varied = {name: points[key][0].cell.factors[name] for name in names}
            selectors = [Selector(experiment, metric, {**(shared or {}), **varied}) for metric in metrics]
            body.append(_row(list(varied.values()), selectors, row, papers))
        label = f"{experiment} by {', '.join(names)}" if names else experiment
        dense = " dense" if len(metrics) + sum(papers) > MAX_COLUMNS else ""
        head = paired_head([Header(metric) for metric in metrics], papers, names, count)
        tables.append(DataTable(label, head, body, f"figures means{dense}"))
    return tables


def _row(
    values: Sequence[Factor], selectors: Sequence[Selector], entries: Mapping[str, Entry], papers: Sequence[bool]
) -> TableRow:
    cells = [TableCell(factor_text(value), "line", "" if i else "row") for i, value in enumerate(values)]
    for selector, has_paper in zip(selectors, papers, strict=True):
        entry = entries[selector.metric]
        if has_paper:
            cells.append(paper_cell(entry.paper))
        cells.append(ours_cell(selector, entry.sample, entry.own))
    counts = dict.fromkeys(seed_count(entry.sample) for entry in entries.values() if entry.sample is not None)
    return TableRow([*cells, TableCell(", ".join(counts))])


def factor_text(value: Factor) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
