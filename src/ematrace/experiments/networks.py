"""The described network against the locked one, with and without half passives: its states, and C13 to C18.

Which scales the described network has was decided by `ematrace.spcn.diagnosis` alone, before any accuracy of it was
looked at (docs/objections.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from ematrace.experiments import ablations, feedforward_rules, lag_decoding, position
from ematrace.experiments.base import Context, Experiment, Point, factorial, number
from ematrace.experiments.chosen_rates import chosen_rule_rates
from ematrace.experiments.grammar_task import (
    FULL,
    SETTINGS,
    GrammarTask,
    follow_from,
    grammar_task,
    words_of,
)
from ematrace.results import Row
from ematrace.spcn import SPCN
from ematrace.spcn.diagnosis import diagnose_states, drive_shares, precision_in_range
from ematrace.spcn.settings import NETWORKS

GRAMMARS = ("half_passives", "quarter_passives")
LEARNED = "learned W_ff"
FROZEN = "frozen W_ff"
DIAGNOSED_SENTENCES, DENSE_SENTENCES = 500, 60  # the second by the dense reference


def grid(scale: str, seeds: int) -> Iterable[Point]:
    """C16 of the locked network only: `feedforward_rules` has it of the described one."""
    yield from factorial(network=NETWORKS, grammar=GRAMMARS, part=(FROZEN,))(scale, seeds)
    yield from factorial(network=("locked",), grammar=GRAMMARS[:1], part=(LEARNED,))(scale, seeds)


def settings_of(point: Point, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    found = {**follow_from(point, settings), "spcn": {"network": point.factors["network"]}}
    # As in `feedforward_rules`: what was measured at other rates is measured again.
    rates = chosen_rule_rates() if point.factors["part"] == LEARNED else {}
    return {**found, "ff_rates": dict(rates)} if rates else found


def measure(ctx: Context, network: str, grammar: str, part: str) -> list[Row]:
    """The network is also in the settings, where the task finds it."""
    if part == LEARNED:
        return feedforward_rules.measure(ctx, grammar=grammar)
    task = grammar_task(ctx, grammar)
    without_pghu = task.probe([FULL], task.spcn(learn_feedback=False))[FULL]
    rows = [*diagnosis(task), Row({"variant": "no_feedback"}, task.accuracies(without_pghu))]
    for done, claims in enumerate((position, ablations, lag_decoding), start=1):
        rows += claims.measure(ctx, grammar=grammar)
        ctx.progress(done / 3)
    return rows


def diagnosis(task: GrammarTask) -> list[Row]:
    """States, drive and precision of the forward hierarchy, by level."""
    held_out = words_of(task.within[:DIAGNOSED_SENTENCES])
    fitted = task.spcn()
    watched = SPCN(**{**fitted.get_params(), "epochs": 0, "directions": "forward"}).fit([])
    in_range = precision_in_range(watched, words_of(task.train))
    levels = zip(
        diagnose_states(fitted, held_out), drive_shares(fitted, held_out[:DENSE_SENTENCES]), in_range, strict=True
    )
    return [
        Row(
            {"diagnosis": "forward", "level": level},
            {
                **{name: number(value) for name, value in asdict(states).items()},
                **{f"drive_{term}": number(share) for term, share in drive.items()},
                "precision_in_range": number(inside),
            },
        )
        for level, (states, drive, inside) in enumerate(levels)
    ]


EXPERIMENT = Experiment(
    "networks",
    "The described network and the locked one",
    grid=grid,
    measure=measure,
    group="networks",
    settings=dict(SETTINGS),
    derived=settings_of,
    seconds=150,
)
