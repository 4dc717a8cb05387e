"""What each choice that the paper leaves open does to the figures of claims, one choice changed at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ematrace.results import Sample, Selector, Table, common_seeds

EXPERIMENT = "choices"
DEFAULT = "default"
CLAIMS = (
    *("C01", "C02", "C03", "C04", "C05", "C06", "C07", "C08", "C09", "C10", "C11", "C12", "C13", "C14", "C15"),
    *("C17", "C18", "C42", "C43"),
)
"""Those that depend on the network; C07 and C17 only by directions: their figures are the BiGRU's and position's."""
SCATTER = 2.0
"""Standard deviations over seeds: a change beyond them is no accident of the seed."""
VARIANTS = {"l0": "activation", "traces": "traces", "l0+traces": "full"}  # of `trace_probe` and of `choices`


@dataclass(frozen=True)
class Quantity:
    """`of [- minus | / over]`."""

    of: Selector
    minus: Selector | None = None
    over: Selector | None = None

    @property
    def selectors(self) -> tuple[Selector, ...]:
        return tuple(s for s in (self.of, self.minus, self.over) if s is not None)

    def value(self, found: Mapping[Selector, float]) -> float:
        value = found[self.of]
        if self.over is not None:
            return value / found[self.over] if found[self.over] else math.nan
        return value if self.minus is None else value - found[self.minus]


def _quantity(of: str, minus: str | None = None) -> Quantity:
    return Quantity(Selector.parse(of), None if minus is None else Selector.parse(minus))


SHOWN: Mapping[str, tuple[Quantity, ...]] = {
    "C05": (
        _quantity("dimension_control/transfer{representation=traces, dimensions=1024}"),
        _quantity("dimension_control/deep{representation=traces, dimensions=1024}"),
    ),
    "C18": (
        _quantity("lag_decoding/noun_accuracy{reader=probe, trace=slow, lag=1}"),
        _quantity("lag_decoding/noun_accuracy{reader=probe, trace=slow, lag=3}"),
    ),
    "C42": (
        _quantity("distances/max_distortion{points=words, code=topk}"),
        _quantity("distances/max_distortion{points=l0_states, code=topk}"),
    ),
    "C43": (
        _quantity(
            "shortcuts/spcn_content_accuracy{input=novel}", minus="shortcuts/spcn_content_accuracy{input=intact}"
        ),
        _quantity(
            "shortcuts/spcn_context_over_chance{input=other_class}",
            minus="shortcuts/spcn_word_over_chance{input=other_class}",
        ),
    ),
}
"""In the place of a claim's figures, where it has none, or C05's six, of which three are C01's."""


@dataclass(frozen=True)
class Comparison:
    """A direction of a claim: the cells that it needs, and whether it holds at these means; None for no answer."""

    claim: str
    selectors: Sequence[Selector]
    holds: Callable[[Mapping[Selector, float]], bool | None]


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
    where, is_measured = dict(selector.where), _IS_MEASURED.get(selector.experiment)
    if selector.experiment == "trace_probe":
        variant = VARIANTS.get(str(where.pop("representation", None)))
        # Roles are those of the whole alone.
        if variant is None or where.keys() - ({"role"} if variant == "full" else set()):
            return None
        where = {"variant": variant, **where}
    elif is_measured is None or not is_measured(selector):
        return None
    return Selector(EXPERIMENT, selector.metric, {"choice": choice, **where})


# Of other experiments cells have the same factors; what is not measured again does not depend on the network.
_IS_MEASURED: Mapping[str, Callable[[Selector], bool]] = {
    "ablations": lambda selector: True,
    "dimension_control": lambda selector: True,
    "lag_decoding": lambda selector: selector.where.get("reader") == "probe",
    "distances": lambda selector: selector.where.get("points") != "contexts",
    "shortcuts": lambda selector: selector.metric.startswith("spcn_"),
}


def depends_on_choice(selectors: Iterable[Selector]) -> bool:
    return any(under_choice(selector, DEFAULT) is not None for selector in selectors)


def change_of(table: Table, choice: str, quantity: Quantity) -> Change | None:
    """Of the figure that this quantity is in the claim; None where it was not measured under this choice.

    The scatter is that of the claim's own cells, which have more seeds than the choices.
    """
    changed, default, own = (_sample(table, quantity, name) for name in (choice, DEFAULT, None))
    if changed is None or default is None:
        return None
    return Change(changed.mean, changed.mean - default.mean, SCATTER * (math.nan if own is None else own.sd))


def hold_under(table: Table, choice: str, comparisons: Iterable[Comparison]) -> dict[str, bool]:
    """Whether all comparisons of each claim that were measured under this choice hold, by means over seeds."""
    holds: dict[str, bool] = {}
    for comparison in comparisons:
        by_seed = _by_seed(table, comparison.selectors, choice)
        means = {s: Sample(tuple(values[s] for values in by_seed)).mean for s in comparison.selectors}
        held = comparison.holds(means) if by_seed else None
        if held is not None:
            holds[comparison.claim] = holds.get(comparison.claim, True) and held
    return holds


def _sample(table: Table, quantity: Quantity, choice: str | None) -> Sample | None:
    sample = Sample(tuple(quantity.value(found) for found in _by_seed(table, quantity.selectors, choice)))
    return sample if sample.known else None


def _by_seed(table: Table, selectors: Iterable[Selector], choice: str | None) -> list[dict[Selector, float]]:
    """On each seed that all of them have, under the choice or in the claims' own cells.

    What does not depend on the network is that of the same seeds, whose sentences are the same.
    """
    found: dict[Selector, dict[int, float]] = {}
    for selector in selectors:
        changed = None if choice is None else under_choice(selector, choice)
        selection = table.find(changed or selector)
        if selection is None or not selection.sample.known:
            return []
        found[selector] = selection.by_seed
    return [{selector: of[seed] for selector, of in found.items()} for seed in common_seeds(found.values())]
