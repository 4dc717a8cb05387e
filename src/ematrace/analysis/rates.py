"""Which learning rate is best by a sweep, and whether the sweep was wide enough to say so (docs/analysis-plan.md)."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import fmean

import numpy as np

from ematrace.results import Cell
from ematrace.results.schema import Factor

SELECTION = "selection_nats"  # on the half of the validation text that rates are chosen on
TRAINED = "train_nats"

Curve = Mapping[float, Mapping[int, float]]
"""Nats by rate and seed."""


@dataclass(frozen=True)
class Sweep:
    """The rates of one arm."""

    factors: Mapping[str, Factor]
    """All but the rate."""
    curve: Curve
    least: int = 3
    """Rates that it must have."""
    rises: Mapping[float, float] = field(default_factory=dict)
    """By rate, how far the training loss ever rose above its lowest value before."""

    @property
    def means(self) -> dict[float, float]:
        """Nats by rate, over its seeds."""
        return {rate: fmean(seeds.values()) for rate, seeds in sorted(self.curve.items())}

    @property
    def best(self) -> float:
        """
        >>> Sweep({}, {0.002: {0: 5.0, 1: 5.2}, 0.004: {0: 5.1, 1: 5.0}, 0.008: {0: 5.2}}).best
        0.004
        """
        return min(self.means, key=lambda rate: self.means[rate])

    @property
    def best_three(self) -> list[float]:
        return sorted(self.means, key=lambda rate: self.means[rate])[:3]

    @property
    def obstacle(self) -> str | None:
        """Why the best rate is not settled, if it is not.

        >>> Sweep({}, {0.002: {0: 5.1}, 0.004: {0: 5.0}, 0.008: {0: 4.9}}).obstacle
        'its best rate, 0.008, is at the end of the grid'
        """
        if len(self.curve) < self.least:
            return f"only {len(self.curve)} of its rates were tried"
        if not min(self.curve) < self.best < max(self.curve):
            return f"its best rate, {self.best:g}, is at the end of the grid"
        if self.seen_once:
            rates = ", ".join(f"{rate:g}" for rate in self.seen_once)
            return f"one seed says too little around its best rate, {self.best:g}: to be repeated at {rates}"
        return None

    @property
    def seen_once(self) -> list[float]:
        """Rates that must be repeated: the best three if one seed says too little, and once some rate was repeated, all
        that are not JUMP worse than the best: the mean of three seeds and a single one are no match.

        >>> Sweep({}, {0.002: {0: 5.1}, 0.004: {0: 5.1, 1: 5.0, 2: 5.1}, 0.008: {0: 5.0}, 0.016: {0: 5.1}}).seen_once
        [0.008]
        """
        means, wanted = self.means, set(self.best_three if self.jumps else ())
        if any(len(seeds) > 1 for seeds in self.curve.values()):
            wanted |= {rate for rate, nats in means.items() if nats - means[self.best] <= JUMP}
        return sorted(rate for rate in wanted if len(self.curve[rate]) < SEEDS_OF_JUMPS)

    @property
    def wanted(self) -> list[tuple[float, int]]:
        """(rate, seed) that may settle it: two rates beyond the end at which the best one is, or the best three again.

        >>> Sweep({}, {0.002: {1000: 5.1}, 0.004: {1000: 5.0}, 0.008: {1000: 4.9}}).wanted
        [(0.016, 1000), (0.032, 1000)]
        >>> Sweep({}, {0.002: {1000: 5.1}, 0.004: {1000: 5.0}, 0.008: {1000: 5.2}}).wanted
        [(0.002, 1001), (0.002, 1002), (0.004, 1001), (0.004, 1002), (0.008, 1001), (0.008, 1002)]
        """
        if self.obstacle is None or len(self.curve) < self.least:
            return []
        if self.best in (min(self.curve), max(self.curve)):
            factors = (2, 4) if self.best == max(self.curve) else (1 / 2, 1 / 4)
            return [(self.best * factor, SWEEP_SEED) for factor in factors]
        return [(rate, s) for rate in self.seen_once for s in REPEAT_SEEDS if s not in self.curve[rate]]

    @property
    def jumps(self) -> bool:
        """One seed says too little.

        Nats rise and fall again by JUMP along the rates, the best rate has a neighbour that is CLIFF worse, or at one
        of these three rates the loss of the training text rose by JUMP while it was trained on.
        """
        rates, nats = list(self.means), list(self.means.values())
        at = nats.index(min(nats))
        rises = [nats[i] - min(nats[i + 1 :]) for i in range(at, len(nats) - 1)]
        falls = [nats[i] - min(nats[:i]) for i in range(1, at + 1)]
        around = slice(max(0, at - 1), at + 2)
        cliff = max(nats[around]) - nats[at]
        diverged = max((self.rises.get(rate, 0.0) for rate in rates[around]), default=0.0)
        return max((*rises, *falls), default=0.0) > JUMP or cliff > CLIFF or diverged > JUMP


JUMP, CLIFF = 0.05, 0.1  # nats
SWEEP_SEED, REPEAT_SEEDS = 1000, (1001, 1002)  # which no published figure uses
SEEDS_OF_JUMPS = 1 + len(REPEAT_SEEDS)
COLLAPSED = 2.0  # participation ratio below which weights or codes count as rank 1
OF_RULE = ("within", "transfer", "weight_pr", "code_pr")  # what decides on the rate of a rule for W_ff
LEAST_RATES = {"gap_rates": 5}  # of the plan; elsewhere the neighbours are enough


_Arm = frozenset[tuple[str, Factor]]


def sweeps_of(cells: Iterable[Cell]) -> list[Sweep]:
    """One for each arm, from the cells of a sweep. Cells of other settings than most are left out."""
    cells = of_most_settings(cells)
    found: dict[_Arm, dict[float, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    curves: dict[_Arm, dict[float, dict[int, dict[int, float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(dict))
    )
    arms: dict[_Arm, tuple[Mapping[str, Factor], int]] = {}
    for cell in cells:
        rate, step = cell.factors.get("lr"), cell.factors.get("step")
        if not isinstance(rate, int | float):
            continue
        factors = {name: value for name, value in cell.factors.items() if name not in ("lr", "step")}
        key = frozenset(factors.items())
        if SELECTION in cell.metrics:
            arms[key] = factors, LEAST_RATES.get(cell.experiment, Sweep.least)
            nats = cell.metrics[SELECTION].value
            found[key][float(rate)][cell.seed] = math.inf if nats is None else nats  # unknown: training broke down
        if TRAINED in cell.metrics and isinstance(step, int):
            trained = cell.metrics[TRAINED].value
            curves[key][float(rate)][cell.seed][step] = math.inf if trained is None else trained
    return [
        Sweep(
            factors,
            {rate: dict(seeds) for rate, seeds in found[key].items()},
            least,
            {rate: max(map(largest_rise, seeds.values())) for rate, seeds in curves[key].items()},
        )
        for key, (factors, least) in arms.items()
    ]


def of_most_settings(cells: Iterable[Cell]) -> list[Cell]:
    """By experiment and size: a sweep over two texts or budgets would compare what cannot be compared."""
    listed = [(str((cell.experiment, cell.factors.get("size"))), cell) for cell in cells]
    # The cells of a file share one mapping of settings.
    texts = {
        id(s): json.dumps(s, sort_keys=True, default=str)
        for s in {id(c.settings): c.settings for _, c in listed}.values()
    }
    keys = [(group, texts[id(cell.settings)]) for group, cell in listed]
    count = Counter(keys)
    common = {group: max((n, key) for (other, key), n in count.items() if other == group)[1] for group, _ in count}
    return [cell for (group, cell), (_, key) in zip(listed, keys, strict=True) if key == common[group]]


def largest_rise(curve: Mapping[int, float]) -> float:
    """How far a loss, by step, ever lies above its lowest value before.

    >>> largest_rise({10: 5.0, 20: 4.0, 30: 4.5, 40: 4.25})
    0.5
    """
    nats = [curve[step] for step in sorted(curve)]
    return max(value - lowest for value, lowest in zip(nats, accumulate(nats, min), strict=True))


def best_rule_rates(cells: Iterable[Cell]) -> dict[str, float]:
    """The rate of each rule for W_ff that was swept, from the cells of `feedforward_rates`.

    As fixed before the first sweep: of the rates at which neither weights nor codes collapse on any seed, the one with
    the highest sum of W and T; of all rates where all collapse. That is the rate at which the claim is hardest on
    itself. A rate without a value on any of its seeds is out.
    """
    by_rate: dict[str, dict[float, list[list[float | None]]]] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        if cell.factors["rule"] != "frozen":
            values = [cell.metrics[name].value for name in OF_RULE]
            by_rate[str(cell.factors["rule"])][float(cell.factors["rate"])].append(values)
    chosen = {}
    for rule, rates in sorted(by_rate.items()):
        complete = {rate: runs for rate, runs in rates.items() if all(None not in run for run in runs)}
        known = {rate: np.array(runs, np.float64) for rate, runs in complete.items()}
        whole = {rate: runs for rate, runs in known.items() if runs[:, 2:].min() >= COLLAPSED}
        sums = {rate: fmean(runs[:, :2].sum(1)) for rate, runs in (whole or known).items()}
        if sums:
            chosen[rule] = max(sums, key=lambda rate: (sums[rate], -rate))
    return chosen
