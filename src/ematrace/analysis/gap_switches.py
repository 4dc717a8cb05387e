"""Why attention over the inputs may not help inside SPEN's block.

The rules are those of docs/analysis-plan.md, written before the cells existed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

import numpy as np

from ematrace.analysis.gap_scores import MAIN, Values
from ematrace.results import Sample, Table, common_seeds
from ematrace.results.schema import Factor
from ematrace.results.select import Selector

PREDICTORS = "gap_predictors"
SWITCHES = {"query": ("slow_trace", "input"), "values": ("as_read", "normalised"), "residual": ("ffn", "direct")}
"""As SPEN's block has it, and as a transformer does."""
SMALLEST_EFFECT = 0.02  # nats

Key = TypeVar("Key")
Setting = tuple[str, str, str]
"""Of query, values and residual."""


@dataclass(frozen=True)
class Switches:
    """Gains in nats over the static predictor on the same path to the residual stream, dense feed-forward layer."""

    text: str
    gains: Mapping[Setting, Sample]
    """Of attention over the inputs as a predictor, in all settings of the switches."""
    mixers: Mapping[str, Sample]
    """Of attention as a mixer, by residual."""
    effects: Mapping[str, Sample]
    """What a switch adds to the gain, on average over the settings of the others."""
    seeds: tuple[int, ...]

    @property
    def causes(self) -> tuple[str, ...]:
        """Switches whose effect is above SMALLEST_EFFECT and whose interval excludes 0."""
        found = ((name, effect.mean, effect.interval) for name, effect in self.effects.items())
        return tuple(n for n, mean, ends in found if ends is not None and ends[0] > 0 and mean > SMALLEST_EFFECT)


def build_switches(table: Table, text: str, part: str = "all") -> Switches | None:
    """None where an arm is missing, has other settings than the others, or no seed in common with them.

    Of a part of the tokens, such as `recall` and `other`, the contribution to the nats of all, so that parts add up.
    """
    settings = list(product(*SWITCHES.values()))
    paths = SWITCHES["residual"]
    arms: dict[tuple[str, ...], dict[str, Factor]] = {
        **{("static", path): {"predictor": "static", "residual": path} for path in paths},
        **{("mixer", path): {"predictor": "mixer", "residual": path} for path in paths},
        **{
            setting: {"predictor": "softmax", "reads": "inputs", **dict(zip(SWITCHES, setting, strict=True))}
            for setting in settings
        },
    }
    of_text: dict[str, Factor] = {"size": MAIN, "ffn": "dense", "width": "matched", "text": text, "slice": part}
    found = {key: table.find(Selector(PREDICTORS, "nats", {**where, **of_text})) for key, where in arms.items()}
    selected = {key: selection for key, selection in found.items() if selection is not None}
    seeds = common_seeds(one.seeds for one in selected.values())
    if len(selected) < len(arms) or not seeds:
        return None
    first, *others = selected.values()
    if not all(first.has_settings_of(other) for other in others):
        return None
    share = 1.0
    if part != "all":
        whole = table.find(Selector(PREDICTORS, "nats", {**arms["static", "ffn"], **of_text, "slice": "all"}))
        n, of_all = (None if s is None else s.sample.n for s in (selected["static", "ffn"], whole))
        if n is None or not of_all:
            return None
        share = n / of_all
    nats = {key: share * np.array(selection.on(seeds).sample.values) for key, selection in selected.items()}
    gains = {(q, v, path): nats["static", path] - nats[q, v, path] for q, v, path in settings}
    mixers = {path: nats["static", path] - nats["mixer", path] for path in paths}
    effects = {name: _effect(gains, place) for place, name in enumerate(SWITCHES)}
    return Switches(text, _samples(gains), _samples(mixers), _samples(effects), seeds)


def _effect(gains: Mapping[Setting, Values], place: int) -> Values:
    """Mean gain with the switch as in a transformer less that as in SPEN's block."""
    off, on = (
        np.mean([gain for setting, gain in gains.items() if setting[place] == level], axis=0)
        for level in list(SWITCHES.values())[place]
    )
    return np.asarray(on - off)


def _samples(values: Mapping[Key, Values]) -> dict[Key, Sample]:
    return {key: Sample(tuple(of_key)) for key, of_key in values.items()}
