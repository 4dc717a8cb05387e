"""Traces, their input and the direction of the slowest trace as columns of one matrix, ready for one matmul."""

from __future__ import annotations

import torch
from torch import Tensor

from ematrace.kernels import gpu_kernels_are_on
from ematrace.traces.arguments import Alphas, checked
from ematrace.traces.operator import no_autocast


def can_fuse_columns(x: Tensor) -> bool:
    """Whether there is a kernel for it: concatenated from parts, the columns would be copied once more."""
    return x.is_cuda and x.dtype != torch.float64 and gpu_kernels_are_on()


def fused_columns(
    x: Tensor, alphas: Alphas, state: Tensor | None = None, cu_seqlens: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """[h_1; ...; h_A; x; h_A / |h_A|], [B, T, (A + 2) D], with h = ema_traces(x, ...), and the state after it.

    x [B, T, D] not in float64; 0 / |0| is 0.
    """
    from ematrace.traces import triton_scan

    rates, state, _ = checked(x, alphas, state, cu_seqlens)
    with no_autocast(x):
        return triton_scan.ema_triton_beside(x, rates, state, cu_seqlens)
