"""What the gap between SPEN and a transformer is made of: every arm at its best learning rate, on five seeds.

    ematrace reproduce gap                                       # toys on the built-in text
    ematrace reproduce gap --scale gpu --data "train-*.jsonl.xz" \\
        --settings validation=validation.jsonl.xz texts.wikitext2=wiki.valid.raw.xz texts.c4=c4_sample.jsonl.xz
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from ematrace.experiments.base import Context, Experiment, Point
from ematrace.experiments.chosen_rates import chosen_rate
from ematrace.experiments.gap_rates import ARMS, CHAIN, RATES
from ematrace.experiments.gap_task import ARM_FIELDS, Arm, measure_arm
from ematrace.results import Row

SEEDS = 5
ROPE = Arm("attention", positions="rope")  # against which the recall share of EMA's gap is measured


def grid(scale: str, seeds: int) -> Iterable[Point]:
    """Arms whose rate was chosen (`gap_rates`), seed by seed; without a GPU the chain and attention with rope, as toys.

    The chain comes first: it says most.
    """
    arms, size = ((CHAIN, ARMS), "2m") if scale == "gpu" else (((*CHAIN, ROPE),), "toy")
    done: set[tuple[Arm, int]] = set()
    for part in arms:
        for seed in range(seeds if scale == "gpu" else 1):
            for arm in part:
                factors = {**asdict(arm), "size": size}
                lr = chosen_rate("gap_rates", factors) if scale == "gpu" else RATES[0]
                if lr is not None and (arm, seed) not in done:
                    done.add((arm, seed))
                    yield Point({**factors, "lr": lr}, seed)


def measure(ctx: Context, *, size: str, lr: float, **arm: Any) -> list[Row]:
    return measure_arm(ctx, Arm(**arm), size, lr)


EXPERIMENT = Experiment(
    "gap",
    "From SPEN to a transformer, one change at a time",
    grid=grid,
    measure=measure,
    seeds=SEEDS,
    **ARM_FIELDS,
)
