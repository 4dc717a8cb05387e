"""Learning rates of `gap_predictors`, swept on seeds that no published figure uses.

Three rates to begin with, around the best of the static predictor in the same block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from ematrace.experiments.base import Context, Experiment, Point
from ematrace.experiments.chosen_rates import sweep_points
from ematrace.experiments.gap_predictors import ABLATION, INSIDE, SWEPT, PredictorArm
from ematrace.experiments.gap_rates import RATES, SEED
from ematrace.experiments.gap_task import ARM_FIELDS, measure_rate
from ematrace.results import Row

NAME = "gap_predictor_rates"
FIRST: Mapping[str, tuple[float, ...]] = {
    "topk_ste": (8e-3, 4e-3, 16e-3),
    "topk_masked": (4e-3, 2e-3, 8e-3),
    "dense": (8e-3, 4e-3, 16e-3),
}


def grid(scale: str, seeds: int) -> Iterable[Point]:
    """Without a GPU one toy, which shows that it runs."""
    if scale != "gpu":
        yield Point({**asdict(INSIDE), "size": "toy", "lr": RATES[0]}, SEED)
        return
    for size, arms in {"2m": SWEPT, "ablation": ABLATION}.items():
        for arm in arms:
            yield from sweep_points(NAME, {**asdict(arm), "size": size}, FIRST[arm.ffn])


def measure(ctx: Context, *, size: str, lr: float, **arm: Any) -> list[Row]:
    return measure_rate(ctx, PredictorArm(**arm), size, lr)


EXPERIMENT = Experiment(
    NAME,
    "Learning rates for the predictors in SPEN's block",
    grid=grid,
    measure=measure,
    **ARM_FIELDS,
)
