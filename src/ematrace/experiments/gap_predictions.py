"""Does SPEN's predictor predict? What it leaves of its input, what least squares would leave, and what it is worth.

Small models with predictors of `gap_predictors` in its three blocks. Nothing in the loss asks for a good prediction x̂:
it enters the context as W_e (x - x̂). Beside them are models that were trained with x̂ = 0.

    ematrace reproduce gap_predictions    # 60 models of width 64: twenty minutes on two cores
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ematrace.experiments.base import Context, Experiment, Point, number
from ematrace.experiments.gap_predictors import BLOCKS, NOTHING, PREDICTORS, PredictorArm, beside_input
from ematrace.experiments.gap_straight_through import evenly
from ematrace.experiments.gap_task import (
    SETTINGS,
    Arm,
    budget_of,
    score,
    text_to_score,
    train_arm,
    training_text,
)
from ematrace.experiments.recall import Ids
from ematrace.results import Row
from ematrace.spen.mixer import SpenMixer
from ematrace.spen.predictors import unit
from ematrace.train import load_model

RATE = 0.016  # of `gap_halves`, whose models these are
FITTED = 256  # windows that least squares is fitted to


def grid(scale: str, seeds: int) -> Iterable[Point]:
    for seed in range(seeds):
        for block in BLOCKS:
            for arm in arms_in(block):
                yield Point({**asdict(arm), "size": "small", "lr": RATE}, seed)


def arms_in(block: Arm) -> Iterator[PredictorArm]:
    """All with d_ff as it is."""
    wide = asdict(replace(block, width="fixed"))
    for predictor, reads in PREDICTORS:
        if reads != "inputs":
            yield PredictorArm(**wide, predictor=predictor, reads=reads)
    yield next(arm for arm in NOTHING if arm.ffn == block.ffn)


def measure(ctx: Context, *, size: str, lr: float, **arm: Any) -> list[Row]:
    with TemporaryDirectory(dir=ctx.scratch) as folder:
        trained = train_arm(ctx, PredictorArm(**arm), size, lr, Path(folder) / "run")
        model, _ = load_model(trained.summary.model)
    model.eval()
    text = training_text(str(ctx.data), "train", str(trained.tokenizer))
    length = ctx.settings["length"]
    starts = evenly(np.arange(text.n_windows(length)), FITTED)
    fitted = np.stack([text.window(int(i), length) for i in starts])
    rows = predictions(model, fitted, text_to_score(ctx, ctx.settings["validation"], trained.tokenizer).windows)
    ctx.progress(1.0)
    return rows


def predictions(model: Any, fitted: Ids, scored: Ids) -> list[Row]:
    """By block, on windows [N, T+1]; and the loss as it is, with every x̂ set to 0, and set to its mean."""
    fits, seen = read(model, fitted), read(model, scored)
    losses = {"nats": float(score(model, scored)[0].mean())}
    if seen:
        for name, instead in {
            "nats_without": [fit.x_hat * 0 for fit in fits],
            "nats_mean": [f.x_hat for f in fits],
        }.items():
            with predicting(model, [x_hat.mean((0, 1)) for x_hat in instead]):
                losses[name] = float(score(model, scored)[0].mean())
    rows = [Row({}, {name: number(nats, unit="nats", better="low") for name, nats in losses.items()})]
    for layer, (fit, held) in enumerate(zip(fits, seen, strict=True)):
        rows.append(Row({"layer": layer}, {name: number(value) for name, value in compare(fit, held).items()}))
    return rows


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


def compare(fit: Seen, held: Seen) -> dict[str, float]:
    """What predictions leave of the input on `held`, beside least squares fitted on `fit`."""
    possible = held.slow @ least_squares(fit.slow, fit.x)
    in_context = held.x @ held.W_e.T
    return {
        "unexplained": left_over(held.x, held.x_hat),
        "possible": left_over(held.x, possible),
        "possible_from_traces": left_over(held.x, held.traces @ least_squares(fit.traces, fit.x)),
        "unexplained_late": left_over(held.late().x, held.late().x_hat),
        "possible_late": left_over(held.late().x, held.late().slow @ least_squares(fit.late().slow, fit.late().x)),
        **beside_input(in_context, held.x_hat @ held.W_e.T),
        "context_possible": left_over(in_context, possible @ held.W_e.T),
    }


def least_squares(read: Tensor, x: Tensor) -> Tensor:
    """W with read @ W nearest to x."""
    solution: Tensor = torch.linalg.lstsq(read.flatten(0, 1), x.flatten(0, 1)).solution
    return solution


def left_over(x: Tensor, x_hat: Tensor) -> float:
    """|x - x̂|² / |x|²: 1 for a prediction of 0."""
    return float((x - x_hat).square().sum() / x.square().sum())


@torch.no_grad()
def read(model: Any, windows: Ids) -> Sequence[Seen]:
    """Of every block that has a predictor."""
    seen: list[Seen] = []
    mixers = mixers_of(model)

    def keep(_: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Any]) -> None:
        x, traces = inputs[:2]
        beside = traces.permute(1, 2, 0, 3).flatten(-2)
        W_e = mixers[len(seen)].W_e.weight
        seen.append(Seen(*(u.double() for u in (x, output[0], unit(traces[-1]), beside, W_e))))

    handles = [mixer.predictor.register_forward_hook(keep) for mixer in mixers]
    try:
        model(input_ids=torch.from_numpy(windows[:, :-1]), use_cache=False, logits_to_keep=1)
    finally:
        for handle in handles:
            handle.remove()
    return seen


@contextmanager
def predicting(model: Any, x_hats: Sequence[Tensor]) -> Iterator[None]:
    """In each block the same x̂ [D], whatever it reads."""

    def instead(x_hat: Tensor) -> Any:
        def hook(_: Any, inputs: Any, output: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
            return x_hat.to(output[0].dtype).expand_as(output[0]), output[1]

        return hook

    pairs = zip(mixers_of(model), x_hats, strict=True)
    handles = [mixer.predictor.register_forward_hook(instead(x_hat)) for mixer, x_hat in pairs]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


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
