"""Softmax, its loss and its gradient for a slice of logits: one program per row, the gradient overwrites the logits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _softmax_loss_kernel(
    logits_ptr,
    targets_ptr,
    loss_ptr,
    row_stride,
    vocabulary,
    width,
    ignore_index,
    BLOCK: tl.constexpr,
    GRADIENT: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * row_stride
    target = tl.load(targets_ptr + row)
    counted = target != ignore_index
    column = tl.arange(0, BLOCK)

    largest = tl.full((), float("-inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    for start in range(0, vocabulary, BLOCK):
        x = tl.load(logits_ptr + start + column, mask=start + column < vocabulary, other=float("-inf")).to(tl.float32)
        larger = tl.maximum(largest, tl.max(x))
        total = total * tl.exp(largest - larger) + tl.sum(tl.exp(x - larger))
        largest = larger
    log_sum = largest + tl.log(total)
    valid = (target >= 0) & (target < vocabulary)  # another target shows as NaN, instead of reading foreign memory
    at_target = tl.load(logits_ptr + target, mask=valid, other=float("nan")).to(tl.float32)
    tl.store(loss_ptr + row, tl.where(counted, log_sum - at_target, 0.0))

    if GRADIENT:
        tl.debug_barrier()  # every lane has read the target's logit before it is written over
        for start in range(0, width, BLOCK):
            inside = start + column < width
            real = start + column < vocabulary
            x = tl.load(logits_ptr + start + column, mask=real, other=float("-inf")).to(tl.float32)
            grad = tl.exp(x - log_sum) - tl.where(start + column == target, 1.0, 0.0)
            grad = tl.where(real & counted, grad, 0.0)
            tl.store(logits_ptr + start + column, grad.to(logits_ptr.dtype.element_ty), mask=inside)


def softmax_loss(
    logits: Tensor, targets: Tensor, vocabulary: int, ignore_index: int, needs_gradient: bool
) -> tuple[Tensor, Tensor]:
    """Summed loss; the logits, of which the first `vocabulary` columns count, become the gradient if one is needed."""
    losses = torch.empty(len(logits), device=logits.device, dtype=torch.float32)
    if len(logits):
        _softmax_loss_kernel[(len(logits),)](
            logits, targets, losses, logits.stride(0), vocabulary, logits.shape[1], ignore_index,
            BLOCK=4096, GRADIENT=needs_gradient, num_warps=8,
        )  # fmt: skip
    return losses.sum(), logits
