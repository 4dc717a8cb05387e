"""What the gap between SPEN and a transformer is made of, in nats, from the cells of `gap`.

Every difference is taken on the same seeds, seed by seed: positive means that the change lowers the loss.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from ematrace.analysis.gap_design import (
    ATTENTION,
    ATTENTION_AT_FIXED_WIDTH,
    BETWEEN,
    CHAIN,
    DIRECT,
    EMA,
    EMA_AT_FIXED_WIDTH,
    GPT2,
    HALVES,
    LEARNED,
    NO_ERROR,
    NO_ERROR_AT_FIXED_WIDTH,
    PLAYERS,
    SPEN,
    STEP_ENDS,
    STRAIGHT_THROUGH,
    WITHOUT_POSITIONS,
    Arm,
    arm_name,
    corner,
    step_name,
)
from ematrace.analysis.gap_scores import MAIN, Absence, GapScores, Values
from ematrace.analysis.plan import MARGIN, SEEDS
from ematrace.analysis.rates import JUMP
from ematrace.analysis.shapley import first_and_last, occasions, shapley_value
from ematrace.intervals import crossed_interval, fieller_interval, holm_adjusted, mean_p_value
from ematrace.results import Interval, Sample

SMALLEST_GAP = 0.1  # nats: shares of less are not given
ALL_TRACES, HALF = 0.75, 0.5  # of the whole distance, for and against "the whole gap is the traces"
ADDS_UP = 1e-6  # nats; parts of the same cells differ by rounding only
Outcome = Literal["for", "against", "mixed", "depends"]


@dataclass(frozen=True)
class Step:
    """One change, and the nats by which it lowers the loss: on tokens that repeat a pair seen before, and on others."""

    name: str
    nats: Sample
    recall: Sample
    other: Sample
    p_value: float | None
    """Student's, corrected by Holm over the steps of the chain; None with fewer than two seeds."""
    over_text: Interval | None = None
    """95%, for other seeds and other text of the kind: the intervals of the samples are for this text."""


@dataclass(frozen=True)
class Chain:
    text: str
    start: Sample
    end: Sample
    steps: tuple[Step, ...]
    whole: Step
    """From one end to the other, measured as one step."""
    seeds: tuple[int, ...]
    missing: Mapping[Arm, Absence]
    """Arms that are not there or lack a seed of the others; the steps on both sides of one are shown as one step."""
    halves: tuple[Step, ...] = ()
    """Of the joined step: attention without positions, then learned positions. Empty where an arm is missing."""

    @property
    def recall_share(self) -> Ratio:
        """Of the whole distance, what lies on tokens that repeat a pair seen before."""
        return ratio(np.array(self.whole.recall.values), np.array(self.whole.nats.values))


def build_chain(scores: GapScores, text: str) -> Chain | None:
    """None where an end of the chain is missing: then there is no distance."""
    ends = (SPEN, GPT2)
    if any(arm not in scores.arms for arm in ends):
        return None
    seeds = scores.seeds_of_most([arm for arm in STEP_ENDS if arm in scores.arms], ends)
    if not seeds:
        return None
    missing = {arm: why for arm in CHAIN if (why := _absence(scores, arm, seeds)) is not None}
    present = [arm for arm in STEP_ENDS if arm not in missing]
    steps = [_step(scores, text, one, other, seeds) for one, other in pairwise(present)]
    if len(seeds) > 1:
        adjusted = holm_adjusted([mean_p_value(step.nats.values) for step in steps])
        steps = [replace(step, p_value=p) for step, p in zip(steps, adjusted, strict=True)]
    start, end = (Sample(tuple(scores.nats(arm, text, "all", seeds))) for arm in ends)
    whole = replace(_step(scores, text, *ends, seeds), name="the whole distance")
    halves = () if missing.keys() & set(HALVES) else _halves(scores, text, seeds)
    return Chain(text, start, end, tuple(steps), whole, seeds, missing, halves)


def _absence(scores: GapScores, arm: Arm, seeds: Sequence[int]) -> Absence | None:
    if arm not in scores.arms:
        return scores.absence(arm)
    lacking = [seed for seed in seeds if seed not in scores.arms[arm]]
    return Absence(f"it lacks seed {', '.join(map(str, lacking))}, which the others have") if lacking else None


def _halves(scores: GapScores, text: str, seeds: Sequence[int]) -> tuple[Step, ...]:
    """On the seeds of the chain, so that they add up to the joined step."""
    return tuple(_step(scores, text, *ends, seeds) for ends in pairwise(HALVES))


def _step(scores: GapScores, text: str, before: Arm, after: Arm, seeds: Sequence[int]) -> Step:
    nats = scores.nats(before, text, "all", seeds) - scores.nats(after, text, "all", seeds)
    recall, other = (
        scores.part_nats(before, text, part, seeds) - scores.part_nats(after, text, part, seeds)
        for part in ("recall", "other")
    )
    if not np.allclose(recall + other, nats, rtol=0, atol=ADDS_UP):
        wrong = int(np.argmax(abs(recall + other - nats)))
        raise ValueError(
            f"{scores.arms[before][seeds[wrong]].path} or {scores.arms[after][seeds[wrong]].path}: "
            f"recall and other tokens of {text!r} do not add up to all"
        )
    whole, on_recall, on_other = (Sample(tuple(values)) for values in (nats, recall, other))
    over_text = _over_text(scores, text, before, after, seeds)
    return Step(step_name(before, after), whole, on_recall, on_other, None, over_text)


def _over_text(scores: GapScores, text: str, before: Arm, after: Arm, seeds: Sequence[int]) -> Interval | None:
    one, other = (scores.stretches(arm, text, seeds) for arm in (before, after))
    if one is None or other is None or one.shape != other.shape or len(seeds) < 2:
        return None
    low, high = crossed_interval(one - other)
    return None if math.isnan(low) else (low, high)


@dataclass(frozen=True)
class Ratio:
    """A part of a distance, and the share that it is of it, with Fieller's interval.

    The share is None where the distance is not above SMALLEST_GAP with its whole interval.
    """

    part: Sample
    share: float | None
    interval: Interval | None
    whole: Sample
    """The distance, on the same seeds."""


def ratio(part: Values, whole: Values) -> Ratio:
    distance = Sample(tuple(whole))
    low = distance.interval[0] if distance.interval is not None else math.nan
    if not low > SMALLEST_GAP:  # also without an interval
        return Ratio(Sample(tuple(part)), None, None, distance)
    return Ratio(Sample(tuple(part)), float(part.mean() / whole.mean()), fieller_interval(part, whole), distance)


@dataclass(frozen=True)
class Shares:
    """Shapley values in the factorial, from EMA with top-k behind the residual to its opposite."""

    text: str
    whole: Sample
    players: Mapping[str, Ratio]
    split: Mapping[str, Ratio]
    """Of ffn's value from the straight-through gradient: to the true one, and from there to all units."""
    first: Mapping[str, Ratio]
    """What each is worth as the first change: context with the straight-through top-k behind the residual."""
    last: Mapping[str, Ratio]
    """And as the last one: context with a dense layer and a direct residual."""
    seeds: tuple[int, ...]


def factorial_arms() -> list[Arm]:
    """All arms that the shares are computed from."""
    found = [corner(before | {p}) for p in PLAYERS for before, _ in occasions(p, list(PLAYERS))]
    found += [corner(before) for p in PLAYERS for before, _ in occasions(p, list(PLAYERS))]
    found += [corner(before, ffn=BETWEEN) for before, _ in occasions("ffn", list(PLAYERS))]
    return list(dict.fromkeys(found))


def build_shares(scores: GapScores, text: str, gradient: str = STRAIGHT_THROUGH) -> Shares | None:
    """None where an arm of the factorial is missing, or lacks a seed that another one has.

    With `gradient` BETWEEN the factorial starts from the top-k with the true gradient.
    """
    arms = [arm for arm in factorial_arms() if gradient == STRAIGHT_THROUGH or arm.ffn != STRAIGHT_THROUGH]
    if any(arm not in scores.arms for arm in arms) or len({frozenset(scores.arms[arm]) for arm in arms}) > 1:
        return None
    seeds = scores.common_seeds(arms)
    players = list(PLAYERS)

    def nats(arm: Arm) -> Values:
        return scores.nats(arm, text, "all", seeds)

    def worth(moved: frozenset[str]) -> Values:
        return -nats(corner(moved) if "ffn" in moved else corner(moved, ffn=gradient))

    whole = worth(frozenset(players)) - worth(frozenset())
    values = {player: shapley_value(player, players, worth) for player in players}
    ends = {player: first_and_last(player, players, worth) for player in players}
    # In each order ffn moves at one corner: its step there is cut at the masked gradient.
    cuts = [(share, before, nats(corner(before, ffn=BETWEEN))) for before, share in occasions("ffn", players)]
    split = {
        "gradient": sum(share * (-worth(before) - middle) for share, before, middle in cuts),
        "selection": sum(share * (middle + worth(before | {"ffn"})) for share, before, middle in cuts),
    }
    return Shares(
        text,
        Sample(tuple(whole)),
        {player: ratio(value, whole) for player, value in values.items()},
        {name: ratio(np.asarray(value), whole) for name, value in split.items()},
        {player: ratio(first, whole) for player, (first, _) in ends.items()},
        {player: ratio(last, whole) for player, (_, last) in ends.items()},
        seeds,
    )


def judge_traces(shares: Sequence[Shares]) -> Outcome | None:
    """Is the whole gap the traces? By context's shares on every text given; None where one has no share.

    For and against also need that context is on one side of a half as the first change and as the last one. `depends`:
    it is on one side with some of the other changes made, and on the other side with others.
    """
    averages = [of.players["context"].interval for of in shares]
    at_ends = [found["context"].interval for of in shares for found in (of.first, of.last)]
    known, ends = ([found for found in part if found is not None] for part in (averages, at_ends))
    if not shares or len(known) + len(ends) < len(averages) + len(at_ends):
        return None
    above, below = [low > HALF for low, _ in ends], [high < HALF for _, high in ends]
    if all(above) and all(low > ALL_TRACES for low, _ in known):
        return "for"
    if all(below) and all(high < HALF for _, high in known):
        return "against"
    return "depends" if any(above) and any(below) else "mixed"


@dataclass(frozen=True)
class RecallShare:
    """Of the gap between EMA and attention, both with a dense feed-forward layer and a direct residual."""

    text: str
    definition: str
    attention: Arm
    gap: Sample
    recall: Ratio
    tokens: float
    """The share of tokens that are recall tokens by this definition."""
    nats: Mapping[str, tuple[Sample | None, Sample | None]]
    """Of either arm: on these tokens and on the rest; None where there are none."""
    seeds: tuple[int, ...]


# Slices that make up the recall tokens and the rest, by definition. Recall tokens are chosen knowing the target, so
# copying always pays on them; `retrieval` also has the misses, where the token before was followed by another one.
DEFINITIONS = {
    "pair": (("recall",), ("other",)),
    "retrieval": (("recall", "miss"), ("new_context",)),
    "rare": (("rare_recall",), ("rare_rest",)),
    "rare_here": (("rare_here_recall",), ("rare_here_rest",)),
}


def build_recall(scores: GapScores, text: str, definition: str, attention: Arm = ATTENTION) -> RecallShare | None:
    """None where an arm is missing, or its cells have not these slices."""
    arms = {"EMA": EMA, "attention": attention}
    if any(arm not in scores.arms for arm in arms.values()) or not (seeds := scores.common_seeds(arms.values())):
        return None
    part, rest = DEFINITIONS[definition]
    if not all(scores.has(arm, text, name, seeds) for arm in arms.values() for name in (*part, *rest)):
        return None

    def sums(arm: Arm, names: Sequence[str]) -> Values:
        return np.asarray(np.sum([scores.part_nats(arm, text, name, seeds) for name in names], axis=0))

    def mean(arm: Arm, names: Sequence[str]) -> Sample | None:
        share = math.fsum(scores.share(arm, text, name, seeds[0]) for name in names)
        return Sample(tuple(sums(arm, names) / share)) if share else None

    gap, recalled = (sums(EMA, names) - sums(attention, names) for names in (("all",), part))
    nats = {name: (mean(arm, part), mean(arm, rest)) for name, arm in arms.items()}
    share = math.fsum(scores.share(EMA, text, name, seeds[0]) for name in part)
    return RecallShare(text, definition, attention, Sample(tuple(gap)), ratio(recalled, gap), share, nats, seeds)


def doubts(scores: GapScores, shares: Sequence[Shares], chains: Sequence[Chain] = ()) -> list[str]:
    """What the plan says would make us doubt our own result, where it is so."""
    found = []
    text, *others = scores.texts
    spreads = {
        one: {arm: float(np.ptp(scores.nats(arm, one, "all", sorted(runs)))) for arm, runs in scores.arms.items()}
        for one in scores.texts
    }
    wide = [f"{arm_name(arm)} ({spread:.2f})" for arm, spread in spreads[text].items() if spread > MARGIN]
    if wide:
        found.append(f"Seeds differ by more than {MARGIN:g} nats on {text}: {'; '.join(wide)}.")
    found += [
        f"So do those of {n} of {len(scores.arms)} arms on {one}."
        for one in others
        if (n := sum(spread > MARGIN for spread in spreads[one].values()))
    ]
    counts = {arm: (len(scores.diverged(arm)), len(runs)) for arm, runs in scores.arms.items()}
    diverged = [f"{arm_name(arm)} ({n} of {runs})" for arm, (n, runs) in counts.items() if n]
    if diverged:
        found.append(f"The training loss rose by {JUMP:g} nats or more on some seeds: {'; '.join(diverged)}.")
    few = [f"{arm_name(arm)} ({len(runs)})" for arm, runs in scores.arms.items() if len(runs) < SEEDS]
    if few and scores.size == MAIN:
        found.append(f"Fewer seeds than the plan's {SEEDS}: {'; '.join(few)}.")
    both = LEARNED in scores.arms and GPT2 in scores.arms
    if both and (seeds := scores.common_seeds((LEARNED, GPT2))):
        for one in scores.texts:
            apart = (scores.nats(LEARNED, one, "all", seeds) - scores.nats(GPT2, one, "all", seeds)).mean()
            if abs(apart) > MARGIN:
                found.append(f"GPT-2's block and the skeleton with its parts are {abs(apart):.2f} nats apart on {one}.")
    found += [
        f"The value of {player} changes sign between {one.text} and {other.text}."
        for one, other in pairwise(shares)
        for player in PLAYERS
        if one.players[player].part.mean * other.players[player].part.mean < 0
    ]
    return found + _sign_doubts(chains) + _width_doubts(scores, text)


def _sign_doubts(chains: Sequence[Chain]) -> list[str]:
    """Steps that lower the loss on one text and raise it on another, each with an interval that excludes zero."""
    signs: dict[str, set[bool]] = defaultdict(set)
    for chain in chains:
        for step in chain.steps:
            if (ends := step.nats.interval) is not None and ends[0] * ends[1] > 0:
                signs[step.name].add(ends[0] > 0)
    return [f"The step “{name}” changes sign between texts." for name, seen in signs.items() if len(seen) > 1]


# Steps that also change the feed-forward layer's width: with parameters matched, and with SPEN's width on both sides.
TWINS = {
    "Attention against traces": ((EMA, WITHOUT_POSITIONS), (EMA_AT_FIXED_WIDTH, ATTENTION_AT_FIXED_WIDTH), "context"),
    "No prediction error": ((DIRECT, NO_ERROR), (DIRECT, NO_ERROR_AT_FIXED_WIDTH), "the error"),
}


def _width_doubts(scores: GapScores, text: str) -> list[str]:
    found = []
    for name, (*pairs, factor) in TWINS.items():
        if any(arm not in scores.arms for pair in pairs for arm in pair):
            continue
        gains = [
            (scores.nats(one, text, "all", seeds) - scores.nats(other, text, "all", seeds)).mean()
            for one, other in pairs
            if (seeds := scores.common_seeds((one, other)))
        ]
        if len(gains) == 2 and gains[0] * gains[1] < 0:
            found.append(f"{name} changes sign where d_ff is not matched: the step is not ascribed to {factor}.")
    return found
