"""The learning rates of the gap's decisive arms in larger models, on a seed that no published figure uses.

The best rate at `2m` over the width, half of that and double of that (docs/analysis-plan.md). What is best by
`selection_nats` goes into `gap_sizes.BEST`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from ematrace.experiments.base import Context, Experiment, Point
from ematrace.experiments.gap_rates import SEED
from ematrace.experiments.gap_sizes import DECISIVE, LARGER, rate_at
from ematrace.experiments.gap_task import SETTINGS, Arm, budget_of, measure_arm
from ematrace.results import Row

FACTORS = (1.0, 0.5, 2.0)


def grid(scale: str, seeds: int) -> Iterable[Point]:
    """Without a GPU one toy, which shows that it runs."""
    arms, sizes, factors = (
        (DECISIVE, (*LARGER, "130m"), FACTORS) if scale == "gpu" else (DECISIVE[:1], ("toy",), (1.0,))
    )
    for size in sizes:
        for factor in factors:
            for arm in arms:
                yield Point({**asdict(arm), "size": size, "lr": rate_at(arm, size, factor)}, SEED)


def measure(ctx: Context, *, size: str, lr: float, **arm: Any) -> list[Row]:
    return measure_arm(ctx, Arm(**arm), size, lr)


EXPERIMENT = Experiment(
    "gap_size_rates",
    "Learning rates for the gap's decisive arms in larger models",
    grid=grid,
    measure=measure,
    needs="any",
    data="builtin",
    settings=SETTINGS,
    derived=budget_of,
    seconds=120,
)
