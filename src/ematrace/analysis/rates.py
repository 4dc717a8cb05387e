"""Which learning rate is best by a sweep, and whether the sweep was wide enough to say so (docs/analysis-plan.md)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from ematrace.results import Cell
from ematrace.results.schema import Factor

SELECTION = "selection_nats"  # on the half of the validation text that rates are chosen on

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

    @property
    def best(self) -> float:
        """Of the rates that were measured on the most seeds: where one says too little, the best few are repeated.

        >>> Sweep({}, {0.002: {0: 5.0, 1: 5.2}, 0.004: {0: 5.1, 1: 5.0}, 0.008: {0: 4.9}}).best
        0.004
        """
        most = max(len(seeds) for seeds in self.curve.values())
        means = {rate: fmean(seeds.values()) for rate, seeds in self.curve.items() if len(seeds) == most}
        return min(means, key=lambda rate: means[rate])

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
        return None

    @property
    def jumps(self) -> bool:
        """One seed says too little: nats rise and fall again by JUMP, or the best is NARROW below both neighbours."""
        rates = sorted(self.curve)
        nats = [fmean(self.curve[rate].values()) for rate in rates]
        at = nats.index(min(nats))
        rises = [nats[i] - min(nats[i + 1 :]) for i in range(at, len(nats) - 1)]
        falls = [nats[i] - min(nats[:i]) for i in range(1, at + 1)]
        narrow = 0 < at < len(nats) - 1 and min(nats[at - 1], nats[at + 1]) - nats[at] > NARROW
        return max((*rises, *falls), default=0.0) > JUMP or narrow


JUMP, NARROW = 0.05, 0.1  # nats
LEAST_RATES = {"gap_rates": 5}  # of the plan; elsewhere the neighbours are enough


def sweeps_of(cells: Iterable[Cell]) -> list[Sweep]:
    """One for each arm, from the cells of a sweep."""
    least: dict[str, int] = {}
    found: dict[str, dict[float, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    arms: dict[str, Mapping[str, Factor]] = {}
    for cell in cells:
        metric, rate = cell.metrics.get(SELECTION), cell.factors.get("lr")
        if metric is None or metric.value is None or not isinstance(rate, int | float):
            continue
        factors = {name: value for name, value in cell.factors.items() if name != "lr"}
        key = json.dumps(factors, sort_keys=True)
        arms[key], least[key] = factors, LEAST_RATES.get(cell.experiment, Sweep.least)
        found[key][float(rate)][cell.seed] = metric.value
    return [
        Sweep(arms[key], {rate: dict(seeds) for rate, seeds in curve.items()}, least[key])
        for key, curve in found.items()
    ]
