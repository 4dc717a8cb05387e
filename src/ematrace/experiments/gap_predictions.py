"""Does SPEN's predictor predict? What it leaves of its input, what least squares would leave, and what it is worth.

Small models with predictors of `gap_predictors` in its three blocks. Nothing in the loss asks for a good prediction x̂:
it enters the context as W_e (x - x̂). Beside them are models that were trained with x̂ = 0.

    ematrace reproduce gap_predictions    # 60 models of width 64: twenty minutes on two cores
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ematrace.analysis.gap_design import Arm
from ematrace.experiments.base import Context, Experiment, Point, cross_entropy, number
from ematrace.experiments.gap_gradients import evenly
from ematrace.experiments.gap_predictors import (
    BLOCKS,
    NOTHING,
    PREDICTORS,
    PredictorArm,
    left_over,
    shares_in_context,
)
from ematrace.experiments.gap_task import (
    SETTINGS,
    budget_of,
    score,
    trained,
)
from ematrace.experiments.gap_text import text_of_training, text_to_score
from ematrace.experiments.hooks import Hook, hooked, recorded
from ematrace.experiments.recall import Ids
from ematrace.models.block import Block
from ematrace.results import Row
from ematrace.spen.mixer import SpenMixer
from ematrace.spen.predictors import unit

RATE = 0.016  # of `gap_halves`, whose models these are
FITTED = 256  # windows that least squares is fitted to


def grid(scale: str, seeds: int) -> Iterable[Point]:
    for seed in range(seeds):
        for block, without in zip(BLOCKS, NOTHING, strict=True):
            for arm in (*_predictors_in(block), without):
                yield Point({**asdict(arm), "size": "small", "lr": RATE}, seed)


def _predictors_in(block: Arm) -> Iterator[PredictorArm]:
    """Those that read traces, with d_ff as it is."""
    for predictor, reads in PREDICTORS:
        if reads != "inputs":
            yield PredictorArm(**asdict(replace(block, width="fixed")), predictor=predictor, reads=reads)


def measure(ctx: Context, *, size: str, lr: float, **arm: Any) -> list[Row]:
    with trained(ctx, PredictorArm(**arm), size, lr) as (model, run):
        text, length = text_of_training(ctx, run.tokenizer), ctx.settings["length"]
        fitted = text.windows(evenly(np.arange(text.n_windows(length)), FITTED), length)
        rows = predictions(model, fitted, text_to_score(ctx, ctx.settings["validation"], run.tokenizer).windows)
    ctx.progress(1.0)
    return rows


def predictions(model: Any, fitted: Ids, scored: Ids) -> list[Row]:
    """By block, on windows [N, T+1], also the loss without it; and the loss as it is, with every x̂ set to 0, and set
    to its mean."""
    of_fitted, of_scored = read(model, fitted), read(model, scored)
    losses = {"nats": float(score(model, scored)[0].mean())}
    if of_fitted:
        means = [block.x_hat.mean((0, 1)) for block in of_fitted]
        for name, x_hats in {"nats_without": [torch.zeros_like(m) for m in means], "nats_mean": means}.items():
            with predicting(model, x_hats):
                losses[name] = float(score(model, scored)[0].mean())
    rows = [Row({}, {name: cross_entropy(nats) for name, nats in losses.items()})]
    for layer, block in enumerate(module for module in model.modules() if isinstance(module, Block)):
        with hooked([(block, skip)]):
            skipped = float(score(model, scored)[0].mean())
        found = shares(of_fitted[layer], of_scored[layer]) if of_fitted else {}
        metrics = {"nats_skipped": cross_entropy(skipped)}
        rows.append(Row({"layer": layer}, metrics | {name: number(value) for name, value in found.items()}))
    return rows


def skip(_: nn.Module, inputs: Any, output: Any) -> Any:
    """x' = x."""
    return inputs[0], *output[1:]


@dataclass(frozen=True)
class Seen:
    """What the predictor of a block was given and answered, [N, T, D] in float64."""

    x: Tensor
    x_hat: Tensor
    slow: Tensor
    """The direction of the slow trace: what the static predictor reads."""
    traces: Tensor
    """All traces of the step side by side, [N, T, A D]."""
    W_e: Tensor

    def late(self) -> Seen:
        """The second half of each window, where the slow trace is no longer mostly of the window's first tokens."""
        half = self.x.shape[1] // 2
        return replace(self, **{name: getattr(self, name)[:, half:] for name in ("x", "x_hat", "slow", "traces")})


def shares(fit: Seen, held: Seen) -> dict[str, float]:
    """What predictions leave of the input on `held`, beside least squares fitted on `fit`."""
    fit_late, held_late = fit.late(), held.late()
    possible = held.slow @ least_squares(fit.slow, fit.x)
    W_e_x = held.x @ held.W_e.T
    return {
        "unexplained": left_over(held.x, held.x_hat),
        "possible": left_over(held.x, possible),
        "possible_from_traces": left_over(held.x, held.traces @ least_squares(fit.traces, fit.x)),
        "unexplained_late": left_over(held_late.x, held_late.x_hat),
        "possible_late": left_over(held_late.x, held_late.slow @ least_squares(fit_late.slow, fit_late.x)),
        **shares_in_context(W_e_x, held.x_hat @ held.W_e.T),
        "context_possible": left_over(W_e_x, possible @ held.W_e.T),
    }


def least_squares(read: Tensor, x: Tensor) -> Tensor:
    """W with read @ W nearest to x."""
    solution: Tensor = torch.linalg.lstsq(read.flatten(0, 1), x.flatten(0, 1)).solution
    return solution


@torch.no_grad()
def read(model: Any, windows: Ids) -> Sequence[Seen]:
    """Of every block that has a predictor, in their order."""
    mixers = mixers_of(model)
    with recorded(mixer.predictor for mixer in mixers) as calls:
        model(input_ids=torch.from_numpy(windows[:, :-1]).to(model.device), use_cache=False, logits_to_keep=1)
    seen = []
    for mixer, ((x, traces, *_), (x_hat, *_)) in zip(mixers, calls, strict=True):
        all_traces = traces.permute(1, 2, 0, 3).flatten(-2)
        kept = (x, x_hat, unit(traces[-1]), all_traces, mixer.W_e.weight)
        seen.append(Seen(*(tensor.double() for tensor in kept)))
    return seen


def predicting(model: Any, x_hats: Sequence[Tensor]) -> AbstractContextManager[None]:
    """In each block the same x̂ [D], whatever it reads."""

    def instead(x_hat: Tensor) -> Hook:
        def hook(_: nn.Module, inputs: Any, output: Any) -> tuple[Tensor, Any]:
            return x_hat.to(output[0].dtype).expand_as(output[0]), output[1]

        return hook

    return hooked((mixer.predictor, instead(x_hat)) for mixer, x_hat in zip(mixers_of(model), x_hats, strict=True))


def mixers_of(model: Any) -> list[SpenMixer]:
    return [module for module in model.modules() if isinstance(module, SpenMixer)]


EXPERIMENT = Experiment(
    "gap_predictions",
    "Whether SPEN's predictors predict, and what that is worth",
    grid=grid,
    measure=measure,
    data="builtin",
    settings=SETTINGS,
    derived=budget_of,
    seeds=5,
    seconds=45,
)
