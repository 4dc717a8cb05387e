"""The traces' kernels as operators that autograd and torch.compile know: memory, sizes of tiles, launches."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from ematrace.traces.triton_kernels import backward_kernel, forward_kernel, unit_kernel

FORWARD_STEPS = 8  # of a tile
FORWARD_DEPTH = 4  # tiles, of which all but one are on their way: 81% of a copy's speed on an H200; with 3 or 6 72%
BACKWARD_STEPS = 16  # of a tile: more would not fit into registers, and 8 are slower
UNROLLED_RATES = 4  # up to so many rates a tile has all its steps; with more it has fewer, or compiling takes minutes
CHANNELS = 64  # of a program, which is one warp: 128 bytes of bfloat16 a load
INTERPRETED = not isinstance(forward_kernel, triton.JITFunction)  # by TRITON_INTERPRET=1, for tests without a GPU


def check(x: Tensor) -> None:
    if x.dtype == torch.float64:
        raise ValueError("backend 'triton' computes in float32, use 'chunked' for float64")
    if not x.is_cuda and not INTERPRETED:
        raise ValueError(f"backend 'triton' needs tensors on a GPU, got x on {x.device}")


def ema_triton(x: Tensor, rates: Tensor, state: Tensor | None, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor]:
    traces, last, _, _ = ema_scan(x, rates, state, cu_seqlens, _learned(rates), False)
    return traces, last


def ema_triton_beside(
    x: Tensor, rates: Tensor, state: Tensor | None, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor]:
    """[h_1; ...; h_A; x; h_A / |h_A|] of each step side by side, [B, T, (A + 2) D], and the last state."""
    columns, last, _, _ = ema_scan(x, rates, state, cu_seqlens, _learned(rates), True)
    return columns.permute(1, 2, 0, 3).flatten(-2), last


def _learned(rates: Tensor) -> bool:
    return rates.requires_grad and torch.is_grad_enabled()


def _steps(A: int, of_few: int) -> int:
    """Of a tile: about as much unrolled code for many rates as for few."""
    times: int = triton.next_power_of_2(triton.cdiv(A, UNROLLED_RATES))
    return max(2, of_few // times)


def _blocks(A: int, D: int, steps: int) -> dict[str, int]:
    return {"D": D, "A": A, "STEPS": steps, "BLOCK_D": min(triton.next_power_of_2(D), CHANNELS), "num_warps": 1}


def _count(x: Tensor, cu_seqlens: Tensor | None) -> int:
    return x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1


def _channels_last(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


@torch.library.custom_op("ematrace::ema_scan", mutates_args=())
def ema_scan(
    x: Tensor,
    rates: Tensor,
    state: Tensor | None,
    cu_seqlens: Tensor | None,
    keep_tile_states: bool,
    beside: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Traces, last state, the states before each tile, which only the gradient of the rates needs, and lengths.

    With `beside`, x and the last trace divided by its length follow the traces as if they were two more.
    """
    traces, last, tile_states, lengths = _empty_outputs(x, rates, state, cu_seqlens, keep_tile_states, beside)
    x = _channels_last(x)
    (B, T, D), N, A = x.shape, _count(x, cu_seqlens), rates.shape[0]
    steps = _steps(A, BACKWARD_STEPS if keep_tile_states else FORWARD_STEPS)
    blocks, wide = _blocks(A, D, steps), rates.double().expand(A, D)
    with torch.cuda.device_of(x):
        forward_kernel[(N * triton.cdiv(D, blocks["BLOCK_D"]),)](
            x, wide, None if state is None else state.contiguous(),
            None if cu_seqlens is None else cu_seqlens.contiguous(), traces, last, tile_states,
            N, T, tile_states.shape[1], *wide.stride(), x.stride(0), X_STRIDE_T=x.stride(1), **blocks,
            HAS_STATE=state is not None, SHARED=rates.shape[1] == 1, PACKED=cu_seqlens is not None,
            KEEP_TILE_STATES=keep_tile_states, BESIDE=2 if beside else 0, DEPTH=FORWARD_DEPTH,
        )  # fmt: skip
        if beside:
            unit_kernel[(B * T,)](
                traces[A - 1], traces[A + 1], lengths, ROW=(A + 2) * D, D=D, BLOCK_D=triton.next_power_of_2(D)
            )
    return traces, last, tile_states, lengths


@ema_scan.register_fake
def _empty_outputs(
    x: Tensor,
    rates: Tensor,
    state: Tensor | None,
    cu_seqlens: Tensor | None,
    keep_tile_states: bool,
    beside: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    (A, _), (B, T, D), N = rates.shape, x.shape, _count(x, cu_seqlens)
    # The traces of a step lie side by side in memory: what reads all of them, as a matrix product does, copies nothing.
    traces = x.new_empty(B, T, A + 2 if beside else A, D).permute(2, 0, 1, 3)
    last = x.new_empty(A, N, D, dtype=torch.float32)
    # With s steps a tile, sequence n has its tiles from row (its first step) // s + n s on, then one for each step
    # that is left over.
    steps = _steps(A, BACKWARD_STEPS)
    tile_rows = B * T // steps + N * steps if keep_tile_states else 0
    tile_states = x.new_zeros(A, tile_rows, D, dtype=torch.float32)
    return traces, last, tile_states, x.new_empty((B, T, 1) if beside else (0,), dtype=torch.float32)


@torch.library.custom_op("ematrace::ema_scan_backward", mutates_args=())
def ema_scan_backward(
    grad_traces: Tensor,
    grad_slow: Tensor | None,
    grad_last: Tensor,
    rates: Tensor,
    cu_seqlens: Tensor | None,
    x: Tensor | None,
    tile_states: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, state and rates; the last one only when x and the tile states are given.

    grad_slow [B, T, D], if given, takes the place of the last of grad_traces [A, B, T, D].
    """
    A, _B, T, D = grad_traces.shape
    grad_x, grad_state, _ = _empty_gradients(grad_traces, grad_slow, grad_last, rates, cu_seqlens, x, tile_states)
    grad_traces, x = _channels_last(grad_traces), None if x is None else _channels_last(x)
    N, shared = grad_last.shape[1], rates.shape[1] == 1
    by_sequence = grad_last.new_empty(A, N, D, dtype=torch.float32) if x is not None else None
    blocks, wide = _blocks(A, D, _steps(A, BACKWARD_STEPS)), rates.double().expand(A, D)
    with torch.cuda.device_of(grad_traces):
        backward_kernel[(N * triton.cdiv(D, blocks["BLOCK_D"]),)](
            grad_traces, None if grad_slow is None else grad_slow.contiguous(), grad_last.contiguous(), wide,
            None if cu_seqlens is None else cu_seqlens.contiguous(), x, tile_states,
            grad_x, grad_state, by_sequence,
            N, T, 0 if tile_states is None else tile_states.shape[1], *wide.stride(),
            *grad_traces.stride()[:2], 0 if x is None else x.stride(0),
            GRAD_STRIDE_T=grad_traces.stride(2), X_STRIDE_T=0 if x is None else x.stride(1), **blocks,
            SHARED=shared, PACKED=cu_seqlens is not None, GRAD_RATES=x is not None, HAS_SLOW=grad_slow is not None,
        )  # fmt: skip
    if by_sequence is None:
        return grad_x, grad_state, rates.new_empty(0)
    grad_rates = by_sequence.sum(1, dtype=rates.dtype)
    return grad_x, grad_state, grad_rates.sum(1, keepdim=True) if shared else grad_rates


@ema_scan_backward.register_fake
def _empty_gradients(
    grad_traces: Tensor,
    grad_slow: Tensor | None,
    grad_last: Tensor,
    rates: Tensor,
    cu_seqlens: Tensor | None,
    x: Tensor | None,
    tile_states: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    grad_x = grad_traces.new_empty(grad_traces.shape[1:])
    grad_state = grad_last.new_empty(grad_last.shape, dtype=torch.float32)
    return grad_x, grad_state, rates.new_empty(rates.shape if x is not None else (0,))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    x, rates, state, cu_seqlens, keep_tile_states, beside = inputs
    traces, _, tile_states, lengths = output
    ctx.has_state = state is not None
    # Without learned rates and what stands beside the traces nothing of the size of x has to be kept.
    ctx.save_for_backward(
        rates, cu_seqlens, *((x, tile_states) if keep_tile_states else (None, None)),
        *((traces, lengths) if beside else (None, None)),
    )  # fmt: skip


def _backward(ctx: Any, grad: Tensor, grad_last: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    rates, cu_seqlens, x, tile_states, traces, lengths = ctx.saved_tensors
    A = rates.shape[0]
    grad_slow = None
    if traces is not None:
        unit, grad_unit = traces[A + 1].float(), grad[A + 1].float()
        across = grad_unit - unit * (unit * grad_unit).sum(-1, keepdim=True)  # along h its length does not change
        grad_slow = (grad[A - 1] + across / lengths.masked_fill(lengths == 0, torch.inf)).to(grad.dtype)
    grad_x, grad_state, grad_rates = ema_scan_backward(
        grad[:A], grad_slow, grad_last, rates, cu_seqlens, x, tile_states
    )
    if traces is not None:
        grad_x = grad_x + grad[A]
    return grad_x, None if x is None else grad_rates, grad_state if ctx.has_state else None, None, None, None


ema_scan.register_autograd(_backward, setup_context=_save)
