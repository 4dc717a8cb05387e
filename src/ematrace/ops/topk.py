"""GELU followed by top-k: the k largest values of each row stay, everything else is zero.

Exactly k are kept, by value (not by magnitude), ties go to the lowest index, and NaN ranks with +infinity, so that a
broken input stays visible. The ranking is of the GELU's output in the input's dtype, and the same on every backend.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

TopkGrad = Literal["ste", "masked"]


def gelu_topk(u: Tensor, k: int, grad: TopkGrad = "ste") -> Tensor:
    """Top-k of GELU(u) over the last dimension.

    `grad="ste"` is the straight-through estimator: the gradient passes the selection as if it were not there and
    reaches all units. `grad="masked"` is the true gradient: only units that are kept (and are not 0) receive any.

    >>> gelu_topk(torch.tensor([1.0, 3.0, 2.0, 3.0]), k=2)
    tensor([0.0000, 2.9959, 0.0000, 2.9959])
    """
    if not 1 <= k <= u.shape[-1]:
        raise ValueError(f"k must lie between 1 and the number of units, {u.shape[-1]}; got {k}")
    if grad not in ("ste", "masked"):
        raise ValueError(f"grad must be 'ste' or 'masked', got {grad!r}")
    z: Tensor = _gelu_topk(u, k, grad == "ste")
    return z


def topk_mask(z: Tensor, k: int) -> Tensor:
    """True for the k largest of each row; ties go to the lowest index, NaN counts as +infinity."""
    z = torch.nan_to_num(z, nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
    kth = z.topk(k, dim=-1).values[..., -1:]
    above, tied = z > kth, z == kth
    room = k - above.sum(-1, keepdim=True)
    return above | (tied & (tied.cumsum(-1) <= room))


@torch.library.custom_op("ematrace::gelu_topk", mutates_args=())
def _gelu_topk(u: Tensor, k: int, straight_through: bool) -> Tensor:
    if u.is_cuda and u.dtype != torch.float64 and _triton_is_there():
        from ematrace.ops.topk_triton import gelu_topk_forward

        return gelu_topk_forward(u, k)
    z = F.gelu(u.contiguous())
    return torch.where(topk_mask(z, k), z, 0.0)


@_gelu_topk.register_fake
def _(u: Tensor, k: int, straight_through: bool) -> Tensor:
    return torch.empty_like(u, memory_format=torch.contiguous_format)


def _setup_context(ctx: Any, inputs: tuple[Tensor, int, bool], output: Tensor) -> None:
    u, _, straight_through = inputs
    ctx.straight_through = straight_through
    ctx.save_for_backward(u, *(() if straight_through else (output,)))


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    u, *kept = ctx.saved_tensors
    grad_u = torch.ops.aten.gelu_backward(grad, u)
    return (grad_u if ctx.straight_through else torch.where(kept[0] != 0, grad_u, 0.0)), None, None


_gelu_topk.register_autograd(_backward, setup_context=_setup_context)


def _triton_is_there() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True
