"""The gap's cells, arm by arm: which may be published, which may not and why.

An arm's figures are those of its best rate, with the settings, the size and on the tokens of the other arms. Whatever
is not is left out and named, with the reason and the experiment that would mend it.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ematrace.analysis.gap_design import Arm
from ematrace.analysis.plan import TEXTS
from ematrace.analysis.rates import JUMP, TRAINED, Sweep, largest_rise, sweeps_of
from ematrace.results import Metric, StoredCell, Table, common_seeds, kept_with_table
from ematrace.results.schema import Factor

EXPERIMENT, SWEEP = "gap", "gap_rates"
TOY = "toy"
MAIN = "2m"
STRETCH = "nats_in_stretch"
RANGES = {
    "distance": ("distance", "recall_nats_by_distance"),
    "repeated, count": ("pair_count", "recall_nats_by_count"),
    "other, count": ("pair_count", "other_nats_by_count"),
}
"""Factor and metric, by the name of their ranges: `distance 1-16` and `repeated, count 0` of tokens that repeat a pair,
`other, count 0` of all others."""
NOT_SWEPT = "its learning rates were not swept"
SAME_SIZE = 0.01  # share of the parameters by which arms of matched width may differ
SAME = 9  # decimals to which the unigram's nats agree on the same tokens

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Absence:
    """Why an arm has no published figure, and the experiment that has to run for one."""

    why: str
    experiment: str = EXPERIMENT


@dataclass(frozen=True)
class Run:
    """One trained model: one file of cells."""

    arm: Arm
    lr: float
    seed: int
    path: Path
    settings: Mapping[str, Any]
    metrics: Mapping[str, Metric]
    """Of the model: parameters, d_ff, ..."""
    nats: Mapping[tuple[str, str], Metric]
    """By text and slice."""
    unigram: Mapping[tuple[str, str], Metric]
    stretches: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """By text: nats of equal parts of it, in their order."""
    rise: float = 0.0
    """How far the training loss ever rose above its lowest value before."""
    factors: Mapping[str, Factor] = field(default_factory=dict)
    """All that its first cell has, those of the arm included."""
    curve: Mapping[int, float] = field(default_factory=dict)
    """Training loss by step, each the mean since the step before."""
    on_gpu: bool = True
    ranges: Mapping[tuple[str, str], Metric] = field(default_factory=dict)
    """As `nats`, by RANGES."""

    @property
    def diverged(self) -> bool:
        return self.rise > JUMP

    @property
    def parameters(self) -> float | None:
        return self.metrics["parameters"].value if "parameters" in self.metrics else None

    @cached_property
    def conditions(self) -> str:
        """What must be the same in all arms: the settings, the kind of device, and the tokens that were scored.

        The unigram's nats are a fingerprint of those: every arm is scored beside the same one.
        """
        scored = {f"{text} {part}": self.scored_tokens(text, part) for text, part in self.unigram}
        return json.dumps([self.settings, self.on_gpu, scored], sort_keys=True, default=str)

    def of(self, text: str, part: str) -> Metric | None:
        """Nats of a slice or a range."""
        return self.nats.get((text, part)) or self.ranges.get((text, part))

    def scored_tokens(self, text: str, part: str = "all") -> tuple[int | None, float | None] | None:
        """How many tokens, and the unigram's nats on them."""
        if (metric := self.unigram.get((text, part))) is None:
            return None
        return metric.n, None if metric.value is None else round(metric.value, SAME)


@dataclass(frozen=True)
class GapScores:
    """The runs of one size that may be published, by arm and seed."""

    size: str
    arms: Mapping[Arm, Mapping[int, Run]]
    refused: Mapping[Arm, Absence]
    """Arms that have cells which may not be published, and why."""
    dropped: Sequence[str] = ()
    """Files that do not fit the others."""
    swept: frozenset[Arm] = frozenset()
    """Arms whose rates were tried."""

    @property
    def is_toy(self) -> bool:
        return self.size == TOY

    @property
    def texts(self) -> tuple[str, ...]:
        found = {text for runs in self.arms.values() for run in runs.values() for text, _ in run.nats}
        return (*(text for text in TEXTS if text in found), *sorted(found - set(TEXTS)))

    def absence(self, arm: Arm) -> Absence | None:
        """None where the arm is there."""
        if arm in self.arms:
            return None
        unswept = bool(self.swept) and arm not in self.swept
        return self.refused.get(arm, Absence(NOT_SWEPT, SWEEP) if unswept else Absence("no cells"))

    def common_seeds(self, arms: Iterable[Arm]) -> tuple[int, ...]:
        return common_seeds(self.arms[arm] for arm in arms)

    def seeds_of_most(self, arms: Iterable[Arm], needed: Iterable[Arm]) -> tuple[int, ...]:
        """The seeds that keep the most runs of `arms`, out of those that all of `needed` have.

        An arm that lacks one of them is to be left out, not the seed: a seed that broke down is missing, too.
        """
        allowed = set(self.common_seeds(needed))
        own = [frozenset(allowed & set(self.arms[arm])) for arm in arms]
        possible: set[frozenset[int]] = {*own, frozenset(allowed.intersection(*own))}
        kept = {seeds: len(seeds) * sum(seeds <= other for other in own) for seeds in possible}
        best = max(possible, key=lambda seeds: (kept[seeds], len(seeds), sorted(seeds)))
        return tuple(sorted(best))

    def nats(self, arm: Arm, text: str, part: str, seeds: Sequence[int]) -> Values:
        """Mean nats per token of that slice, by seed."""
        return np.array([self._metric(arm, text, part, seed).value for seed in seeds], dtype=np.float64)

    def has(self, arm: Arm, text: str, part: str, seeds: Sequence[int]) -> bool:
        return all(self.arms[arm][seed].of(text, part) is not None for seed in seeds)

    def share(self, arm: Arm, text: str, part: str, seed: int) -> float:
        """Of the text's tokens, those in that slice."""
        return (self._metric(arm, text, part, seed).n or 0) / (self._metric(arm, text, "all", seed).n or 1)

    def part_nats(self, arm: Arm, text: str, part: str, seeds: Sequence[int]) -> Values:
        """Sum over the slice's tokens per token of the whole text, so that the parts of a text add up to its nats."""
        if not self.share(arm, text, part, seeds[0]):
            return np.zeros(len(seeds))
        shares = np.array([self.share(arm, text, part, seed) for seed in seeds])
        return np.asarray(self.nats(arm, text, part, seeds) * shares)

    def _metric(self, arm: Arm, text: str, part: str, seed: int) -> Metric:
        run = self.arms[arm][seed]
        if (metric := run.of(text, part)) is None:
            raise ValueError(f"{run.path}: no nats of slice {part!r} of {text!r}")
        return metric

    def stretches(self, arm: Arm, text: str, seeds: Sequence[int]) -> Values | None:
        """Nats [seeds, stretches of the text]; None where a run does not have them."""
        found = [self.arms[arm][seed].stretches.get(text, ()) for seed in seeds]
        return np.array(found) if found[0] and len({len(of) for of in found}) == 1 else None

    def diverged(self, arm: Arm) -> tuple[int, ...]:
        """Seeds on which training did."""
        return tuple(sorted(seed for seed, run in self.arms[arm].items() if run.diverged))

    def model_metric(self, arm: Arm, name: str) -> float | None:
        run = next(iter(self.arms[arm].values()))
        return run.metrics[name].value if name in run.metrics else None


@kept_with_table
def runs_of(table: Table, experiment: str, size: str) -> tuple[Run, ...]:
    """The runs in force of an experiment whose files hold one model each."""
    by_path: dict[Path, list[StoredCell]] = defaultdict(list)
    for stored in table.evidence.get(experiment, ()):
        if stored.cell.factors.get("size") == size:
            by_path[stored.path].append(stored)
    return tuple(run for path, cells in by_path.items() if (run := _run(path, cells)) is not None)


def _run(path: Path, cells: Sequence[StoredCell]) -> Run | None:
    first = cells[0].cell
    arm, lr = Arm.of(first.factors), first.factors.get("lr")
    if arm is None or not isinstance(lr, int | float):
        return None
    scored = [c.cell for c in cells if "text" in c.cell.factors and "slice" in c.cell.factors]
    places = [((str(c.factors["text"]), str(c.factors["slice"])), c.metrics) for c in scored]
    ranges = {
        (str(cell.factors["text"]), f"{name} {cell.factors[factor]}"): cell.metrics[metric]
        for cell in (c.cell for c in cells)
        for name, (factor, metric) in RANGES.items()
        if factor in cell.factors and metric in cell.metrics
    }
    parts: dict[str, dict[int, float]] = defaultdict(dict)
    for cell in (c.cell for c in cells if STRETCH in c.cell.metrics):
        parts[str(cell.factors["text"])][int(cell.factors["stretch"])] = _number(cell.metrics[STRETCH].value)
    of_model = [c.cell.metrics for c in cells if "parameters" in c.cell.metrics]
    trained = [(c.cell.factors.get("step"), c.cell.metrics[TRAINED].value) for c in cells if TRAINED in c.cell.metrics]
    # What is not known was not finite: the loss rose without end.
    curve = {step: math.inf if nats is None else nats for step, nats in trained if isinstance(step, int)}
    return Run(
        arm,
        float(lr),
        first.seed,
        path,
        first.settings,
        of_model[0] if of_model else {},
        {place: metrics["nats"] for place, metrics in places if "nats" in metrics},
        {place: metrics["unigram_nats"] for place, metrics in places if "unigram_nats" in metrics},
        {text: tuple(nats[i] for i in sorted(nats)) for text, nats in parts.items()},
        largest_rise(curve) if curve else 0.0,
        first.factors,
        curve,
        "gpu" in first.provenance.hardware,
        ranges,
    )


@kept_with_table
def load_scores(table: Table, size: str) -> GapScores:
    """What may be published of one size. Toys are not swept, and say so wherever they are shown."""
    swept = sweeps(table, size, SWEEP)
    runs = runs_of(table, EXPERIMENT, size)
    scores = admit(runs, size, lambda arm, rates: published_rate(rates, swept.get(arm), size))
    waiting = {
        arm: Absence(found.obstacle, SWEEP)
        for arm, found in swept.items()
        if arm not in scores.arms and found.obstacle is not None
    }
    return replace(scores, refused={**waiting, **scores.refused}, swept=frozenset(swept))


def admit(runs: Sequence[Run], size: str, rate_of: Callable[[Arm, Sequence[float]], float | Absence]) -> GapScores:
    """The runs that may stand beside each other: what most have in common decides.

    `rate_of` says which rate of an arm counts, given those that it has runs of.
    """
    if not runs:
        return GapScores(size, {}, {})
    count = Counter(run.conditions for run in runs)
    first = next(run for run in runs if run.conditions == count.most_common(1)[0][0])
    of_arm: dict[Arm, list[Run]] = defaultdict(list)
    refused: dict[Arm, Absence] = {}
    dropped = []
    for run in runs:
        if unknown := [text for (text, part), nats in run.nats.items() if part == "all" and nats.value is None]:
            dropped.append(f"{run.path.parent.name}/{run.path.name}: its nats on {unknown[0]!r} are not known")
        elif run.conditions == first.conditions:
            of_arm[run.arm].append(run)
        else:
            dropped.append(f"{run.path.parent.name}/{run.path.name}: {_difference(first, run)}")
            refused[run.arm] = Absence(f"of other settings: {_difference(first, run)}")
    usual = median([run.parameters for found in of_arm.values() for run in found if run.parameters is not None] or [0])
    arms: dict[Arm, dict[int, Run]] = {}
    for arm, found in of_arm.items():
        rate = rate_of(arm, sorted({run.lr for run in found}))
        odd = [run.parameters for run in found if arm.width == "matched" and not _close(run.parameters, usual)]
        if isinstance(rate, Absence):
            refused[arm] = rate
        elif odd:
            refused[arm] = Absence(f"has {odd[0]:,.0f} parameters, the others {usual:,.0f}")
        else:
            arms[arm] = {run.seed: run for run in found if run.lr == rate}
    return GapScores(size, arms, {arm: why for arm, why in refused.items() if arm not in arms}, dropped)


def _close(parameters: float | None, usual: float) -> bool:
    return parameters is None or abs(parameters / usual - 1) <= SAME_SIZE


@kept_with_table
def sweeps(table: Table, size: str, experiment: str) -> Mapping[Arm, Sweep]:
    """The rates that were tried, by arm."""
    cells = [stored.cell for stored in table.evidence.get(experiment, ()) if stored.cell.factors.get("size") == size]
    found = [(Arm.of(sweep.factors), sweep) for sweep in sweeps_of(cells)]
    return {arm: sweep for arm, sweep in found if arm is not None}


def published_rate(rates: Sequence[float], sweep: Sweep | None, size: str, experiment: str = SWEEP) -> float | Absence:
    """The rate whose cells count, or why none do.

    >>> published_rate([0.004], Sweep({}, {0.002: {0: 5.05}, 0.004: {0: 5.0}, 0.008: {0: 5.05}}), "2m")
    0.004
    >>> published_rate([0.008], Sweep({}, {0.002: {0: 5.1}, 0.004: {0: 5.0}, 0.008: {0: 4.9}}), "2m")
    Absence(why='its best rate, 0.008, is at the end of the grid', experiment='gap_rates')
    """
    if size == TOY:
        return rates[0] if len(rates) == 1 else Absence(f"cells at several rates: {_list(rates)}")
    if sweep is None:
        return Absence(NOT_SWEPT, experiment)
    if sweep.obstacle is not None:
        return Absence(sweep.obstacle, experiment)
    if sweep.best not in rates:
        return Absence(f"its cells are at {_list(rates)}, the best rate is {sweep.best:g}")
    return sweep.best


def _list(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates)


def _difference(one: Run, other: Run) -> str:
    """Which settings set a run apart."""
    names = [n for n in dict.fromkeys((*one.settings, *other.settings)) if one.settings.get(n) != other.settings.get(n)]
    if not names and one.on_gpu != other.on_gpu:
        return "trained on a GPU" if other.on_gpu else "trained on cores"
    if not names:
        return "scored on other tokens"
    shown = [f"{name} {other.settings.get(name)!r} instead of {one.settings.get(name)!r}" for name in names]
    return ", ".join(shown)


def _number(value: float | None) -> float:
    return math.nan if value is None else value
