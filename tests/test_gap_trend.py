"""Which differences the trend over sizes, budgets and vocabularies may show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cells_support import make_table
from ematrace.analysis.gap_design import CHAIN
from ematrace.analysis.gap_trend import CONTRASTS, GRADIENT, WHOLE, Contrast, build_trend
from ematrace.results import CellFile
from gap_support import RATE, run, sweep

ENDS = CONTRASTS[WHOLE]
NATS = {CHAIN[0]: 5.0, CHAIN[3]: 4.4, CHAIN[-1]: 4.0}


def runs(size: str, seeds: int = 3, experiment: str = "gap_sizes", **changes: Any) -> list[CellFile]:
    return [
        run(arm, seed, nats + 0.001 * seed * i, 4.0, size=size, experiment=experiment, **changes)
        for i, (arm, nats) in enumerate(NATS.items())
        for seed in range(seeds)
    ]


def trend_of(*files: CellFile) -> Contrast:
    [found] = build_trend(make_table(*files))
    return found


def settled(size: str, **changes: Any) -> list[CellFile]:
    return sweep(tuple(NATS), experiment="gap_rates" if size == "2m" else "gap_size_rates", size=size, **changes)


@pytest.mark.parametrize("size", ["2m", "7m"])
def test_settled_rates_and_three_seeds(size: str) -> None:
    found = trend_of(*runs(size), *settled(size))
    assert found.differences[WHOLE].mean == pytest.approx(0.8, abs=0.01)
    shares = {name: part.share for name, part in found.components.items()}
    assert list(shares.values()) == pytest.approx([0.6, 0.4], abs=0.01)
    assert not found.left_out


@pytest.mark.parametrize(
    ("files", "why"),
    [
        (runs("7m"), "its learning rates were not swept"),
        ([*runs("7m"), *settled("2m")], "its learning rates were not swept"),  # those of another size
        ([*runs("7m"), *settled("7m", rates=(0.001, 0.002, RATE))], "its best rate, 0.004, is at the end of the grid"),
        ([*runs("7m", lr=0.002), *settled("7m")], "its cells are at 0.002, the best rate is 0.004"),
        ([*runs("7m", seeds=2), *settled("7m")], "seeds 0, 1: it takes 3"),
    ],
)
def test_what_the_plan_does_not_publish_is_left_out(files: list[CellFile], why: str) -> None:
    found = trend_of(*files)
    assert (found.differences, found.components) == ({}, {})
    assert {absence.why for absence in found.left_out.values()} == {why}


def test_other_scored_tokens_are_left_out() -> None:
    other = run(ENDS[1], 3, 4.0, 4.0, size="7m", experiment="gap_sizes")
    longer = run(ENDS[1], 2, 4.0, 4.0, size="7m", experiment="gap_sizes")
    longer.cells[0].metrics["unigram_nats"] = other.cells[0].metrics["nats"]
    files = [file for file in runs("7m") if file.name != longer.name]
    assert len(files) == 8
    found = trend_of(*files, longer, *settled("7m"))
    assert WHOLE not in found.differences  # two seeds in common
    assert found.differences["SPEN to dense"].mean == pytest.approx(0.48, abs=0.01)


MASKED = CONTRASTS[GRADIENT][1]
SCALED = 0.000667  # RATE over the width


def at_130m(seeds: int = 1, **changes: Any) -> list[CellFile]:
    return runs("130m", seeds=seeds, experiment="gap_130m", **{"lr": SCALED, **changes})


def masked_at_130m(nats: float = 5.1, seed: int = 0, lr: float = SCALED) -> CellFile:
    return run(MASKED, seed, nats, 4.0, size="130m", experiment="gap_130m", lr=lr)


def test_at_130m_the_rate_of_2m_over_the_width_will_do_on_any_seeds() -> None:
    found = trend_of(*at_130m(), *settled("2m"))
    assert found.differences[WHOLE].values == pytest.approx((0.8,))
    assert found.components == {}
    unsettled = trend_of(*at_130m(), *settled("2m", rates=(0.001, 0.002, 0.0025, 0.003, RATE)))
    assert {absence.why for absence in unsettled.left_out.values()} == {
        "at 2m: its best rate, 0.004, is at the end of the grid"
    }


def test_at_130m_another_rate_is_left_out_but_where_it_was_swept_there() -> None:
    other = at_130m(lr=0.00133)
    found = trend_of(*other, *settled("2m"))
    assert found.differences == {}
    [why] = {absence.why for absence in found.left_out.values()}
    assert why == "its cells are at 0.00133, the rate of 2m over the width is 0.000667"
    there = settled("130m", rates=(0.0003, 0.000667, 0.00133, 0.002, 0.004), best=0.00133)
    assert trend_of(*other, *settled("2m"), *there).differences[WHOLE].values == pytest.approx((0.8,))
    refused = trend_of(*at_130m(), *settled("2m"), *there)
    assert {absence.why for absence in refused.left_out.values()} == {
        "its cells are at 0.000667, the best rate is 0.00133"
    }


def test_seeds_that_one_arm_alone_has_do_not_count() -> None:
    """Two more seeds of SPEN, half a nat worse, and the difference to the true gradient is still of the first."""
    more = [run(CHAIN[0], seed, 5.6, 4.0, size="130m", experiment="gap_130m", lr=SCALED) for seed in (1, 2)]
    swept = sweep((*NATS, CHAIN[2]), experiment="gap_rates", size="2m")
    found = trend_of(*at_130m(), *more, masked_at_130m(), *swept)
    assert found.differences[GRADIENT].values == pytest.approx((-0.08,))


def test_an_arm_with_load_balance_has_the_rate_of_that_without_unless_it_was_swept() -> None:
    swept = sweep((*NATS, CHAIN[2]), experiment="gap_rates", size="2m")
    assert trend_of(*at_130m(), masked_at_130m(), *swept).differences[GRADIENT].values == pytest.approx((-0.08,))
    refused = trend_of(*at_130m(), masked_at_130m(), *settled("2m"))
    assert GRADIENT not in refused.differences
    assert [absence.why for absence in refused.left_out.values()] == ["at 2m: its learning rates were not swept"]
    heavier = sweep((*NATS, replace(MASKED, load_balance=1.0)), experiment="gap_rates", size="2m")
    assert GRADIENT not in trend_of(*at_130m(), masked_at_130m(), *heavier).differences
    its_own = sweep((MASKED,), experiment="gap_rates", size="2m", rates=(0.001, 0.002, 0.004, 0.008, 0.016), best=0.008)
    assert GRADIENT not in trend_of(*at_130m(), masked_at_130m(), *swept, *its_own).differences
    faster = trend_of(*at_130m(), masked_at_130m(lr=0.00133), *swept, *its_own)
    assert faster.differences[GRADIENT].values == pytest.approx((-0.08,))


def test_arms_of_the_main_size_may_lie_in_either_experiment() -> None:
    main = runs("2m", experiment="gap")
    masked = [run(MASKED, seed, 4.7 + 0.001 * seed, 4.0, experiment="gap_sizes") for seed in range(3)]
    found = trend_of(*main, *masked, *sweep((*NATS, CHAIN[2]), experiment="gap_rates", size="2m"))
    assert found.differences[GRADIENT].mean == pytest.approx(0.24, abs=0.01)
    assert found.experiment == "gap"


def test_the_parameters_are_those_of_spen() -> None:
    files = [
        run(arm, 0, nats, 4.0, size="130m", experiment="gap_130m", lr=SCALED, parameters=1e6 * (1 + (arm == CHAIN[0])))
        for arm, nats in reversed(NATS.items())
    ]
    found = trend_of(*files, *settled("2m"))
    assert found.parameters == 2e6
    assert found.tokens_per_parameter == found.tokens / 2e6
