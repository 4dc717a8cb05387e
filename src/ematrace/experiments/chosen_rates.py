"""The learning rates that sweeps chose, as data: `chosen_rates.json` beside this file.

`scripts/choose_rates.py` writes it from the recorded cells of the sweeps, by the rule of docs/analysis-plan.md. An arm
that was not swept, or whose best rate is at an end of its grid, has none, and no figure of it is measured. Every arm
that was swept has its points (seeds by rate): those recorded, and those with which its sweep has to go on.
`feedforward_rates.json` has the rates of the rules for W_ff.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from ematrace.analysis.gap_design import Arm, over_width
from ematrace.analysis.rates import SWEEP_SEED
from ematrace.experiments.base import Point
from ematrace.files import read_json
from ematrace.results.schema import Factor

FILE = Path(__file__).with_suffix(".json")
FEEDFORWARD_FILE = FILE.with_name("feedforward_rates.json")
SWEEPS = ("gap_rates", "gap_predictor_rates", "gap_size_rates")
RATES = (4e-3, 2e-3, 8e-3, 1e-3, 16e-3)  # of `gap_rates`, the likely ones first


def chosen_rate(sweep: str, factors: Mapping[str, Factor]) -> float | None:
    """Of an arm, by the factors of its cells without the rate.

    >>> chosen_rate("gap_rates", {"context": "none of these"}) is None
    True
    """
    return _table().get((sweep, arm_key(factors)))


def rate_at(arm: Arm, size: str) -> float | None:
    """The rate that a sweep chose; None where there is none yet, and the arm is not measured.

    At 130M parameters, where a sweep takes hours, that of `2m` over the width will do; for a toy, any.
    """
    if size == "toy":
        return RATES[0]
    if size == "2m":
        return chosen_rate("gap_rates", {**asdict(arm.swept_as()), "size": size})
    found = chosen_rate("gap_size_rates", {**asdict(replace(arm.plain, width="matched")), "size": size})
    return scaled_rate(arm, size) if found is None and size == "130m" else found


def scaled_rate(arm: Arm, size: str, factor: float = 1.0) -> float | None:
    """The rate of `2m` over the width, times `factor`."""
    at_2m = rate_at(arm, "2m")
    return None if at_2m is None else over_width(factor * at_2m, size)


def sweep_points(sweep: str, factors: Mapping[str, Factor], first: Iterable[float]) -> list[Point]:
    """An arm's part of a sweep's grid: the rates that it begins with, and what it went on or has to go on with.

    >>> [(point.factors["lr"], point.seed) for point in sweep_points("gap_rates", {"context": "new"}, (0.004, 0.002))]
    [(0.004, 1000), (0.002, 1000)]
    """
    further = _points().get((sweep, arm_key(factors)), {})
    asked = [(rate, SWEEP_SEED) for rate in first]
    asked += [(float(rate), seed) for rate, seeds in further.items() for seed in seeds]
    return [Point({**factors, "lr": lr}, seed) for lr, seed in dict.fromkeys(asked)]


@cache
def chosen_rule_rates() -> Mapping[str, float]:
    """Of the rules for W_ff; none before the first sweep was recorded."""
    return read_json(FEEDFORWARD_FILE) if FEEDFORWARD_FILE.is_file() else {}


def arm_key(factors: Mapping[str, Factor]) -> str:
    return json.dumps(dict(factors), sort_keys=True)


@cache
def _table() -> dict[tuple[str, str], float]:
    return {key: arm["lr"] for key, arm in _arms() if arm["lr"] is not None}


@cache
def _points() -> dict[tuple[str, str], dict[str, list[int]]]:
    return {key: arm["points"] for key, arm in _arms()}


def _arms() -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    table: dict[str, list[dict[str, Any]]] = read_json(FILE)
    for sweep, arms in table.items():
        yield from (((sweep, arm_key(arm["factors"])), arm) for arm in arms)
