"""Which network the straight-through gradient trains: for page and docs."""

from __future__ import annotations

from ematrace.analysis.gap_all_units import (
    STRAIGHT_THROUGH,
    TRUE,
    all_on_difference,
    build_networks,
    build_turn,
    reading,
)
from ematrace.report.data import ReportData
from ematrace.report.formatting import Rows, number, with_interval

NAMES = {STRAIGHT_THROUGH: "straight-through", TRUE: "true gradient"}
HEADS = [
    *("trained with", "step", "straight-through to the true gradient", "straight-through to that with all units on"),
    *("true to that with all units on", "nats", "nats with all units on", "seeds"),
]
READINGS = {
    "holds": "the straight-through gradient is nearer to that of the network with all units on",
    "contradicted": "the straight-through gradient is nearer to the true one",
    "mixed": "neither gradient is nearer to the straight-through one on all seeds and steps",
    "too few steps or seeds": "too few steps or seeds to say",
}

TURNS = {
    "harm by then": "half of the harm is done by then, so that the reading is possible where it is done",
    "harm after": "more than half of the harm is done after that, so that the reading is contradicted there, too",
    "undecided": "undecided",
}


def network_rows(data: ReportData) -> Rows | None:
    """Cosines and nats during training; None where nothing is recorded."""
    rows = [
        [
            NAMES[ffn],
            f"{at.step:,}",
            *(number(of.mean, 3) for of in (at.to_true, at.to_all_on, at.true_to_all_on, at.nats, at.nats_all_on)),
            str(len(at.seeds)),
        ]
        for ffn in NAMES
        for at in build_networks(data.table, ffn)
    ]
    return Rows(HEADS, rows) if rows else None


def network_lines(data: ReportData) -> list[str]:
    """The verdicts of the plan's rule."""
    steps = build_networks(data.table, STRAIGHT_THROUGH)
    if not steps:
        return []
    lines = [f"In the last four steps of straight-through training, {READINGS[reading(steps)]}."]
    if (turn := build_turn(data.table)) is not None:
        lines.append(
            f"Up to step {turn.step} straight-through training's gradient is nearer to that of the network with all "
            f"units on, on all seeds. By then it has cost {with_interval(turn.cost)} nats, at the end "
            f"{with_interval(turn.end)}: under the plan's rule for early steps, {TURNS[turn.outcome]}."
        )
    if (difference := all_on_difference(data.table)) is not None:
        lines.append(
            "With all units on at the end, straight-through training minus true-gradient training: "
            f"{with_interval(difference, signed=True)} nats."
        )
    return lines
