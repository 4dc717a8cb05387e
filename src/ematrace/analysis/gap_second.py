"""Two implementations of the same arms: do they agree?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ematrace.analysis.gap_design import ATTENTION, EMA, MASKED, SPEN, Arm, corner
from ematrace.analysis.gap_scores import GapScores, Run, runs_of
from ematrace.analysis.plan import LEAST_SEEDS, MARGIN
from ematrace.results import Sample, Table, common_seeds

SECOND = "gap_second"
ELSEWHERE = ("gap_sizes", "gap_units")  # have arms that `gap` lacks; where both have a run, the last one's counts
_DIRECT = {"residual"}  # moved: traces with a direct residual
STEPS = {
    "attention with RoPE, not traces": (EMA, ATTENTION),
    "true gradient of the top-k, not straight-through": (corner(_DIRECT), corner(_DIRECT, ffn="topk_masked")),
    "true gradient of the top-k in Algorithm 1's block, not straight-through": (SPEN, MASKED),
}
"""Changes whose two arms were written twice."""


@dataclass(frozen=True)
class Agreement:
    """Nats of the second implementation of an arm minus those of the first, paired by seed."""

    arm: Arm
    difference: Sample
    on_recall: Sample
    """The same on tokens that complete a pair seen before."""

    @property
    def verdict(self) -> Literal["agree", "differ", "undecided", "too few seeds"]:
        """By the 95% interval over seeds: inside the margin, outside, or neither."""
        ends = self.difference.interval
        if len(self.difference.values) < LEAST_SEEDS or ends is None:
            return "too few seeds"
        low, high = ends
        if low > -MARGIN and high < MARGIN:
            return "agree"
        return "differ" if low >= MARGIN or high <= -MARGIN else "undecided"


def agreements(table: Table, scores: GapScores, text: str) -> list[Agreement]:
    """Of the arms that both have, at the same rate and on the same tokens."""
    found = []
    for arm, of_second in _second_runs(table, scores.size).items():
        first = _first_runs(table, scores, arm, of_second)
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
        return self.second - self.first


def steps_twice(table: Table, scores: GapScores, text: str) -> list[StepTwice]:
    """Of the changes whose arms both have on at least two seeds."""
    runs = _second_runs(table, scores.size)
    found = []
    for name, ends in STEPS.items():
        first = {arm: _first_runs(table, scores, arm, runs.get(arm, {})) for arm in ends}
        before, after = (_both(first[arm], runs.get(arm, {}), (text, "all")) for arm in ends)
        if len(seeds := common_seeds((before, after))) > 1:
            samples = (Sample(tuple(before[seed][i] - after[seed][i] for seed in seeds)) for i in (0, 1))
            found.append(StepTwice(name, *samples))
    return found


def _second_runs(table: Table, size: str) -> dict[Arm, dict[int, Run]]:
    runs: dict[Arm, dict[int, Run]] = {}
    for run in runs_of(table, SECOND, size):
        runs.setdefault(run.arm, {})[run.seed] = run
    return runs


def _first_runs(table: Table, scores: GapScores, arm: Arm, second: Mapping[int, Run]) -> Mapping[int, Run]:
    """By seed those of `gap`; of an arm that is not in it, runs elsewhere with the parameters of the second's."""
    if arm in scores.arms or arm in scores.refused:
        return scores.arms.get(arm, {})
    runs = [run for name in ELSEWHERE for run in runs_of(table, name, scores.size) if run.arm == arm]
    return {run.seed: run for run in runs if run.seed in second and _alike(run, second[run.seed])}


def _alike(one: Run, other: Run) -> bool:
    """In rate, settings, scored tokens and parameters."""
    return (one.lr, one.conditions, one.parameters) == (other.lr, other.conditions, other.parameters)


def _both(first: Mapping[int, Run], second: Mapping[int, Run], part: tuple[str, str]) -> dict[int, tuple[float, float]]:
    """By seed the nats of both, where they can be compared."""
    values = {}
    for seed in common_seeds((first, second)):
        one, other = first[seed], second[seed]
        ours, theirs = (run.nats.get(part) for run in (one, other))
        if not _alike(one, other) or ours is None or theirs is None:
            continue
        if ours.value is not None and theirs.value is not None:
            values[seed] = ours.value, theirs.value
    return values
