"""What each choice that the paper leaves open does to the figures of claims, one choice changed at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ematrace.results import Selector, Table

EXPERIMENT = "choices"
DEFAULT = "default"
CLAIMS = ("C01", "C02", "C03", "C13", "C14", "C15")
"""Whose figures `choices` measures again."""
SCATTER = 2.0
"""Standard deviations over seeds: a change beyond them is no accident of the seed."""
VARIANTS = {"l0": "activation", "traces": "traces", "l0+traces": "full"}  # of `trace_probe` and of `choices`
Comparison = tuple[str, Selector, str, Selector]
"""A claim, and which of two of its figures is the larger: left, `>` or `<`, right."""


@dataclass(frozen=True)
class Change:
    """A figure under a choice, by how much that differs from the default's, and how much of it may be scatter."""

    value: float
    difference: float
    scatter: float

    @property
    def beyond_scatter(self) -> bool:
        """False where the scatter is not known, which takes two seeds."""
        return abs(self.difference) > self.scatter


def under_choice(selector: Selector, choice: str) -> Selector | None:
    """The cells of `choices` that measure what these cells of a claim measure; None where it does not measure it.

    >>> str(under_choice(Selector("trace_probe", "deep", {"representation": "l0"}), "k 4%"))
    'choices/deep{choice=k 4%, variant=activation}'
    >>> str(under_choice(Selector("ablations", "within", {"level": 1}), "k 4%"))
    'choices/within{choice=k 4%, level=1}'
    """
    if selector.experiment == "ablations":
        return Selector(EXPERIMENT, selector.metric, {"choice": choice, **selector.where})
    variant = VARIANTS.get(str(selector.where.get("representation")))
    if selector.experiment != "trace_probe" or variant is None or len(selector.where) > 1:
        return None
    return Selector(EXPERIMENT, selector.metric, {"choice": choice, "variant": variant})


def change_of(table: Table, choice: str, selector: Selector) -> Change | None:
    """Of the figure that `selector` has in the claim; None where it was not measured under this choice.

    The scatter is that of the claim's own cells, which have more seeds than the choices.
    """
    changed, default = (_mean(table, under_choice(selector, name)) for name in (choice, DEFAULT))
    if changed is None or default is None:
        return None
    own = table.find(selector)
    sd = math.nan if own is None else own.sample.sd
    return Change(changed, changed - default, SCATTER * sd)


def failing(table: Table, choice: str, comparisons: Iterable[Comparison]) -> list[str] | None:
    """The claims of which a comparison does not hold under this choice, by means over seeds; None where no comparison
    was measured under it."""
    holds: dict[str, bool] = {}
    for claim, left, op, right in comparisons:
        one, other = (_mean(table, under_choice(selector, choice)) for selector in (left, right))
        if one is not None and other is not None:
            holds[claim] = holds.get(claim, True) and (one > other if op == ">" else one < other)
    return [claim for claim, held in holds.items() if not held] if holds else None


def _mean(table: Table, selector: Selector | None) -> float | None:
    found = None if selector is None else table.find(selector)
    return found.sample.mean if found is not None and found.sample.known else None
