"""The learning rate of each arm of the gap, swept on a seed that no published figure uses (docs/analysis-plan.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from ematrace.analysis import gap_design
from ematrace.analysis.rates import SWEEP_SEED
from ematrace.experiments.base import Context, Experiment, Point
from ematrace.experiments.chosen_rates import sweep_points
from ematrace.experiments.gap_task import ARM_FIELDS, SPEN, Arm, measure_rate
from ematrace.results import Row

NAME, SEED = "gap_rates", SWEEP_SEED
RATES = (4e-3, 2e-3, 8e-3, 1e-3, 16e-3)  # the likely ones first
FFNS = ("dense", "topk_masked", "topk_ste")

CHAIN = tuple(Arm(**asdict(arm)) for arm in gap_design.CHAIN)
UNBALANCED, DIRECT = CHAIN[1], CHAIN[4]  # the block without the load-balance loss; and dense, with the residual direct
FACTORIAL = (
    *(Arm("none", ffn=ffn) for ffn in FFNS),
    *(
        Arm(context, positions, ffn, residual)
        for context, positions in (("ema", "none"), ("attention", "rope"), ("ema_attention", "rope"))
        for residual in ("direct", "ffn")
        for ffn in FFNS
    ),
)
BESIDE = (
    Arm("ema", positions="learned"),
    *(Arm(context, width="fixed") for context in ("none", "ema", "attention")),
    Arm("ema", norm="algorithm1", width="fixed"),
)
ARMS = tuple(dict.fromkeys((*CHAIN, *FACTORIAL, *BESIDE)))
EXTENDED: Mapping[Arm, tuple[float, ...]] = {SPEN: (32e-3, 64e-3)}
"""Beyond what the sweep itself asks for: the best rate of the block without the load-balance loss is 32e-3."""


def grid(scale: str, seeds: int) -> Iterable[Point]:
    """Five rates of every arm, then what the sweeps ask for. Without a GPU two toys, which show that it runs."""
    if scale != "gpu":
        yield from (Point({**asdict(arm), "size": "toy", "lr": RATES[0]}, SEED) for arm in CHAIN[::9])
        return
    for arm in ARMS:
        yield from sweep_points(NAME, {**asdict(arm), "size": "2m"}, (*RATES, *EXTENDED.get(arm, ())))


def measure(ctx: Context, *, size: str, lr: float, **arm: Any) -> list[Row]:
    return measure_rate(ctx, Arm(**arm), size, lr)


EXPERIMENT = Experiment(
    NAME,
    "Learning rates for the arms of the gap",
    grid=grid,
    measure=measure,
    **ARM_FIELDS,
)
