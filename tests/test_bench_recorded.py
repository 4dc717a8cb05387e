"""The recorded runs of benchmarks: every figure of version 0.1 is there again, and no name is taken twice."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from cells_support import recorded_cells
from ematrace.bench import FACTORS, Run, is_benchmark, runs_of
from ematrace.results import Table

REPOSITORY = Path(__file__).parents[1]
RECORDED = REPOSITORY / "results"
# Names of version 0.1 beside today's: [was, is, value, ...].
OLD: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "benchmarks_v0.1.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def table() -> Table:
    return Table(recorded_cells())


@pytest.fixture(scope="module")
def runs(table: Table) -> dict[str, Run]:
    return {run.benchmark: run for run in runs_of(table) if not run.local}


@pytest.mark.parametrize("benchmark", OLD)
def test_figures_of_version_0_1(benchmark: str, runs: dict[str, Run]) -> None:
    run, old = runs[benchmark], OLD[benchmark]
    if run.provenance.commit != old["commit"]:  # measured again since
        assert datetime.fromisoformat(run.provenance.date) > datetime.fromisoformat(old["date"])
        return
    assert [getattr(run.provenance, name) for name in ("date", "seconds", "command")] == [
        old[name] for name in ("date", "seconds", "command")
    ]
    assert run.ceilings == old["ceilings"]
    by_label = {timed.label: timed for timed in run.timed}
    assert len(by_label) == len(old["times"])
    for _, name, median, repetitions, n_bytes, tokens in old["times"]:
        timed = by_label[name]
        assert (timed.timing.median, len(timed.timing.seconds)) == (median, repetitions)
        assert (timed.bytes, timed.tokens) == (n_bytes, tokens)
    for _, name, spread in old["ratios"]:
        assert run.ratios[name] == pytest.approx(spread, rel=1e-12)
    medians = {name: spread[0] for name, spread in run.ratios.items()}
    for _, name, value in old["figures"]:
        assert {**run.figures, **medians}[name] == pytest.approx(value, rel=1e-12)


def test_operations_are_counted_as_everywhere(table: Table) -> None:
    """Six for each weight of a matmul and token; attention 12 T d a block, the masked half included."""
    d, blocks, length, vocabulary = 768, 12, 2048, 50257
    inside = {"spen": 13 * d * d, "gpt2": 12 * d * d + 2 * length * d, "transformer": 12 * d * d + 2 * length * d}
    for contender, each in inside.items():
        where = f"{{contender={contender}}}"
        operations, tokens = (table.select(f"training_gpu/{metric}{where}") for metric in ("operations", "tokens"))
        assert operations is not None
        assert tokens is not None
        assert operations.sample.mean / tokens.sample.mean == 6 * (blocks * each + vocabulary * d)


def test_every_recorded_run_can_be_shown(runs: dict[str, Run]) -> None:
    assert set(runs) >= set(OLD)
    for run in runs.values():
        run.check()
        assert not run.about.quick


def test_factors_are_those_that_the_package_names(runs: dict[str, Run]) -> None:
    assert {name for run in runs.values() for cell in run.cells for name in cell.factors} <= FACTORS.keys()


def test_benchmarks_and_experiments_have_names_of_their_own(table: Table, runs: dict[str, Run]) -> None:
    experiments = {stored.cell.experiment for stored in table.cells if not is_benchmark(stored.cell)}
    assert experiments
    scripts = {path.stem for path in (REPOSITORY / "benchmarks").glob("*.py")}
    assert not experiments & (scripts | set(runs))
    assert set(runs) <= scripts
