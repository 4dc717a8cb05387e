"""Whether the gap is made of the same parts with other sizes, budgets and vocabularies.

Only what the plan publishes: arms at a settled rate, with the settings and scored tokens of the other arms, on seeds
that both sides of a difference have, and enough of them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ematrace.analysis import gap_design
from ematrace.analysis.gap import Ratio, ratio
from ematrace.analysis.gap_design import ATTENTION, DENSE, EMA, GPT2, MASKED, SPEN, Arm, over_width
from ematrace.analysis.gap_scores import (
    EXPERIMENT,
    MAIN,
    NOT_SWEPT,
    SWEEP,
    TOY,
    Absence,
    GapScores,
    Run,
    admit,
    published_rate,
    runs_of,
    sweeps,
)
from ematrace.analysis.plan import LEAST_SEEDS
from ematrace.results import Sample, Table, kept_with_table

SIZES, LARGEST, UNITS = "gap_sizes", "gap_130m", "gap_units"
SIZE_SWEEP = "gap_size_rates"
FROM_MAIN = ("130m",)  # sizes at which a rate may be that of the main size over the width
# Which arm is how much worse than which: what SPEN lacks to GPT-2, and parts of it.
WHOLE, GRADIENT = "SPEN to GPT-2", "SPEN to its true gradient"
CONTRASTS = {
    WHOLE: (SPEN, GPT2),
    "SPEN to dense": (SPEN, DENSE),
    GRADIENT: (SPEN, MASKED),
    "EMA to attention, dense": (EMA, ATTENTION),
}
COMPONENTS = {
    "sparse feed-forward layer, its gradient and load balance": (SPEN, DENSE),
    "everything else": (DENSE, GPT2),
}
"""They add up to the whole."""


@dataclass(frozen=True)
class Contrast:
    """Differences between decisive arms, in nats, with one size, budget and vocabulary."""

    experiment: str
    size: str
    tokens: int
    vocabulary: int
    parameters: float
    differences: Mapping[str, Sample]
    seeds: Mapping[str, tuple[int, ...]]
    """Of each difference."""
    components: Mapping[str, Ratio]
    """Shares of the whole, where all of its arms are there."""
    gradient: Ratio | None
    """That of the straight-through gradient, where its arms are there."""
    gradient_runs: tuple[Run, ...]
    """Behind the difference that it makes."""
    left_out: Mapping[Arm, Absence]
    """Arms of these differences that have cells which may not be published."""

    @property
    def tokens_per_parameter(self) -> float:
        return self.tokens / self.parameters


@kept_with_table
def build_trend(table: Table, text: str = "validation") -> tuple[Contrast, ...]:
    """By tokens per parameter, over everything that was measured but toys."""
    groups: dict[tuple[str, int, int], list[Run]] = defaultdict(list)
    first: dict[tuple[str, int, int], str] = {}
    for experiment in (EXPERIMENT, SIZES, LARGEST):  # the second has arms of the first one's size as well
        for size in dict.fromkeys(map(str, table.values_of(experiment, "size"))):
            for run in runs_scored_on(table, experiment, size, text):
                tokens, vocabulary = tokens_and_vocabulary(run)
                if size != TOY and isinstance(tokens, int) and isinstance(vocabulary, int):
                    groups[size, tokens, vocabulary].append(run)
                    first.setdefault((size, tokens, vocabulary), experiment)
    for key, runs in groups.items():
        if key[0] == MAIN:  # the one decisive arm that `gap` does not have
            runs += [run for run in masked_of_units(table, text) if tokens_and_vocabulary(run) == key[1:]]
    found = [_contrast(table, first[key], *key, runs, text) for key, runs in groups.items()]
    shown = (c for c in found if c.differences or c.left_out)
    return tuple(sorted(shown, key=lambda c: c.tokens_per_parameter))


def masked_of_units(table: Table, text: str) -> list[Run]:
    """SPEN's block with the true gradient, from the experiment that also has it with more units."""
    units = gap_design.SIZES[MAIN]["d_ff"]
    runs = runs_scored_on(table, UNITS, MAIN, text)
    return [run for run in runs if run.arm == MASKED and run.factors.get("units") == units]


def tokens_and_vocabulary(run: Run) -> tuple[object, object]:
    return run.settings.get("tokens"), run.settings.get("vocab_size")


def runs_scored_on(table: Table, experiment: str, size: str, text: str) -> list[Run]:
    return [run for run in runs_of(table, experiment, size) if (text, "all") in run.nats]


def _contrast(
    table: Table, experiment: str, size: str, tokens: int, vocabulary: int, runs: list[Run], text: str
) -> Contrast:
    arms = {arm for ends in CONTRASTS.values() for arm in ends}
    decisive = [run for run in runs if run.arm in arms]
    scores = admit(decisive, size, rate_of_plan(table, size))
    least = 1 if size in FROM_MAIN else LEAST_SEEDS
    pairs = {name: pair for name, ends in CONTRASTS.items() if (pair := paired_difference(scores, ends, text, least))}
    differences = {name: sample for name, (sample, _) in pairs.items()}
    seeds_of = {name: seeds for name, (_, seeds) in pairs.items()}
    components = _shares_of_whole(scores, COMPONENTS, text)
    gradient = _shares_of_whole(scores, {GRADIENT: CONTRASTS[GRADIENT]}, text).get(GRADIENT)
    ends, paired = CONTRASTS[GRADIENT], seeds_of.get(GRADIENT, ())
    gradient_runs = tuple(scores.arms[arm][seed] for arm in ends for seed in paired)
    of_spen_first = sorted(decisive, key=lambda run: run.arm != SPEN)
    parameters = next((run.parameters for run in of_spen_first if run.parameters), math.nan)
    left_out = {**scores.refused, **_too_few(scores, least)}
    return Contrast(
        experiment,
        size,
        tokens,
        vocabulary,
        parameters,
        differences,
        seeds_of,
        components,
        gradient,
        gradient_runs,
        left_out,
    )


def _shares_of_whole(scores: GapScores, parts: Mapping[str, tuple[Arm, Arm]], text: str) -> dict[str, Ratio]:
    """Of the distance from SPEN to GPT-2, on the seeds that all arms have; empty with too few of them."""
    arms = list(dict.fromkeys([*CONTRASTS[WHOLE], *(arm for ends in parts.values() for arm in ends)]))
    if any(arm not in scores.arms for arm in arms) or len(seeds := scores.common_seeds(arms)) < LEAST_SEEDS:
        return {}
    nats = {arm: scores.nats(arm, text, "all", seeds) for arm in arms}
    whole = np.subtract(*(nats[arm] for arm in CONTRASTS[WHOLE]))
    return {name: ratio(nats[one] - nats[other], whole) for name, (one, other) in parts.items()}


def rate_of_plan(table: Table, size: str) -> Callable[[Arm, Sequence[float]], float | Absence]:
    """Which rate of an arm counts at a size.

    By the plan an arm with load balance has the rate of the same without, unless it was swept itself. This is written
    again here, apart from `Arm.swept_as`, by which the experiments choose: one checks the other.
    """
    main, own = sweeps(table, MAIN, SWEEP), sweeps(table, size, SIZE_SWEEP)
    borrowed = {replace(a, load_balance=SPEN.load_balance): sweep for a, sweep in main.items() if a.load_balance == 0.0}
    main = {**borrowed, **main}

    def rate_of(arm: Arm, rates: Sequence[float]) -> float | Absence:
        if size == MAIN:
            return published_rate(rates, main.get(arm), size)
        if size not in FROM_MAIN or arm in own:
            return published_rate(rates, own.get(arm), size, SIZE_SWEEP)
        at_main = main.get(arm)
        if at_main is None or at_main.obstacle is not None or at_main.best is None:
            return Absence(f"at {MAIN}: {NOT_SWEPT if at_main is None else at_main.obstacle}", SWEEP)
        scaled = over_width(at_main.best, size)
        if scaled not in rates:
            listed = ", ".join(f"{rate:g}" for rate in rates)
            return Absence(f"its cells are at {listed}, the rate of {MAIN} over the width is {scaled:g}", LARGEST)
        return scaled

    return rate_of


def paired_difference(
    scores: GapScores, ends: tuple[Arm, Arm], text: str, least: int
) -> tuple[Sample, tuple[int, ...]] | None:
    """Nats by which the first arm is worse than the second, and the seeds; None with fewer than `least` in common."""
    if any(arm not in scores.arms for arm in ends) or len(seeds := scores.common_seeds(ends)) < least:
        return None
    worse, better = (scores.nats(arm, text, "all", seeds) for arm in ends)
    return Sample(tuple(worse - better)), seeds


def _too_few(scores: GapScores, least: int) -> dict[Arm, Absence]:
    few = {arm: sorted(runs) for arm, runs in scores.arms.items() if len(runs) < least}
    return {arm: Absence(f"seeds {', '.join(map(str, seeds))}: it takes {least}") for arm, seeds in few.items()}
