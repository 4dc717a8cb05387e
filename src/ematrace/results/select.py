"""Selecting cells by their factors: `experiment/metric{factor=value, ...}`."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path

from ematrace.results.sample import Sample
from ematrace.results.schema import Factor, Factors, Metric
from ematrace.results.store import StoredCell

_SELECTOR = re.compile(r"(?P<experiment>[\w.-]+)/(?P<metric>[\w.-]+)(?:\{(?P<where>[^{}]*)\})?")


class AmbiguousSelection(ValueError):
    """A selector that names too few factors: the cells it selects differ in another one."""


@dataclass(frozen=True)
class Selector:
    """One metric of the cells of an experiment whose factors have these values."""

    experiment: str
    metric: str
    where: Factors = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Selector:
        """Values are JSON where they are JSON (numbers, true), else text; `"0.5"` in quotes is text.

        >>> Selector.parse("gap/val_nats{context=ema, width=128}")
        Selector(experiment='gap', metric='val_nats', where={'context': 'ema', 'width': 128})
        """
        match = _SELECTOR.fullmatch(text)
        if match is None:
            raise ValueError(f"'{text}' is not of the form experiment/metric{{factor=value, ...}}")
        where: dict[str, Factor] = {}
        for part in filter(None, (part.strip() for part in (match["where"] or "").split(","))):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals or not name or not value or name in where:
                raise ValueError(f"'{text}': '{part}' is not one factor=value")
            where[name] = _value(value)
        return cls(match["experiment"], match["metric"], where)

    def __str__(self) -> str:
        where = ", ".join(f"{name}={_text(value)}" for name, value in self.where.items())
        return f"{self.experiment}/{self.metric}" + (f"{{{where}}}" if where else "")

    def __hash__(self) -> int:
        return hash(str(self))


def _value(text: str) -> Factor:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, str | int | float | bool) else text


def _text(value: Factor) -> str:
    if isinstance(value, str):
        return json.dumps(value) if _value(value) != value else value
    return json.dumps(value)


@dataclass(frozen=True)
class Selection:
    """What a selector found: a metric per seed, and the cells it stands in."""

    selector: Selector
    seeds: tuple[int, ...]
    metrics: tuple[Metric, ...]
    cells: tuple[StoredCell, ...]

    @cached_property
    def sample(self) -> Sample:
        counts = [m.n for m in self.metrics if m.n is not None]
        return Sample(
            values=tuple(math.nan if m.value is None else m.value for m in self.metrics),
            n=min(counts) if counts else None,
            unit=self.metrics[0].unit,
            repetitions=self.metrics[0].repetitions if len(self.metrics) == 1 else (),
        )

    @property
    def scale(self) -> str:
        return self.cells[0].cell.scale

    @property
    def local(self) -> bool:
        return self.cells[0].local

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(stored.path for stored in self.cells))

    def is_paired_with(self, other: Selection) -> bool:
        """Whether values stand against each other seed by seed: the same runs of the same experiment."""
        same = self.selector.experiment == other.selector.experiment and self.seeds == other.seeds
        return same and self.local == other.local and self.scale == other.scale


class Table:
    """Cells to select from.

    For each experiment the evidence is the cells of one origin (recorded or this machine's) and scale: those with the
    most seeds, then this machine's, then the newest.
    """

    def __init__(self, cells: Iterable[StoredCell]) -> None:
        self.cells = tuple(cells)
        self._settings_keys: dict[int, str] = {}

    @cached_property
    def evidence(self) -> Mapping[str, tuple[StoredCell, ...]]:
        """The cells in force of every experiment."""
        origins: dict[str, dict[tuple[bool, str], list[StoredCell]]] = defaultdict(lambda: defaultdict(list))
        for stored in self.cells:
            origins[stored.cell.experiment][stored.local, stored.cell.scale].append(stored)
        return {name: tuple(_best(found.values())) for name, found in origins.items()}

    @cached_property
    def _with_metric(self) -> Mapping[tuple[str, str], list[StoredCell]]:
        index: dict[tuple[str, str], list[StoredCell]] = defaultdict(list)
        for experiment, cells in self.evidence.items():
            for stored in cells:
                for metric in stored.cell.metrics:
                    index[experiment, metric].append(stored)
        return index

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

    def by_seed(self) -> dict[int, Table]:
        """A table for every seed."""
        return {seed: Table(s for s in self.cells if s.cell.seed == seed) for seed in self.seeds}

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({s.cell.seed for s in self.cells}))

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
        candidates = self._with_metric.get((selector.experiment, selector.metric), ())
        found = [stored for stored in candidates if _agrees(stored.cell.factors, selector.where)]
        if not found:
            return None
        by_settings: dict[str, list[StoredCell]] = defaultdict(list)
        for stored in found:
            by_settings[self._settings_key(stored)].append(stored)
        chosen = _best(by_settings.values())
        _refuse_ambiguity(selector, chosen)
        latest: dict[int, StoredCell] = {}
        for stored in sorted(chosen, key=_date):  # measured twice: the newest counts
            latest[stored.cell.seed] = stored
        seeds = tuple(sorted(latest))
        cells = tuple(latest[seed] for seed in seeds)
        return Selection(selector, seeds, tuple(s.cell.metrics[selector.metric] for s in cells), cells)

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


def _agrees(factors: Factors, where: Mapping[str, Factor]) -> bool:
    return all(name in factors and _same(factors[name], value) for name, value in where.items())


def _same(a: Factor, b: Factor) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def _refuse_ambiguity(selector: Selector, cells: Sequence[StoredCell]) -> None:
    names = dict.fromkeys(name for stored in cells for name in stored.cell.factors)
    for name in names:
        values = dict.fromkeys(str(stored.cell.factors.get(name, "(absent)")) for stored in cells)
        if len(values) > 1:
            shown = ", ".join(list(values)[:5])
            raise AmbiguousSelection(f"{selector}: factor '{name}' has several values ({shown}); name one")


def _date(stored: StoredCell) -> datetime:
    return datetime.fromisoformat(stored.cell.provenance.date)


def _rank(cells: Collection[StoredCell]) -> tuple[int, bool, datetime]:
    return len({s.cell.seed for s in cells}), next(iter(cells)).local, max(map(_date, cells))


def _best(groups: Iterable[list[StoredCell]]) -> list[StoredCell]:
    return max(groups, key=_rank)
