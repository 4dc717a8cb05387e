"""Which network does the straight-through gradient train: the one that runs, or the one with all units on?

The rules are those of docs/analysis-plan.md, written before the cells existed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from ematrace.analysis.gap_straight_through import LAST
from ematrace.analysis.plan import LEAST_SEEDS
from ematrace.results import Sample, Selection, Table, common_seeds
from ematrace.results.schema import Factor
from ematrace.results.select import Selector

EXPERIMENT, SIZE = "gap_all_units", "small"
STRAIGHT_THROUGH, TRUE = "topk_ste", "topk_masked"
Reading = Literal["holds", "contradicted", "mixed", "too few steps or seeds"]


@dataclass(frozen=True)
class NetworksAt:
    """Of the models of one gradient at one step; all parameters."""

    step: int
    to_true: Sample
    """Cosine of the straight-through gradient to that of the network that runs."""
    to_all_on: Sample
    """The same to that of the network with all units on."""
    true_to_all_on: Sample
    """Cosine between the gradients of both networks."""
    nats: Sample
    nats_all_on: Sample
    seeds: tuple[int, ...]


def build_networks(table: Table, ffn: str) -> tuple[NetworksAt, ...]:
    """During training with one gradient; empty without cells."""
    arm: dict[str, Factor] = {"ffn": ffn, "size": SIZE, "part": "all"}
    steps = sorted(int(step) for step in table.values_of(EXPERIMENT, "step", **arm))
    return tuple(found for step in steps if (found := _at(table, {**arm, "step": step})) is not None)


def _at(table: Table, where: dict[str, Factor]) -> NetworksAt | None:
    names = ("to_true", "to_all_on", "true_to_all_on", "nats", "nats_all_on")
    found = [table.find(Selector(EXPERIMENT, name, where)) for name in names]
    known: list[Selection] = [one for one in found if one is not None and one.sample.known]
    if len(known) < len(names):
        return None
    to_true, to_all_on, true_to_all_on, nats, nats_all_on = (one.sample for one in known)
    return NetworksAt(int(where["step"]), to_true, to_all_on, true_to_all_on, nats, nats_all_on, known[0].seeds)


def reading(steps: Sequence[NetworksAt]) -> Reading:
    """Whether the straight-through gradient is nearer to that of the network with all units on."""
    last = steps[-LAST:]
    if len(last) < LAST or any(len(at.seeds) < LEAST_SEEDS for at in last):
        return "too few steps or seeds"
    nearer = {
        to_all_on > to_true
        for at in last
        for to_all_on, to_true in zip(at.to_all_on.values, at.to_true.values, strict=True)
    }
    return "mixed" if len(nearer) == 2 else "holds" if nearer == {True} else "contradicted"


@dataclass(frozen=True)
class Turn:
    """Until when the straight-through gradient is nearer to that of the network with all units on, on all seeds."""

    step: int
    cost: Sample
    """Nats at that step, trained straight-through minus trained with the true gradient."""
    end: Sample
    """The same at the last step."""

    @property
    def outcome(self) -> Literal["harm by then", "harm after", "undecided"]:
        """Whether half of the cost at the end is there by then, with the interval of the paired difference."""
        beyond = [cost - end / 2 for cost, end in zip(self.cost.values, self.end.values, strict=True)]
        ends = Sample(tuple(beyond)).interval
        if ends is None or ends[0] <= 0 <= ends[1]:
            return "undecided"
        return "harm by then" if ends[0] > 0 else "harm after"


def _both_by_step(table: Table) -> dict[int, tuple[NetworksAt, NetworksAt]] | None:
    """Trained straight-through and with the true gradient, at the steps of both; None unless both have the last one."""
    straight, true = ({at.step: at for at in build_networks(table, ffn)} for ffn in (STRAIGHT_THROUGH, TRUE))
    if not straight or not true or max(straight) != max(true):
        return None
    return {step: (straight[step], true[step]) for step in straight if step in true}


def build_turn(table: Table) -> Turn | None:
    """None where it never is nearer on all seeds, or an arm lacks seeds or the last step that the other has."""
    both = _both_by_step(table)
    if both is None or len({at.seeds for pair in both.values() for at in pair}) > 1:
        return None
    nearer = list(takewhile(lambda step: _all_nearer(both[step][0]), both))
    if not nearer:
        return None
    cost, end = (straight.nats - true.nats for straight, true in (both[nearer[-1]], both[max(both)]))
    return Turn(nearer[-1], cost, end)


def _all_nearer(at: NetworksAt) -> bool:
    return all(on > true for on, true in zip(at.to_all_on.values, at.to_true.values, strict=True))


def all_on_difference(table: Table) -> Sample | None:
    """Nats with all units on at the last step, trained straight-through minus trained with the true gradient."""
    both = _both_by_step(table)
    if both is None:
        return None
    ends = [dict(zip(at.seeds, at.nats_all_on.values, strict=True)) for at in both[max(both)]]
    seeds = common_seeds(ends)
    return Sample(tuple(ends[0][seed] - ends[1][seed] for seed in seeds)) if seeds else None
