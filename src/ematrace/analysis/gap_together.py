"""Traces and attention alone and together, on the seed of the sweeps of learning rates.

Traces plus attention without positions were trained there alone. One seed, so no intervals: a first look. Rates are
chosen on one half of the held-out text, these nats are of the other half.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ematrace.analysis.gap_design import ATTENTION, EMA, WITHOUT_POSITIONS, Arm
from ematrace.analysis.gap_scores import MAIN, SWEEP, Run, runs_of
from ematrace.analysis.plan import TEXTS
from ematrace.analysis.rates import SELECTION, SWEEP_SEED
from ematrace.results import Table

PREDICTOR_SWEEP = "gap_predictor_rates"
MIXER = "mixer"
CONTEXTS: Mapping[str, tuple[str, Arm]] = {
    "EMA traces": (SWEEP, EMA),
    "EMA traces, learned positions": (SWEEP, Arm("ema", positions="learned")),
    "attention without positions": (SWEEP, WITHOUT_POSITIONS),
    "attention with RoPE": (SWEEP, ATTENTION),
    "EMA traces plus attention, without positions": (PREDICTOR_SWEEP, Arm("ema_attention")),
    "EMA traces plus attention with RoPE": (SWEEP, Arm("ema_attention", positions="rope")),
}
"""The sweep that has it, and its arm. All have a dense layer, a direct residual and as many parameters."""
REFERENCE = "attention with RoPE"
"""Whose settings count: by those of most, a sweep that is recorded anew could put out all others."""


@dataclass(frozen=True)
class Trial:
    """One model of a sweep."""

    name: str
    lr: float
    at_end: bool
    """Whether the best rate is at the end of those that were tried, so that a better one may lie beyond it."""
    units: float | None
    repeated: Mapping[str, float]
    """Nats per token that repeats a pair, by text."""
    nats: Mapping[str, float]
    """Per token of the text."""


def build_trials(table: Table) -> list[Trial]:
    """Of every context the model at its best rate; where that is at the end of the grid, also at the one before. Only
    those with the settings and on the tokens of REFERENCE; none where its own runs differ in them."""
    found = {name: _runs(table, experiment, arm) for name, (experiment, arm) in CONTEXTS.items()}
    needed = {_scored_on(run) for run in found[REFERENCE].values()}
    if len(needed) != 1:
        return []
    alike = {name: {lr: r for lr, r in runs.items() if _scored_on(r) in needed} for name, runs in found.items()}
    return [trial for name, runs in alike.items() for trial in _trials(name, runs)]


def _runs(table: Table, experiment: str, arm: Arm) -> dict[float, Run]:
    """By rate, in rising order, of the seed that all sweeps have."""
    runs = [
        run
        for run in runs_of(table, experiment, MAIN)
        if run.arm == arm and run.seed == SWEEP_SEED and run.factors.get("predictor", MIXER) == MIXER
    ]
    return {run.lr: run for run in sorted(runs, key=lambda run: run.lr) if _selection(run) is not None}


def _trials(name: str, runs: Mapping[float, Run]) -> Iterator[Trial]:
    if not runs:
        return
    rates = list(runs)
    best = min(rates, key=lambda lr: _selection(runs[lr]) or 0.0)
    at_end = best in (rates[0], rates[-1])
    beside = rates[1:2] if best == rates[0] else rates[-2:-1]
    for lr in (best, *(beside if at_end else ())):
        run = runs[lr]
        repeated, nats = ({text: _nats(run, text, part) for text in TEXTS} for part in ("recall", "all"))
        units = run.metrics["d_ff"].value if "d_ff" in run.metrics else None
        yield Trial(name, lr, at_end and lr == best, units, repeated, nats)


def _selection(run: Run) -> float | None:
    return run.metrics[SELECTION].value if SELECTION in run.metrics else None


def _nats(run: Run, text: str, part: str) -> float:
    metric = run.of(text, part)
    return float("nan") if metric is None or metric.value is None else metric.value


def _scored_on(run: Run) -> str:
    """Settings and tokens; later sweeps have more slices of the same tokens."""
    return repr((sorted(run.settings.items()), [run.scored_tokens(text, "recall") for text in TEXTS], run.on_gpu))
