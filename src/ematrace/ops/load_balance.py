"""The load-balance loss of the Switch transformer (Fedus et al. 2022, Eq. 4), for units that a top-k keeps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ematrace.ops.topk import TopkGrad, _gelu_topk, _gelu_topk_backward, _weighted_probability, check_topk, kept_weight


def load_balance_loss(u: Tensor, z: Tensor, mask: Tensor | None = None) -> Tensor:
    """n sum_i f_i P_i over n units: f_i unit i's share of all that are kept, P_i its mean probability softmax(u)_i.

    u [..., n] is what the units compete with, z [..., n] what top-k left of them, mask [...] False at padding. It is 1
    when all units are used alike. The counts f carry no gradient; the probabilities do, and theirs is bounded. With a
    unit's share of the summed activation in the place of P the loss would not depend on the activations' scale, and its
    gradient would grow without bound as they shrink: tried, it drowned the language model's own.

    >>> import torch
    >>> u = torch.tensor([[2.0, 1.0, 0.0, 0.0], [0.0, 0.0, 2.0, 1.0]])
    >>> load_balance_loss(u, gelu_topk(u, k=2))  # all four units are used alike
    tensor(1.0000)
    >>> load_balance_loss(u[:1], gelu_topk(u[:1], k=2))  # two of them never
    tensor(1.6696)
    """
    u, z = u.flatten(0, -2), z.detach().flatten(0, -2)
    exact = torch.float64 if u.dtype == torch.float64 else torch.float32
    with torch.autocast(u.device.type, enabled=False):
        weight = _weights(u, mask)
        share = (u.to(exact).softmax(-1) * _kept_shares(z, weight)).sum(-1, keepdim=True)
        return u.shape[-1] * (share * weight).sum()


def gelu_topk_balanced(u: Tensor, k: int, grad: TopkGrad = "ste", mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`gelu_topk(u, k, grad)` and the `load_balance_loss` of it, with one gradient pass over u for both.

    >>> import torch
    >>> z, loss = gelu_topk_balanced(torch.tensor([[2.0, 1.0, 0.0, 0.0], [0.0, 0.0, 2.0, 1.0]]), k=2)
    >>> z
    tensor([[1.9545, 0.8413, 0.0000, 0.0000],
            [0.0000, 0.0000, 1.9545, 0.8413]])
    >>> loss
    tensor(1.0000)
    """
    check_topk(u, k, grad)
    with torch.autocast(u.device.type, enabled=False):
        flat = u.flatten(0, -2)
        z, loss = _BalancedTopk.apply(flat, k, grad == "ste", _weights(flat, mask))  # type: ignore[no-untyped-call]
        return z.view(u.shape), loss


def _weights(u: Tensor, mask: Tensor | None) -> Tensor:
    """What each row counts, [rows, 1], 1 in all."""
    exact = torch.float64 if u.dtype == torch.float64 else torch.float32
    weight = u.new_ones(u.shape[0], 1, dtype=exact) if mask is None else mask.reshape(-1, 1).to(exact)
    return weight / weight.sum().clamp(min=1)


def _kept_shares(z: Tensor, weight: Tensor) -> Tensor:
    kept = kept_weight(z, weight)
    return kept / torch.where(kept.sum() > 0, kept.sum(), 1.0)


class _BalancedTopk(torch.autograd.Function):
    """Keeps u and numbers for each row: probabilities in float32 would be a block's largest tensor."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, k: int, straight_through: bool, weight: Tensor) -> tuple[Tensor, Tensor]:
        z, log_sum = _gelu_topk(u, k, straight_through, True)
        f = _kept_shares(z, weight)
        share = _weighted_probability(u, log_sum, f)
        ctx.save_for_backward(u, f, weight, log_sum, share, *(() if straight_through else (z,)))
        return z, u.shape[-1] * (share * weight).sum()

    @staticmethod
    def backward(ctx: Any, grad_z: Tensor, grad_loss: Tensor) -> tuple[Tensor, None, None, None]:
        u, f, weight, log_sum, share, *kept = ctx.saved_tensors
        factor = u.shape[-1] * grad_loss * weight
        z = kept[0] if kept else None
        return _gelu_topk_backward(grad_z, u, z, factor, log_sum, share, f), None, None, None
