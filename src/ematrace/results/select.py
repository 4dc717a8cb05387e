"""Selecting cells by their factors: `experiment/metric{factor=value, ...}`."""

from __future__ import annotations

import inspect
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from ematrace.results.sample import Sample, common_seeds
from ematrace.results.schema import NAME, Factor, Factors, Metric, ResultError, parse_factor
from ematrace.results.store import StoredCell

P = ParamSpec("P")
T = TypeVar("T")

_SELECTOR = re.compile(rf"(?P<experiment>{NAME})/(?P<metric>{NAME})(?:\{{(?P<where>.*)\}})?", re.DOTALL)
_BARE = r"[^\x00-\x1f\x7f\",{}]*"  # any other text stands in quotes, as JSON
_FACTOR = re.compile(rf"(?P<name>{NAME})\s*=\s*(?P<value>\"(?:[^\"\\]|\\.)*\"\s*|{_BARE})(?:,\s*|\Z)")


SAME_DATA = ("sentences", "grammar")
"""Settings that say, with the seed, which sentences an experiment had."""
BUDGET = ("tokens", "sequences", "length", "warmup", "vocab_size", "windows", "reader", "batch")
DECIDED_BY = {
    "budget": ("tokens",),
    "vocabulary": ("vocab_size",),
    "part": ("ff_rates",),
    "size": BUDGET,
    "choice": ("spcn", "ridge_lambda", "fit_intercept"),
}
"""Settings that a factor of another name decides; one of the same name decides the setting of that name."""


class AmbiguousSelection(ValueError):
    """A selector that names too few factors: the cells it selects differ in another one.

    >>> from pathlib import Path
    >>> rows = [Row({"width": width}, {"nats": Metric(5.0 - width / 64)}) for width in (64, 128)]
    >>> file = CellFile(2, "gap", "cpu", 0, {}, {}, collect_provenance(1.5), rows)
    >>> table = Table(StoredCell(cell, Path("gap.json"), local=True) for cell in file.unpack())
    >>> table.select("gap/nats")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    ematrace.results.select.AmbiguousSelection: gap/nats: factor 'width' has several values (64 in ...); name one
    """

    files: str = ""
    """Which two files differ in what, for a reader who can delete one of them."""


@dataclass(frozen=True)
class Selector:
    """One metric of the cells of an experiment whose factors have these values."""

    experiment: str
    metric: str
    where: Factors = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Selector:
        """Values are JSON where they are JSON (numbers, true), else text. Text in quotes is text, whatever it holds.

        >>> Selector.parse("gap/val_nats{context=ema, width=128}")
        Selector(experiment='gap', metric='val_nats', where={'context': 'ema', 'width': 128})
        """
        match = _SELECTOR.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not of the form experiment/metric{{factor=value, ...}}")
        where: dict[str, Factor] = {}
        rest = (match["where"] or "").strip()
        while rest:
            factor = _FACTOR.match(rest)
            if factor is None or not factor["value"].strip():
                raise ValueError(f"{text!r}: {rest!r} does not start with factor=value; other text stands in quotes")
            if factor["name"] in where:
                raise ValueError(f"{text!r}: factor '{factor['name']}' is given twice")
            where[factor["name"]] = parse_factor(factor["value"].strip())
            rest = rest[factor.end() :]
        return cls(match["experiment"], match["metric"], where)

    def __str__(self) -> str:
        where = ", ".join(f"{name}={_text(value)}" for name, value in self.where.items())
        return f"{self.experiment}/{self.metric}" + (f"{{{where}}}" if where else "")

    def __hash__(self) -> int:
        return hash((self.experiment, self.metric, frozenset(self.where.items())))


def _text(value: Factor) -> str:
    """Text is quoted where it would be read as something else."""
    if (
        isinstance(value, str)
        and value == value.strip() != ""
        and re.fullmatch(_BARE, value)
        and value == parse_factor(value)
    ):
        return value
    return json.dumps(value)


@dataclass(frozen=True)
class Selection:
    """What a selector found: a metric per seed, and the cells it stands in.

    >>> from pathlib import Path
    >>> def stored(seed, nats):
    ...     row = Row({}, {"nats": Metric(nats)})
    ...     file = CellFile(2, "gap", "cpu", seed, {}, {}, collect_provenance(1.5), [row])
    ...     return StoredCell(file.unpack()[0], Path(file.name), local=True)
    >>> selection = Table([stored(0, 3.5), stored(1, 3.25)]).select("gap/nats")
    >>> selection.seeds, selection.sample.values, [path.name for path in selection.paths]
    ((0, 1), (3.5, 3.25), ['seed-0_cpu.json', 'seed-1_cpu.json'])
    """

    selector: Selector
    seeds: tuple[int, ...]
    metrics: tuple[Metric, ...]
    cells: tuple[StoredCell, ...]

    @cached_property
    def sample(self) -> Sample:
        counts = [m.n for m in self.metrics if m.n is not None]
        effective = [m.n_effective for m in self.metrics if m.n_effective is not None]
        return Sample(
            values=tuple(math.nan if m.value is None else m.value for m in self.metrics),
            n=min(counts) if counts else None,
            unit=self.metrics[0].unit,
            repetitions=self.metrics[0].repetitions if len(self.metrics) == 1 else (),
            n_effective=min(effective) if len(effective) == len(self.metrics) else None,
        )

    @property
    def by_seed(self) -> dict[int, float]:
        return dict(zip(self.seeds, self.sample.values, strict=True))

    @property
    def scale(self) -> str:
        return self.cells[0].cell.scale

    @property
    def local(self) -> bool:
        return self.cells[0].local

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(stored.path for stored in self.cells))

    def on(self, seeds: Collection[int]) -> Selection:
        """The part of it on these seeds."""
        kept = [i for i, seed in enumerate(self.seeds) if seed in seeds]
        return Selection(
            self.selector,
            seeds=tuple(self.seeds[i] for i in kept),
            metrics=tuple(self.metrics[i] for i in kept),
            cells=tuple(self.cells[i] for i in kept),
        )

    def is_paired_with(self, other: Selection) -> bool:
        """Whether values stand against each other seed by seed: the same runs of the same experiment, with the same
        settings."""
        same = self.selector.experiment == other.selector.experiment and self.seeds == other.seeds
        return same and (self.local, self.scale) == (other.local, other.scale) and self.has_settings_of(other)

    def has_settings_of(self, other: Selection) -> bool:
        """Whether the settings are the same, but for those that follow from factors in which the two differ."""
        ours, theirs = self.cells[0].cell, other.cells[0].cell  # the cells of a selection share their settings
        if ours.settings == theirs.settings:
            return True
        names = {*ours.factors, *theirs.factors}
        differ = [name for name in names if ours.factors.get(name) != theirs.factors.get(name)]
        decided = {setting for name in differ for setting in (name, *DECIDED_BY.get(name, ()))}
        return _without(ours.settings, decided) == _without(theirs.settings, decided)

    def paired_values(self, other: Selection) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Values on the seeds that both have, where a seed means the same data in both: `sentences` and `grammar` of
        their settings agree. None for fewer than two seeds."""
        data = [{name: s.cells[0].cell.settings.get(name) for name in SAME_DATA} for s in (self, other)]
        if data[0] != data[1] or None in data[0].values() or (self.local, self.scale) != (other.local, other.scale):
            return None
        ours, theirs = self.by_seed, other.by_seed
        both = common_seeds((ours, theirs))
        return (tuple(ours[s] for s in both), tuple(theirs[s] for s in both)) if len(both) >= 2 else None


class Table:
    """Cells to select from.

    For each experiment the evidence is the cells of one origin (recorded or this machine's) and scale: those with the
    most seeds, then this machine's, then the newest. Beside recorded cells, only local ones of the same settings count,
    and only if they have every recorded point on as many seeds: a run of one arm does not displace all others.

    >>> from pathlib import Path
    >>> rows = [Row({"width": width}, {"nats": Metric(5.0 - width / 64)}) for width in (64, 128)]
    >>> file = CellFile(2, "gap", "cpu", 0, {}, {}, collect_provenance(1.5), rows)
    >>> table = Table(StoredCell(cell, Path("gap.json"), local=True) for cell in file.unpack())
    >>> table.values_of("gap", "width"), table.sample("gap/nats{width=128}").mean
    ((64, 128), 3.0)
    """

    def __init__(self, cells: Iterable[StoredCell]) -> None:
        self.cells = tuple(cells)
        self.ambiguous: dict[str, str] = {}
        """What `find` left out: the two files that differ, and how a selector found both."""
        self._settings_keys: dict[int, str] = {}
        self._kept: dict[Hashable, Any] = {}

    @cached_property
    def evidence(self) -> Mapping[str, tuple[StoredCell, ...]]:
        """The cells in force of every experiment."""
        origins: dict[str, dict[tuple[bool, str], list[StoredCell]]] = defaultdict(lambda: defaultdict(list))
        for stored in self.cells:
            origins[stored.cell.experiment][stored.local, stored.cell.scale].append(stored)
        return {name: tuple(_best(self._comparable(found))) for name, found in origins.items()}

    def _comparable(self, origins: Mapping[tuple[bool, str], list[StoredCell]]) -> list[list[StoredCell]]:
        """Beside recorded cells, this machine's count only if they were measured with the settings of recorded ones:
        a toy run is no evidence. Nor is a part of what was recorded."""
        groups = [cells for (local, _), cells in origins.items() if not local]
        recorded = {self._settings_key(s) for cells in groups for s in cells}
        own_groups = [cells for (local, _), cells in origins.items() if local]
        standing = _seeds_by_point(_best(groups)) if groups and own_groups else {}
        for cells in own_groups:
            kept = [s for s in cells if self._settings_key(s) in recorded] if recorded else cells
            own = _seeds_by_point(kept) if standing else {}
            if kept and all(len(own.get(point, ())) >= len(seeds) for point, seeds in standing.items()):
                groups.append(kept)
        return groups

    @cached_property
    def _with_metric(self) -> Mapping[tuple[str, str], Collection[list[StoredCell]]]:
        """By experiment and metric: the cells of every point, whose factors are the same on all seeds."""
        index: dict[tuple[str, str], dict[object, list[StoredCell]]] = defaultdict(lambda: defaultdict(list))
        for experiment, cells in self.evidence.items():
            for stored in cells:
                point = frozenset((name, type(value), value) for name, value in stored.cell.factors.items())
                for metric in stored.cell.metrics:
                    index[experiment, metric][point].append(stored)
        return {key: points.values() for key, points in index.items()}

    @property
    def experiments(self) -> tuple[str, ...]:
        return tuple(self.evidence)

    def where(self, **factors: Factor) -> Table:
        """The cells whose factors have these values."""
        return Table(s for s in self.cells if _agrees(s.cell.factors, factors))

    def at(self, factors: Factors) -> Table:
        """The cells in which each of these factors has this value, or is not there."""
        return Table(s for s in self.cells if all(_same(s.cell.factors.get(k, v), v) for k, v in factors.items()))

    def local(self) -> Table:
        """What this machine measured."""
        return Table(s for s in self.cells if s.local)

    def by_seed(self) -> Mapping[int, Table]:
        """The cells in force of every seed. They are chosen before, so that four own seeds never mix with twenty."""
        return self._seed_tables

    @cached_property
    def _seed_tables(self) -> Mapping[int, Table]:
        tables: dict[int, list[StoredCell]] = defaultdict(list)
        for cells in self.evidence.values():
            for stored in cells:
                tables[stored.cell.seed].append(stored)
        return {seed: Table(tables[seed]) for seed in sorted(tables)}

    def values_of(self, experiment: str, factor: str, **where: Factor) -> tuple[Factor, ...]:
        """The values a factor takes in the cells in force, in their order."""
        cells = (s.cell for s in self.evidence.get(experiment, ()))
        found = (c.factors[factor] for c in cells if factor in c.factors and _agrees(c.factors, where))
        return tuple(dict.fromkeys(found))

    def select(self, selector: Selector | str) -> Selection | None:
        """The metric on every seed, or None where no cell has it.

        Factors that the selector names must have that value. The others must be the same in all cells that are left,
        or the selector is ambiguous. Cells of different settings are never mixed: those with the most seeds count.
        """
        if isinstance(selector, str):
            selector = Selector.parse(selector)
        points = self._with_metric.get((selector.experiment, selector.metric), ())
        found = [stored for cells in points if _agrees(cells[0].cell.factors, selector.where) for stored in cells]
        if not found:
            return None
        by_settings: dict[str, list[StoredCell]] = defaultdict(list)
        for stored in found:
            by_settings[self._settings_key(stored)].append(stored)
        chosen = _best(by_settings.values())
        _refuse_ambiguity(selector, chosen)
        _refuse_other_units(selector, chosen)
        latest: dict[int, StoredCell] = {}
        for stored in sorted(chosen, key=_date):  # measured twice: the newest counts
            latest[stored.cell.seed] = stored
        seeds = tuple(sorted(latest))
        cells = tuple(latest[seed] for seed in seeds)
        return Selection(selector, seeds, tuple(s.cell.metrics[selector.metric] for s in cells), cells)

    def find(self, selector: Selector | str) -> Selection | None:
        """As `select`, for showing: None also where it is ambiguous, which is kept in `ambiguous`."""
        try:
            return self.select(selector)
        except AmbiguousSelection as error:
            self.ambiguous[error.files] = str(error)
            return None

    def _settings_key(self, stored: StoredCell) -> str:
        """Settings as text, once per file: the cells of a file share one mapping, which lives as long as they do."""
        settings = stored.cell.settings
        if id(settings) not in self._settings_keys:
            self._settings_keys[id(settings)] = json.dumps(settings, sort_keys=True, default=str)
        return self._settings_keys[id(settings)]

    def sample(self, selector: Selector | str) -> Sample | None:
        """The values alone."""
        selection = self.select(selector)
        return None if selection is None else selection.sample

    def keep(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` returns, called once for the same key."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]  # type: ignore[no-any-return]


def kept_with_table(make: Callable[Concatenate[Table, P], T]) -> Callable[Concatenate[Table, P], T]:
    """A function of a table whose result is kept with the table, once for the same arguments.

    >>> table, factors_of = Table([]), kept_with_table(lambda table, name="gap": print("computes", name))
    >>> factors_of(table), factors_of(table, "gap"), factors_of(table, name="gap")
    computes gap
    (None, None, None)
    """
    signature = inspect.signature(make)

    @wraps(make)
    def look_up(table: Table, /, *args: P.args, **kwargs: P.kwargs) -> T:
        bound = signature.bind(table, *args, **kwargs)
        bound.apply_defaults()
        key = (make, *bound.args[1:], *bound.kwargs.items())
        return table.keep(key, lambda: make(table, *args, **kwargs))

    return look_up


def _without(settings: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Settings but for those of these names, also inside nested mappings."""
    kept = ((name, value) for name, value in settings.items() if name not in names)
    return {name: _without(value, names) if isinstance(value, Mapping) else value for name, value in kept}


def _agrees(factors: Factors, where: Mapping[str, Factor]) -> bool:
    return all(name in factors and _same(factors[name], value) for name, value in where.items())


def _same(a: Factor, b: Factor) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def _refuse_ambiguity(selector: Selector, cells: Sequence[StoredCell]) -> None:
    first = cells[0]
    for stored in cells:
        ours, others = first.cell.factors, stored.cell.factors
        for name in dict.fromkeys((*ours, *others)):
            if name not in ours or name not in others or not _same(ours[name], others[name]):
                one, two = (_text(f[name]) if name in f else "absent" for f in (ours, others))
                places = f"{one} in {first.path}, {two} in {stored.path}"
                error = AmbiguousSelection(f"{selector}: factor '{name}' has several values ({places}); name one")
                both = f"{first.path} and {stored.path} differ in '{name}' ({one}, {two})"
                error.files = (
                    f"{first.path} has several values of '{name}' ({one}, {two})"
                    if first.path == stored.path
                    else f"{both}; if one of them is left over, delete it"
                )
                raise error


def _refuse_other_units(selector: Selector, cells: Sequence[StoredCell]) -> None:
    unit = cells[0].cell.metrics[selector.metric].unit
    for stored in cells:
        if (other := stored.cell.metrics[selector.metric].unit) != unit:
            raise ResultError(f"{stored.path}: {selector} is in {other!r}, in {cells[0].path} in {unit!r}")


def _date(stored: StoredCell) -> datetime:
    return datetime.fromisoformat(stored.cell.provenance.date)


def _seeds_by_point(cells: Iterable[StoredCell]) -> Mapping[frozenset[tuple[str, Factor]], set[int]]:
    found: dict[frozenset[tuple[str, Factor]], set[int]] = defaultdict(set)
    for stored in cells:
        found[frozenset(stored.cell.factors.items())].add(stored.cell.seed)
    return found


def _rank(cells: Collection[StoredCell]) -> tuple[int, bool, datetime]:
    return len({s.cell.seed for s in cells}), next(iter(cells)).local, max(map(_date, cells))


def _best(groups: Iterable[list[StoredCell]]) -> list[StoredCell]:
    return max(groups, key=_rank)
