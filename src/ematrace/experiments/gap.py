"""What the gap between SPEN and a transformer is made of: every arm at its best learning rate, on five seeds.

    ematrace reproduce gap                                       # toys on the built-in text
    ematrace reproduce gap --scale gpu --data "train-*.jsonl.xz" \\
        --settings validation=validation.jsonl.xz texts.wikitext2=wiki.valid.raw.xz texts.c4=c4_sample.jsonl.xz
"""

from __future__ import annotations

from collections.abc import Iterable

from ematrace.analysis.gap_design import ARMS, ATTENTION, CHAIN
from ematrace.experiments.base import Point
from ematrace.experiments.gap_task import arm_experiment, arm_points


def grid(scale: str, seeds: int) -> Iterable[Point]:
    """Arms whose rate was chosen (`gap_rates`), seed by seed; without a GPU the chain and attention with RoPE, as toys.

    The chain comes first: it says most. Attention with RoPE is what the recall share of EMA's gap is measured against.
    """
    if scale != "gpu":
        yield from arm_points((*CHAIN, ATTENTION), "toy", 0)
        return
    for arms in (CHAIN, [arm for arm in ARMS if arm not in CHAIN]):
        for seed in range(seeds):
            yield from arm_points(arms, "2m", seed)


EXPERIMENT = arm_experiment("gap", "From SPEN to a transformer, one change at a time", grid, seeds=5)
