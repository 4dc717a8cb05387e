"""The two halves of the straight-through gradient (`gap_halves`) in models of 1.9M parameters.

An experiment of its own: of one experiment, cells of only one scale are in force, and those of the small models are of
another one.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from ematrace.experiments.base import Point
from ematrace.experiments.gap_halves import points_at
from ematrace.experiments.gap_task import arm_experiment


def grid(scale: str, seeds: int) -> Iterable[Point]:
    """Without a GPU two toys, which show that it runs."""
    return points_at("2m", seeds) if scale == "gpu" else islice(points_at("toy", 1), 2)


EXPERIMENT = arm_experiment(
    "gap_halves_2m",
    "The straight-through gradient in two halves, at 1.9M parameters",
    grid,
    seeds=3,
)
