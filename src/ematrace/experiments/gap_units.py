"""Algorithm 1's block under both gradients with more units of which 6% are kept: is it their number that matters?

At 1.9M parameters the straight-through gradient costs half a nat or more, in a first look at 130M parameters nothing
(docs/training.md). The larger model is wider and keeps more units. Here the width stays and the units grow to those of
the larger model, so that the two can be told apart. Arms of one number of units have the same parameters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from ematrace.analysis.gap_design import SIZES
from ematrace.experiments.base import Context, Experiment, Point
from ematrace.experiments.gap_rates import RATES
from ematrace.experiments.gap_sizes import MASKED, rate_at
from ematrace.experiments.gap_task import ARM_FIELDS, SPEN, Arm, measure_arm
from ematrace.results import Row

UNITS = (SIZES["2m"]["d_ff"], 1536, SIZES["130m"]["d_ff"])


@dataclass(frozen=True)
class WideArm(Arm):
    units: int = UNITS[0]

    def own_width(self, size: str) -> int:
        return self.units


def grid(scale: str, seeds: int) -> Iterable[Point]:
    """At the rates of `2m`; without a GPU one toy, which shows that it runs."""
    if scale != "gpu":
        yield Point({**asdict(WideArm(**asdict(MASKED), units=256)), "size": "toy", "lr": RATES[0]}, 0)
        return
    for seed in range(seeds):
        for units in UNITS:
            for arm in (SPEN, MASKED):
                if (lr := rate_at(arm, "2m")) is not None:
                    yield Point({**asdict(WideArm(**asdict(arm), units=units)), "size": "2m", "lr": lr}, seed)


def measure(ctx: Context, *, size: str, lr: float, **arm: Any) -> list[Row]:
    return measure_arm(ctx, WideArm(**arm), size, lr)


EXPERIMENT = Experiment(
    "gap_units",
    "Both gradients of the top-k with more units, at one width",
    grid=grid,
    measure=measure,
    seeds=5,
    **ARM_FIELDS,
)
