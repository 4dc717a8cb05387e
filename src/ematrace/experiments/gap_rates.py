"""The learning rate of each arm of the gap, swept on a seed that no published figure uses (docs/analysis-plan.md)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace

from ematrace.experiments.base import NO_DEFAULT, Context, Experiment, Point
from ematrace.experiments.gap_task import SPEN, Arm, measure_arm
from ematrace.results import Row

SEED = 1000
RATES = (4e-3, 2e-3, 8e-3, 1e-3, 16e-3)  # the likely ones first
FFNS = ("dense", "topk_masked", "topk_ste")

ALGORITHM1 = replace(SPEN, ffn="dense", residual="direct")
CHAIN = (
    SPEN,
    replace(SPEN, ffn="topk_masked"),
    replace(SPEN, ffn="dense"),
    ALGORITHM1,
    replace(ALGORITHM1, context="ema"),
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
BESIDE = (Arm("ema", positions="learned"),)
ARMS = tuple(dict.fromkeys((*CHAIN, *FACTORIAL, *BESIDE)))


def grid(scale: str, seeds: int) -> Iterable[Point]:
    for arm in ARMS:
        for lr in RATES:
            yield Point({**asdict(arm), "size": "2m", "lr": lr}, SEED)


def measure(ctx: Context, *, size: str, lr: float, **arm: str) -> list[Row]:
    return measure_arm(ctx, Arm(**arm), size, lr)


EXPERIMENT = Experiment(
    "gap_rates",
    "Learning rates for the arms of the gap",
    grid=grid,
    measure=measure,
    needs="gpu",
    data=NO_DEFAULT,
    settings={
        "vocab_size": 8192,
        "tokens": 3584 * 64 * 512,
        "sequences": 64,
        "length": 512,
        "warmup": 200,
        "validation": None,  # held out of the training text
        "texts": {},  # name: source, to be scored as well
        "windows": 2048,  # of each text, at most
    },
    seconds=60,
)
