"""Recall in made-up text: what traces lack, what attention without positions lacks, and what SPEN's predictor does.

On text, pairs that are near are not the pairs that are far, and much besides recall lowers the loss. Here recall is all
there is, and the best loss is known (`made_text`). The arms are contexts by themselves, and the switches that lead from
attention over the inputs as SPEN's predictor to attention as a mixer.

    ematrace reproduce gap_made_pairs --seeds 3    # 270 models of width 64: an hour and a half on two cores
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ematrace.analysis.gap_design import ATTENTION, DENSE, EMA, LEARNED, WITHOUT_POSITIONS, Arm
from ematrace.analysis.rates import SELECTION
from ematrace.experiments.base import Context, Experiment, Point, cross_entropy, number
from ematrace.experiments.gap_predictors import MIXERS, STATIC_DIRECT, SWITCHED, PredictorArm
from ematrace.experiments.gap_task import build_arm, matched_width, score
from ematrace.experiments.made_text import MadeText, Nats
from ematrace.experiments.recall import Ids, distance_to_last
from ematrace.experiments.simple_training import minimise
from ematrace.mixers.ema import ALPHAS
from ematrace.results import Metric, Row
from ematrace.train.run import NonFiniteLoss
from ematrace.train.state import seed_everything

SIZE = "small"
SETTINGS: Mapping[str, Any] = {
    **{"symbols": 32, "length": 64, "follow": 0.75},
    **{"steps": 1000, "sequences": 32, "warmup": 100, "windows": 1024},
}
RATES = (0.001, 0.002, 0.004, 0.008, 0.016)
# Of the windows that all models are scored on. numpy draws the same numbers for 1 as for [1, 0], so that the tables of
# successors of the first 32 of them are those of seed 1's first batch; no model can make anything of that.
TEXT_SEED = 1
DISTANCES = {"seen 1-4": (1, 5), "seen 5-16": (5, 17), "seen 17+": (17, math.inf)}
HARDLY_FADES = 0.002  # the rate of a fourth trace, which keeps 88% over a window


@dataclass(frozen=True)
class PairsArm(PredictorArm):
    fourth_trace: bool = False

    def overrides(self, size: str, d_ff: int) -> dict[str, Any]:
        fields = super().overrides(size, d_ff)
        return fields | {"mixer_options": {"alphas": (*ALPHAS, HARDLY_FADES)}} if self.fourth_trace else fields


def _by_itself(context: Arm) -> PairsArm:
    return PairsArm(**asdict(context), predictor="mixer")


CONTEXTS = (
    *map(_by_itself, (Arm("none"), EMA, WITHOUT_POSITIONS, LEARNED, ATTENTION)),
    replace(_by_itself(EMA), fourth_trace=True),
)
"""Traces and attention without positions side by side are one of the mixers."""
IN_BLOCK = tuple(PairsArm(**asdict(arm)) for arm in SWITCHED)
"""Softmax over the inputs as SPEN's predictor, in all settings of the switches."""
ARMS = (*CONTEXTS, *IN_BLOCK, *(PairsArm(**asdict(arm)) for arm in (DENSE, STATIC_DIRECT, *MIXERS)))


def grid(scale: str, seeds: int) -> Iterator[Point]:
    """Recorded are the rates near the best one (docs/analysis-plan.md)."""
    for seed in range(seeds):
        for arm in ARMS:
            for lr in RATES:
                yield point(arm, lr, seed)


def point(arm: PairsArm, lr: float, seed: int) -> Point:
    return Point({**asdict(arm), "size": SIZE, "lr": lr}, seed)


def measure(ctx: Context, *, size: str, lr: float, **factors: Any) -> list[Row]:
    of, arm = ctx.settings, PairsArm(**factors)
    text = MadeText(of["symbols"], of["length"], of["follow"])
    d_ff = matched_width(arm, size, text.symbols, text.length)
    seed_everything(ctx.seed)
    model = build_arm(arm, size, d_ff, text.symbols, text.length).to(ctx.device)
    parameters = sum(p.numel() for p in model.parameters())
    of_model = {"parameters": number(parameters), "d_ff": number(d_ff)}
    try:
        minimise(ctx, model, partial(losses, model), batches(ctx, text), of["steps"], warmup=of["warmup"], lr=lr)
    except NonFiniteLoss:  # at a rate that is too high: a result, too
        return [Row({}, of_model | {SELECTION: cross_entropy(None)})]
    windows = text.draw(of["windows"], np.random.default_rng(TEXT_SEED))
    nats = score(model.eval(), windows)[0]
    ctx.progress(1.0)
    # Rates are chosen on one half, and figures are of the other.
    whole, *rows = rows_of_windows(windows[1::2], nats[1::2], text)
    return [Row({}, of_model | {SELECTION: cross_entropy(float(nats[::2].mean()))} | whole.metrics), *rows]


def losses(model: Any, ids: Tensor) -> tuple[Tensor, Tensor]:
    output = model(input_ids=ids[:, :-1], shift_labels=ids[:, 1:], use_cache=False, skip_logits=True)
    return output.loss, output.cross_entropy


def batches(ctx: Context, text: MadeText) -> Iterator[Tensor]:
    """Without end: the same for all arms of a seed, and no window twice."""
    rng = np.random.default_rng([ctx.seed, 0])
    while True:
        yield torch.from_numpy(text.draw(ctx.settings["sequences"], rng)).to(ctx.device)


def rows_of_windows(windows: Ids, nats: Nats, text: MadeText) -> list[Row]:
    """Of all targets; of those after a symbol that is new to the window; and of the others, all and by distance."""
    others = {"bayes_nats": text.bayes_nats(windows), "counting_nats": text.counting_nats(windows)}
    distance = distance_to_last(windows[:, :-1])
    slices: dict[str, Any] = {"new": distance == 0, "seen": distance > 0}
    slices |= {name: (distance >= low) & (distance < end) for name, (low, end) in DISTANCES.items()}

    def means(mask: Any) -> dict[str, Metric]:
        found = {"nats": nats, **others}
        return {name: cross_entropy(float(of[mask].mean()), int(mask.sum())) for name, of in found.items()}

    rows = [Row({"slice": name}, means(mask)) for name, mask in slices.items() if mask.any()]
    return [Row({}, means(np.ones_like(distance, dtype=bool))), *rows]


EXPERIMENT = Experiment(
    "gap_made_pairs",
    "Recall in made-up text, by context and by switches of SPEN's predictor",
    grid=grid,
    measure=measure,
    settings=SETTINGS,
    seeds=5,
    seconds=45,
)
