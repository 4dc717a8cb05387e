"""Two implementations of the same arms: do they agree?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ematrace.analysis.gap_design import ATTENTION, EMA, ArmFactors, corner
from ematrace.analysis.gap_scores import GapScores, Run, runs_of
from ematrace.results import Sample, Table

SECOND = "gap_second"
MARGIN = 0.05  # nats, docs/analysis-plan.md
FEWEST = 3  # seeds
_DIRECT = {"residual"}  # moved: traces with a direct residual
STEPS = {
    "attention with rope, not traces": (EMA, ATTENTION),
    "true gradient of the top-k, not straight-through": (corner(_DIRECT), corner(_DIRECT, ffn="topk_masked")),
}
"""Changes whose two arms were written twice."""


@dataclass(frozen=True)
class Agreement:
    """Nats of the second implementation of an arm minus those of the first, paired by seed."""

    arm: ArmFactors
    difference: Sample
    on_recall: Sample
    """The same on tokens that complete a pair seen before."""

    @property
    def verdict(self) -> Literal["agree", "differ", "undecided", "too few seeds"]:
        """By the 95% interval over seeds: inside the margin, outside, or neither."""
        ends = self.difference.interval
        if len(self.difference.values) < FEWEST or ends is None:
            return "too few seeds"
        low, high = ends
        if low > -MARGIN and high < MARGIN:
            return "agree"
        return "differ" if low >= MARGIN or high <= -MARGIN else "undecided"


def agreements(table: Table, scores: GapScores, text: str) -> list[Agreement]:
    """Of the arms that both have, at the same rate and on the same tokens."""
    found = []
    for arm, of_second in _second_runs(table, scores.size).items():
        first = scores.arms.get(arm, {})
        whole, on_recall = (_both(first, of_second, (text, part)) for part in ("all", "recall"))
        if len(whole) > 1:
            samples = (Sample(tuple(theirs - ours for ours, theirs in of.values())) for of in (whole, on_recall))
            found.append(Agreement(arm, *samples))
    return found


@dataclass(frozen=True)
class StepTwice:
    """Nats that a change saves, in both implementations on the same seeds."""

    name: str
    first: Sample
    second: Sample

    @property
    def difference(self) -> Sample:
        pairs = zip(self.first.values, self.second.values, strict=True)
        return Sample(tuple(theirs - ours for ours, theirs in pairs))


def steps_twice(table: Table, scores: GapScores, text: str) -> list[StepTwice]:
    """Of the changes whose arms both have on at least two seeds."""
    runs = _second_runs(table, scores.size)
    found = []
    for name, ends in STEPS.items():
        before, after = (_both(scores.arms.get(arm, {}), runs.get(arm, {}), (text, "all")) for arm in ends)
        if len(seeds := sorted(before.keys() & after.keys())) > 1:
            samples = (Sample(tuple(before[seed][i] - after[seed][i] for seed in seeds)) for i in (0, 1))
            found.append(StepTwice(name, *samples))
    return found


def _second_runs(table: Table, size: str) -> dict[ArmFactors, dict[int, Run]]:
    runs: dict[ArmFactors, dict[int, Run]] = {}
    for run in runs_of(table, SECOND, size):
        runs.setdefault(run.arm, {})[run.seed] = run
    return runs


def _both(first: Mapping[int, Run], second: Mapping[int, Run], part: tuple[str, str]) -> dict[int, tuple[float, float]]:
    """By seed the nats of both, where rate, settings and scored tokens are the same."""
    values = {}
    for seed in sorted(first.keys() & second.keys()):
        one, other = first[seed], second[seed]
        ours, theirs = (run.nats.get(part) for run in (one, other))
        if one.lr != other.lr or one.conditions != other.conditions or ours is None or theirs is None:
            continue
        if ours.value is not None and theirs.value is not None:
            values[seed] = ours.value, theirs.value
    return values
