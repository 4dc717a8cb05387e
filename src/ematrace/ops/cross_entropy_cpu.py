"""Softmax, its loss and its gradient for a slice of logits on CPUs: three passes over a row, which stays in cache.

Plain torch makes five over the whole slice, two of which only convert. The gradient overwrites the logits.

A thread computes each of its rows as it would alone: results do not depend on the number of threads.
"""

# mypy: disallow-untyped-decorators=false, disallow-untyped-calls=false
from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ematrace.jit import SUMS, compiled, inlined
from ematrace.ops.topk_cpu import exp, number, place
from ematrace.workers import split

_compile = compiled(fastmath=SUMS)
_inline = inlined(fastmath=SUMS)

LEAST = 2**18
"""Numbers in a thread's part at least: less is done sooner than a thread is started."""


def softmax_loss(
    logits: Tensor, targets: Tensor, vocabulary: int, ignore_index: int, needs_gradient: bool
) -> tuple[Tensor, Tensor]:
    """Summed loss; the logits, of which the first `vocabulary` columns count, become the gradient if one is needed."""
    y = targets.contiguous().numpy()
    counted = y != ignore_index
    if (counted & ((y < 0) | (y >= vocabulary))).any():
        raise IndexError(f"a target is outside of the vocabulary of {vocabulary}")
    narrow = logits.dtype == torch.bfloat16
    exact = logits.contiguous() if narrow else logits.float().contiguous()  # numba knows neither narrow dtype
    rows = exact.view(torch.uint16 if narrow else torch.uint32).numpy()
    losses = np.zeros(len(y))

    def of_rows(first: int, end: int) -> None:
        e = np.empty(vocabulary, np.float32)
        softmax_rows(rows, y, counted, vocabulary, needs_gradient, e, losses, first, end)

    split(of_rows, len(y), -(-LEAST // vocabulary))
    return torch.tensor(losses.sum(), dtype=torch.float32), exact.to(logits.dtype)


@_compile
def softmax_rows(rows, targets, counted, vocabulary, needs_gradient, e, losses, first, end):  # type: ignore[no-untyped-def]
    """Each loss, and softmax - onehot in place of the row. Rows that do not count are 0; `e` is scratch."""
    shift = 32 - 8 * rows.itemsize
    for r in range(first, end):
        if counted[r]:
            most = place(widened(rows[r, 0], shift))  # as integers in their order: found several at a time
            for i in range(vocabulary):
                e[i] = widened(rows[r, i], shift)
                most = max(most, place(e[i]))
            largest = number(most)
            below = largest - e[targets[r]]
            total = np.float64(0)  # not of float32: what is added last would be rounded to the whole sum
            for i in range(vocabulary):
                e[i] = exp(e[i] - largest)
                total += e[i]
            losses[r] = np.log(total) + below
            if needs_gradient:
                scale = np.float32(1.0 / total)
                for i in range(vocabulary):
                    rows[r, i] = narrowed(e[i] * scale, shift)
                at_target = np.float32(np.expm1(-losses[r]))  # p - 1 would be 0 where p is nearly 1
                rows[r, targets[r]] = narrowed(at_target, shift)
        if needs_gradient:
            for i in range(vocabulary if counted[r] else 0, rows.shape[1]):
                rows[r, i] = 0


@_inline
def widened(bits, shift):  # type: ignore[no-untyped-def]
    """The float32 with these upper bits: all 32, or the 16 of a bfloat16."""
    return np.uint32(np.uint32(bits) << shift).view(np.float32)


@_inline
def narrowed(x, shift):  # type: ignore[no-untyped-def]
    """Its upper bits, rounded to nearest, ties to even."""
    bits = np.float32(x).view(np.uint32)
    odd = (bits >> shift) & 1
    half = np.uint32(bits + (odd + 0x7FFF if shift > 0 else 0))
    return half >> shift
