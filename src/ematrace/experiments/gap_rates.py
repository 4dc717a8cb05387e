"""The learning rate of each arm of the gap, swept on a seed that no published figure uses (docs/analysis-plan.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from ematrace.analysis import gap_design
from ematrace.experiments.base import Context, Experiment, Point
from ematrace.experiments.gap_task import SETTINGS, SPEN, Arm, budget_of, measure_rate
from ematrace.results import Row

SEED, MORE_SEEDS = 1000, (1001, 1002)
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
EXTENDED: Mapping[Arm, tuple[float, ...]] = {
    **dict.fromkeys((UNBALANCED, Arm("ema"), Arm("attention", positions="learned")), (32e-3, 64e-3)),
    SPEN: (32e-3, 64e-3),  # the best rate of the block without the load-balance loss
}
"""Where the best rate was the largest, or a neighbour of the chain has its best rate there."""
REPEATED: Mapping[Arm, tuple[float, ...]] = {
    SPEN: (4e-3, 8e-3, 16e-3),
    Arm("attention"): (2e-3, 4e-3, 8e-3),
    CHAIN[-1]: (1e-3, 2e-3, 4e-3),
    UNBALANCED: (8e-3, 16e-3, 32e-3),
    Arm("attention", positions="learned"): (2e-3, 4e-3, 8e-3, 16e-3, 32e-3),
}
"""Where one seed said too little (`ematrace.analysis.rates.Sweep.jumps`): the best three rates on two more. Of the arms
that were extended at the same time, also those that were best before."""


def grid(scale: str, seeds: int) -> Iterable[Point]:
    """Without a GPU two toys, which show that it runs."""
    if scale != "gpu":
        yield from (_point(arm, "toy", RATES[0], SEED) for arm in CHAIN[::9])
        return
    for arm in ARMS:
        yield from (_point(arm, "2m", lr, SEED) for lr in (*RATES, *EXTENDED.get(arm, ())))
        yield from (_point(arm, "2m", lr, seed) for seed in MORE_SEEDS for lr in REPEATED.get(arm, ()))


def _point(arm: Arm, size: str, lr: float, seed: int) -> Point:
    return Point({**asdict(arm), "size": size, "lr": lr}, seed)


def measure(ctx: Context, *, size: str, lr: float, **arm: Any) -> list[Row]:
    return measure_rate(ctx, Arm(**arm), size, lr)


EXPERIMENT = Experiment(
    "gap_rates",
    "Learning rates for the arms of the gap",
    grid=grid,
    measure=measure,
    needs="any",
    data="builtin",
    settings=SETTINGS,
    derived=budget_of,
    seconds=60,
)
