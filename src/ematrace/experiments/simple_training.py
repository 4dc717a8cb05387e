"""A loop of training in a few lines of torch, beside `ematrace.train`: no checkpoints, no compiler, no text.

For what is to be independent of that, and for batches that are made as they are read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from ematrace.experiments.base import Context
from ematrace.experiments.gap_task import TRAINING
from ematrace.train.run import NonFiniteLoss

Losses = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Of ids [B, T+1]: what training minimises, and the cross-entropy alone."""


def minimise(
    ctx: Context, model: nn.Module, losses: Losses, batches: Iterable[Tensor], steps: int, warmup: int, lr: float
) -> list[float]:
    """AdamW with the settings of the plan, for as many steps. The cross-entropy of each."""
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))
    warmup = min(warmup, steps // 10)
    curve: list[Tensor] = []
    for step, ids in zip(range(1, steps + 1), batches, strict=False):
        for group in optimiser.param_groups:
            group["lr"] = rate(step, steps, warmup, lr)
        loss, cross_entropy = losses(ids)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        curve.append(cross_entropy.detach())
        if step % 64 == 0:
            ctx.progress(TRAINING * step / steps)
    found = torch.stack(curve).cpu()
    if not found.isfinite().all():
        raise NonFiniteLoss("the loss is not finite")
    return [float(nats) for nats in found]


def rate(step: int, steps: int, warmup: int, peak: float) -> float:
    """A line up to the peak, then a cosine down to a tenth of it at the last step.

    >>> [round(rate(step, steps=100, warmup=10, peak=1.0), 2) for step in (5, 10, 55, 100)]
    [0.5, 1.0, 0.55, 0.1]
    """
    if step <= warmup:
        return peak * step / warmup
    return peak * (0.55 + 0.45 * math.cos(math.pi * (step - warmup) / (steps - warmup)))
