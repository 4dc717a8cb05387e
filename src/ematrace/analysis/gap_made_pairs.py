"""What contexts recall in made-up text, and which switches SPEN's predictor needs to recall.

The rules are those of docs/analysis-plan.md, written before the cells existed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Literal, TypeVar

import numpy as np

from ematrace.analysis.gap_scores import Values
from ematrace.analysis.gap_switches import SWITCHES, Setting
from ematrace.analysis.plan import LEAST_SEEDS
from ematrace.analysis.rates import SELECTION
from ematrace.results import Sample, Selection, Table, common_seeds, kept_with_table
from ematrace.results.schema import Factor, Factors
from ematrace.results.select import Selector

K = TypeVar("K")

EXPERIMENT, LONGER = "gap_made_pairs", "gap_made_pairs_long"
RECALLS, RECALLS_NOT = 0.5, 0.25
SMALLEST_EFFECT = 0.1  # of a recalled share
PARTS = ("seen", "seen 1-4", "seen 5-16", "seen 17+")
"""Targets after a symbol that was there before in the window: all, and by the distance to its last occurrence."""

_MIXER: Mapping[str, Factor] = {"predictor": "mixer", "residual": "direct", "positions": "none", "fourth_trace": False}
_SIZE: Factors = {"size": "small"}
TRACES, FOURTH, UNORDERED, BESIDE = "traces", "with a fourth one that hardly fades", "attention", "traces + attention"
ORDERED = ("attention with learned positions", "attention with RoPE")
CONTEXTS: Mapping[str, Factors] = {
    "no context": {**_MIXER, "context": "none"},
    TRACES: {**_MIXER, "context": "ema"},
    FOURTH: {**_MIXER, "context": "ema", "fourth_trace": True},
    UNORDERED: {**_MIXER, "context": "attention"},
    BESIDE: {**_MIXER, "context": "ema_attention"},
    ORDERED[0]: {**_MIXER, "context": "attention", "positions": "learned"},
    ORDERED[1]: {**_MIXER, "context": "attention", "positions": "rope"},
}
Recalls = Literal["recalls", "in part", "does not", "too few seeds"]
Outcome = Literal["for", "against", "undecided", "too few seeds"]


@dataclass(frozen=True)
class Recall:
    """Of one arm at its rate: (nats of counting - its nats) / (nats of counting - nats of Bayes), by PARTS."""

    lr: float
    at_end: bool
    """The rate is the lowest or the highest that was tried."""
    shares: Mapping[str, Sample]
    runs: Selection

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.runs.seeds

    @property
    def outcome(self) -> Recalls:
        ends = self.shares["seen"].interval
        if len(self.seeds) < LEAST_SEEDS or ends is None:
            return "too few seeds"
        return "recalls" if ends[0] > RECALLS else "does not" if ends[1] < RECALLS_NOT else "in part"


@dataclass(frozen=True)
class SwitchRecall:
    """Inside SPEN's block, dense."""

    static: Mapping[str, Recall]
    """Without attention, by residual; those that are recorded."""
    settings: Mapping[Setting, Recall]
    """Softmax over the inputs, by setting of the switches."""
    mixers: Mapping[str, Recall]
    """Traces and attention side by side, by residual; those that are recorded."""
    effects: Mapping[str, Sample]
    """What a switch adds to the recalled share, on average over the settings of the others; empty unless all settings
    are recorded on some seed."""

    @property
    def causes(self) -> tuple[str, ...] | None:
        """None with too few seeds."""
        if min((len(effect.values) for effect in self.effects.values()), default=0) < LEAST_SEEDS:
            return None
        found = ((name, effect.mean, effect.interval) for name, effect in self.effects.items())
        return tuple(n for n, mean, ends in found if ends is not None and ends[0] > 0 and mean > SMALLEST_EFFECT)


@kept_with_table
def build_contexts(table: Table, experiment: str = EXPERIMENT) -> dict[str, Recall]:
    """Those that are recorded."""
    return _recalls(table, experiment, CONTEXTS)


@kept_with_table
def build_switch_recall(table: Table, experiment: str = EXPERIMENT) -> SwitchRecall | None:
    """None where no setting is recorded."""
    paths = SWITCHES["residual"]
    inside: Factors = {"context": "ema_error", "ffn": "dense"}
    beside: Factors = {"context": "ema_attention", "predictor": "mixer"}
    static = _recalls(table, experiment, {p: {**inside, "predictor": "static", "residual": p} for p in paths})
    mixers = _recalls(table, experiment, {p: {**beside, "residual": p} for p in paths})
    every: list[Setting] = [(q, v, residual) for q, v, residual in product(*SWITCHES.values())]
    softmax: Factors = {**inside, "predictor": "softmax"}
    settings = _recalls(table, experiment, {s: {**softmax, **dict(zip(SWITCHES, s, strict=True))} for s in every})
    seeds = common_seeds(one.seeds for one in settings.values())
    if not settings:
        return None
    if len(settings) < len(every) or not seeds:
        return SwitchRecall(static, settings, mixers, {})
    shares = {setting: _on(one, seeds) for setting, one in settings.items()}
    effects = {}
    for place, (name, levels) in enumerate(SWITCHES.items()):
        off, on = (np.mean([v for s, v in shares.items() if s[place] == level], axis=0) for level in levels)
        effects[name] = Sample(tuple(on - off))
    return SwitchRecall(static, settings, mixers, effects)


def lack_of_traces(found: Mapping[str, Recall]) -> Outcome:
    """Is it selection? For if traces do not recall and beside attention without positions they do."""
    return _lack(found, TRACES)


def lack_of_attention(found: Mapping[str, Recall]) -> Outcome:
    """Of attention without positions: is it order? For if it does not recall, and beside traces does."""
    return _lack(found, UNORDERED)


def fading(found: Mapping[str, Recall]) -> tuple[Sample, Outcome]:
    """What a trace that hardly fades adds to the recalled share; is fading what traces lack?"""
    seeds = common_seeds(found[name].seeds for name in (FOURTH, TRACES))
    added = Sample(tuple(_on(found[FOURTH], seeds) - _on(found[TRACES], seeds)))
    ends = added.interval
    if len(seeds) < LEAST_SEEDS or ends is None:
        return added, "too few seeds"
    return added, "for" if ends[0] > SMALLEST_EFFECT else "against" if ends[1] < SMALLEST_EFFECT else "undecided"


def _lack(found: Mapping[str, Recall], name: str) -> Outcome:
    alone, beside = found[name].outcome, found[BESIDE].outcome
    if alone == "recalls":
        return "against"
    if "too few seeds" in (alone, beside):
        return "too few seeds"
    return "for" if (alone, beside) == ("does not", "recalls") else "undecided"


def _recalls(table: Table, experiment: str, arms: Mapping[K, Factors]) -> dict[K, Recall]:
    """Of the arms that are recorded with the settings of the first one, in their order."""
    found = {name: _recall(table, experiment, where) for name, where in arms.items()}
    known = {name: one for name, one in found.items() if one is not None}
    first = next(iter(known.values()), None)
    return {name: one for name, one in known.items() if first is not None and first.runs.has_settings_of(one.runs)}


def _recall(table: Table, experiment: str, where: Factors) -> Recall | None:
    """At the rate whose loss on the other half of the windows is lowest, on the seeds that all rates have; one that was
    tried on too few seeds, because it was no better on those, is not among them."""
    where = {**_SIZE, **where}
    rates = sorted(float(lr) for lr in table.values_of(experiment, "lr", **where))
    tried = {lr: _find(table, experiment, SELECTION, {**where, "lr": lr}) for lr in rates}
    known = {lr: one for lr, one in tried.items() if one is not None and one.sample.known}
    if not known:
        return None
    enough = min(LEAST_SEEDS, max(len(one.seeds) for one in known.values()))
    compared = {lr: one for lr, one in known.items() if len(one.seeds) >= enough}
    seeds = common_seeds(one.seeds for one in compared.values())
    if not seeds:
        return None
    lr = min(compared, key=lambda lr: compared[lr].on(seeds).sample.mean)
    shares = {part: _share(table, experiment, {**where, "lr": lr, "slice": part}) for part in PARTS}
    found = {part: share for part, share in shares.items() if share is not None}
    if len(found) < len(PARTS):
        return None
    at_end = len(rates) > 1 and lr in (rates[0], rates[-1])
    return Recall(lr, at_end, found, compared[lr])


def _share(table: Table, experiment: str, where: Factors) -> Sample | None:
    """None unless all three are there, of the same runs."""
    found = [_find(table, experiment, metric, where) for metric in ("counting_nats", "nats", "bayes_nats")]
    of = [one for one in found if one is not None]
    if len(of) < len(found) or not all(of[0].is_paired_with(one) for one in of):
        return None
    counting, nats, bayes = (np.array(one.sample.values) for one in of)
    return Sample(tuple((counting - nats) / (counting - bayes)))


def _find(table: Table, experiment: str, metric: str, where: Factors) -> Selection | None:
    return table.find(Selector(experiment, metric, where))


def _on(one: Recall, seeds: Iterable[int]) -> Values:
    by_seed = dict(zip(one.seeds, one.shares["seen"].values, strict=True))
    return np.array([by_seed[seed] for seed in seeds])
