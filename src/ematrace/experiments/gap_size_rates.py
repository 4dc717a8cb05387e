"""The learning rates of the gap's decisive arms in larger models, on a seed that no published figure uses.

The best rate at `2m` over the width, half of that and double of that (docs/analysis-plan.md). `scripts/choose_rates.py`
chooses among them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from ematrace.analysis.gap_design import DECISIVE, SPEN
from ematrace.analysis.rates import SWEEP_SEED
from ematrace.experiments.base import Point
from ematrace.experiments.chosen_rates import scaled_rate, sweep_points
from ematrace.experiments.gap_sizes import AT_SIZE
from ematrace.experiments.gap_task import arm_experiment, arm_points

NAME = "gap_size_rates"
FACTORS = (1.0, 0.5, 2.0)


def grid(scale: str, seeds: int) -> Iterable[Point]:
    """Arms that have a rate at `2m`; without a GPU one toy, which shows that it runs."""
    if scale != "gpu":
        yield from arm_points((SPEN,), "toy", SWEEP_SEED)
        return
    for size, arms in {**AT_SIZE, "130m": DECISIVE}.items():
        for arm in arms:
            first = [lr for factor in FACTORS if (lr := scaled_rate(arm, size, factor)) is not None]
            yield from sweep_points(NAME, {**asdict(arm), "size": size}, first)


EXPERIMENT = arm_experiment(NAME, "Learning rates for the gap's decisive arms in larger models", grid, sweep=True)
