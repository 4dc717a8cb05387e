"""The learning rates that were tried, and the best ones: for page and docs."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ematrace.analysis.gap_design import SIZES, Arm
from ematrace.analysis.gap_scores import MAIN, SWEEP, TOY, sweeps
from ematrace.analysis.gap_trend import SIZE_SWEEP
from ematrace.analysis.rates import Sweep
from ematrace.report.formatting import number
from ematrace.results import Table

Rows = tuple[list[str], list[list[str]]]


def sweeps_at(cells: Table, size: str) -> Mapping[Arm, Sweep]:
    return sweeps(cells, size, SWEEP if size == MAIN else SIZE_SWEEP)


def sweep_rows(cells: Table, size: str) -> Rows | None:
    """Nats at every rate, arm by arm; None where nothing was swept."""
    swept = sweeps_at(cells, size)
    rates = sorted({rate for sweep in swept.values() for rate in sweep.curve})
    rows = []
    for arm, sweep in swept.items():
        shown = [number(sweep.means[rate], 3) if rate in sweep.curve else "–" for rate in rates]
        rows.append([arm.text, *shown, f"{sweep.best:g}{f' ({sweep.obstacle})' if sweep.obstacle else ''}"])
    return (["arm", *(f"{rate:g}" for rate in rates), "best"], rows) if rows else None


def best_rate_rows(cells: Table) -> Rows | None:
    """For every size and arm the best rate, its nats, and those at half and double of it."""
    rows = []
    for size in SIZES:
        for arm, sweep in sweeps_at(cells, size).items() if size != TOY else ():
            best = f"{sweep.best:g}{'' if sweep.obstacle is None else ', not settled'}"
            nats = [_at(sweep, factor * sweep.best) for factor in (0.5, 1.0, 2.0)]
            rows.append([size, arm.text, f"{min(sweep.curve):g} to {max(sweep.curve):g}", best, *nats])
    heads = ["size", "arm", "rates tried", "best rate", "nats at half of it", "nats at it", "nats at double"]
    return (heads, rows) if rows else None


def _at(sweep: Sweep, rate: float) -> str:
    """With the number of seeds where it is not one; rates are rounded to three digits, so that a half may be off."""
    tried = next((one for one in sweep.curve if math.isclose(one, rate, rel_tol=0.01)), None)
    if tried is None:
        return "–"
    seeds = len(sweep.curve[tried])
    return number(sweep.means[tried], 3) + (f" ({seeds} seeds)" if seeds > 1 else "")
