"""The traces as one pass over memory on GPUs: x is read once for all rates, the state stays in registers in float32.

A program owns a block of channels of one sequence (dense or packed) and walks through time in tiles [A,time,channels].
Within a tile an associative scan solves h_t = (1 - a) h_{t-1} + a x_t from zero; what came before the tile enters as
(1 - a)^(i+1) h. These powers come from log2(1 - a), taken in float64: with 1 - a rounded to float32 and multiplied step
after step, the error of a slow trace would grow to 3e-8 / a.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_T = 32


@triton.jit
def _compose(keep_1, sum_1, keep_2, sum_2):
    return keep_1 * keep_2, keep_2 * sum_1 + sum_2


@triton.jit
def _load_rates(rates_ptr, stride_a, stride_d, channels, A, D, BLOCK_A: tl.constexpr):
    """a, 1 - a and log2(1 - a) as [A, 1, channels]; a stride of 0 where all channels share a rate."""
    a = tl.arange(0, BLOCK_A)[:, None, None]
    d = channels[None, None, :]
    alpha = tl.load(rates_ptr + a * stride_a + d * stride_d, mask=(a < A) & (d < D), other=0.0)
    keep = 1.0 - alpha
    log2_keep = tl.where(keep > 0, tl.log2(tl.where(keep > 0, keep, 1.0)), float("-inf"))
    return alpha.to(tl.float32), keep.to(tl.float32), log2_keep.to(tl.float32)


@triton.jit
def _bounds(cu_ptr, n, T, PACKED: tl.constexpr):
    """First and last-but-one step of sequence n, never outside x, whatever the offsets say."""
    if PACKED:
        start = tl.minimum(tl.maximum(tl.load(cu_ptr + n).to(tl.int64), 0), T)
        end = tl.minimum(tl.maximum(tl.load(cu_ptr + n + 1).to(tl.int64), start), T)
    else:
        start = n * 0
        end = start + T
    return start, end


@triton.jit
def _forward_kernel(
    x_ptr, rates_ptr, state_ptr, cu_ptr, traces_ptr, last_ptr, tile_states_ptr,
    N, T, D, rows, tile_rows, rates_stride_a, rates_stride_d, x_stride_b, x_stride_t, x_stride_d,
    A: tl.constexpr, BLOCK_A: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
    HAS_STATE: tl.constexpr, PACKED: tl.constexpr, KEEP_TILE_STATES: tl.constexpr,
):  # fmt: skip
    n = (tl.program_id(0) // tl.cdiv(D, BLOCK_D)).to(tl.int64)
    channels = tl.program_id(0) % tl.cdiv(D, BLOCK_D) * BLOCK_D + tl.arange(0, BLOCK_D)
    a = tl.arange(0, BLOCK_A).to(tl.int64)
    i = tl.arange(0, BLOCK_T)
    alpha, keep, log2_keep = _load_rates(rates_ptr, rates_stride_a, rates_stride_d, channels, A, D, BLOCK_A)
    start, end = _bounds(cu_ptr, n, T, PACKED)
    first_row = start if PACKED else n * T
    x_base = x_ptr if PACKED else x_ptr + n * x_stride_b

    mask_ad = (a < A)[:, None] & (channels < D)[None, :]
    state_at = (a[:, None] * N + n) * D + channels[None, :]
    h = tl.zeros((BLOCK_A, BLOCK_D), dtype=tl.float32)
    if HAS_STATE:
        h = tl.load(state_ptr + state_at, mask=mask_ad, other=0.0)
    entering = tl.exp2((i + 1).to(tl.float32)[None, :, None] * log2_keep)
    keep_tile = tl.broadcast_to(keep, (BLOCK_A, BLOCK_T, BLOCK_D))

    for tile in range(0, tl.cdiv(end - start, BLOCK_T)):
        if KEEP_TILE_STATES:
            tile_at = (a[:, None] * tile_rows + first_row // BLOCK_T + n + tile) * D + channels[None, :]
            tl.store(tile_states_ptr + tile_at, h, mask=mask_ad)
        t = tile * BLOCK_T + i
        mask_td = (t < end - start)[:, None] & (channels < D)[None, :]
        x_at = (start + t)[:, None] * x_stride_t + channels[None, :].to(tl.int64) * x_stride_d
        x = tl.load(x_base + x_at, mask=mask_td, other=0.0).to(tl.float32)
        _, within = tl.associative_scan((keep_tile, alpha * x[None, :, :]), 1, _compose)
        h_tile = within + entering * h[:, None, :]
        traces_at = (a[:, None, None] * rows + (first_row + t)[None, :, None]) * D + channels[None, None, :]
        mask_atd = (a < A)[:, None, None] & mask_td[None, :, :]
        tl.store(traces_ptr + traces_at, h_tile.to(traces_ptr.dtype.element_ty), mask=mask_atd)
        final = tl.minimum(BLOCK_T, end - start - tile * BLOCK_T) - 1
        h = tl.sum(tl.where((i == final)[None, :, None], h_tile, 0.0), axis=1)
    tl.store(last_ptr + state_at, h, mask=mask_ad)


@triton.jit
def _backward_kernel(
    grad_ptr, grad_last_ptr, rates_ptr, cu_ptr, x_ptr, tile_states_ptr, grad_x_ptr, grad_state_ptr, grad_rates_ptr,
    N, T, D, tile_rows, rates_stride_a, rates_stride_d,
    grad_stride_a, grad_stride_b, grad_stride_t, grad_stride_d, x_stride_b, x_stride_t, x_stride_d,
    A: tl.constexpr, BLOCK_A: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
    PACKED: tl.constexpr, GRAD_RATES: tl.constexpr,
):  # fmt: skip
    """G_t = g_t + (1 - a) G_{t+1}, then dx_t = Σ_a a G_t, da = Σ_t (x_t - h_{t-1}) G_t and dstate = (1 - a) G_0."""
    n = (tl.program_id(0) // tl.cdiv(D, BLOCK_D)).to(tl.int64)
    channels = tl.program_id(0) % tl.cdiv(D, BLOCK_D) * BLOCK_D + tl.arange(0, BLOCK_D)
    a = tl.arange(0, BLOCK_A).to(tl.int64)
    i = tl.arange(0, BLOCK_T)
    alpha, keep, log2_keep = _load_rates(rates_ptr, rates_stride_a, rates_stride_d, channels, A, D, BLOCK_A)
    start, end = _bounds(cu_ptr, n, T, PACKED)
    first_row = start if PACKED else n * T
    grad_base = grad_ptr if PACKED else grad_ptr + n * grad_stride_b

    mask_ad = (a < A)[:, None] & (channels < D)[None, :]
    state_at = (a[:, None] * N + n) * D + channels[None, :]
    grad_last = tl.load(grad_last_ptr + state_at, mask=mask_ad, other=0.0).to(tl.float32)
    G_next = tl.zeros((BLOCK_A, BLOCK_D), dtype=tl.float32)
    grad_alpha = tl.zeros((BLOCK_A, BLOCK_D), dtype=tl.float32)
    keep_tile = tl.broadcast_to(keep, (BLOCK_A, BLOCK_T, BLOCK_D))

    tiles = tl.cdiv(end - start, BLOCK_T)
    for back in range(0, tiles):
        tile = tiles - 1 - back
        t = tile * BLOCK_T + i
        size = tl.minimum(BLOCK_T, end - start - tile * BLOCK_T)
        mask_td = (t < end - start)[:, None] & (channels < D)[None, :]
        mask_atd = (a < A)[:, None, None] & mask_td[None, :, :]
        columns = channels[None, :].to(tl.int64)
        grad_at = (start + t)[:, None] * grad_stride_t + columns * grad_stride_d
        grad_at = a[:, None, None] * grad_stride_a + grad_at[None, :, :]
        g = tl.load(grad_base + grad_at, mask=mask_atd, other=0.0).to(tl.float32)
        g += tl.where((i == size - 1)[None, :, None] & (back == 0), grad_last[:, None, :], 0.0)
        _, within = tl.associative_scan((keep_tile, g), 1, _compose, reverse=True)
        # Only the last tile may be partly filled, with nothing after it: the lower bound keeps powers finite there.
        distance = tl.maximum(size - i, 1).to(tl.float32)
        G = within + tl.exp2(distance[None, :, None] * log2_keep) * G_next[:, None, :]
        G_next = tl.sum(tl.where((i == 0)[None, :, None], G, 0.0), axis=1)
        grad_x = tl.sum(alpha * G, axis=0)
        grad_x_at = (first_row + t)[:, None] * D + columns
        tl.store(grad_x_ptr + grad_x_at, grad_x.to(grad_x_ptr.dtype.element_ty), mask=mask_td)
        if GRAD_RATES:
            # h_{t-1} is computed again in float32 from the state before the tile: the stored traces are rounded to x's
            # dtype, 2^-9 in bfloat16, which the difference x_t - h_{t-1} would magnify.
            tile_at = (a[:, None] * tile_rows + first_row // BLOCK_T + n + tile) * D + channels[None, :]
            h = tl.load(tile_states_ptr + tile_at, mask=mask_ad, other=0.0)
            x_base = x_ptr if PACKED else x_ptr + n * x_stride_b
            x_at = (start + t)[:, None] * x_stride_t + columns * x_stride_d
            x = tl.load(x_base + x_at, mask=mask_td, other=0.0).to(tl.float32)
            earlier = mask_td & (i > 0)[:, None]
            x_before = tl.load(x_base + x_at - x_stride_t, mask=earlier, other=0.0).to(tl.float32)
            _, h_before = tl.associative_scan((keep_tile, alpha * x_before[None, :, :]), 1, _compose)
            power = tl.exp2(tl.maximum(i, 1).to(tl.float32)[None, :, None] * log2_keep)
            h_before += tl.where((i == 0)[None, :, None], 1.0, power) * h[:, None, :]
            change = tl.where(mask_atd, x[None, :, :] - h_before, 0.0)
            grad_alpha += tl.sum(change * G, axis=1)
    grad_state = tl.where(tiles > 0, tl.sum(keep * G_next[:, None, :], axis=1), grad_last)
    tl.store(grad_state_ptr + state_at, grad_state, mask=mask_ad)
    if GRAD_RATES:
        tl.store(grad_rates_ptr + state_at, grad_alpha, mask=mask_ad)


INTERPRETED = not isinstance(_forward_kernel, triton.JITFunction)  # by TRITON_INTERPRET=1, for tests without a GPU


def check(x: Tensor) -> None:
    if x.dtype == torch.float64:
        raise ValueError("backend 'triton' computes in float32, use 'chunked' for float64")
    if not x.is_cuda and not INTERPRETED:
        raise ValueError(f"backend 'triton' needs tensors on a GPU, got x on {x.device}")


def ema_triton(x: Tensor, rates: Tensor, state: Tensor | None, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor]:
    keep_tile_states = rates.requires_grad and torch.is_grad_enabled()
    traces, last, _ = ema_scan(x, rates, state, cu_seqlens, keep_tile_states)
    return traces, last


def _blocks(A: int, D: int) -> dict[str, int]:
    """Tiles of 4096 numbers, 32 a thread."""
    block_a = triton.next_power_of_2(A)
    block_d = min(triton.next_power_of_2(D), 32, max(1, 4096 // (block_a * BLOCK_T)))
    return {"A": A, "BLOCK_A": block_a, "BLOCK_T": BLOCK_T, "BLOCK_D": block_d}


def _count(x: Tensor, cu_seqlens: Tensor | None) -> int:
    return x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1


@torch.library.custom_op("ematrace::ema_scan", mutates_args=())
def ema_scan(
    x: Tensor, rates: Tensor, state: Tensor | None, cu_seqlens: Tensor | None, keep_tile_states: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Traces, last state, and the states before each tile, which only the gradient of the rates needs."""
    traces, last, tile_states = _empty_outputs(x, rates, state, cu_seqlens, keep_tile_states)
    (B, T, D), N, A = x.shape, _count(x, cu_seqlens), rates.shape[0]
    blocks, wide = _blocks(A, D), rates.double().expand(A, D)
    with torch.cuda.device_of(x):
        _forward_kernel[(N * triton.cdiv(D, blocks["BLOCK_D"]),)](
            x, wide, None if state is None else state.contiguous(),
            None if cu_seqlens is None else cu_seqlens.contiguous(), traces, last, tile_states,
            N, T, D, B * T, tile_states.shape[1], *wide.stride(), *x.stride(), **blocks,
            HAS_STATE=state is not None, PACKED=cu_seqlens is not None,
            KEEP_TILE_STATES=keep_tile_states,
        )  # fmt: skip
    return traces, last, tile_states


@ema_scan.register_fake
def _empty_outputs(
    x: Tensor, rates: Tensor, state: Tensor | None, cu_seqlens: Tensor | None, keep_tile_states: bool
) -> tuple[Tensor, Tensor, Tensor]:
    (A, _), (B, T, D), N = rates.shape, x.shape, _count(x, cu_seqlens)
    traces = x.new_empty(A, B, T, D)
    last = x.new_empty(A, N, D, dtype=torch.float32)
    # Sequence n has its tiles from row (its first step) // BLOCK_T + n; not every row is used.
    tile_rows = B * T // BLOCK_T + N if keep_tile_states else 0
    return traces, last, x.new_zeros(A, tile_rows, D, dtype=torch.float32)


@torch.library.custom_op("ematrace::ema_scan_backward", mutates_args=())
def ema_scan_backward(
    grad_traces: Tensor,
    grad_last: Tensor,
    rates: Tensor,
    cu_seqlens: Tensor | None,
    x: Tensor | None,
    tile_states: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, state and rates; the last one only when x and the tile states are given."""
    A, _B, T, D = grad_traces.shape
    grad_x, grad_state, _ = _empty_gradients(grad_traces, grad_last, rates, cu_seqlens, x, tile_states)
    N, shared = grad_last.shape[1], rates.shape[1] == 1
    by_sequence = grad_last.new_empty(A, N, D, dtype=torch.float32) if x is not None else None
    blocks, wide = _blocks(A, D), rates.double().expand(A, D)
    with torch.cuda.device_of(grad_traces):
        _backward_kernel[(N * triton.cdiv(D, blocks["BLOCK_D"]),)](
            grad_traces, grad_last.contiguous(), wide,
            None if cu_seqlens is None else cu_seqlens.contiguous(), x, tile_states, grad_x, grad_state, by_sequence,
            N, T, D, 0 if tile_states is None else tile_states.shape[1], *wide.stride(),
            *grad_traces.stride(), *((0, 0, 0) if x is None else x.stride()), **blocks,
            PACKED=cu_seqlens is not None, GRAD_RATES=x is not None,
        )  # fmt: skip
    if by_sequence is None:
        return grad_x, grad_state, rates.new_empty(0)
    grad_rates = by_sequence.sum(1, dtype=rates.dtype)
    return grad_x, grad_state, grad_rates.sum(1, keepdim=True) if shared else grad_rates


@ema_scan_backward.register_fake
def _empty_gradients(
    grad_traces: Tensor,
    grad_last: Tensor,
    rates: Tensor,
    cu_seqlens: Tensor | None,
    x: Tensor | None,
    tile_states: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    grad_x = grad_traces.new_empty(grad_traces.shape[1:])
    grad_state = grad_last.new_empty(grad_last.shape, dtype=torch.float32)
    return grad_x, grad_state, rates.new_empty(rates.shape if x is not None else (0,))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, rates, state, cu_seqlens, keep_tile_states = inputs
    ctx.has_state = state is not None
    # Without learned rates nothing of the size of x has to be kept.
    ctx.save_for_backward(rates, cu_seqlens, *((x, output[2]) if keep_tile_states else (None, None)))


def _backward(ctx: Any, grad_traces: Tensor, grad_last: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    rates, cu_seqlens, x, tile_states = ctx.saved_tensors
    grad_x, grad_state, grad_rates = ema_scan_backward(grad_traces, grad_last, rates, cu_seqlens, x, tile_states)
    return grad_x, None if x is None else grad_rates, grad_state if ctx.has_state else None, None, None


ema_scan.register_autograd(_backward, setup_context=_save)
