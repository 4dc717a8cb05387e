"""The straight-through gradient of the top-k in two halves: which of them does the harm?

What a dropped unit receives goes two ways: into its own weights, a row of W_up, and through it to everything below.
`topk_ste_weights` has the first half alone and `topk_ste_through` the second; `topk_ste` has both, and `topk_masked`,
the true gradient, neither. All in Algorithm 1's block without the load-balance loss, which would reach dropped units
by itself, and at three learning rates. These are small models; `gap_halves_2m` trains larger ones.

    ematrace reproduce gap_halves    # 36 models of width 64, half an hour on two cores
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace

from ematrace.analysis.gap_design import UNBALANCED
from ematrace.experiments.base import Point
from ematrace.experiments.gap_task import arm_experiment

GRADIENTS = ("topk_masked", "topk_ste_weights", "topk_ste_through", "topk_ste")
# The best rate at `2m` of the true gradient, half of that of the straight-through one, and all of it.
RATES = (0.004, 0.016, 0.032)


def points_at(size: str, seeds: int) -> Iterator[Point]:
    for seed in range(seeds):
        for lr in RATES:
            for ffn in GRADIENTS:
                yield Point({**asdict(replace(UNBALANCED, ffn=ffn)), "size": size, "lr": lr}, seed)


def grid(scale: str, seeds: int) -> Iterable[Point]:
    return points_at("small", seeds)


EXPERIMENT = arm_experiment(
    "gap_halves",
    "The straight-through gradient in two halves",
    grid,
    needs="cpu",
    seeds=3,
    seconds=75,
    seconds_of=None,
)
