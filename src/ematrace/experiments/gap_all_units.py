"""Does the straight-through gradient train another network than the one that runs: the one with all units on?

Small models of Algorithm 1's block, without load balance, are trained with the straight-through and with the true
gradient of the top-k. At some steps three gradients are computed at the same weights on the same text: both of the
network that runs, and that of the network which keeps all of its units. `gap_halves` trains the same models.

    ematrace reproduce gap_all_units    # 10 models of width 64: ten minutes on two cores
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from typing import Any

from ematrace.analysis.gap_design import UNBALANCED, Arm
from ematrace.experiments.base import Context, Experiment, Point, cross_entropy, number
from ematrace.experiments.gap_gradients import (
    MEASURED,
    at_steps,
    batch_settings,
    configured,
    cosine,
    evenly,
    gradient,
    parts_of,
    steps_per_part,
)
from ematrace.experiments.gap_task import SETTINGS, score
from ematrace.experiments.recall import Ids
from ematrace.results import Row

FFNS = ("topk_ste", "topk_masked")
RATE = 0.016  # of `gap_halves`
EARLY = 8  # steps that are measured within the first two parts of the training, evenly; and MEASURED parts


def grid(scale: str, seeds: int) -> Iterable[Point]:
    for seed in range(seeds):
        for ffn in FFNS:
            yield Point({**asdict(replace(UNBALANCED, ffn=ffn)), "size": "small", "lr": RATE}, seed)


def measure(ctx: Context, *, size: str, lr: float, **arm: Any) -> list[Row]:
    def look(model: Any, scored: Ids) -> list[Row]:
        return compare_networks(model, evenly(scored, ctx.settings["batch"]), scored)

    steps = steps_per_part(ctx.settings)
    early = max(1, 2 * steps // EARLY)
    chosen = (*(i * early for i in range(EARLY + 1)), *(i * steps for i in MEASURED))
    return at_steps(ctx, Arm(**arm), size, lr, chosen, look)


def compare_networks(model: Any, windows: Ids, scored: Ids) -> list[Row]:
    """Cosines of the straight-through gradient to either network's own, by part; nats of both networks on `scored`."""
    ste, true = (gradient(model, windows, kind) for kind in ("ste", "masked"))
    nats = float(score(model, scored)[0].mean())
    with all_units_on(model):
        whole = gradient(model, windows, "masked")
        nats_whole = float(score(model, scored)[0].mean())
    rows = []
    for part, names in {"all": list(ste), **parts_of(ste)}.items():
        of_ste, of_true, of_whole = ({name: of[name] for name in names} for of in (ste, true, whole))
        cosines = {"to_true": (of_ste, of_true), "to_all_on": (of_ste, of_whole), "true_to_all_on": (of_true, of_whole)}
        rows.append(Row({"part": part}, {name: number(cosine(*pair)) for name, pair in cosines.items()}))
    both = {"nats": nats, "nats_all_on": nats_whole}
    rows[0].metrics.update({name: cross_entropy(value) for name, value in both.items()})
    return rows


def all_units_on(model: Any) -> AbstractContextManager[None]:
    """The same weights, of which the top-k drops none."""
    return configured(model, k=model.config.d_ff)


EXPERIMENT = Experiment(
    "gap_all_units",
    "The straight-through gradient and the network with all units on",
    grid=grid,
    measure=measure,
    data="builtin",
    settings={**SETTINGS, "batch": None},
    derived=batch_settings,
    seeds=5,
    seconds=90,
)
