"""Learning rates of `gap_predictors`, swept on the seed of `gap_rates`, which no published figure uses.

Three rates to begin with. Where the best is at an end, MORE has the next ones, until it is inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from ematrace.experiments.base import Context, Experiment, Point
from ematrace.experiments.gap_predictors import ABLATION, INSIDE, SWEPT, PredictorArm
from ematrace.experiments.gap_rates import RATES, SEED
from ematrace.experiments.gap_task import SETTINGS, budget_of, measure_arm
from ematrace.results import Row

MORE: Mapping[tuple[str, PredictorArm], tuple[float, ...]] = {}
"""By size and arm."""


def grid(scale: str, seeds: int) -> Iterable[Point]:
    """Without a GPU one toy, which shows that it runs."""
    if scale != "gpu":
        yield Point({**asdict(INSIDE), "size": "toy", "lr": RATES[0]}, SEED)
        return
    for size, arms in {"2m": SWEPT, "ablation": ABLATION}.items():
        for arm in arms:
            for lr in (*RATES[:3], *MORE.get((size, arm), ())):
                yield Point({**asdict(arm), "size": size, "lr": lr}, SEED)


def measure(ctx: Context, *, size: str, lr: float, **arm: Any) -> list[Row]:
    return measure_arm(ctx, PredictorArm(**arm), size, lr)


EXPERIMENT = Experiment(
    "gap_predictor_rates",
    "Learning rates for the predictors in SPEN's block",
    grid=grid,
    measure=measure,
    needs="any",
    data="builtin",
    settings=SETTINGS,
    derived=budget_of,
    seconds=60,
)
