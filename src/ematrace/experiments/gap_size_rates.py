"""The learning rates of the gap's decisive arms in larger models, on a seed that no published figure uses.

The best rate at `2m` over the width, half of that and double of that (docs/analysis-plan.md). `scripts/choose_rates.py`
chooses among them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from ematrace.experiments.base import Context, Experiment, Point
from ematrace.experiments.chosen_rates import sweep_points
from ematrace.experiments.gap_rates import RATES, SEED
from ematrace.experiments.gap_sizes import AT_SIZE, DECISIVE, scaled_rate
from ematrace.experiments.gap_task import ARM_FIELDS, SPEN, Arm, measure_rate
from ematrace.results import Row

NAME = "gap_size_rates"
FACTORS = (1.0, 0.5, 2.0)


def grid(scale: str, seeds: int) -> Iterable[Point]:
    """Arms that have a rate at `2m`; without a GPU one toy, which shows that it runs."""
    if scale != "gpu":
        yield Point({**asdict(SPEN), "size": "toy", "lr": RATES[0]}, SEED)
        return
    for size, arms in {**AT_SIZE, "130m": DECISIVE}.items():
        for arm in arms:
            first = [lr for factor in FACTORS if (lr := scaled_rate(arm, size, factor)) is not None]
            yield from sweep_points(NAME, {**asdict(arm), "size": size}, first)


def measure(ctx: Context, *, size: str, lr: float, **arm: Any) -> list[Row]:
    return measure_rate(ctx, Arm(**arm), size, lr)


EXPERIMENT = Experiment(
    NAME,
    "Learning rates for the gap's decisive arms in larger models",
    grid=grid,
    measure=measure,
    **ARM_FIELDS,
)
