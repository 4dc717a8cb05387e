"""Which half of the straight-through gradient does the harm: that of dropped units' own weights, or that through them?

The cost of a half is by how much a model trained with it is worse than one with the true gradient, paired by seed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ematrace.analysis.gap_scores import TOY, Run, Values, runs_of
from ematrace.analysis.plan import LEAST_SEEDS
from ematrace.results import Sample, Table, common_seeds

EXPERIMENTS = ("gap_halves", "gap_halves_2m")
FIRST_ADDED = 3  # the first seed that the plan added later
TRUE, WEIGHTS, THROUGH, BOTH = "topk_masked", "topk_ste_weights", "topk_ste_through", "topk_ste"
Outcome = Literal["weights", "through", "either", "together", "undecided", "too few seeds"]


@dataclass(frozen=True)
class Halves:
    """Costs in nats, with one size and learning rate."""

    size: str
    parameters: float
    lr: float
    nats: Sample
    """Of the straight-through arm."""
    weights: Sample
    through: Sample
    both: Sample
    seeds: tuple[int, ...]

    @property
    def beyond_sum(self) -> Sample:
        """By how much the cost of both exceeds the sum of the halves."""
        return Sample(tuple(_values(self.both) - _values(self.weights) - _values(self.through)))

    @property
    def beyond_sum_added(self) -> Sample | None:
        """The same of the seeds that the plan added later; None where there are none."""
        added = [value for seed, value in zip(self.seeds, self.beyond_sum.values, strict=True) if seed >= FIRST_ADDED]
        return Sample(tuple(added)) if added else None

    @property
    def outcome(self) -> Outcome:
        """By the plan: a half does the harm if its cost is more than half of the cost of both."""
        if len(self.seeds) < LEAST_SEEDS:
            return "too few seeds"
        if not _above_0(_values(self.both)):
            return "undecided"  # there is no harm
        weights, through = (_above_0(_values(half) - _values(self.both) / 2) for half in (self.weights, self.through))
        if weights and through:
            return "either"
        if weights or through:
            return "weights" if weights else "through"
        return "together" if _above_0(_values(self.beyond_sum)) else "undecided"


def build_halves(table: Table, text: str = "validation") -> list[Halves]:
    """By size and learning rate, where all four gradients have seeds and settings in common; not of toys."""
    found = []
    sizes = [(experiment, str(size)) for experiment in EXPERIMENTS for size in table.values_of(experiment, "size")]
    for experiment, size in sizes:
        if size == TOY:
            continue
        by_rate: dict[tuple[float, str], dict[str, dict[int, Run]]] = defaultdict(lambda: defaultdict(dict))
        for run in runs_of(table, experiment, size):
            if (text, "all") in run.nats and run.nats[text, "all"].value is not None:
                by_rate[run.lr, run.conditions][run.arm.ffn][run.seed] = run
        found += [one for (lr, _), runs in by_rate.items() if (one := _halves(size, lr, runs, text)) is not None]
    return sorted(found, key=lambda one: (one.parameters, one.lr))


def _halves(size: str, lr: float, runs: Mapping[str, Mapping[int, Run]], text: str) -> Halves | None:
    if not {TRUE, WEIGHTS, THROUGH, BOTH} <= runs.keys():
        return None
    seeds = common_seeds(runs.values())
    if not seeds:
        return None
    nats = {ffn: np.array([of[seed].nats[text, "all"].value for seed in seeds]) for ffn, of in runs.items()}
    weights, through, both = (Sample(tuple(nats[ffn] - nats[TRUE])) for ffn in (WEIGHTS, THROUGH, BOTH))
    straight = Sample(tuple(nats[BOTH]))
    return Halves(size, runs[TRUE][seeds[0]].parameters or 0.0, lr, straight, weights, through, both, seeds)


def _values(sample: Sample) -> Values:
    return np.array(sample.values)


def _above_0(values: Values) -> bool:
    ends = Sample(tuple(values)).interval
    return ends is not None and ends[0] > 0
