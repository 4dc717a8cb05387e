"""GELU followed by top-k: the k largest values of each row stay, everything else is zero.

Exactly k are kept, by value (not by magnitude), and ties go to the lowest index. GELU rises from 0 on, so units with
u >= 0 rank by u itself: in GELU's order, but with nothing lost to rounding, and the same on every backend; below 0 they
rank by GELU(u), computed in float32 at least. Units whose input is not finite rank first, so that they stay visible.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ematrace.kernels import cpu_kernels_are_on, gpu_kernels_are_on

TopkGrad = Literal["ste", "masked"]
NARROW = (torch.float16, torch.bfloat16, torch.float32)
WIDEST = 2**24  # units, which the CPU kernel counts in float32


def gelu_topk(u: Tensor, k: int, grad: TopkGrad = "ste") -> Tensor:
    """Top-k of GELU(u) over the last dimension.

    `grad="ste"` is the straight-through estimator: the gradient passes the selection as if it were not there and
    reaches all units. `grad="masked"` is the true gradient: only units that are kept (and are not 0) receive any.

    >>> import torch
    >>> gelu_topk(torch.tensor([1.0, 3.0, 2.0, 3.0]), k=2)
    tensor([0.0000, 2.9959, 0.0000, 2.9959])
    """
    check_topk(u, k, grad)
    return _gelu_topk(u, k, grad == "ste", False)[0]  # type: ignore[no-any-return]


def check_topk(u: Tensor, k: int, grad: str) -> None:
    if not 1 <= k <= u.shape[-1]:
        raise ValueError(f"k must lie between 1 and the number of units, {u.shape[-1]}; got {k}")
    if grad not in ("ste", "masked"):
        raise ValueError(f"grad must be 'ste' or 'masked', got {grad!r}")


def topk_mask(z: Tensor, k: int) -> Tensor:
    """True for the k largest of each row; ties go to the lowest index, NaN counts as +infinity.

    >>> import torch
    >>> topk_mask(torch.tensor([1.0, 3.0, 2.0, 3.0, 2.0]), k=3)
    tensor([False,  True,  True,  True, False])
    """
    z = torch.nan_to_num(z, nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
    kth = z.topk(k, dim=-1).values[..., -1:]
    above, tied = z > kth, z == kth
    room = k - above.sum(-1, keepdim=True)
    return above | (tied & (tied.cumsum(-1) <= room))


def gelu_rank(u: Tensor) -> Tensor:
    """What units compete with: in the order of GELU(u), +infinity where u is not finite."""
    exact = u if u.dtype == torch.float64 else u.float()
    return torch.where(exact.isfinite(), torch.where(exact >= 0, exact, F.gelu(exact)), torch.inf)


@torch.library.custom_op("ematrace::gelu_topk", mutates_args=())
def _gelu_topk(u: Tensor, k: int, straight_through: bool, with_sum: bool) -> tuple[Tensor, Tensor]:
    """Top-k of GELU(u), and if asked for the logarithm of sum_i exp u_i, [..., 1] in float32 at least (else empty)."""
    if _on_triton(u):
        from ematrace.ops.topk_triton import gelu_topk_forward

        return gelu_topk_forward(u, k, with_sum)
    if _on_numba(u):
        from ematrace.ops.topk_cpu import gelu_topk_forward

        return gelu_topk_forward(u, k, with_sum)
    u = u.contiguous()
    exact = u if u.dtype == torch.float64 else u.float()
    log_sum = exact.logsumexp(-1, keepdim=True) if with_sum else exact.new_empty(0)
    return torch.where(topk_mask(gelu_rank(u), k), F.gelu(u), 0.0), log_sum


@_gelu_topk.register_fake
def _(u: Tensor, k: int, straight_through: bool, with_sum: bool) -> tuple[Tensor, Tensor]:
    exact = torch.float64 if u.dtype == torch.float64 else torch.float32
    log_sum = u.new_empty((*u.shape[:-1], 1) if with_sum else (0,), dtype=exact)
    return torch.empty_like(u, memory_format=torch.contiguous_format), log_sum


@torch.library.custom_op("ematrace::weighted_probability", mutates_args=())
def _weighted_probability(u: Tensor, log_sum: Tensor, f: Tensor) -> Tensor:
    """sum_i f_i exp(u_i - log_sum) of each row, [rows, 1]."""
    if _on_triton(u):
        from ematrace.ops.topk_triton import weighted_probability

        return weighted_probability(u, log_sum, f)
    if _on_numba(u):
        from ematrace.ops.topk_cpu import weighted_probability

        return weighted_probability(u, log_sum, f)
    return ((u - log_sum).exp() * f).sum(-1, keepdim=True)


@_weighted_probability.register_fake
def _(u: Tensor, log_sum: Tensor, f: Tensor) -> Tensor:
    return torch.empty_like(log_sum)


@torch.library.custom_op("ematrace::kept_weight", mutates_args=())
def _kept_weight_on_numba(z: Tensor, weight: Tensor) -> Tensor:
    from ematrace.ops.topk_cpu import kept_weight

    return kept_weight(z, weight)


@_kept_weight_on_numba.register_fake
def _(z: Tensor, weight: Tensor) -> Tensor:
    return weight.new_empty(z.shape[1])


def kept_weight(z: Tensor, weight: Tensor) -> Tensor:
    """Summed weight of the rows in which a unit is not 0, [n_units]; z [rows, n_units], weight [rows, 1]."""
    if _on_numba(z):
        return _kept_weight_on_numba(z, weight)  # type: ignore[no-any-return]
    return ((z != 0) * weight).sum(0)  # no operator of ours: torch.compile makes one kernel of it


@torch.library.custom_op("ematrace::gelu_topk_backward", mutates_args=())
def _gelu_topk_backward(
    grad: Tensor,
    u: Tensor,
    z: Tensor | None,
    factor: Tensor | None,
    log_sum: Tensor | None,
    share: Tensor | None,
    f: Tensor | None,
) -> Tensor:
    """GELU's derivative times grad, with z only where z is not 0; with the other four, plus the gradient
    factor p (f - share), p = softmax(u), of a load-balance loss."""
    balance = () if factor is None or log_sum is None or share is None or f is None else (factor, log_sum, share, f)
    if _on_triton(u):
        from ematrace.ops.topk_triton import gelu_topk_backward

        return gelu_topk_backward(grad, u, z, balance)
    if _on_numba(u) and (z is not None or balance):  # else it is one pass in plain torch, too
        from ematrace.ops.topk_cpu import gelu_topk_backward

        return gelu_topk_backward(grad, u, z, balance)
    grad_u: Tensor = torch.ops.aten.gelu_backward(grad, u).contiguous()
    if z is not None:
        grad_u = torch.where(z != 0, grad_u, 0.0)
    if balance:
        factor, log_sum, share, f = balance
        grad_u = (grad_u + factor * (u - log_sum).exp() * (f - share)).to(u.dtype)
    return grad_u


@_gelu_topk_backward.register_fake
def _(
    grad: Tensor,
    u: Tensor,
    z: Tensor | None,
    factor: Tensor | None,
    log_sum: Tensor | None,
    share: Tensor | None,
    f: Tensor | None,
) -> Tensor:
    return torch.empty_like(u, memory_format=torch.contiguous_format)


def _setup_context(ctx: Any, inputs: tuple[Tensor, int, bool, bool], output: tuple[Tensor, Tensor]) -> None:
    u, _, straight_through, _ = inputs
    ctx.straight_through = straight_through
    ctx.save_for_backward(u, *(() if straight_through else output[:1]))


def _backward(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor, None, None, None]:
    u, *kept = ctx.saved_tensors
    return _gelu_topk_backward(grad, u, kept[0] if kept else None, None, None, None, None), None, None, None


_gelu_topk.register_autograd(_backward, setup_context=_setup_context)


def _on_triton(u: Tensor) -> bool:
    return u.is_cuda and u.dtype != torch.float64 and gpu_kernels_are_on()


def _on_numba(u: Tensor) -> bool:
    return u.device.type == "cpu" and u.dtype in NARROW and u.shape[-1] <= WIDEST and cpu_kernels_are_on()
