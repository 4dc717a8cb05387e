"""Does the chain close? Its steps add up by construction, so the distance is measured again, by runs of no step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ematrace.analysis.gap import Chain
from ematrace.analysis.gap_design import GPT2, SPEN
from ematrace.analysis.gap_scores import SWEEP, GapScores, Run, runs_of
from ematrace.analysis.plan import MARGIN
from ematrace.intervals import welch_difference_interval
from ematrace.results import Interval, Sample, Table, common_seeds


@dataclass(frozen=True)
class Closure:
    """Steps and distance have no run and no seed in common."""

    text: str
    steps: Sample
    """Their sum, by seed of the chain."""
    distance: Sample
    """Between the same two blocks on the seeds of the sweep, each at its settled rate."""
    seeds: tuple[int, ...]
    """Of the sweep."""

    @property
    def difference(self) -> float:
        return self.steps.mean - self.distance.mean

    @property
    def interval(self) -> Interval | None:
        """95%, Welch; None for one seed on a side."""
        if not (self.steps.known and self.distance.known):
            return None
        low, high = welch_difference_interval(self.steps.values, self.distance.values)
        return None if math.isnan(low) else (low, high)

    @property
    def verdict(self) -> Literal["closes", "does not close", "undecided", "not checked"]:
        if self.interval is None:
            return "not checked"
        low, high = self.interval
        if low > -MARGIN and high < MARGIN:
            return "closes"
        return "does not close" if low > 0 or high < 0 else "undecided"


def build_closure(table: Table, scores: GapScores, chain: Chain) -> Closure | None:
    """None where no seed of the sweep has both ends, scored on the chain's tokens at the rates that it uses."""
    swept = runs_of(table, SWEEP, scores.size)
    again = []
    for arm in (SPEN, GPT2):
        used = scores.arms[arm][chain.seeds[0]]
        again.append({run.seed: run for run in swept if run.arm == arm and _repeats(run, used, chain.text)})
    seeds = common_seeds(again)
    if not seeds:
        return None
    start, end = ([_value(runs[seed], chain.text) for seed in seeds] for runs in again)
    distance = [one - other for one, other in zip(start, end, strict=True)]
    steps = [math.fsum(step.nats.values[i] for step in chain.steps) for i in range(len(chain.seeds))]
    return Closure(chain.text, Sample(tuple(steps)), Sample(tuple(distance)), seeds)


def _value(run: Run, text: str) -> float:
    nats = run.nats[text, "all"].value
    return math.nan if nats is None else nats


def _repeats(run: Run, used: Run, text: str) -> bool:
    """Older sweeps have fewer slices: what counts is that all of the text's tokens are the same."""
    same = run.scored_tokens(text) == used.scored_tokens(text) is not None
    return same and run.lr == used.lr and run.settings == used.settings and (text, "all") in run.nats
