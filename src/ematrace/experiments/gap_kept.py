"""Both gradients of the top-k with many units of which few are kept, and with few of which many are.

`gap_units` finds that the straight-through gradient costs less in models with more units, 6% of them kept. There
parameters, tokens per parameter, the number kept and the number dropped change together. Here 31 of 3,072 units are
kept in the model that keeps 184 there, and 184 of 512 in the one that keeps 31: everything but k is as in `gap_units`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from ematrace.analysis.gap_design import MASKED, SPEN, kept_units
from ematrace.experiments.base import Point
from ematrace.experiments.gap_task import arm_experiment, arm_points
from ematrace.experiments.gap_units import UNITS, WideArm

FEW, MANY = min(UNITS), max(UNITS)


@dataclass(frozen=True)
class KeptArm(WideArm):
    k: int = kept_units(FEW)
    """Units kept; `gap_sparsity` calls the share of them `kept`."""

    def overrides(self, size: str, d_ff: int) -> dict[str, Any]:
        return super().overrides(size, d_ff) | {"k": self.k}


def grid(scale: str, seeds: int) -> Iterable[Point]:
    """At the rates of `2m`; without a GPU one toy, which shows that it runs."""
    if scale != "gpu":
        yield from arm_points((KeptArm(**asdict(MASKED), units=256, k=8),), "toy", 0)
        return
    swapped = ((MANY, kept_units(FEW)), (FEW, kept_units(MANY)))
    arms = [KeptArm(**asdict(arm), units=units, k=k) for units, k in swapped for arm in (SPEN, MASKED)]
    for seed in range(seeds):
        yield from arm_points(arms, "2m", seed)


EXPERIMENT = arm_experiment(
    "gap_kept",
    "Both gradients of the top-k: many units with few kept, and few with many kept",
    grid,
    KeptArm,
    seeds=3,
)
