"""Two implementations of the same arms: do they agree?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ematrace.analysis.gap_design import ArmFactors
from ematrace.analysis.gap_scores import GapScores, Run, runs_of
from ematrace.results import Sample, Table

SECOND = "gap_second"
MARGIN = 0.05  # nats, docs/analysis-plan.md
FEWEST = 3  # seeds


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
    runs: dict[ArmFactors, dict[int, Run]] = {}
    for run in runs_of(table, SECOND, scores.size):
        runs.setdefault(run.arm, {})[run.seed] = run
    found = []
    for arm, of_second in runs.items():
        first = scores.arms.get(arm, {})
        whole, on_recall = (_differences(first, of_second, (text, part)) for part in ("all", "recall"))
        if len(whole) > 1:
            found.append(Agreement(arm, Sample(tuple(whole)), Sample(tuple(on_recall))))
    return found


def _differences(first: Mapping[int, Run], second: Mapping[int, Run], part: tuple[str, str]) -> list[float]:
    values = []
    for seed in sorted(first.keys() & second.keys()):
        one, other = first[seed], second[seed]
        ours, theirs = (run.nats.get(part) for run in (one, other))
        if one.lr != other.lr or one.conditions != other.conditions or ours is None or theirs is None:
            continue
        if ours.value is not None and theirs.value is not None:
            values.append(theirs.value - ours.value)
    return values
