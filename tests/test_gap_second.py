"""Whether two implementations of an arm agree, on cells made by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cells_support import make_table
from ematrace.analysis.gap_design import CHAIN, EMA, MASKED, SPEN
from ematrace.analysis.gap_scores import load_scores
from ematrace.analysis.gap_second import agreements, steps_twice
from ematrace.results import CellFile
from gap_support import run, sweep

SEEDS = range(5)
NOISE = (0.004, -0.003, 0.001, -0.002, 0.0)


def found(second: list[CellFile]) -> Any:
    table = make_table(*(run(EMA, seed, 4.0 + 0.1 * seed, 4.0 + 0.1 * seed) for seed in SEEDS), *second, *sweep([EMA]))
    return agreements(table, load_scores(table, "2m"), "validation")


@pytest.mark.parametrize(
    ("by", "spread", "verdict"),
    [(0.01, 1, "agree"), (-0.04, 1, "agree"), (0.08, 1, "differ"), (-0.08, 1, "differ"), (0.049, 5, "undecided")],
)
def test_the_interval_over_seeds_decides(by: float, spread: float, verdict: str) -> None:
    nats = [4.0 + 0.1 * seed + by + spread * NOISE[seed] for seed in SEEDS]
    (one,) = found([run(EMA, seed, nats[seed], nats[seed], experiment="gap_second") for seed in SEEDS])
    assert one.arm == EMA
    assert one.difference.mean == pytest.approx(by)  # paired: what seeds have in common is gone
    assert one.verdict == verdict


@pytest.mark.parametrize("change", [{"lr": 0.008}, {"settings": {"tokens": 1, "vocab_size": 8192}}])
def test_runs_of_another_rate_or_other_settings_are_not_compared(change: dict[str, Any]) -> None:
    assert not found([run(EMA, seed, 4.0, 4.0, experiment="gap_second", **change) for seed in SEEDS])


def test_two_seeds_that_are_alike_by_chance_are_too_few() -> None:
    (one,) = found([run(EMA, seed, 4.01 + 0.1 * seed, 4.05 + 0.1 * seed, experiment="gap_second") for seed in (0, 1)])
    assert one.verdict == "too few seeds"
    assert one.on_recall.mean == pytest.approx(0.05)
    assert one.difference.mean == pytest.approx(0.2 * 0.05 + 0.8 * 0.01)  # a fifth of the tokens repeat a pair


@pytest.mark.parametrize("experiment", ["gap_units", "gap_sizes"])
def test_an_arm_that_gap_lacks_is_compared_with_the_same_model_elsewhere(experiment: str) -> None:
    """Not with that of more units or fewer tokens."""
    half = {"tokens": 58_720_256, "vocab_size": 8192}
    files = [*sweep(CHAIN[:3]), *(run(SPEN, seed, 4.7, 4.7) for seed in SEEDS)]
    for seed in SEEDS:
        fewer = run(MASKED, seed, 4.1, 4.1, experiment="gap_sizes", settings=half)
        files += [
            run(MASKED, seed, 3.7, 3.7, experiment="gap_units", units=3072, parameters=4_523_264.0),
            run(MASKED, seed, 3.9, 3.9, experiment=experiment, units=512 if experiment == "gap_units" else None),
            msgspec.structs.replace(fewer, factors={**fewer.factors, "tokens": half["tokens"]}),
            run(MASKED, seed, 3.9 + 0.01, 3.9 + 0.02, experiment="gap_second"),
            run(SPEN, seed, 4.7 - 0.03, 4.7 - 0.03, experiment="gap_second"),
        ]
    table = make_table(*files)
    scores = load_scores(table, "2m")
    of = {one.arm: one for one in agreements(table, scores, "validation")}
    assert of.keys() == {SPEN, MASKED}
    assert of[MASKED].on_recall.values == pytest.approx([0.02] * 5)
    assert of[MASKED].difference.mean == pytest.approx(0.8 * 0.01 + 0.2 * 0.02)
    assert of[SPEN].difference.mean == pytest.approx(-0.03)
    (step,) = steps_twice(table, scores, "validation")
    assert step.first.values == pytest.approx([0.8] * 5)
    assert step.difference.mean == pytest.approx(-0.03 - (0.8 * 0.01 + 0.2 * 0.02))
