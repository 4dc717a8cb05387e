"""Recall in made-up text (`gap_made_pairs`) with four times the steps: what did not recall, was it slow or unable?

ematrace reproduce gap_made_pairs_long --seeds 1    # 16 models of width 64: half an hour on two cores
"""

from __future__ import annotations

from collections.abc import Iterator

from ematrace.experiments.base import Experiment, Point
from ematrace.experiments.gap_made_pairs import ARMS as ALL_ARMS
from ematrace.experiments.gap_made_pairs import SETTINGS, PairsArm, measure, point

ARMS = tuple(arm for arm in ALL_ARMS if arm.context != "none" and arm.predictor != "static")


def rates(arm: PairsArm) -> tuple[float, ...]:
    """The best rate of seed 0 after the fewer steps; also that of the others, where it is another one."""
    if arm.context == "ema":
        return (0.008,)
    if arm.context == "ema_attention" or arm.positions == "learned":
        return (0.004,)
    one_of_two = arm.query == "input" and (arm.values == "normalised") != (arm.residual == "direct")
    if one_of_two and arm.residual == "ffn":
        return 0.004, 0.002
    return (0.004,) if one_of_two else (0.002,)


def grid(scale: str, seeds: int) -> Iterator[Point]:
    for seed in range(seeds):
        for arm in ARMS:
            for lr in rates(arm):
                yield point(arm, lr, seed)


EXPERIMENT = Experiment(
    "gap_made_pairs_long",
    "Recall in made-up text, with four times the steps",
    grid=grid,
    measure=measure,
    settings={**SETTINGS, "steps": 4000},
    seeds=3,
    seconds=200,
)
