"""Algorithm 1's block with more or fewer units kept, under both gradients, and with more or less load balance.

With all units kept the two gradients are the same and the layer is dense: what differs between those two arms is noise.
The load-balance loss sends a gradient to dropped units as well, so its weight is 0 where the number of units varies.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from ematrace.analysis.gap_design import DENSE, KEPT, SPEN, TRUE_GRADIENT, UNBALANCED, Arm, kept_units
from ematrace.experiments.base import Point
from ematrace.experiments.gap_task import arm_experiment, arm_points

SHARES = (0.03, KEPT, 0.12, 0.25, 0.5, 1.0)
WEIGHTS = (0.01, 1.0)  # beside 0
FFNS = ("topk_ste", "topk_masked")


@dataclass(frozen=True)
class SparseArm(Arm):
    kept: float = KEPT
    """Share of the units that top-k keeps."""

    def overrides(self, size: str, d_ff: int) -> dict[str, Any]:
        return super().overrides(size, d_ff) | {"k": kept_units(d_ff, self.kept)}

    def swept_as(self) -> Arm:
        """The nearest arm of the chain."""
        if self.kept >= 0.5:
            return DENSE
        if self.ffn == "topk_masked":
            return TRUE_GRADIENT
        return SPEN if self.load_balance else UNBALANCED


def _arm(ffn: str, kept: float, load_balance: float = 0.0) -> SparseArm:
    return SparseArm(**asdict(UNBALANCED) | {"ffn": ffn, "load_balance": load_balance}, kept=kept)


ARMS = (
    *(_arm(ffn, kept) for kept in SHARES for ffn in FFNS),
    *(_arm(ffn, KEPT, weight) for weight in WEIGHTS for ffn in FFNS),
)
TOYS = (_arm("topk_ste", 1.0), _arm("topk_masked", KEPT, 1.0))


def grid(scale: str, seeds: int) -> Iterable[Point]:
    """Arms whose rate was chosen; without a GPU two toys, which show that it runs."""
    if scale != "gpu":
        yield from arm_points(TOYS, "toy", 0)
        return
    for seed in range(seeds):
        yield from arm_points(ARMS, "2m", seed)


EXPERIMENT = arm_experiment(
    "gap_sparsity", "How many units to keep, and how evenly to use them", grid, SparseArm, seeds=3
)
