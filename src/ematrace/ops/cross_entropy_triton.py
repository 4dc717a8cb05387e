"""Softmax, its loss and its gradient for a slice of logits: one program per row, the gradient overwrites the logits.

The row stays in registers between the passes over it, in 13 tiles for GPT-2's 50,257 words: read again from memory it
would cost as much as the first time, since the rows at work at a time are more than the L2 holds.
"""

# ruff: noqa: RUF005 - Triton compiles the concatenation of tuples, not their unpacking
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILES = 16  # of 8 logits a thread: no more fit into registers
LARGEST = TILES * 8192
"""Vocabulary up to which a row fits."""
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _softmax_loss_kernel(
    logits_ptr, targets_ptr, loss_ptr, row_stride, ignore_index,
    VOCABULARY: tl.constexpr, WIDTH: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * row_stride
    target = tl.load(targets_ptr + row)
    counted = target != ignore_index
    valid = (target >= 0) & (target < VOCABULARY)  # another target shows as NaN, instead of reading foreign memory
    at_target = tl.load(logits_ptr + target, mask=valid, other=float("nan")).to(tl.float32)
    column = tl.arange(0, BLOCK)

    x = ()
    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    for i in tl.static_range(TILES):
        if (i + 1) * BLOCK <= VOCABULARY:
            x = x + (tl.load(logits_ptr + i * BLOCK + column),)
        else:
            inside = i * BLOCK + column < VOCABULARY
            x = x + (tl.load(logits_ptr + i * BLOCK + column, mask=inside, other=float("-inf")),)
        largest = tl.maximum(largest, x[i].to(tl.float32))
    most = tl.max(largest)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(TILES):
        total += tl.exp2((x[i].to(tl.float32) - most) * LOG2_E)
    log_sum = most + tl.log(tl.sum(total))
    tl.store(loss_ptr + row, tl.where(counted, log_sum - at_target, 0.0))

    if GRADIENT:  # softmax - onehot, and 0 in an ignored row, whatever its logits
        for i in tl.static_range(TILES):
            grad = tl.where(counted, tl.exp2((x[i].to(tl.float32) - log_sum) * LOG2_E), 0.0)
            grad = grad.to(logits_ptr.dtype.element_ty)
            if (i + 1) * BLOCK <= WIDTH:
                tl.store(logits_ptr + i * BLOCK + column, grad)
            else:
                tl.store(logits_ptr + i * BLOCK + column, grad, mask=i * BLOCK + column < WIDTH)
        tl.debug_barrier()  # the whole row is written before its target is written again
        at_target = tl.exp2((at_target - log_sum) * LOG2_E) - 1.0
        tl.store(logits_ptr + target, at_target.to(logits_ptr.dtype.element_ty), mask=counted & valid)


def softmax_loss(
    logits: Tensor, targets: Tensor, vocabulary: int, ignore_index: int, needs_gradient: bool
) -> tuple[Tensor, Tensor]:
    """Summed loss; the logits, of which the first `vocabulary` columns count, become the gradient if one is needed."""
    losses = torch.empty(len(logits), device=logits.device, dtype=torch.float32)
    width = logits.shape[1]
    block = max(min(triton.next_power_of_2(triton.cdiv(width, TILES)), 8192), 256)
    if len(logits):
        _softmax_loss_kernel[(len(logits),)](
            logits, targets, losses, logits.stride(0), ignore_index, VOCABULARY=vocabulary, WIDTH=width,
            TILES=triton.cdiv(width, block), BLOCK=block, GRADIENT=needs_gradient, num_warps=block // 256,
        )  # fmt: skip
    return losses.sum(), logits
