"""Does the straight-through gradient train another network than the one that runs: the one with all units on?

Small models of Algorithm 1's block, without load balance, are trained with the straight-through and with the true
gradient of the top-k. At some steps three gradients are computed at the same weights on the same text: both of the
network that runs, and that of the network which keeps all of its units. `gap_halves` trains the same models.

    ematrace reproduce gap_all_units    # 10 models of width 64: ten minutes on two cores
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ematrace.analysis.gap_design import UNBALANCED, Arm
from ematrace.experiments.base import Context, Experiment, Point, number
from ematrace.experiments.gap_straight_through import (
    BATCH,
    MEASURED,
    PARTS,
    cosine,
    evenly,
    gradient,
    model_after,
    parts_of,
)
from ematrace.experiments.gap_task import SETTINGS, TRAINING, budget_of, score, text_to_score, train_arm
from ematrace.experiments.recall import Ids
from ematrace.models.block import Block
from ematrace.results import Row

FFNS = ("topk_ste", "topk_masked")
RATE = 0.016  # of `gap_halves`
EARLY = 8  # steps that are measured within the first two parts of the training, evenly; and MEASURED parts


def grid(scale: str, seeds: int) -> Iterable[Point]:
    for seed in range(seeds):
        for ffn in FFNS:
            yield Point({**asdict(replace(UNBALANCED, ffn=ffn)), "size": "small", "lr": RATE}, seed)


def budget(point: Point, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    batch = {} if settings["batch"] else {"batch": BATCH}
    return {**budget_of(point, settings), **batch}


def measure(ctx: Context, *, size: str, lr: float, **arm: Any) -> list[Row]:
    settings = ctx.settings
    steps = settings["tokens"] // (settings["sequences"] * settings["length"])
    part = max(1, steps // PARTS)
    early = max(1, 2 * part // EARLY)
    measured = {i * early for i in range(EARLY + 1)} | {i * part for i in MEASURED}
    rows = []
    with TemporaryDirectory(dir=ctx.scratch) as folder:
        out = Path(folder) / "run"
        trained = train_arm(ctx, Arm(**arm), size, lr, out, checkpoint_every=math.gcd(early, part), keep=steps)
        scored = text_to_score(ctx, settings["validation"], trained.tokenizer).windows
        for step in sorted({min(step, steps) for step in measured} | {steps}):
            found = compare_networks(model_after(step, trained).eval(), evenly(scored, settings["batch"]), scored)
            rows += [Row({"step": step, **row.factors}, row.metrics) for row in found]
            ctx.progress(TRAINING + (1 - TRAINING) * step / steps)
    return rows


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
    rows[0].metrics.update({name: number(value, unit="nats", better="low") for name, value in both.items()})
    return rows


@contextmanager
def all_units_on(model: Any) -> Iterator[None]:
    """The same weights, of which the top-k drops none."""
    configs = {id(m.config): m.config for m in model.modules() if isinstance(m, Block)}.values()
    before = [config.k for config in configs]
    try:
        for config in configs:
            config.k = config.d_ff
        yield
    finally:
        for config, k in zip(configs, before, strict=True):
            config.k = k


EXPERIMENT = Experiment(
    "gap_all_units",
    "The straight-through gradient and the network with all units on",
    grid=grid,
    measure=measure,
    data="builtin",
    settings={**SETTINGS, "batch": None},
    derived=budget,
    seeds=5,
    seconds=90,
)
