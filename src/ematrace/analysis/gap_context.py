"""What a context is worth: how far it lowers the loss below that of a model without one, and on which tokens.

All arms have as many parameters. But for SPEN's own blocks they have a dense feed-forward layer and a direct residual.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ematrace.analysis.gap import Ratio, ratio
from ematrace.analysis.gap_design import (
    ATTENTION,
    EMA,
    LEARNED,
    SPEN,
    STRAIGHT_THROUGH,
    TRUE_GRADIENT,
    UNBALANCED,
    WITHOUT_POSITIONS,
    Arm,
)
from ematrace.analysis.gap_scores import GapScores, Values
from ematrace.results import Sample

NO_CONTEXT, NO_CONTEXT_SPARSE = Arm("none"), Arm("none", ffn=STRAIGHT_THROUGH)
CONTEXTS: Mapping[str, tuple[Arm, Arm]] = {
    "EMA traces": (EMA, NO_CONTEXT),
    "attention without positions": (WITHOUT_POSITIONS, NO_CONTEXT),
    "attention with learned positions": (LEARNED, NO_CONTEXT),
    "attention with RoPE": (ATTENTION, NO_CONTEXT),
    "SPEN's block": (SPEN, NO_CONTEXT),
    "SPEN's block, over no context with its top-k and gradient": (SPEN, NO_CONTEXT_SPARSE),
    "the same, no load-balance loss": (UNBALANCED, NO_CONTEXT_SPARSE),
    "SPEN's block, no load-balance loss, true gradient": (TRUE_GRADIENT, NO_CONTEXT),
}
"""The arm that has it, and the one without context that it is compared with. Over a dense one, what SPEN's layer costs
is subtracted from what its context saves."""
PARTS = ("all", "recall", "other")
"""Tokens that repeat a pair seen before in the window, and all others."""
RECALLED = (
    *("recall", "rare_recall", "rare_here_recall"),
    *("distance 1-16", "distance 17-64", "distance 65-256", "distance 257+"),
)


@dataclass(frozen=True)
class Worth:
    """Of one context on one text."""

    name: str
    nats: Mapping[str, Sample]
    """Saved over no context, by PARTS, per token of the whole text: the parts add up."""
    of_attention: Mapping[str, Ratio]
    """As a share of what attention with RoPE saves on the same tokens."""
    seeds: tuple[int, ...]


def build_worth(scores: GapScores, text: str) -> list[Worth]:
    """Of every context that is recorded."""
    found = []
    for name, (arm, none) in CONTEXTS.items():
        arms = (none, arm, ATTENTION)
        if any(one not in scores.arms for one in arms) or not (seeds := scores.common_seeds(arms)):
            continue
        without, with_it, attention = (
            {part: scores.part_nats(one, text, part, seeds) for part in PARTS} for one in arms
        )
        saved = {part: without[part] - with_it[part] for part in PARTS}
        shares = {part: ratio(saved[part], without[part] - attention[part]) for part in PARTS}
        found.append(Worth(name, {part: _sample(saved[part]) for part in PARTS}, shares, seeds))
    return found


@dataclass(frozen=True)
class RecallPart:
    """Some of the tokens that repeat a pair, and how far traces are behind attention with RoPE there."""

    tokens: float
    """Their share of the text."""
    nats: Sample
    """Per token of the whole text: a part of the gap."""
    each: Sample
    """Per such token."""
    saved: Sample | None
    """By traces over no context, per such token; None where the model without context is not recorded."""
    of_attention: Ratio | None
    """That as a share of what attention with RoPE saves."""


def build_recall_parts(scores: GapScores, text: str) -> dict[str, RecallPart]:
    """By slice; those that have no tokens are not there."""
    arms = (EMA, ATTENTION)
    if any(arm not in scores.arms for arm in arms) or not (seeds := scores.common_seeds(arms)):
        return {}
    with_none = NO_CONTEXT in scores.arms and set(seeds) <= set(scores.arms[NO_CONTEXT])
    found = {}
    for part in RECALLED:
        if not all(scores.has(arm, text, part, seeds) for arm in arms):
            continue
        if tokens := scores.share(EMA, text, part, seeds[0]):
            traces, attention = (scores.nats(arm, text, part, seeds) for arm in arms)
            behind, saved, share = traces - attention, None, None
            if with_none and scores.has(NO_CONTEXT, text, part, seeds):
                without = scores.nats(NO_CONTEXT, text, part, seeds)
                saved, share = _sample(without - traces), ratio(without - traces, without - attention)
            found[part] = RecallPart(tokens, _sample(tokens * behind), _sample(behind), saved, share)
    return found


def _sample(values: Values) -> Sample:
    return Sample(tuple(values))
