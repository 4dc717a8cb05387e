"""Effects of the switches of a predictor, on cells with planted effects."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from cells_support import make_file, make_table
from ematrace.analysis.gap_switches import PREDICTORS, build_switches
from ematrace.experiments.gap_predictors import ABLATION, INSIDE, WAY, PredictorArm
from ematrace.results import CellFile, Metric, Row, Table

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
