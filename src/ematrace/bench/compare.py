"""Ratios of times and shares of ceilings: computed from cells, never stored."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec

from ematrace.bench.cells import CEILINGS, About, Comparison, is_benchmark, label
from ematrace.bench.measure import Timing
from ematrace.results import Cell, CellFile, Factors, Metric, ResultError, Selection, Selector, StoredCell, Table

Spread = tuple[float, float, float]
AMOUNTS = ("bytes", "operations", "tokens")


def ratio(
    table: Table,
    benchmark: str,
    *,
    over: Factors,
    under: Factors,
    where: Factors | None = None,
    per: Literal["tokens", "bytes"] | None = None,
) -> Spread | None:
    """Median, lowest and highest of the time of `over` divided by that of `under`, within repetitions.

    Both ran in turn in every repetition, so a moment that slows both down cancels. `ratio(table, "traces_gpu",
    over={"contender": "fla"}, under={"contender": "ematrace"}, where={"pass": "forward"})` says how many times as long
    fla takes. None where a cell is missing. With `per`, the times of one token or byte are divided.

    >>> from ematrace.results import CellFile, collect_provenance
    >>> seconds = {"ours": (1.0, 1.2, 1.1), "theirs": (2.0, 3.0, 2.2)}
    >>> rows = [timing_row({"contender": name}, Timing(of)) for name, of in seconds.items()]
    >>> settings = {"title": "Sums of a list", "checks": ["both sums are equal"]}
    >>> run = Run.of_file(CellFile(2, "sums", "cpu", 0, {}, settings, collect_provenance(1.5), rows))
    >>> ratio(run.table, "sums", over={"contender": "theirs"}, under={"contender": "ours"})
    (2.0, 2.0, 2.5)
    """
    sides = [{**(where or {}), **side} for side in (over, under)]
    metrics = ["seconds", *([per] if per else [])]
    found = [[table.select(Selector(benchmark, metric, side)) for metric in metrics] for side in sides]
    selections = _of_one_run([selection for side in found for selection in side])
    if selections is None:
        return None
    (a, *of_a), (b, *of_b) = selections[: len(metrics)], selections[len(metrics) :]
    times = [_timing(s).seconds for s in (a, b)]
    if len(times[0]) != len(times[1]):
        raise ValueError(f"{a.selector} and {b.selector}: {len(times[0])} and {len(times[1])} repetitions")
    scale = _amount(of_b[0]) / _amount(of_a[0]) if per else 1.0
    values = [scale * x / y for x, y in zip(*times, strict=True)]
    return statistics.median(values), min(values), max(values)


def share(table: Table, benchmark: str, ceiling: str, where: Factors) -> float | None:
    """The part of a measured ceiling that the cell with these factors reaches; None where either is missing.

    What the work needs at the least (bytes for "copy" and "read", operations for "matmul"), over its median time and
    the ceiling of the same run.

    >>> from ematrace.results import CellFile, collect_provenance
    >>> rows = [timing_row({"contender": "ours"}, Timing((0.5,)), bytes=1e9), ceiling_row("copy", 4e9)]
    >>> settings = {"title": "Sums of a list", "checks": ["both sums are equal"]}
    >>> run = Run.of_file(CellFile(2, "sums", "cpu", 0, {}, settings, collect_provenance(1.5), rows))
    >>> share(run.table, "sums", "copy", where={"contender": "ours"})  # 2 of 4 GB/s
    0.5
    """
    amount, rate = CEILINGS[ceiling]
    asked = [("seconds", where), (amount, where), (rate, {"ceiling": ceiling})]
    found = _of_one_run([table.select(Selector(benchmark, metric, factors)) for metric, factors in asked])
    if found is None:
        return None
    seconds, needed, best = found
    return _amount(needed) / _timing(seconds).median / _amount(best)


def _of_one_run(found: Sequence[Selection | None]) -> list[Selection] | None:
    known = [selection for selection in found if selection is not None]
    if len(known) < len(found):
        return None
    if len({selection.paths for selection in known}) > 1 or len(known[0].paths) > 1:
        raise ValueError(f"{known[0].selector} and {known[1].selector} are not of one run")
    return known


def _timing(selection: Selection) -> Timing:
    return timing_of(selection.metrics[0], selection.selector)


def _amount(selection: Selection) -> float:
    amount = selection.metrics[0].value
    if amount is None or amount <= 0:
        raise ValueError(f"{selection.selector}: {amount} is not an amount")
    return amount


def timing_of(seconds: Metric, source: object) -> Timing:
    """The repetitions of a metric `seconds`; `source` is the name used in errors."""
    try:
        timing = Timing(seconds.repetitions)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    if seconds.value != timing.median:
        raise ValueError(f"{source}: its value is not the median of its repetitions")
    return timing


@dataclass(frozen=True)
class Timed:
    """A cell with a time.

    >>> timed = Timed({"contender": "ours"}, Timing((0.5, 0.4, 0.9)), bytes=1e9, operations=0, tokens=100)
    >>> timed.label, timed.tokens_per_second, timed.bytes_per_second
    ('ours', 200.0, 2000000000.0)
    """

    factors: Factors
    timing: Timing
    bytes: float
    operations: float
    tokens: float

    @property
    def label(self) -> str:
        return label(self.factors)

    @property
    def bytes_per_second(self) -> float:
        return self.bytes / self.timing.median

    @property
    def operations_per_second(self) -> float:
        return self.operations / self.timing.median

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.timing.median


class Run:
    """One run of a benchmark, for tables and plots.

    Every problem of its cells is a `ResultError` that names their file.

    >>> from ematrace.results import CellFile, collect_provenance
    >>> seconds = {"ours": (1.0, 1.2, 1.1), "theirs": (2.0, 3.0, 2.2)}
    >>> rows = [timing_row({"contender": name}, Timing(of)) for name, of in seconds.items()]
    >>> settings = {"title": "Sums of a list", "checks": ["both sums are equal"]}
    >>> run = Run.of_file(CellFile(2, "sums", "cpu", 0, {}, settings, collect_provenance(1.5), rows))
    >>> run.about.title, [(timed.label, timed.timing.median) for timed in run.timed]
    ('Sums of a list', [('ours', 1.1), ('theirs', 2.2)])
    """

    def __init__(self, cells: Iterable[StoredCell]) -> None:
        self.table = Table(cells)
        first = self.table.cells[0]
        self.benchmark, self.provenance = first.cell.experiment, first.cell.provenance
        self.path, self.local = first.path, first.local
        settings = dict(first.cell.settings)
        try:
            self.about = msgspec.convert(settings, About)
        except msgspec.ValidationError as error:
            raise ResultError(f"{self.path}: settings: {error}") from error
        self.settings = {name: value for name, value in settings.items() if name not in About.__struct_fields__}

    @classmethod
    def of_file(cls, file: CellFile, path: str | Path = "result") -> Run:
        """A run that is not in a store."""
        if not file.cells:
            raise ResultError(f"{path}: a benchmark without cells")
        return cls(StoredCell(cell, Path(path), local=True) for cell in file.unpack())

    def check(self) -> None:
        """Raise a `ResultError` if any of its times, ceilings or ratios cannot be computed."""
        _ = self.ceilings, self.ratios, [self.shares(timed) for timed in self.timed]

    @property
    def cells(self) -> list[Cell]:
        return [stored.cell for stored in self.table.cells]

    @cached_property
    def timed(self) -> tuple[Timed, ...]:
        """The cells with a time, in their order."""
        return tuple(self._timed(cell) for cell in self.cells if "seconds" in cell.metrics)

    def _timed(self, cell: Cell) -> Timed:
        source = Selector(self.benchmark, "seconds", cell.factors)
        amounts = {name: cell.metrics[name].value if name in cell.metrics else 0.0 for name in AMOUNTS}
        try:
            timing = timing_of(cell.metrics["seconds"], source)
            for name, amount in amounts.items():
                if amount is None or amount < 0:
                    raise ValueError(f"{source}: {name}: not an amount")
        except ValueError as error:
            raise ResultError(f"{self.path}: {error}") from error
        return Timed(cell.factors, timing, **{name: amount or 0.0 for name, amount in amounts.items()})

    @cached_property
    def ceilings(self) -> dict[str, float]:
        """The measured ceilings by name: bytes or operations a second."""
        found = {}
        for cell in self.cells:
            name = cell.factors.get("ceiling")
            if isinstance(name, str) and name in CEILINGS and CEILINGS[name][1] in cell.metrics:
                rate = cell.metrics[CEILINGS[name][1]].value
                if rate is None or rate <= 0:
                    raise ResultError(f"{self.path}: ceiling {name}: not a rate")
                found[name] = rate
        return found

    @cached_property
    def figures(self) -> dict[str, float | None]:
        """What else was measured, by metric and factors."""
        return {
            f"{name.replace('_', ' ')}: {label(cell.factors)}": metric.value
            for cell in self.cells
            if "ceiling" not in cell.factors
            for name, metric in cell.metrics.items()
            if "seconds" not in cell.metrics or name not in ("seconds", *AMOUNTS)
        }

    def shares(self, timed: Timed) -> dict[str, float]:
        """What part of the measured ceilings a time reaches; more than all of one is not shown, see `too_low`.

        Bytes count against the ceiling of reads where that was measured, else against that of copies.
        """
        return {name: value for name, value in self._shares(timed).items() if value <= 1}

    @property
    def too_low(self) -> tuple[str, ...]:
        """Ceilings that something exceeded: they were measured while the machine was busier than later."""
        return tuple(dict.fromkeys(name for t in self.timed for name, value in self._shares(t).items() if value > 1))

    def _shares(self, timed: Timed) -> dict[str, float]:
        against = ["read" if "read" in self.ceilings else "copy", "matmul"]
        found = {name: self._computed(share, self.benchmark, name, timed.factors) for name in against}
        return {name: value for name, value in found.items() if value}

    def share_of_ceiling(self, timed: Timed) -> tuple[str, float] | None:
        """The ceiling that a time is nearest to, which is what limits it, and the share of it."""
        return max(self.shares(timed).items(), key=lambda item: item[1], default=None)

    @cached_property
    def ratios(self) -> dict[str, Spread]:
        """The comparisons that its settings name, for every pair of cells: `fla / ematrace, forward`."""
        found: dict[str, Spread] = {}
        for comparison in self.about.comparisons:
            for rest in self._pairs(comparison):
                sides = {"over": comparison.over, "under": comparison.under}
                spread = self._computed(ratio, self.benchmark, **sides, where=rest, per=comparison.per)
                if spread is not None:
                    found[comparison_label(comparison, rest)] = spread
        return found

    def _pairs(self, comparison: Comparison) -> list[dict[str, Any]]:
        """The factors that both cells of a pair share, for every pair."""
        rests = [
            [
                {name: value for name, value in timed.factors.items() if name not in side}
                for timed in self.timed
                if {**timed.factors, **comparison.where, **side} == timed.factors
            ]
            for side in (comparison.over, comparison.under)
        ]
        return [rest for rest in rests[0] if rest in rests[1]]

    def _computed(self, what: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return what(self.table, *arguments, **options)
        except ResultError:
            raise
        except ValueError as error:
            raise ResultError(f"{self.path}: {error}") from error


def comparison_label(comparison: Comparison, rest: Factors) -> str:
    """What is divided by what, and what both share.

    >>> comparison_label(Comparison({"contender": "fla"}, {"contender": "ematrace"}), {"pass": "forward"})
    'fla / ematrace, forward'
    """
    parts = [f"{label(comparison.over)} / {label(comparison.under)}", label(rest)]
    if comparison.per is not None:
        parts.append(f"per {comparison.per.removesuffix('s')}")
    return ", ".join(filter(None, parts))


def runs_of(table: Table) -> list[Run]:
    """Every run of a benchmark in a table: by name, recorded ones first, the newest first.

    >>> from ematrace.results import CellFile, collect_provenance
    >>> rows = [timing_row({"contender": "ours"}, Timing((0.5,)))]
    >>> settings = {"title": "Sums of a list", "checks": ["both sums are equal"]}
    >>> run = Run.of_file(CellFile(2, "sums", "cpu", 0, {}, settings, collect_provenance(1.5), rows))
    >>> [run.benchmark for run in runs_of(run.table)]
    ['sums']
    """
    by_path: dict[Path, list[StoredCell]] = {}
    for stored in table.cells:
        if is_benchmark(stored.cell):
            by_path.setdefault(stored.path, []).append(stored)
    runs = [Run(cells) for cells in by_path.values()]
    runs.sort(key=lambda run: datetime.fromisoformat(run.provenance.date), reverse=True)
    return sorted(runs, key=lambda run: (run.benchmark, run.local))
