"""Whether the straight-through gradient misleads.

The rules are those of docs/analysis-plan.md, written before the cells existed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ematrace.analysis.gap_scores import MAIN
from ematrace.analysis.plan import LEAST_SEEDS
from ematrace.results import Sample, Table
from ematrace.results.schema import Factor
from ematrace.results.select import Selector

GRADIENTS = "gap_straight_through"
MISLEADING = 0.5  # cosine to the true gradient
LAST = 4  # measured steps that decide


@dataclass(frozen=True)
class GradientsAt:
    """Both gradients of the cross-entropy at one step, all parameters."""

    step: int
    cosine: Sample
    norm_ratio: Sample
    """Straight-through over true."""
    halves: Sample
    """Cosine between the true gradients of two halves of the text."""
    dead_units: Sample
    usage_entropy: Sample
    nats: Sample

    @property
    def misleads(self) -> bool | None:
        """On every seed; one that does not is enough to deny it.

        None where one has no value, or where all do that are fewer than LEAST_SEEDS.
        """
        seeds = len(self.cosine.values)
        if not seeds or len(self.halves.values) != seeds or not (self.cosine.known and self.halves.known):
            return None
        pairs = zip(self.cosine.values, self.halves.values, strict=True)
        found = all(cosine < min(MISLEADING, halves) for cosine, halves in pairs)
        return None if found and seeds < LEAST_SEEDS else found


def build_gradients(table: Table, ffn: str, load_balance: float) -> tuple[GradientsAt, ...]:
    """During the training of one arm; empty without cells."""
    arm: dict[str, Factor] = {"ffn": ffn, "load_balance": load_balance, "size": MAIN, "part": "all"}
    steps = table.values_of(GRADIENTS, "step", **arm)
    return tuple(_gradients_at(table, {**arm, "step": step}) for step in sorted(int(step) for step in steps))


def _gradients_at(table: Table, where: Mapping[str, Factor]) -> GradientsAt:
    names = ("cosine", "norm_ratio", "masked_cosine_of_halves", "dead_units", "usage_entropy", "nats")
    found = [table.find(Selector(GRADIENTS, name, where)) for name in names]
    return GradientsAt(int(where["step"]), *(Sample(()) if one is None else one.sample for one in found))


def is_misleading(steps: Iterable[GradientsAt]) -> bool | None:
    """At the last steps; None where fewer were measured, or where too few seeds say so."""
    found = [at.misleads for at in sorted(steps, key=lambda at: at.step)[-LAST:]]
    if len(found) < LAST:
        return None
    return False if False in found else None if None in found else True
