"""Both gradients of the top-k with many units of which few are kept, and with few of which many are.

`gap_units` finds that the straight-through gradient costs less in models with more units, 6% of them kept. There
parameters, tokens per parameter, the number kept and the number dropped change together. Here 31 of 3,072 units are
kept in the model that keeps 184 there, and 184 of 512 in the one that keeps 31: everything but k is as in `gap_units`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from ematrace.analysis.gap_design import kept_units
from ematrace.experiments.base import Context, Experiment, Point
from ematrace.experiments.gap_rates import RATES
from ematrace.experiments.gap_sizes import MASKED, rate_at
from ematrace.experiments.gap_task import ARM_FIELDS, SPEN, measure_arm
from ematrace.experiments.gap_units import UNITS, WideArm
from ematrace.results import Row

FEW, MANY = UNITS[0], UNITS[-1]


@dataclass(frozen=True)
class KeptArm(WideArm):
    k: int = kept_units(UNITS[0])
    """Units kept; `gap_sparsity` calls the share of them `kept`."""

    def overrides(self, size: str, d_ff: int) -> dict[str, Any]:
        return super().overrides(size, d_ff) | {"k": self.k}


def grid(scale: str, seeds: int) -> Iterable[Point]:
    """At the rates of `2m`; without a GPU one toy, which shows that it runs."""
    if scale != "gpu":
        yield Point({**asdict(KeptArm(**asdict(MASKED), units=256, k=8)), "size": "toy", "lr": RATES[0]}, 0)
        return
    for seed in range(seeds):
        for units, k in ((MANY, kept_units(FEW)), (FEW, kept_units(MANY))):
            for arm in (SPEN, MASKED):
                if (lr := rate_at(arm, "2m")) is not None:
                    of = KeptArm(**asdict(arm), units=units, k=k)
                    yield Point({**asdict(of), "size": "2m", "lr": lr}, seed)


def measure(ctx: Context, *, size: str, lr: float, **arm: Any) -> list[Row]:
    return measure_arm(ctx, KeptArm(**arm), size, lr)


EXPERIMENT = Experiment(
    "gap_kept",
    "Both gradients of the top-k: many units with few kept, and few with many kept",
    grid=grid,
    measure=measure,
    seeds=3,
    **ARM_FIELDS,
)
