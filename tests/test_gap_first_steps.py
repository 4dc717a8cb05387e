"""The first steps alone, against a whole run of the same model."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from ematrace.analysis.gap_design import MASKED, SPEN, Arm
from ematrace.experiments import gap_first_steps
from ematrace.experiments.base import Context
from ematrace.experiments.chosen_rates import rate_at
from ematrace.experiments.gap_task import measure_arm, train_arm, training_curve

SETTINGS = {
    **{"tokens": 24 * 4 * 32, "sequences": 4, "length": 32, "warmup": 2, "vocab_size": 300, "windows": 8},
    **{"validation": None, "texts": {}},
}


def test_losses_are_those_of_a_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its first steps, on its schedule: with fewer tokens the rate would fall at once."""
    found: list[float] = []

    def first(summary, tokens_per_step):
        lines = training_curve(summary, tokens_per_step)
        found.extend(row.metrics["train_nats"].value for row in lines)
        return lines

    monkeypatch.setattr("ematrace.experiments.gap_task.CURVE", 6)
    monkeypatch.setattr("ematrace.experiments.gap_task.training_curve", first)
    seen: list[float] = []
    ctx = Context(seed=3, data="builtin", settings=SETTINGS)
    measure_arm(ctx, Arm(**asdict(MASKED)), "toy", 0.01)
    ctx = Context(seed=3, data="builtin", settings={**SETTINGS, "steps": 6}, progress=seen.append)
    (row,) = gap_first_steps.measure(ctx, size="toy", lr=0.01, **asdict(MASKED))
    assert row.factors == {"step": 6}
    assert row.metrics["train_nats"].value == pytest.approx(found[0], abs=1e-5)
    assert len(found) == 4
    assert len(seen) == 6  # it did not go on


def test_points_are_those_of_the_recorded_runs() -> None:
    points = gap_first_steps.EXPERIMENT.points("gpu", 3)
    assert [(p.factors["ffn"], p.factors["lr"], p.seed) for p in points[:2]] == [
        (arm.ffn, rate_at(arm, "2m"), 0) for arm in (SPEN, MASKED)
    ]
    assert len(points) == 6
    settings = gap_first_steps.EXPERIMENT.resolve_settings(points[0], gap_first_steps.EXPERIMENT.settings)
    assert (settings["steps"], settings["tokens"], settings["warmup"]) == (128, 3584 * 64 * 512, 200)


@pytest.mark.parametrize(("scale", "precision"), [("gpu", "bfloat16"), ("cpu", None)])
def test_cores_that_stand_in_for_a_gpu_train_as_it_does(monkeypatch, tmp_path, scale, precision) -> None:
    seen = []
    monkeypatch.setattr("ematrace.experiments.gap_task.train_model", lambda ctx, config, share: seen.append(config))
    ctx = Context(seed=3, data="builtin", settings=SETTINGS, scale=scale, device="cpu")
    train_arm(ctx, Arm(**asdict(MASKED)), "toy", 0.01, tmp_path)
    assert (seen[0].precision, seen[0].device) == (precision, "cpu")


def test_fewer_steps_than_asked_for_are_an_error() -> None:
    ctx = Context(seed=3, data="builtin", settings={**SETTINGS, "steps": 25})
    with pytest.raises(ValueError, match="steps: 25, and the run has 24"):
        gap_first_steps.measure(ctx, size="toy", lr=0.01, **asdict(MASKED))
