"""Algorithm 1's block with more or fewer units kept, under both gradients, and with more or less load balance.

With all units kept the two gradients are the same and the layer is dense: what differs between those two arms is noise.
The load-balance loss sends a gradient to dropped units as well, so its weight is 0 where the number of units varies.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from ematrace.analysis.gap_design import KEPT, kept_units
from ematrace.experiments.base import Context, Experiment, Point
from ematrace.experiments.chosen_rates import chosen_rate
from ematrace.experiments.gap_rates import RATES, UNBALANCED
from ematrace.experiments.gap_task import ARM_FIELDS, SPEN, Arm, measure_arm
from ematrace.results import Row

SHARES = (0.03, KEPT, 0.12, 0.25, 0.5, 1.0)
WEIGHTS = (0.01, 1.0)  # beside 0
FFNS = ("topk_ste", "topk_masked")


@dataclass(frozen=True)
class SparseArm(Arm):
    kept: float = KEPT
    """Share of the units that top-k keeps."""

    def overrides(self, size: str, d_ff: int) -> dict[str, Any]:
        return super().overrides(size, d_ff) | {"k": kept_units(d_ff, self.kept)}


def _arm(ffn: str, kept: float, load_balance: float = 0.0) -> SparseArm:
    return SparseArm(**asdict(UNBALANCED) | {"ffn": ffn, "load_balance": load_balance}, kept=kept)


ARMS = (
    *(_arm(ffn, kept) for kept in SHARES for ffn in FFNS),
    *(_arm(ffn, KEPT, weight) for weight in WEIGHTS for ffn in FFNS),
)


def nearest(arm: SparseArm) -> Arm:
    """The arm of the chain whose rate this one has."""
    if arm.kept >= 0.5:
        return replace(UNBALANCED, ffn="dense")
    if arm.ffn == "topk_masked":
        return replace(UNBALANCED, ffn="topk_masked")
    return SPEN if arm.load_balance else UNBALANCED


def grid(scale: str, seeds: int) -> Iterable[Point]:
    """Arms whose rate was chosen; without a GPU two toys, which show that it runs."""
    arms, size = (ARMS, "2m") if scale == "gpu" else ((_arm("topk_ste", 1.0), ARMS[-1]), "toy")
    for seed in range(seeds if scale == "gpu" else 1):
        for arm in arms:
            lr = chosen_rate("gap_rates", {**asdict(nearest(arm)), "size": size}) if size != "toy" else RATES[0]
            if lr is not None:
                yield Point({**asdict(arm), "size": size, "lr": lr}, seed)


def measure(ctx: Context, *, size: str, lr: float, **arm: Any) -> list[Row]:
    return measure_arm(ctx, SparseArm(**arm), size, lr)


EXPERIMENT = Experiment(
    "gap_sparsity",
    "How many units to keep, and how evenly to use them",
    grid=grid,
    measure=measure,
    seeds=3,
    **ARM_FIELDS,
)
