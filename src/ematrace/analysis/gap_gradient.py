"""What the straight-through gradient of the top-k costs SPEN's block, by the units kept and by the size of the model.

The cost is SPEN's nats less those of the same block with the true gradient, both with SPEN's load balance, paired by
seed. `gap_units` changes the number of units alone; sizes change width, depth and units together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ematrace.analysis.gap_design import SIZES, SPEN, kept_units
from ematrace.analysis.gap_scores import MAIN, Run, admit
from ematrace.analysis.gap_trend import (
    CONTRASTS,
    GRADIENT,
    LEAST_SEEDS,
    build_trend,
    paired_difference,
    rate_of_plan,
    runs_scored_on,
)
from ematrace.intervals import welch_difference_interval
from ematrace.results import Interval, Sample, Table

UNITS, KEPT = "gap_units", "gap_kept"


@dataclass(frozen=True)
class GradientCost:
    """Of one model and budget."""

    experiment: str
    parameters: float
    width: int
    units: int
    kept: int
    tokens_per_parameter: float
    nats: Sample
    """Positive: the straight-through gradient is worse."""
    seeds: tuple[int, ...]


def costs_by_units(table: Table, text: str, experiment: str = UNITS) -> list[GradientCost]:
    """At the main size's width and rates, by the number of units; 6% of them are kept unless the cells say how many."""
    by_units: dict[tuple[int, int], list[Run]] = defaultdict(list)
    for run in runs_scored_on(table, experiment, MAIN, text):
        units = int(run.factors["units"])
        by_units[units, int(run.factors.get("kept", kept_units(units)))].append(run)
    found = []
    for (units, kept), runs in sorted(by_units.items()):
        scores = admit(runs, MAIN, rate_of_plan(table, MAIN))
        if (pair := paired_difference(scores, CONTRASTS[GRADIENT], text, LEAST_SEEDS)) is None:
            continue
        parameters, tokens = (scores.model_metric(SPEN, name) for name in ("parameters", "tokens_per_parameter"))
        if parameters is not None and tokens is not None:
            width = SIZES[MAIN]["d_model"]
            found.append(GradientCost(experiment, parameters, width, units, kept, tokens, *pair))
    return found


def costs_by_size(table: Table, text: str) -> list[GradientCost]:
    """Of larger models at their own rates."""
    found = []
    for one in build_trend(table, text):
        if one.size != MAIN and (nats := one.differences.get(GRADIENT)) is not None:
            of = SIZES[one.size]
            seeds = one.seeds[GRADIENT]
            units, tokens = of["d_ff"], one.tokens_per_parameter
            model = (one.experiment, one.parameters, of["d_model"], units, kept_units(units))
            found.append(GradientCost(*model, tokens, nats, seeds))
    return sorted(found, key=lambda cost: cost.parameters)


@dataclass(frozen=True)
class UnitsVerdict:
    """Is it the number of units? By the plan, if the cost with the most is less than half of that with the fewest."""

    fewest: GradientCost
    most: GradientCost
    fall: Sample
    """From the fewest to the most units, by seed."""
    below_half: Sample
    """How far the cost with the most units lies below half of that with the fewest, by seed."""
    unpaired: Interval
    """Of the same by Welch: a seed fixes the text's order, but the same seed trained twice differs as two seeds do."""

    @property
    def outcome(self) -> Literal["units", "not units", "undecided"]:
        if (ends := self.below_half.interval) is None:
            return "undecided"
        return "units" if ends[0] > 0 else "not units" if ends[1] <= 0 else "undecided"


def judge_units(costs: Sequence[GradientCost]) -> UnitsVerdict | None:
    """None with fewer than two numbers of units, or with too few seeds in common."""
    if len(costs) < 2:
        return None
    few, many = costs[0], costs[-1]
    seeds = sorted(set(few.seeds) & set(many.seeds))
    if len(seeds) < LEAST_SEEDS:
        return None
    at_few, at_many = (
        np.array([dict(zip(cost.seeds, cost.nats.values, strict=True))[seed] for seed in seeds]) for cost in (few, many)
    )
    fall, below_half = (Sample(tuple(values)) for values in (at_few - at_many, at_few / 2 - at_many))
    return UnitsVerdict(few, many, fall, below_half, welch_difference_interval(at_few / 2, at_many))
