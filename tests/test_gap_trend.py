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

[ENDS] = CONTRASTS[WHOLE]
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


def test_at_130m_the_rate_of_2m_over_the_width_will_do_on_any_seeds() -> None:
    own = runs("130m", seeds=1, experiment="gap_130m", lr=0.00133)
    found = trend_of(*own, *settled("2m"))
    assert found.differences[WHOLE].values == pytest.approx((0.8,))
    assert found.components == {}
    unsettled = trend_of(*own, *settled("2m", rates=(0.001, 0.002, 0.0025, 0.003, RATE)))
    assert {absence.why for absence in unsettled.left_out.values()} == {
        "at 2m: its best rate, 0.004, is at the end of the grid"
    }


def test_the_gradient_at_130m_is_that_of_the_whole_block_at_the_rate_of_the_one_without_load_balance() -> None:
    masked = run(replace(CHAIN[0], ffn="topk_masked"), 0, 5.1, 4.0, size="130m", experiment="gap_130m", lr=0.000667)
    own = [*runs("130m", seeds=1, experiment="gap_130m", lr=0.00133), masked]
    swept = sweep((*NATS, CHAIN[2]), experiment="gap_rates", size="2m")
    assert trend_of(*own, *swept).differences[GRADIENT].values == pytest.approx((-0.08,))
    refused = trend_of(*own, *settled("2m"))
    assert GRADIENT not in refused.differences
    assert [absence.why for absence in refused.left_out.values()] == ["at 2m: its learning rates were not swept"]


def test_where_both_pairs_are_there_the_gradient_is_that_without_load_balance() -> None:
    arms = {CHAIN[0]: 5.0, replace(CHAIN[0], ffn="topk_masked"): 4.0, CHAIN[1]: 4.5, CHAIN[2]: 4.4}
    files = [
        run(arm, seed, nats, 3.0, size="2m", experiment="gap_sizes") for arm, nats in arms.items() for seed in range(3)
    ]
    found = trend_of(*files, *sweep((CHAIN[0], CHAIN[1], CHAIN[2]), experiment="gap_rates", size="2m"))
    assert found.differences[GRADIENT].mean == pytest.approx(0.08)
    assert not found.left_out
