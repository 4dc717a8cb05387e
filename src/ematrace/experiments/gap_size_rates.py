"""The learning rates of the gap's decisive arms in larger models, on a seed that no published figure uses.

The best rate at `2m` over the width, half of that and double of that (docs/analysis-plan.md). `scripts/choose_rates.py`
chooses among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from ematrace.experiments.base import Context, Experiment, Point
from ematrace.experiments.gap_rates import MORE_SEEDS, RATES, SEED
from ematrace.experiments.gap_sizes import DECISIVE, LARGER, scaled_rate
from ematrace.experiments.gap_task import SETTINGS, SPEN, Arm, budget_of, measure_rate
from ematrace.results import Row

FACTORS = (1.0, 0.5, 2.0)
EXTENDED: Mapping[tuple[str, Arm], tuple[float, ...]] = {}
"""By size and arm, more factors where the best rate was at an end."""
REPEATED: Mapping[tuple[str, Arm], tuple[float, ...]] = {}
"""Where one seed said too little: the factors of the best three rates, on two more."""


def grid(scale: str, seeds: int) -> Iterable[Point]:
    """Arms that have a rate at `2m`; without a GPU one toy, which shows that it runs."""
    if scale != "gpu":
        yield Point({**asdict(SPEN), "size": "toy", "lr": RATES[0]}, SEED)
        return
    for size in (*LARGER, "130m"):
        for arm in DECISIVE:
            yield from _points(arm, size, (*FACTORS, *EXTENDED.get((size, arm), ())), (SEED,))
            yield from _points(arm, size, REPEATED.get((size, arm), ()), MORE_SEEDS)


def _points(arm: Arm, size: str, factors: Iterable[float], seeds: Iterable[int]) -> Iterator[Point]:
    for seed in seeds:
        for factor in factors:
            lr = scaled_rate(arm, size, factor)
            if lr is not None:
                yield Point({**asdict(arm), "size": size, "lr": lr}, seed)


def measure(ctx: Context, *, size: str, lr: float, **arm: Any) -> list[Row]:
    return measure_rate(ctx, Arm(**arm), size, lr)


EXPERIMENT = Experiment(
    "gap_size_rates",
    "Learning rates for the gap's decisive arms in larger models",
    grid=grid,
    measure=measure,
    needs="any",
    data="builtin",
    settings=SETTINGS,
    derived=budget_of,
    seconds=120,
)
