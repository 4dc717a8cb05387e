"""Algorithm 1's block under both gradients with more units of which 6% are kept: is it their number that matters?

At 1.9M parameters the straight-through gradient costs half a nat or more, in a first look at 130M parameters nothing
(docs/training.md). The larger model is wider and keeps more units. Here the width stays and the units grow to those of
the larger model, so that the two can be told apart. Arms of one number of units have the same parameters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from ematrace.analysis.gap_design import MASKED, SIZES, SPEN, Arm
from ematrace.experiments.base import Point
from ematrace.experiments.gap_task import arm_experiment, arm_points

UNITS = (SIZES["2m"]["d_ff"], 1536, SIZES["130m"]["d_ff"])


@dataclass(frozen=True)
class WideArm(Arm):
    units: int = UNITS[0]

    def own_width(self, size: str) -> int:
        return self.units


def grid(scale: str, seeds: int) -> Iterable[Point]:
    """At the rates of `2m`; without a GPU one toy, which shows that it runs."""
    if scale != "gpu":
        yield from arm_points((WideArm(**asdict(MASKED), units=256),), "toy", 0)
        return
    arms = [WideArm(**asdict(arm), units=units) for units in UNITS for arm in (SPEN, MASKED)]
    for seed in range(seeds):
        yield from arm_points(arms, "2m", seed)


EXPERIMENT = arm_experiment(
    "gap_units", "Both gradients of the top-k with more units, at one width", grid, WideArm, seeds=5
)
