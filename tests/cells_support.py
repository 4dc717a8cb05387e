"""Cells made by hand, for tests of results, ledger and page."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ematrace.results import CellFile, Metric, Provenance, Row, Sample, Store, StoredCell, Table
from ematrace.results.schema import SCHEMA

DATE = "2026-01-02T03:04:05+00:00"


def make_provenance(**changes: Any) -> Provenance:
    fields: dict[str, Any] = {
        "date": DATE,
        "commit": "abc",
        "dirty": False,
        "hardware": {"cpu": "x", "cores": 2},
        "versions": {"python": "3.11"},
        "seconds": 1.5,
        "peak_memory_mb": 12.0,
    }
    return Provenance(**{**fields, **changes})


def make_file(*rows: Row, experiment: str = "one", seed: int = 0, date: str = DATE, **changes: Any) -> CellFile:
    fields: dict[str, Any] = {
        "schema": SCHEMA,
        "experiment": experiment,
        "scale": "cpu",
        "seed": seed,
        "factors": {},
        "settings": {"k": 61, "rates": [0.3, 0.02]},
        "provenance": make_provenance(date=date),
        "cells": list(rows),
    }
    return CellFile(**{**fields, **changes})


def make_row(metrics: Mapping[str, float | None], **factors: Any) -> Row:
    return Row(factors, {name: Metric(value) for name, value in metrics.items()})


def accuracy(*values: float, n: int) -> Sample:
    return Sample(values, n, "accuracy")


def make_runs(experiment: str, seeds: Sequence[int] | None = None, /, **samples: Any) -> list[CellFile]:
    """A file per seed with one cell, which has a metric for each sample; keywords that are no samples go to the file.

    A sample that is shorter than the others is missing on the last seeds; nan is a cell without a value.
    """
    changes = {name: samples.pop(name) for name in list(samples) if not isinstance(samples[name], Sample)}
    longest = max(len(sample.values) for sample in samples.values())
    files = []
    for i, seed in enumerate(range(longest) if seeds is None else seeds):
        metrics = {name: _metric(sample, i) for name, sample in samples.items() if i < len(sample.values)}
        files.append(make_file(Row({}, metrics), experiment=experiment, seed=seed, **changes))
    return files


def _metric(sample: Sample, i: int) -> Metric:
    value = sample.values[i]
    return Metric(None if value != value else value, sample.unit, sample.n, repetitions=sample.repetitions)


def store_cells(files: Iterable[CellFile], *, local: bool = False) -> list[StoredCell]:
    """As if read from where `write_file` puts them."""
    folder, found = Path("local" if local else "recorded"), []
    for file in files:
        path = folder / file.experiment / file.name
        found += [StoredCell(cell, path, local) for cell in file.unpack()]
    return found


@functools.cache
def recorded_cells() -> tuple[StoredCell, ...]:
    """Those of the checkout, read once in a process: it takes seconds."""
    recorded = Path(__file__).parents[1] / "results"
    if not recorded.is_dir():
        pytest.skip("no checkout")
    return tuple(Store(recorded, recorded / "none").load())


def make_table(*recorded: CellFile, local: Sequence[CellFile] = ()) -> Table:
    return Table([*store_cells(recorded), *store_cells(local, local=True)])
