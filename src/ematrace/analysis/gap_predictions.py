"""Do SPEN's predictors predict, and what are their predictions worth?

The rules are those of docs/analysis-plan.md, written before the cells existed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ematrace.analysis.plan import LEAST_SEEDS, MARGIN
from ematrace.results import Sample, Selection, Table
from ematrace.results.schema import Factor
from ematrace.results.select import Selector

EXPERIMENT, SIZE = "gap_predictions", "small"
NOTHING = "nothing"
Predicts = Literal["predicts", "in part", "does not predict", "too few seeds"]
Worth = Literal["something", "nothing", "harmful", "undecided", "too few seeds"]


SHARES = (
    "unexplained",  # |x - x̂|² / |x|²: 1 for a prediction of 0
    "possible",  # the same of least squares from the direction of the slow trace
    "possible_from_traces",  # the same from all traces of the step
    "unexplained_late",  # of the second half of each window
    "possible_late",
    "context_unexplained",  # |W_e x - W_e x̂|² / |W_e x|²
    "context_possible",
    "context_size",  # |W_e x̂| / |W_e x|
    "context_cosine",  # between W_e x - W_e x̂ and W_e x
)


@dataclass(frozen=True)
class Predictions:
    """Of one predictor in one block of the design."""

    shares: Mapping[str, tuple[Sample, ...]]
    """SHARES, by block of the model."""
    blocks: tuple[Sample, ...]
    """Nats with a block skipped, minus nats: what a prediction in it could be worth at most, by block of the model."""
    worth: Sample
    """Nats of the trained model with every x̂ set to 0, minus its nats."""
    worth_of_input: Sample
    """The same with every x̂ set to its mean: of what depends on the input."""
    trained_without: Sample | None
    """Nats of a model that was trained with x̂ = 0, minus nats of this one."""
    seeds: tuple[int, ...]

    @property
    def predicts(self) -> Predicts:
        return self._predicts("unexplained", "possible")

    @property
    def predicts_in_context(self) -> Predicts:
        return self._predicts("context_unexplained", "context_possible")

    def _predicts(self, unexplained: str, possible: str) -> Predicts:
        """Whether unexplained is below the middle between 1 and what is possible, by block and seed."""
        if len(self.seeds) < LEAST_SEEDS:
            return "too few seeds"
        below = {
            left < (1 + least) / 2
            for of_left, of_least in zip(self.shares[unexplained], self.shares[possible], strict=True)
            for left, least in zip(of_left.values, of_least.values, strict=True)
        }
        return "in part" if len(below) == 2 else "predicts" if below == {True} else "does not predict"


def worth_of(nats: Sample) -> Worth:
    """Of what is lost without predictions."""
    ends = nats.interval
    if len(nats.values) < LEAST_SEEDS or ends is None:
        return "too few seeds"
    low, high = ends
    if low > MARGIN:
        return "something"
    if high < -MARGIN:
        return "harmful"
    return "nothing" if low >= -MARGIN and high <= MARGIN else "undecided"


def build_predictions(table: Table, ffn: str, predictor: str, reads: str) -> Predictions | None:
    """None where a part of it is not recorded."""
    arm: dict[str, Factor] = {"ffn": ffn, "predictor": predictor, "reads": reads, "size": SIZE}
    layers = sorted(int(layer) for layer in table.values_of(EXPERIMENT, "layer", **arm))
    names = (*SHARES, "nats_skipped")
    by_layer = {name: [_find(table, name, {**arm, "layer": layer}) for layer in layers] for name in names}
    nats, without, with_mean = (_find(table, name, arm) for name in ("nats", "nats_without", "nats_mean"))
    found = [nats, without, with_mean, *(one for of in by_layer.values() for one in of)]
    known = [one for one in found if one is not None]
    if not layers or nats is None or without is None or with_mean is None or len(known) < len(found):
        return None
    if {one.seeds for one in known} != {nats.seeds}:
        return None
    trained = _find(table, "nats", {"ffn": ffn, "predictor": NOTHING, "size": SIZE})
    return Predictions(
        {name: tuple(one.sample for one in by_layer[name] if one is not None) for name in SHARES},
        blocks=tuple(one.sample - nats.sample for one in by_layer["nats_skipped"] if one is not None),
        worth=without.sample - nats.sample,
        worth_of_input=with_mean.sample - nats.sample,
        trained_without=trained.sample - nats.sample if trained is not None and trained.is_paired_with(nats) else None,
        seeds=nats.seeds,
    )


def _find(table: Table, metric: str, where: Mapping[str, Factor]) -> Selection | None:
    found = table.find(Selector(EXPERIMENT, metric, where))
    return found if found is not None and found.sample.known else None
