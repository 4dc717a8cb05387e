"""The gap's cells, arm by arm: which may be published, which may not and why.

An arm's figures are those of its best rate, with the settings and on the tokens of the other arms. Whatever is not is
left out and named, with the reason.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ematrace.analysis.gap_design import ArmFactors
from ematrace.analysis.rates import Sweep, sweeps_of
from ematrace.results import Metric, StoredCell, Table

EXPERIMENT, SWEEP = "gap", "gap_rates"
TOY = "toy"
MAIN = "2m"
TEXTS = ("validation", "wikitext2", "c4")  # in this order, and any others after them
NOT_SWEPT = "its learning rates were not swept"
SAME = 9  # decimals to which the unigram's nats agree on the same tokens

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """One trained model: one file of cells."""

    arm: ArmFactors
    lr: float
    seed: int
    path: Path
    settings: Mapping[str, Any]
    metrics: Mapping[str, Metric]
    """Of the model: parameters, d_ff, ..."""
    nats: Mapping[tuple[str, str], Metric]
    """By text and slice."""
    unigram: Mapping[tuple[str, str], Metric]

    @cached_property
    def conditions(self) -> str:
        """What must be the same in all arms: the settings, and the tokens that were scored.

        The unigram's nats are a fingerprint of those: every arm is scored beside the same one.
        """
        scored = {
            f"{text} {part}": (metric.n, None if metric.value is None else round(metric.value, SAME))
            for (text, part), metric in self.unigram.items()
        }
        return json.dumps([self.settings, scored], sort_keys=True, default=str)


@dataclass(frozen=True)
class GapScores:
    """The runs of one size that may be published, by arm and seed."""

    size: str
    arms: Mapping[ArmFactors, Mapping[int, Run]]
    refused: Mapping[ArmFactors, str]
    """Arms that have cells which may not be published, and why."""
    dropped: Sequence[str] = ()
    """Files that do not fit the others."""
    local: bool = False
    swept: frozenset[ArmFactors] = frozenset()
    """Arms whose rates were tried."""

    @property
    def is_toy(self) -> bool:
        return self.size == TOY

    @property
    def texts(self) -> tuple[str, ...]:
        found = {text for runs in self.arms.values() for run in runs.values() for text, _ in run.nats}
        return (*(text for text in TEXTS if text in found), *sorted(found - set(TEXTS)))

    def why_absent(self, arm: ArmFactors) -> str | None:
        """None where the arm is there."""
        if arm in self.arms:
            return None
        unswept = bool(self.swept) and arm not in self.swept
        return self.refused.get(arm, NOT_SWEPT if unswept else "no cells")

    def common_seeds(self, arms: Iterable[ArmFactors]) -> tuple[int, ...]:
        return tuple(sorted(set.intersection(*(set(self.arms[arm]) for arm in arms))))

    def nats(self, arm: ArmFactors, text: str, part: str, seeds: Sequence[int]) -> Values:
        """Mean nats per token of that slice, by seed."""
        return np.array([self._metric(arm, text, part, seed).value for seed in seeds], dtype=np.float64)

    def share(self, arm: ArmFactors, text: str, part: str, seed: int) -> float:
        """Of the text's tokens, those in that slice."""
        return (self._metric(arm, text, part, seed).n or 0) / (self._metric(arm, text, "all", seed).n or 1)

    def part_nats(self, arm: ArmFactors, text: str, part: str, seeds: Sequence[int]) -> Values:
        """Sum over the slice's tokens per token of the whole text, so that the parts of a text add up to its nats."""
        if not self.share(arm, text, part, seeds[0]):
            return np.zeros(len(seeds))
        shares = np.array([self.share(arm, text, part, seed) for seed in seeds])
        return np.asarray(self.nats(arm, text, part, seeds) * shares)

    def _metric(self, arm: ArmFactors, text: str, part: str, seed: int) -> Metric:
        run = self.arms[arm][seed]
        if (text, part) not in run.nats:
            raise ValueError(f"{run.path}: no nats of slice {part!r} of {text!r}")
        return run.nats[text, part]

    def model_metric(self, arm: ArmFactors, name: str) -> float | None:
        run = next(iter(self.arms[arm].values()))
        return run.metrics[name].value if name in run.metrics else None


def runs_of(table: Table, experiment: str, size: str) -> list[Run]:
    """The runs in force of an experiment whose files hold one model each."""
    by_path: dict[Path, list[StoredCell]] = defaultdict(list)
    for stored in table.evidence.get(experiment, ()):
        if stored.cell.factors.get("size") == size:
            by_path[stored.path].append(stored)
    return [run for path, cells in by_path.items() if (run := _run(path, cells)) is not None]


def _run(path: Path, cells: Sequence[StoredCell]) -> Run | None:
    first = cells[0].cell
    arm, lr = ArmFactors.of(first.factors), first.factors.get("lr")
    if arm is None or not isinstance(lr, int | float):
        return None
    scored = [c.cell for c in cells if "text" in c.cell.factors and "slice" in c.cell.factors]
    places = [((str(c.factors["text"]), str(c.factors["slice"])), c.metrics) for c in scored]
    of_model = [c.cell.metrics for c in cells if "parameters" in c.cell.metrics]
    return Run(
        arm,
        float(lr),
        first.seed,
        path,
        first.settings,
        of_model[0] if of_model else {},
        {place: metrics["nats"] for place, metrics in places if "nats" in metrics},
        {place: metrics["unigram_nats"] for place, metrics in places if "unigram_nats" in metrics},
    )


def load_scores(table: Table, size: str, experiment: str = EXPERIMENT, sweep: str = SWEEP) -> GapScores:
    """What may be published of one size. Toys are not swept, and say so wherever they are shown."""
    runs = runs_of(table, experiment, size)
    swept = sweeps(table, size, sweep)
    arms: dict[ArmFactors, dict[int, Run]] = defaultdict(dict)
    refused: dict[ArmFactors, str] = {}
    common = [conditions for conditions, _ in Counter(run.conditions for run in runs).most_common(1)]
    fitting = [run for run in runs if run.conditions in common]
    odd = [run for run in runs if run.conditions not in common]
    dropped = [f"{experiment}/{run.path.name}: {_difference(fitting[0], run)}" for run in odd]
    by_arm: dict[ArmFactors, list[Run]] = defaultdict(list)
    for run in fitting:
        by_arm[run.arm].append(run)
    for run in runs:
        if run.arm not in by_arm:
            refused[run.arm] = f"of other settings: {_difference(fitting[0], run)}"
    for arm, found in by_arm.items():
        lr, why = published_rate(sorted({run.lr for run in found}), swept.get(arm), size)
        if why:
            refused[arm] = why
        else:
            arms[arm] = {run.seed: run for run in found if run.lr == lr}
    waiting = {arm: found.obstacle for arm, found in swept.items() if arm not in by_arm and found.obstacle is not None}
    local = bool(runs) and table.evidence[experiment][0].local
    return GapScores(size, dict(arms), {**waiting, **refused}, dropped, local, frozenset(swept))


def sweeps(table: Table, size: str, experiment: str = SWEEP) -> dict[ArmFactors, Sweep]:
    """The rates that were tried, by arm."""
    cells = [stored.cell for stored in table.evidence.get(experiment, ()) if stored.cell.factors.get("size") == size]
    found = [(ArmFactors.of(sweep.factors), sweep) for sweep in sweeps_of(cells)]
    return {arm: sweep for arm, sweep in found if arm is not None}


def published_rate(rates: Sequence[float], sweep: Sweep | None, size: str) -> tuple[float, str]:
    """The rate whose cells count, or why none do.

    >>> published_rate([0.004], Sweep({}, {0.002: {0: 5.05}, 0.004: {0: 5.0}, 0.008: {0: 5.05}}), "2m")
    (0.004, '')
    >>> published_rate([0.008], Sweep({}, {0.002: {0: 5.1}, 0.004: {0: 5.0}, 0.008: {0: 4.9}}), "2m")
    (0.008, 'its best rate, 0.008, is at the end of the grid')
    """
    if size == TOY:
        return rates[0], "" if len(rates) == 1 else f"cells at several rates: {_list(rates)}"
    if sweep is None:
        return rates[0], NOT_SWEPT
    if sweep.obstacle is not None:
        return sweep.best, sweep.obstacle
    return (
        sweep.best,
        "" if sweep.best in rates else f"its cells are at {_list(rates)}, the best rate is {sweep.best:g}",
    )


def _list(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates)


def _difference(one: Run, other: Run) -> str:
    """Which settings set a run apart."""
    names = [n for n in dict.fromkeys((*one.settings, *other.settings)) if one.settings.get(n) != other.settings.get(n)]
    if not names:
        return "scored on other tokens"
    shown = [f"{name} {other.settings.get(name)!r} instead of {one.settings.get(name)!r}" for name in names]
    return ", ".join(shown)
