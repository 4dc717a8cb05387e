"""The same change in other places: what each change of the factorial is worth, whatever the other factors are.

A chain has every change once, after those before it. Here each stands as often as the factorial has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

from ematrace.analysis.gap_design import ATTENTION, BETWEEN, EMA, PLAYERS, Arm
from ematrace.analysis.gap_scores import GapScores
from ematrace.results import Sample

LEVELS: Mapping[str, tuple[Mapping[str, str], ...]] = {
    name: (first, *([{name: BETWEEN}] if name == "ffn" else []), last) for name, (first, last) in PLAYERS.items()
}
NO_CONTEXT = {"context": "none", "positions": "none"}
CHANGES = (
    ("context", 0, "attention with RoPE, not traces"),
    ("ffn", 0, "true gradient of the top-k, not straight-through"),
    ("ffn", 1, "all units, not 6%"),
    ("residual", 0, "context into the residual"),
)
"""Factor, the level that it leaves, name."""


@dataclass(frozen=True)
class Place:
    change: str
    factor: str
    where: Arm
    """The arm before the change."""
    nats: Mapping[str, Sample]
    """By text: how far the change lowers the loss, seed by seed."""


def build_places(scores: GapScores) -> Iterator[Place]:
    """Those whose two arms have at least two seeds in common."""
    for factor, start, name in CHANGES:
        others = [
            (*LEVELS[other], *([NO_CONTEXT] if other == "context" else [])) for other in LEVELS if other != factor
        ]
        for rest in product(*others):
            levels = {key: value for level in rest for key, value in level.items()}
            before, after = (
                replace(EMA, **levels, **LEVELS[factor][at])  # type: ignore[arg-type]
                for at in (start, start + 1)
            )
            if before not in scores.arms or after not in scores.arms:
                continue
            seeds = scores.common_seeds((before, after))
            if len(seeds) > 1:
                both = {
                    text: [scores.nats(arm, text, "all", seeds) for arm in (before, after)] for text in scores.texts
                }
                yield Place(
                    name, factor, before, {text: Sample(tuple(one - other)) for text, (one, other) in both.items()}
                )


def context_name(arm: Arm) -> str:
    return {EMA.context: "traces", ATTENTION.context: "attention with RoPE"}.get(arm.context, arm.context)
