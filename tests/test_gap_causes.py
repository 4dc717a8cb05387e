"""Effects of switches and misleading gradients, on cells with planted effects."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from cells_support import make_file, make_row, make_table
from ematrace.analysis.gap_design import SPEN
from ematrace.analysis.gap_straight_through import GRADIENTS, build_gradients, is_misleading
from ematrace.analysis.gap_switches import PREDICTORS, build_switches
from ematrace.experiments.gap_gradients import MEASURED
from ematrace.experiments.gap_predictors import ABLATION, INSIDE, WAY, PredictorArm
from ematrace.results import CellFile, Metric, Row, Sample, Table

PLANTED = {"query": 0.3, "values": 0.1, "residual": 0.01}
STATIC = {"ffn": 4.5, "direct": 4.2}


def nats_of(arm: PredictorArm) -> float:
    """Attention inside the block is .05 worse than the static predictor; each switch adds its effect."""
    level = STATIC[arm.residual]
    if arm.predictor == "static":
        return level
    if arm.predictor == "mixer":
        return level - 0.5
    on = {"query": arm.query == "input", "values": arm.values == "normalised", "residual": arm.residual == "direct"}
    return level + 0.05 - sum(PLANTED[name] for name, is_on in on.items() if is_on)


def cells(noise: float = 0.001, **changes: Any) -> Table:
    rng = np.random.default_rng(0)
    static = next(arm for arm in ABLATION if (arm.ffn, arm.predictor) == ("dense", "static"))
    files: list[CellFile] = []
    for arm in (static, INSIDE, *WAY):
        for seed in range(5 if arm in ABLATION else 3):
            nats = nats_of(arm) + 0.1 * seed + noise * rng.normal()
            recall = nats - 0.5 * (arm.query == "input")  # 1 token of 5
            parts = {"all": (nats, 100), "recall": (recall, 20), "other": ((100 * nats - 20 * recall) / 80, 80)}
            rows = [
                Row({"text": "validation", "slice": part}, {"nats": Metric(value, n=n)})
                for part, (value, n) in parts.items()
            ]
            factors = {**asdict(arm), "size": "2m", "lr": 0.004}
            files.append(make_file(*rows, experiment=PREDICTORS, seed=seed, factors=factors, scale="gpu", **changes))
    return make_table(*files)


def test_planted_effects_are_found() -> None:
    found = build_switches(cells(), "validation")
    assert found is not None
    assert found.seeds == (0, 1, 2)  # those that all arms have
    for name, effect in PLANTED.items():
        assert found.effects[name].mean == pytest.approx(effect, abs=0.003)
    assert found.gains["slow_trace", "as_read", "ffn"].mean == pytest.approx(-0.05, abs=0.003)
    assert found.gains["input", "normalised", "direct"].mean == pytest.approx(0.36, abs=0.003)
    assert found.mixers["direct"].mean == pytest.approx(0.5, abs=0.003)
    assert found.causes == ("query", "values")  # the third is real and too small


def test_parts_of_an_effect_add_up() -> None:
    whole, recall, other = (build_switches(cells(), "validation", part=part) for part in ("all", "recall", "other"))
    assert whole is not None
    assert recall is not None
    assert other is not None
    for name, effect in PLANTED.items():
        on_recall = effect + 0.5 if name == "query" else effect
        assert recall.effects[name].mean == pytest.approx(0.2 * on_recall, abs=0.003)
        assert recall.effects[name].mean + other.effects[name].mean == pytest.approx(whole.effects[name].mean)


def test_a_part_without_the_whole_is_no_contribution() -> None:
    parts = [s for s in cells().cells if s.cell.factors["slice"] != "all"]
    assert build_switches(Table(parts), "validation", part="recall") is None


def test_noise_is_no_cause() -> None:
    found = build_switches(cells(noise=1.0), "validation")
    assert found is not None
    assert found.causes == ()


def test_a_missing_arm_leaves_no_effects() -> None:
    assert build_switches(make_table(), "validation") is None
    assert build_switches(cells(), "wikitext2") is None


def test_arms_of_other_settings_leave_no_effects() -> None:
    stored = cells().cells
    changed = [replace(s, cell=replace(s.cell, settings={"tokens": 5})) for s in stored]
    mixed = [c if s.cell.factors["predictor"] == "mixer" else s for s, c in zip(stored, changed, strict=True)]
    assert build_switches(Table(changed), "validation") is not None
    assert build_switches(Table(mixed), "validation") is None


def gradients(cosine: dict[int, tuple[float, ...]], halves: float = 0.9) -> Table:
    steps = [128 * part for part in (*MEASURED, 28)]
    files = []
    for seed in range(3):
        rows = []
        for step in steps:
            metrics = {
                "cosine": cosine.get(step, (0.1,) * 3)[seed],
                "norm_ratio": 5.0,
                "masked_cosine_of_halves": halves,
            }
            metrics |= {"dead_units": 0.1, "usage_entropy": 0.9, "nats": 5.0}
            rows.append(make_row(metrics, step=step, part="all"))
            rows.append(make_row({"cosine": 1.0, "norm_ratio": 1.0}, step=step, part="W_up"))
        factors = {**asdict(SPEN), "size": "2m", "lr": 0.004}
        files.append(make_file(*rows, experiment=GRADIENTS, seed=seed, factors=factors, scale="gpu"))
    return make_table(*files)


def test_a_misleading_gradient_is_one_on_all_seeds_at_the_end() -> None:
    def judged(table: Table) -> bool | None:
        return is_misleading(build_gradients(table, "topk_ste", 0.01))

    low = gradients({})
    at = build_gradients(low, "topk_ste", 0.01)
    assert [found.step for found in at] == [0, 128, 256, 512, 1024, 1792, 2560, 3584]  # as the plan says
    assert at[0].cosine.values == (0.1,) * 3
    assert judged(low) is True
    assert judged(gradients({512: (0.9,) * 3})) is True  # before the last four
    assert judged(gradients({1024: (0.1, 0.6, 0.1)})) is False
    assert judged(gradients({}, halves=0.05)) is False  # the true gradient itself is mostly text
    assert build_gradients(low, "topk_masked", 0.0) == ()
    assert is_misleading(()) is None


def test_too_few_seeds_or_values_do_not_tell_whether_a_gradient_misleads() -> None:
    (*_, at) = build_gradients(gradients({}), "topk_ste", 0.01)
    assert at.misleads is True
    for change in (
        {"cosine": Sample(()), "halves": Sample(())},
        {"cosine": Sample((0.1, 0.1)), "halves": Sample((0.9, 0.9))},
        {"halves": Sample(())},
        {"cosine": Sample((0.1, 0.1, float("nan")))},
    ):
        assert replace(at, **change).misleads is None
        assert is_misleading([replace(at, step=step, **change) for step in range(4)]) is None


def test_one_seed_is_enough_to_deny_that_a_gradient_misleads() -> None:
    (*_, at) = build_gradients(gradients({}), "topk_ste", 0.01)
    denied = replace(at, cosine=Sample((0.1, 0.4)), halves=Sample((0.9, 0.3)))
    assert denied.misleads is False
    few = replace(at, cosine=Sample((0.1,)), halves=Sample((0.9,)))
    assert is_misleading([replace(denied if step == 2 else few, step=step) for step in range(4)]) is False
    assert is_misleading([replace(denied, step=step) for step in range(3)]) is None
