"""Recall beyond ordinary context: what a context saves on tokens that repeat a pair, and would not save on others.

Any context saves nats on tokens that repeat a pair, also one that recalls nothing. So from what it saves there, over no
context, is subtracted what it saves on tokens that repeat none, weighted as if their pairs had the same counts in the
training text. Counts by distance are not recorded: the same amount is subtracted at all distances.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ematrace.analysis.gap import Ratio, ratio
from ematrace.analysis.gap_context import NO_CONTEXT
from ematrace.analysis.gap_design import ATTENTION, EMA, LEARNED, WITHOUT_POSITIONS, Arm
from ematrace.analysis.gap_scores import GapScores, Values
from ematrace.results import Sample

TRACES, UNORDERED, ROPE = "EMA traces", "attention without positions", "attention with RoPE"
CONTEXTS: Mapping[str, Arm] = {
    TRACES: EMA,
    UNORDERED: WITHOUT_POSITIONS,
    "attention with learned positions": LEARNED,
    ROPE: ATTENTION,
}
ALL = "all"
COUNTS = ("0", "1-9", "10-99", "100-1250", "1251+")
"""In the training text, of the pair that a token completes."""
DISTANCES = ("1-16", "17-64", "65-256", "257+")
"""Tokens back to the pair's last occurrence."""
NEAR, FAR = DISTANCES[0], DISTANCES[2]  # beyond 256 tokens there are few pairs


@dataclass(frozen=True)
class Part:
    """Of some tokens that repeat a pair, in nats per such token."""

    tokens: float
    """Their share of the text."""
    saved: Sample
    """Over no context."""
    beyond: Sample
    """Less what is saved on tokens that repeat none."""
    of_attention: Ratio
    """That as a share of the same of attention with RoPE."""


@dataclass(frozen=True)
class Beyond:
    """Of one context on one text."""

    name: str
    other: Sample
    """Saved per token that repeats no pair, with the counts of those that do."""
    by_count: Mapping[str, Part]
    """By COUNTS, each against other tokens of these counts; and ALL."""
    by_distance: Mapping[str, Part]
    """By DISTANCES, each against other tokens with the counts of all that repeat a pair."""
    left: Mapping[str, Ratio]
    """Of what is `saved` and `beyond` at NEAR distances, what is left at FAR ones."""
    seeds: tuple[int, ...]


def build_beyond(scores: GapScores, text: str) -> dict[str, Beyond]:
    """By context; empty where an arm is missing that it is compared with, or where counts are."""
    ends = (NO_CONTEXT, ATTENTION)
    if any(arm not in scores.arms for arm in ends):
        return {}
    present = {name: arm for name, arm in CONTEXTS.items() if arm in scores.arms}
    seeds = scores.common_seeds((*ends, *present.values()))
    shares = _shares(scores, text, "repeated, count", COUNTS, seeds)
    others = _shares(scores, text, "other, count", COUNTS, seeds)
    if not shares or not shares.keys() <= others.keys():
        return {}
    return {name: _beyond(scores, text, name, arm, shares, seeds) for name, arm in present.items()}


def _shares(
    scores: GapScores, text: str, name: str, ranges: tuple[str, ...], seeds: tuple[int, ...]
) -> dict[str, float]:
    """Of the text's tokens, by range; those that have any."""
    parts = {of: f"{name} {of}" for of in ranges}
    known = {of: part for of, part in parts.items() if seeds and scores.has(NO_CONTEXT, text, part, seeds)}
    shares = {of: scores.share(NO_CONTEXT, text, part, seeds[0]) for of, part in known.items()}
    return {of: share for of, share in shares.items() if share}


def _beyond(
    scores: GapScores, text: str, name: str, arm: Arm, counts: Mapping[str, float], seeds: tuple[int, ...]
) -> Beyond:
    def saved(arm: Arm, part: str) -> Values:
        return scores.nats(NO_CONTEXT, text, part, seeds) - scores.nats(arm, text, part, seeds)

    def weighted(arm: Arm, name: str) -> Values:
        """Mean over all counts, of as many tokens as repeat a pair."""
        by_count = [share * saved(arm, f"{name}, count {count}") for count, share in counts.items()]
        return np.asarray(np.sum(by_count, axis=0) / sum(counts.values()))

    def part(tokens: float, repeated: str, other: Mapping[Arm, Values]) -> Part:
        of_arm, of_attention = (saved(one, repeated) - other[one] for one in (arm, ATTENTION))
        return Part(tokens, _sample(saved(arm, repeated)), _sample(of_arm), ratio(of_arm, of_attention))

    other = {one: weighted(one, "other") for one in (arm, ATTENTION)}
    of_count = {count: {one: saved(one, f"other, count {count}") for one in (arm, ATTENTION)} for count in counts}
    whole = part(scores.share(NO_CONTEXT, text, "recall", seeds[0]), "recall", other)
    by_count = {count: part(share, f"repeated, count {count}", of_count[count]) for count, share in counts.items()}
    distances = _shares(scores, text, "distance", DISTANCES, seeds)
    by_distance = {of: part(share, f"distance {of}", other) for of, share in distances.items()}
    left = {}
    if NEAR in by_distance and FAR in by_distance:
        near, far = (saved(arm, f"distance {of}") for of in (NEAR, FAR))
        left = {"saved": ratio(far, near), "beyond": ratio(far - other[arm], near - other[arm])}
    return Beyond(name, _sample(other[arm]), {ALL: whole, **by_count}, by_distance, left, seeds)


def _sample(values: Values) -> Sample:
    return Sample(tuple(values))
