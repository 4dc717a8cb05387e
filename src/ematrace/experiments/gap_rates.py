"""The learning rate of each arm of the gap, swept on a seed that no published figure uses (docs/analysis-plan.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict

from ematrace.analysis.gap_design import ARMS, GPT2, SPEN, Arm
from ematrace.analysis.rates import SWEEP_SEED
from ematrace.experiments.base import Point
from ematrace.experiments.chosen_rates import RATES, sweep_points
from ematrace.experiments.gap_task import arm_experiment, arm_points

NAME = "gap_rates"
EXTENDED: Mapping[Arm, tuple[float, ...]] = {SPEN: (32e-3, 64e-3)}
"""Beyond what the sweep itself asks for: the best rate of the block without the load-balance loss is 32e-3."""


def grid(scale: str, seeds: int) -> Iterable[Point]:
    """Five rates of every arm, then what the sweeps ask for. Without a GPU two toys, which show that it runs."""
    if scale != "gpu":
        yield from arm_points((SPEN, GPT2), "toy", SWEEP_SEED)
        return
    for arm in ARMS:
        yield from sweep_points(NAME, {**asdict(arm), "size": "2m"}, (*RATES, *EXTENDED.get(arm, ())))


EXPERIMENT = arm_experiment(NAME, "Learning rates for the arms of the gap", grid, sweep=True)
