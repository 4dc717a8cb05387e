"""What the straight-through gradient of the top-k costs SPEN's block, by the units kept and by the size of the model.

The cost is SPEN's nats less those of the same block with the true gradient, both with SPEN's load balance, paired by
seed. `gap_units` changes the number of units, `gap_kept` how many of them are kept, sizes also width and depth. A
larger model on the same text has fewer tokens for each parameter; so has the main one on less text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ematrace.analysis.gap_design import SIZES, SPEN, kept_units
from ematrace.analysis.gap_scores import EXPERIMENT, MAIN, Run, Values, admit, runs_of
from ematrace.analysis.gap_trend import (
    CONTRASTS,
    GRADIENT,
    UNITS,
    Contrast,
    build_trend,
    masked_of_units,
    paired_difference,
    rate_of_plan,
    runs_scored_on,
    tokens_and_vocabulary,
)
from ematrace.analysis.gap_trend import SIZES as BY_SIZE
from ematrace.analysis.plan import BORDER, LEAST_SEEDS, MARGIN, SAME_COST
from ematrace.intervals import welch_difference_interval
from ematrace.results import Interval, Sample, Table, common_seeds

BY_UNITS, BY_KEPT = UNITS, "gap_kept"
DEVICES = "gap_first_steps"
FEWEST, MOST = SIZES[MAIN]["d_ff"], SIZES["130m"]["d_ff"]  # units that the plan's rule compares
SAME_TRAINING = 0.1  # share by which tokens per parameter may differ that count as the same
FIRST_STEPS = 128
SAME_START = MARGIN  # nats of training loss over these steps
SCHEDULE = ("tokens", "sequences", "length", "warmup", "vocab_size", "data", "validation")


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

    @property
    def model(self) -> tuple[str, float, int, float]:
        """The same for the costs of one model on several texts."""
        return self.experiment, self.parameters, self.kept, self.tokens_per_parameter


def costs_at_one_width(table: Table, text: str) -> list[GradientCost]:
    """At the main size's width and rates: by the number of units, then by how many are kept, on any number of seeds."""
    rate_of, width = rate_of_plan(table, MAIN), SIZES[MAIN]["d_model"]
    found = []
    for experiment, least in ((BY_UNITS, LEAST_SEEDS), (BY_KEPT, 1)):
        groups: dict[tuple[int, int], list[Run]] = defaultdict(list)
        for run in runs_scored_on(table, experiment, MAIN, text):
            units = int(run.factors["units"])
            groups[units, int(run.factors.get("k", kept_units(units)))].append(run)
        for (units, kept), runs in sorted(groups.items()):
            scores = admit(runs, MAIN, rate_of)
            if (pair := paired_difference(scores, CONTRASTS[GRADIENT], text, least)) is None:
                continue
            parameters, tokens = (scores.model_metric(SPEN, name) for name in ("parameters", "tokens_per_parameter"))
            if parameters is not None and tokens is not None:
                found.append(GradientCost(experiment, parameters, width, units, kept, tokens, *pair))
    return found


def costs_by_size(table: Table, text: str) -> list[GradientCost]:
    """Of larger models at their own rates, and of the main one with other tokens or another vocabulary."""
    main = (run for name in (EXPERIMENT, UNITS) for run in runs_scored_on(table, name, MAIN, text))
    at_one_width = {(MAIN, *tokens_and_vocabulary(run)) for run in main}
    found = []
    for one in build_trend(table, text):
        nats, budget = one.differences.get(GRADIENT), (one.size, one.tokens, one.vocabulary)
        if nats is not None and budget not in at_one_width:
            units, seeds = SIZES[one.size]["d_ff"], one.seeds[GRADIENT]
            model = (one.experiment, one.parameters, SIZES[one.size]["d_model"], units, kept_units(units))
            found.append(GradientCost(*model, one.tokens_per_parameter, nats, seeds))
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
    def outcome(self) -> Literal["units", "not units", "near", "undecided"]:
        low, high = self.below_half.interval or (-np.inf, np.inf)
        if low <= 0 < high:
            return "undecided"
        if abs(self.below_half.mean) < BORDER:
            return "near"
        return "units" if low > 0 else "not units"


@dataclass(frozen=True)
class KeptVerdict:
    """Does a cost change with what `gap_kept` changes, at the same units or at as many kept?"""

    changed: GradientCost
    usual: GradientCost
    """With as many units, or as many of them kept, as in `gap_units`."""
    rise: Sample
    """From the usual to the changed cost, by seed."""
    only_above: bool
    """Whether only a higher cost counts, as the plan has it for fewer units kept."""

    @property
    def outcome(self) -> Literal["matters", "does not matter", "undecided", "too few seeds"]:
        if len(self.rise.values) < LEAST_SEEDS or self.rise.interval is None:
            return "too few seeds"
        low, high = self.rise.interval
        if low > 0 or (high < 0 and not self.only_above):
            return "matters"
        return "does not matter" if max(-low, high) <= SAME_COST else "undecided"


def judge_units(costs: Sequence[GradientCost]) -> UnitsVerdict | None:
    """None where one of the two models is missing, or they have too few seeds in common."""
    of_units = {cost.units: cost for cost in costs if cost.experiment == BY_UNITS}
    if not {FEWEST, MOST} <= of_units.keys():
        return None
    few, many = of_units[FEWEST], of_units[MOST]
    at_few, at_many = _on_common_seeds(few, many)
    if len(at_few) < LEAST_SEEDS:
        return None
    fall, below_half = (Sample(tuple(values)) for values in (at_few - at_many, at_few / 2 - at_many))
    return UnitsVerdict(few, many, fall, below_half, welch_difference_interval(at_few / 2, at_many))


def judge_kept(costs: Sequence[GradientCost]) -> dict[str, KeptVerdict]:
    """`kept`: fewer kept of the most units. `share`: as many kept as of the most units, of the fewest."""
    by_model = {(cost.units, cost.kept): cost for cost in costs if cost.experiment in (BY_UNITS, BY_KEPT)}
    usual = by_model.get((MOST, kept_units(MOST)))
    changed = {
        "kept": by_model.get((MOST, kept_units(FEWEST))),
        "share": by_model.get((FEWEST, kept_units(MOST))),
    }
    found = {}
    for name, cost in changed.items():
        if usual is None or cost is None:
            continue
        at_changed, at_usual = _on_common_seeds(cost, usual)
        if len(at_changed):
            found[name] = KeptVerdict(cost, usual, Sample(tuple(at_changed - at_usual)), only_above=name == "kept")
    return found


@dataclass(frozen=True)
class TrainingVerdict:
    """Does a larger model pay less because it is larger, or because it has seen fewer tokens for each parameter?

    By the plan, the main size on so few tokens is compared with it.
    """

    shorter: Contrast
    larger: Contrast
    on_cores: bool
    """Whether a run of `shorter` was trained without a GPU."""
    start: float | None
    """The largest difference in training loss over the first steps between cores and a GPU, on the same schedule, by
    arm and seed: whether cores make another experiment of it. None where an arm or seed was not compared."""

    @property
    def excess(self) -> float:
        """Nats by which the gradient costs more in the smaller model."""
        return self.shorter.differences[GRADIENT].mean - self.larger.differences[GRADIENT].mean

    @property
    def interval(self) -> Interval:
        """Welch's: they are different models."""
        shorter, larger = (np.array(one.differences[GRADIENT].values) for one in (self.shorter, self.larger))
        return welch_difference_interval(shorter, larger)

    @property
    def outcome(self) -> Literal["training", "size", "undecided", "another device"]:
        low, high = self.interval
        if self.on_cores and (self.start is None or self.start > SAME_START):
            return "another device"
        if max(-low, high) <= SAME_COST:
            return "training"
        return "size" if low > 0 else "undecided"


def judge_training(table: Table, text: str) -> TrainingVerdict | None:
    """None where no larger model, `7m` in the plan, has about as many tokens per parameter as the main one on fewer."""
    found = [one for one in build_trend(table, text) if len(one.seeds.get(GRADIENT, ())) >= LEAST_SEEDS]
    for shorter in (one for one in found if (one.size, one.experiment) == (MAIN, BY_SIZE)):
        for larger in (one for one in found if one.size != MAIN and one.vocabulary == shorter.vocabulary):
            if abs(shorter.tokens_per_parameter / larger.tokens_per_parameter - 1) <= SAME_TRAINING:
                on_cores = [run for run in shorter.gradient_runs if not run.on_gpu]
                return TrainingVerdict(shorter, larger, bool(on_cores), _largest_start(table, on_cores))
    return None


def _largest_start(table: Table, runs: Sequence[Run]) -> float | None:
    """See `TrainingVerdict.start`. Recorded runs of the whole budget have the same first steps."""
    recorded = [*runs_of(table, EXPERIMENT, MAIN), *masked_of_units(table, "validation")]
    on_gpu = {_first_steps(run): run.curve.get(FIRST_STEPS) for run in recorded if run.on_gpu}
    on_cores = [run for run in runs_of(table, DEVICES, MAIN) if not run.on_gpu]
    differences = []
    for run in runs:
        of_run = [one for one in on_cores if (one.arm, one.seed, one.lr) == (run.arm, run.seed, run.lr)]
        pairs = [(one.curve.get(FIRST_STEPS), on_gpu.get(_first_steps(one))) for one in of_run]
        known = [abs(one - other) for one, other in pairs if one is not None and other is not None]
        if not known:
            return None
        differences += known
    return max(differences, default=None)


def _first_steps(run: Run) -> tuple[object, ...]:
    """What decides on the first steps of training."""
    return run.arm, run.seed, run.lr, *(run.settings.get(name) for name in SCHEDULE)


def _on_common_seeds(*costs: GradientCost) -> list[Values]:
    seeds = common_seeds(cost.seeds for cost in costs)
    by_seed = [dict(zip(cost.seeds, cost.nats.values, strict=True)) for cost in costs]
    return [np.array([of[seed] for seed in seeds]) for of in by_seed]
