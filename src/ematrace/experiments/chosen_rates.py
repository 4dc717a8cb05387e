"""The learning rates that sweeps chose, as data: `chosen_rates.json` beside this file.

`scripts/choose_rates.py` writes it from the recorded cells of the sweeps, by the rule of docs/analysis-plan.md. An arm
that was not swept, or whose best rate is at an end of its grid, has none, and no figure of it is measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ematrace.files import read_json
from ematrace.results.schema import Factor

FILE = Path(__file__).with_suffix(".json")
SWEEPS = ("gap_rates", "gap_predictor_rates", "gap_size_rates")


def chosen_rate(sweep: str, factors: Mapping[str, Factor]) -> float | None:
    """Of an arm, by the factors of its cells without the rate.

    >>> chosen_rate("gap_rates", {"context": "none of these"}) is None
    True
    """
    return _table().get((sweep, arm_key(factors)))


def arm_key(factors: Mapping[str, Factor]) -> str:
    return json.dumps(dict(factors), sort_keys=True)


@cache
def _table() -> dict[tuple[str, str], float]:
    table: dict[str, list[dict[str, Any]]] = read_json(FILE)
    return {(sweep, arm_key(arm["factors"])): arm["lr"] for sweep, arms in table.items() for arm in arms}
