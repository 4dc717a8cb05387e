"""Cells as tables: the paper's number, ours, and its interval over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ematrace.report.data import ReportData
from ematrace.report.formatting import digits, interval, number, over_seeds, seed_count
from ematrace.report.parts import DataTable, Part, TableCell, TableRow
from ematrace.results import Factors, Sample, Selector

MAX_COLUMNS = 7


@dataclass(frozen=True)
class Header:
    """A row or a column of a table: its label, and its share of the selectors of its cells.

    `without` names factors of the other side that the metric of this one does not have.
    """

    label: str
    experiment: str = ""
    metric: str = ""
    where: Factors = field(default_factory=dict)
    without: tuple[str, ...] = ()
    group: int = 0


def selector_of(row: Header, column: Header) -> Selector:
    """The cell where a row and a column meet.

    >>> row = Header("traces", "trace_probe", where={"representation": "traces"})
    >>> str(selector_of(row, Header("within A", metric="within")))
    'trace_probe/within{representation=traces}'
    """
    without = (*row.without, *column.without)
    where = {name: value for name, value in {**row.where, **column.where}.items() if name not in without}
    return Selector(row.experiment or column.experiment, row.metric or column.metric, where)


def metric_columns(labels: Mapping[str, str]) -> list[Header]:
    """A column for every metric."""
    return [Header(label, metric=metric) for metric, label in labels.items()]


def measured_rows(data: ReportData, rows: Sequence[Header], columns: Sequence[Header]) -> list[Header]:
    """The rows that have a cell in one of the columns."""
    return [row for row in rows if any(data.select(selector_of(row, column)) is not None for column in columns)]


@dataclass(frozen=True)
class Measured(Part):
    """Mean, interval over seeds, and this machine's own run where another is the evidence."""

    selector: Selector
    mean: str
    seeds: str = ""
    here: str = ""
    macro = "measured"

    @classmethod
    def of(cls, selector: Selector, sample: Sample, own: Sample | None = None) -> Measured:
        decimals = digits(sample.mean)
        seeds = over_seeds(sample)
        here = ""
        if own is not None and own.known:
            ends, places = over_seeds(own), digits(own.mean)
            here = number(own.mean, places) + (f" {interval(ends, places)}" if ends else "")
        return cls(
            selector,
            number(sample.mean, decimals),
            interval(seeds, decimals) if seeds else "",
            here,
        )


def ours_cell(selector: Selector, sample: Sample | None, own: Sample | None = None) -> TableCell:
    if sample is None or not sample.known:
        return TableCell("–", "none")
    return TableCell(Measured.of(selector, sample, own))


def paper_cell(paper: float | None) -> TableCell:
    return TableCell("" if paper is None else number(paper), "paper")


def measure_table(
    data: ReportData, rows: Sequence[Header], columns: Sequence[Header], label: str, by: str = "condition"
) -> DataTable | None:
    """Per row and column the paper's number, where the column has any, and ours; None where nothing was measured.

    `by` says what the rows are.
    """
    rows = measured_rows(data, rows, columns)
    if not rows:
        return None
    shown = [c for c in columns if any(data.select(selector_of(row, c)) is not None for row in rows)]
    papers = [any(data.paper(selector_of(row, c)) is not None for row in rows) for c in shown]
    body = []
    for i, row in enumerate(rows):
        cells = [TableCell(row.label, scope="row")]
        counts: dict[str, None] = {}
        for column, has_paper in zip(shown, papers, strict=True):
            selector = selector_of(row, column)
            if has_paper:
                cells.append(paper_cell(data.paper(selector)))
            sample = data.sample(selector)
            cells.append(ours_cell(selector, sample, data.own_sample(selector)))
            if sample is not None:
                counts[seed_count(sample)] = None
        # The columns of a row can come from experiments with different seeds: all counts, in the order of the columns.
        cells.append(TableCell(", ".join(counts)))
        first = i > 0 and row.group != rows[i - 1].group
        body.append(TableRow(cells, "first" if first else ""))
    # Many columns: the intervals go under the means.
    dense = " dense" if len(shown) + sum(papers) > MAX_COLUMNS else ""
    return DataTable(label, paired_head(shown, papers, [by]), body, f"figures means{dense}")


def paired_head(columns: Sequence[Header], papers: Sequence[bool], names: Sequence[str]) -> list[TableRow]:
    """`names` of the first columns, the metrics, "seeds"; "paper" and "ours" in a line of their own where both are."""
    depth = 2 if any(papers) else 1
    top = [TableCell(name, "line" if i else "", "col", rowspan=depth) for i, name in enumerate(names)]
    second = []
    for column, has_paper in zip(columns, papers, strict=True):
        if has_paper:
            top.append(TableCell(column.label, scope="colgroup", colspan=2))
            second += [TableCell(word, scope="col") for word in ("paper", "ours")]
        else:
            top.append(TableCell(column.label, scope="col", rowspan=depth))
    top.append(TableCell("seeds", scope="col", rowspan=depth))
    return [TableRow(top), *([TableRow(second)] if second else [])]


def value_table(data: ReportData, selectors: Mapping[str, Selector], label: str) -> DataTable:
    """One metric per row, by name, with a column for each interval."""
    found = [(name, s, sample) for name, s in selectors.items() if (sample := data.sample(s)) is not None]
    papers = any(data.paper(selector) is not None for _, selector, _ in found)
    heads = ["metric", *(["paper"] if papers else []), "ours", "95% over seeds", "95% over tokens", "seeds", "tokens"]
    body = []
    for name, selector, sample in found:
        decimals = digits(sample.mean) if sample.known else None
        whole = ours_cell(selector, sample, data.own_sample(selector))
        mean = whole if not isinstance(whole.content, Measured) else _without_intervals(whole.content)
        body.append(
            TableRow(
                [
                    TableCell(name, scope="row"),
                    *([paper_cell(data.paper(selector))] if papers else []),
                    mean,
                    TableCell(interval(over_seeds(sample), decimals), "quiet"),
                    TableCell(interval(sample.over_items, decimals), "quiet"),
                    TableCell(seed_count(sample), "quiet"),
                    TableCell("–" if sample.n is None else f"{sample.n:,}", "quiet"),
                ]
            )
        )
    head = TableRow([TableCell(h, scope="col") for h in heads])
    return DataTable(label, [head], body, "figures means names")


def _without_intervals(cell: Measured) -> TableCell:
    return TableCell(Measured(cell.selector, cell.mean, here=cell.here))
