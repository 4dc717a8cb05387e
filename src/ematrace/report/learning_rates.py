"""The learning rates that were tried, and what they gave."""

from __future__ import annotations

from collections.abc import Mapping

from ematrace.analysis.gap_design import Arm
from ematrace.analysis.gap_scores import MAIN, SWEEP, sweeps
from ematrace.analysis.gap_trend import SIZE_SWEEP
from ematrace.analysis.rates import Sweep
from ematrace.report.formatting import Rows, number
from ematrace.results import Table


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
    return Rows(["arm", *(f"{rate:g}" for rate in rates), "best"], rows) if rows else None
