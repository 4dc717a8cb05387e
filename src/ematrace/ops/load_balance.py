"""The load-balance loss of the Switch transformer (Fedus et al. 2022, Eq. 4), for units that a top-k keeps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def load_balance_loss(u: Tensor, z: Tensor, mask: Tensor | None = None) -> Tensor:
    """n sum_i f_i P_i over n units: f_i unit i's share of all that are kept, P_i its mean probability softmax(u)_i.

    u [..., n] is what the units compete with, z [..., n] what top-k left of them, mask [...] False at padding. It is 1
    when all units are used alike. The counts f carry no gradient; the probabilities do, and theirs is bounded. With a
    unit's share of the summed activation in the place of P the loss would not depend on the activations' scale, and its
    gradient would grow without bound as they shrink: tried, it drowned the language model's own.
    """
    u, z = u.flatten(0, -2), z.detach().flatten(0, -2)
    exact = torch.float64 if u.dtype == torch.float64 else torch.float32
    weight = u.new_ones(u.shape[0], 1, dtype=exact) if mask is None else mask.reshape(-1, 1).to(exact)
    with torch.autocast(u.device.type, enabled=False):
        kept = ((z != 0) * weight).sum(0)
        f = kept / kept.sum().clamp(min=1)
        share = _WeightedProbability.apply(u, f, weight / weight.sum().clamp(min=1))  # type: ignore[no-untyped-call]
        loss: Tensor = u.shape[-1] * share
        return loss


class _WeightedProbability(torch.autograd.Function):
    """sum_t w_t sum_i f_i softmax(u_t)_i, keeping u alone: the float32 probabilities would be a block's largest tensor.

    Sums of products rather than matrix products, so that the compiler makes one pass over u of it.
    """

    @staticmethod
    def forward(ctx: Any, u: Tensor, f: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(u, f, weight)
        p = u.to(f.dtype).softmax(-1)
        return ((p * f).sum(-1, keepdim=True) * weight).sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        u, f, weight = ctx.saved_tensors
        p = u.to(f.dtype).softmax(-1)
        return (grad * weight * p * (f - (p * f).sum(-1, keepdim=True))).to(u.dtype), None, None
