"""The learning rate of each arm of the gap, swept on a seed that no published figure uses (docs/analysis-plan.md)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

from ematrace.experiments.base import Context, Experiment, Point
from ematrace.experiments.gap_task import SETTINGS, SPEN, Arm, budget_of, measure_arm
from ematrace.results import Row

SEED = 1000
RATES = (4e-3, 2e-3, 8e-3, 1e-3, 16e-3)  # the likely ones first
FFNS = ("dense", "topk_masked", "topk_ste")

UNBALANCED = replace(SPEN, load_balance=0.0)
DIRECT = replace(UNBALANCED, ffn="dense", residual="direct")
CHAIN = (
    SPEN,
    UNBALANCED,
    replace(UNBALANCED, ffn="topk_masked"),
    replace(UNBALANCED, ffn="dense"),
    DIRECT,
    replace(DIRECT, context="ema"),
    Arm("ema"),
    Arm("attention"),
    Arm("attention", positions="learned"),
    Arm("attention", positions="learned", block="gpt2"),
)
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
)
ARMS = tuple(dict.fromkeys((*CHAIN, *FACTORIAL, *BESIDE)))


def grid(scale: str, seeds: int) -> Iterable[Point]:
    """Without a GPU two toys, which show that it runs."""
    arms, rates, size = (ARMS, RATES, "2m") if scale == "gpu" else (CHAIN[::9], RATES[:1], "toy")
    for arm in arms:
        for lr in rates:
            yield Point({**asdict(arm), "size": size, "lr": lr}, SEED)


def measure(ctx: Context, *, size: str, lr: float, **arm: Any) -> list[Row]:
    return measure_arm(ctx, Arm(**arm), size, lr)


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
