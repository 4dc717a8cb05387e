"""Whether the gap is made of the same parts in larger models, after fewer tokens, and with a larger vocabulary.

The decisive arms (docs/analysis-plan.md) with the tokens of `2m` at 7M parameters and with fractions of them at `2m`;
five of them at 30M, and three with GPT-2's 50,257 entries at `2m`. All have the steps, windows and schedule of `gap`,
so that only the size, the length of the training or the vocabulary differs. The rate of a larger model is that of `2m`
over the width, or half or double that, whichever was best in `gap_size_rates`.

    ematrace reproduce gap_sizes --scale gpu --data "train-*.jsonl.xz" --only size=7m \\
        --settings validation=validation.jsonl.xz texts.wikitext2=wiki.valid.raw.xz texts.c4=c4_sample.jsonl.xz
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ematrace.analysis.gap_design import ARMS, ATTENTION, DECISIVE, EMA, GPT2, MASKED, SPEN
from ematrace.experiments.base import Point
from ematrace.experiments.gap_task import BUDGETS, SETTINGS, arm_experiment, arm_points, budget_of
from ematrace.experiments.gap_text import GPT2_ENTRIES

AT_SIZE = {"7m": DECISIVE, "30m": (SPEN, GPT2, MASKED, EMA, ATTENTION)}
"""Larger sizes, and the arms that are measured there."""
WITH_GPT2_ENTRIES = (SPEN, GPT2, MASKED)
FRACTIONS = (1 / 4, 1 / 2)  # of the tokens of 2m


def grid(scale: str, seeds: int) -> Iterable[Point]:
    """Arms whose rate was chosen; without a GPU toys, which show that it runs."""
    if scale != "gpu":
        yield from arm_points((EMA,), "toy", 0, tokens=2**17, vocabulary=1024)
        yield from arm_points((EMA,), "toy", 0, tokens=2**16, vocabulary=2048)
        return
    whole, entries = BUDGETS["2m"]["tokens"], BUDGETS["2m"]["vocab_size"]
    not_in_gap = [arm for arm in DECISIVE if arm not in ARMS]
    for seed in range(seeds):
        for size, arms in AT_SIZE.items():
            yield from arm_points(arms, size, seed, tokens=whole, vocabulary=entries)
        for share in FRACTIONS:
            yield from arm_points(DECISIVE, "2m", seed, tokens=round(share * whole), vocabulary=entries)
        yield from arm_points(WITH_GPT2_ENTRIES, "2m", seed, tokens=whole, vocabulary=GPT2_ENTRIES)
        yield from arm_points(not_in_gap, "2m", seed, tokens=whole, vocabulary=entries)


def budget(point: Point, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    factors = point.factors
    return {**budget_of(point, settings), "tokens": factors["tokens"], "vocab_size": factors["vocabulary"]}


EXPERIMENT = arm_experiment(
    "gap_sizes",
    "The gap's decisive arms at other sizes, budgets and vocabularies",
    grid,
    beside=("tokens", "vocabulary"),
    seeds=3,
    settings={name: value for name, value in SETTINGS.items() if name not in ("tokens", "vocab_size")},
    derived=budget,
)
