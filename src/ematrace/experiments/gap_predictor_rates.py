"""Learning rates of `gap_predictors`, swept on seeds that no published figure uses.

Three rates to begin with, around the best of the static predictor in the same block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict

from ematrace.analysis.rates import SWEEP_SEED
from ematrace.experiments.base import Point
from ematrace.experiments.chosen_rates import sweep_points
from ematrace.experiments.gap_predictors import ABLATION, INSIDE, SWEPT, PredictorArm
from ematrace.experiments.gap_task import arm_experiment, arm_points

NAME = "gap_predictor_rates"
FIRST: Mapping[str, tuple[float, ...]] = {
    "topk_ste": (8e-3, 4e-3, 16e-3),
    "topk_masked": (4e-3, 2e-3, 8e-3),
    "dense": (8e-3, 4e-3, 16e-3),
}


def grid(scale: str, seeds: int) -> Iterable[Point]:
    """Without a GPU one toy, which shows that it runs."""
    if scale != "gpu":
        yield from arm_points((INSIDE,), "toy", SWEEP_SEED)
        return
    for size, arms in {"2m": SWEPT, "ablation": ABLATION}.items():
        for arm in arms:
            yield from sweep_points(NAME, {**asdict(arm), "size": size}, FIRST[arm.ffn])


EXPERIMENT = arm_experiment(NAME, "Learning rates for the predictors in SPEN's block", grid, PredictorArm, sweep=True)
