"""Whether the gap is made of the same parts in larger models, after fewer tokens, and with a larger vocabulary.

The decisive arms (docs/analysis-plan.md) with the tokens of `2m` at 7M parameters and with fractions of them at `2m`;
five of them at 30M, and three with GPT-2's 50,257 entries at `2m`. All have the steps, windows and schedule of `gap`,
so that only the size, the length of the training or the vocabulary differs. The rate of a larger model is that of `2m`
over the width, or half or double that, whichever was best in `gap_size_rates`.

    ematrace reproduce gap_sizes --scale gpu --data "train-*.jsonl.xz" --only size=7m \\
        --settings validation=validation.jsonl.xz texts.wikitext2=wiki.valid.raw.xz texts.c4=c4_sample.jsonl.xz
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from ematrace.analysis.gap_design import over_width
from ematrace.experiments.base import Context, Experiment, Point
from ematrace.experiments.chosen_rates import chosen_rate
from ematrace.experiments.gap_rates import ARMS, CHAIN, RATES
from ematrace.experiments.gap_task import (
    BUDGETS,
    GPT2_ENTRIES,
    SETTINGS,
    SPEN,
    Arm,
    budget_of,
    measure_arm,
    seconds_of,
)
from ematrace.results import Row

MASKED = replace(SPEN, ffn="topk_masked")  # the preset spen-130m-masked, at any size
DENSE = CHAIN[3]
EMA, ATTENTION, GPT2 = Arm("ema"), Arm("attention", "rope"), CHAIN[-1]
DECISIVE = (SPEN, GPT2, MASKED, DENSE, EMA, ATTENTION, replace(ATTENTION, ffn="topk_masked"))
AT_SIZE = {"7m": DECISIVE, "30m": (SPEN, GPT2, MASKED, EMA, ATTENTION)}
"""Larger sizes, and the arms that are measured there."""
WITH_GPT2_ENTRIES = (SPEN, GPT2, MASKED)
FRACTIONS = (1 / 4, 1 / 2)  # of the tokens of 2m


def rate_at(arm: Arm, size: str) -> float | None:
    """The rate that a sweep chose; None where there is none yet, and the arm is not measured.

    At 130M parameters, where a sweep takes hours, that of `2m` over the width will do.
    """
    if size == "2m":
        return chosen_rate("gap_rates", {**asdict(_swept(arm)), "size": size})
    found = chosen_rate("gap_size_rates", {**asdict(replace(arm, width="matched")), "size": size})
    return scaled_rate(arm, size) if found is None and size == "130m" else found


def scaled_rate(arm: Arm, size: str, factor: float = 1.0) -> float | None:
    """The rate of `2m` over the width, times `factor`."""
    at_2m = rate_at(arm, "2m")
    return None if at_2m is None else over_width(factor * at_2m, size)


def _swept(arm: Arm) -> Arm:
    """The arm at `2m` whose rate it takes: the one without load balance, or of matched width, where it has none."""
    return arm if arm in ARMS else replace(arm, load_balance=0.0, width="matched")


def grid(scale: str, seeds: int) -> Iterable[Point]:
    """Arms whose rate was chosen; without a GPU toys, which show that it runs."""
    if scale != "gpu":
        for tokens, vocabulary in ((2**17, 1024), (2**16, 2048)):
            yield _point(EMA, "toy", tokens, vocabulary, RATES[0], 0)
        return
    whole, entries = BUDGETS["2m"]["tokens"], BUDGETS["2m"]["vocab_size"]
    for seed in range(seeds):
        for size, arms in AT_SIZE.items():
            yield from _published(arms, size, whole, entries, seed)
        for share in FRACTIONS:
            yield from _published(DECISIVE, "2m", round(share * whole), entries, seed)
        yield from _published(WITH_GPT2_ENTRIES, "2m", whole, GPT2_ENTRIES, seed)
        yield from _published([arm for arm in DECISIVE if arm not in ARMS], "2m", whole, entries, seed)  # not in `gap`


def _published(arms: Iterable[Arm], size: str, tokens: int, vocabulary: int, seed: int) -> Iterator[Point]:
    for arm in arms:
        lr = rate_at(arm, size)
        if lr is not None:
            yield _point(arm, size, tokens, vocabulary, lr, seed)


def _point(arm: Arm, size: str, tokens: int, vocabulary: int, lr: float, seed: int) -> Point:
    return Point({**asdict(arm), "size": size, "tokens": tokens, "vocabulary": vocabulary, "lr": lr}, seed)


def budget(point: Point, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    factors = point.factors
    return {**budget_of(point, settings), "tokens": factors["tokens"], "vocab_size": factors["vocabulary"]}


def measure(ctx: Context, *, size: str, tokens: int, vocabulary: int, lr: float, **arm: Any) -> list[Row]:
    return measure_arm(ctx, Arm(**arm), size, lr)


EXPERIMENT = Experiment(
    "gap_sizes",
    "The gap's decisive arms at other sizes, budgets and vocabularies",
    grid=grid,
    measure=measure,
    needs="any",
    data="builtin",
    seeds=3,
    settings={name: value for name, value in SETTINGS.items() if name not in ("tokens", "vocab_size")},
    derived=budget,
    seconds=6,
    seconds_of=seconds_of,
)
