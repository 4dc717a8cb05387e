"""Gradients of models while they train: the straight-through one of the top-k, and the true one.

Training leaves checkpoints, and at some of them gradients of the cross-entropy are computed on the same text. The true
one (`topk_grad="masked"`) is what the loss does under a change of the weights too small to change which units are kept:
units that were dropped have no part in it. The load-balance loss is left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ematrace.analysis.gap_design import Arm
from ematrace.experiments.base import Context, Point, cross_entropy, number
from ematrace.experiments.gap_task import (
    SCORED_AT_ONCE,
    TRAINING,
    TrainedArm,
    budget_of,
    score,
    steps_of,
    train_arm,
    usage_metrics,
)
from ematrace.experiments.gap_text import text_to_score
from ematrace.experiments.recall import Ids
from ematrace.models.block import Block
from ematrace.ops.topk import TopkGrad
from ematrace.results import Metric, Row
from ematrace.text import load_tokenizer
from ematrace.train import load_model
from ematrace.train.checkpoints import checkpoint_name
from ematrace.train.models import build_model
from ematrace.train.state import seed_everything

PARTS = 28  # of the training
MEASURED = (0, 1, 2, 4, 8, 14, 20)  # after so many of them, and at the end
BATCH = 64  # windows that a gradient is computed on, as many as in a step of training

Gradient = Mapping[str, Tensor]
"""Of the mean cross-entropy, by parameter."""


def batch_settings(point: Point, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """The budget of the size, and where the settings do not say it, how many windows a gradient is computed on."""
    batch = {} if settings["batch"] else {"batch": BATCH if point.factors["size"] != "toy" else BATCH // 4}
    return {**budget_of(point, settings), **batch}


def steps_per_part(settings: Mapping[str, Any]) -> int:
    """Of PARTS, into which the training is divided."""
    return max(1, steps_of(settings) // PARTS)


def at_steps(
    ctx: Context, arm: Arm, size: str, lr: float, chosen: Iterable[int], look: Callable[[Any, Ids], list[Row]]
) -> list[Row]:
    """Train an arm, and look at it after these steps and at the end: `look(model, windows of held-out text)`."""
    steps, after = steps_of(ctx.settings), set(chosen)
    rows = []
    with TemporaryDirectory(dir=ctx.scratch) as folder:
        every = math.gcd(*after)
        trained = train_arm(ctx, arm, size, lr, Path(folder) / "run", checkpoint_every=every, keep=steps)
        windows = text_to_score(ctx, ctx.settings["validation"], trained.tokenizer).windows
        for step in sorted({min(step, steps) for step in after} | {steps}):
            found = look(model_after(step, trained).to(torch.device(ctx.device)).eval(), windows)
            rows += [Row({"step": step, **row.factors}, row.metrics) for row in found]
            ctx.progress(TRAINING + (1 - TRAINING) * step / steps)
    return rows


def evenly(windows: Ids, most: int) -> Ids:
    """At most that many, an even number, spread over all."""
    count = min(len(windows), most) // 2 * 2
    return windows[np.arange(count) * len(windows) // max(1, count)]


def model_after(step: int, trained: TrainedArm) -> Any:
    """The model at a checkpoint; at step 0, the one that training began with."""
    if step:
        return load_model(trained.summary.out / "checkpoints" / checkpoint_name(step))[0]
    run, tokenizer = trained.summary.settings, load_tokenizer(trained.tokenizer)
    seed_everything(run["seed"])
    return build_model(run["preset"], len(tokenizer), tokenizer.eos_token_id, run["overrides"], length=run["length"])


def compare_gradients(model: Any, windows: Ids) -> list[Row]:
    """Rows for all parameters, for each kind of them and for each block."""
    kinds: tuple[TopkGrad, TopkGrad] = ("ste", "masked")
    halves = {kind: [gradient(model, windows[half::2], kind) for half in (0, 1)] for kind in kinds}
    ste, true = ({name: (a[name] + b[name]) / 2 for name in a} for a, b in halves.values())
    nats, usage = score(model, windows)
    whole = comparison(ste, true) | {"nats": cross_entropy(float(nats.mean()))}
    # How much of a gradient is the text it was computed on: no comparison can be closer than that.
    whole |= {f"{kind}_cosine_of_halves": number(cosine(*of_kind)) for kind, of_kind in halves.items()}
    whole |= usage_metrics(usage) if usage is not None else {}
    rows = [Row({"part": "all"}, whole)]
    for part, names in parts_of(ste).items():
        rows.append(Row({"part": part}, comparison({n: ste[n] for n in names}, {n: true[n] for n in names})))
    return rows


def gradient(model: Any, windows: Ids, topk_grad: TopkGrad) -> Gradient:
    """Of the mean cross-entropy of windows [N, T+1], in the model's own precision; top-k's gradient is as named."""
    at_once = max(1, SCORED_AT_ONCE // windows.shape[1])
    model.zero_grad(set_to_none=True)
    try:
        with configured(model, topk_grad=topk_grad):
            for start in range(0, len(windows), at_once):
                ids = torch.from_numpy(windows[start : start + at_once]).to(model.device)
                output = model(input_ids=ids[:, :-1], shift_labels=ids[:, 1:], use_cache=False, skip_logits=True)
                (output.cross_entropy * (len(ids) / len(windows))).backward()
        return {name: p.grad.detach().clone() for name, p in model.named_parameters() if p.grad is not None}
    finally:
        model.zero_grad(set_to_none=True)


@contextmanager
def configured(model: Any, **fields: Any) -> Iterator[None]:
    """Other values in the config that the blocks read."""
    configs = list({id(m.config): m.config for m in model.modules() if isinstance(m, Block)}.values())
    before = [{name: getattr(config, name) for name in fields} for config in configs]
    try:
        for config in configs:
            config.update(fields)
        yield
    finally:
        for config, values in zip(configs, before, strict=True):
            config.update(values)


def comparison(ste: Gradient, true: Gradient) -> dict[str, Metric]:
    return {
        "cosine": number(cosine(ste, true)),
        "norm_ratio": number(length(ste) / length(true) if length(true) else float("nan")),
        "true_norm": number(length(true)),
    }


def cosine(one: Gradient, other: Gradient) -> float:
    """NaN if either is 0."""
    dot = sum(float((one[name].double() * other[name].double()).sum()) for name in one)
    norms = length(one) * length(other)
    return dot / norms if norms else float("nan")


def length(of: Gradient) -> float:
    return math.sqrt(sum(float(g.double().square().sum()) for g in of.values()))


def parts_of(names: Iterable[str]) -> dict[str, list[str]]:
    """Parameters of one kind in all blocks (the embedding is the head, too), and those of each block.

    >>> parts_of(["model.layers.0.ffn.W_up.weight"])
    {'W_up': ['model.layers.0.ffn.W_up.weight'], 'block_0': ['model.layers.0.ffn.W_up.weight']}
    """
    kinds: dict[str, list[str]] = {}
    blocks: dict[str, list[str]] = {}
    for name in names:
        matrix = name.removesuffix(".weight").rpartition(".")[2]
        kind = "embedding" if "embed" in name else matrix if matrix.startswith("W_") else "norms"
        kinds.setdefault(kind, []).append(name)
        if found := re.search(r"\.layers\.(\d+)\.", name):
            blocks.setdefault(f"block_{found[1]}", []).append(name)
    return kinds | blocks
