"""The straight-through gradient of the top-k against the true one, at the same weights on the same text.

Training leaves checkpoints, and at some of them the gradient of the cross-entropy is computed both ways
(`ematrace.experiments.gap_gradients`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ematrace.analysis.gap_design import SPEN, TRUE_GRADIENT, UNBALANCED, Arm
from ematrace.experiments.base import Context, Experiment, Point
from ematrace.experiments.gap_gradients import (
    MEASURED,
    at_steps,
    batch_settings,
    compare_gradients,
    evenly,
    steps_per_part,
)
from ematrace.experiments.gap_task import ARM_FIELDS, SETTINGS, arm_points
from ematrace.experiments.recall import Ids
from ematrace.results import Row


def grid(scale: str, seeds: int) -> Iterable[Point]:
    """Arms whose rate was chosen; without a GPU one toy, which shows that it runs."""
    if scale != "gpu":
        yield from arm_points((SPEN,), "toy", 0)
        return
    for seed in range(seeds):
        yield from arm_points((SPEN, UNBALANCED, TRUE_GRADIENT), "2m", seed)


def measure(ctx: Context, *, size: str, lr: float, **arm: Any) -> list[Row]:
    def look(model: Any, windows: Ids) -> list[Row]:
        return compare_gradients(model, evenly(windows, ctx.settings["batch"]))

    steps = steps_per_part(ctx.settings)
    return at_steps(ctx, Arm(**arm), size, lr, (i * steps for i in MEASURED), look)


EXPERIMENT = Experiment(
    "gap_straight_through",
    "The straight-through gradient of the top-k against the true one",
    grid=grid,
    measure=measure,
    **{**ARM_FIELDS, "settings": {**SETTINGS, "batch": None}, "derived": batch_settings},
    seeds=3,
)
