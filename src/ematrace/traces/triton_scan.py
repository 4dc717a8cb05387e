"""The traces as one pass over memory on GPUs: x is read once for all rates, the state stays in registers in float32.

A thread owns two channels of one sequence (dense or packed) and walks through time, so that the recursion needs no
exchange between threads. A tile of steps is scanned from zero, which costs little rounding; what came before enters
as (1 - a)^i h, and from tile to tile h is carried with its rounding error: step by step the error of a slow trace would
grow to 3e-8 / a. What bounds the kernels is memory. Forward, tiles are on their way into shared memory a few ahead of
their use (Triton's pipelining); backward, with three times as many loads, one tile ahead in registers is faster.
Strides of time are constants, which makes all addresses immediate.

Tiles are short because Triton is slow to compile unrolled code: its coalescing pass takes the cube of the length.
"""

# ruff: noqa: RUF005 - Triton compiles the concatenation of tuples, not their unpacking
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

FORWARD_STEPS = 8  # of a tile
FORWARD_DEPTH = 4  # tiles, of which all but one are on their way: 81% of a copy's speed on an H200; with 3 or 6 72%
BACKWARD_STEPS = 16  # of a tile: more would not fit into registers, and 8 are slower
UNROLLED_RATES = 4  # up to so many rates a tile has all its steps; with more it has fewer, or compiling takes minutes
CHANNELS = 64  # of a program, which is one warp: 128 bytes of bfloat16 a load


@triton.jit
def _wide(number):
    """In 64 bits, also if it is an argument of 1, which is a constant of the kernel."""
    return tl.zeros((), tl.int64) + number


@triton.jit
def _load_rates(rates_ptr, stride_a, stride_d, channels, D, A: tl.constexpr, SHARED: tl.constexpr):
    """A rates in float64, each a scalar where all channels share it; NaN for what is none."""
    rates = ()
    for a in tl.static_range(A):
        if SHARED:
            rate = tl.load(rates_ptr + a * stride_a)
        else:
            rate = tl.load(rates_ptr + a * stride_a + channels * stride_d, mask=channels < D, other=0.0)
        rates = rates + (tl.where((rate >= 0.0) & (rate <= 1.0), rate, float("nan")),)
    return rates


@triton.jit
def _powers(rates, A: tl.constexpr, STEPS: tl.constexpr):
    """a, (1 - a)^1 ... (1 - a)^STEPS, and (1 - a)^STEPS - 1, rounded from float64."""
    alphas = ()
    powers = ()
    losses = ()
    for a in tl.static_range(A):
        keep = 1.0 - rates[a]
        power = keep
        row = (keep.to(tl.float32),)
        for _ in tl.static_range(STEPS - 1):
            power = power * keep
            row = row + (power.to(tl.float32),)
        alphas = alphas + (rates[a].to(tl.float32),)
        powers = powers + (row,)
        losses = losses + ((power - 1.0).to(tl.float32),)
    return alphas, powers, losses


@triton.jit
def _load_tile(row, channels, limit, STEPS: tl.constexpr, STRIDE: tl.constexpr):
    """STEPS steps of the channels below `limit`."""
    tile = ()
    for i in tl.static_range(STEPS):
        tile = tile + (tl.load(row + i * STRIDE + channels, mask=channels < limit, other=0.0),)
    return tile


@triton.jit
def _load_tiles(
    row, stride_a, slow_row, channels, limit,
    D: tl.constexpr, A: tl.constexpr, STEPS: tl.constexpr, STRIDE: tl.constexpr, HAS_SLOW: tl.constexpr,
):  # fmt: skip
    """The same steps of A traces, the last of them from `slow_row` if there is one."""
    tiles = ()
    stride_a = _wide(stride_a)
    for a in tl.static_range(A):
        if HAS_SLOW and a == A - 1:
            tiles = tiles + (_load_tile(slow_row, channels, limit, STEPS, D),)
        else:
            tiles = tiles + (_load_tile(row + a * stride_a, channels, limit, STEPS, STRIDE),)
    return tiles


@triton.jit
def _decayed(h, alpha):
    return tl.fma(-alpha, h, h)


@triton.jit
def _carried(h, error, loss, added):
    """(1 - a)^STEPS h + added, and by how much its rounding missed it."""
    change = tl.fma(loss, h, added) + error
    total = h + change
    return total, change - (total - h)


@triton.jit
def _forward_tile(
    h, error, x, alpha, powers, losses, row, channels,
    D: tl.constexpr, A: tl.constexpr, STEPS: tl.constexpr, BESIDE: tl.constexpr,
):  # fmt: skip
    """Write the traces of a whole tile, and x if asked for; the state after it, with its error."""
    h_next = ()
    error_next = ()
    for a in tl.static_range(A):
        within = alpha[a] * x[0].to(tl.float32)
        for i in tl.static_range(STEPS):
            if i > 0:
                within = tl.fma(alpha[a], x[i].to(tl.float32), _decayed(within, alpha[a]))
            h_t = tl.fma(powers[a][i], h[a], within)
            tl.store(row + i * (A + BESIDE) * D + a * D + channels, h_t.to(row.dtype.element_ty), mask=channels < D)
        total, missed = _carried(h[a], error[a], losses[a], within)
        h_next = h_next + (total,)
        error_next = error_next + (missed,)
    if BESIDE > 0:
        for i in tl.static_range(STEPS):
            tl.store(row + i * (A + BESIDE) * D + A * D + channels, x[i], mask=channels < D)
    return h_next, error_next


@triton.jit
def _forward_step(h, x, alpha, row, channels, D: tl.constexpr, A: tl.constexpr, BESIDE: tl.constexpr):
    """Write the traces of one step, and x if asked for; the state after it."""
    h_next = ()
    for a in tl.static_range(A):
        h_t = tl.fma(alpha[a], x.to(tl.float32), _decayed(h[a], alpha[a]))
        tl.store(row + a * D + channels, h_t.to(row.dtype.element_ty), mask=channels < D)
        h_next = h_next + (h_t,)
    if BESIDE > 0:
        tl.store(row + A * D + channels, x, mask=channels < D)
    return h_next


@triton.jit
def _bounds(cu_ptr, n, N, T, PACKED: tl.constexpr):
    """First step of sequence n and its length. Inside of x and all of x, whatever the offsets say: the first sequence
    begins at 0, the last one ends with x."""
    if PACKED:
        start = tl.where(n == 0, 0, tl.minimum(tl.maximum(tl.load(cu_ptr + n).to(tl.int64), 0), T))
        end = tl.where(n == N - 1, T, tl.load(cu_ptr + n + 1).to(tl.int64))
        end = tl.minimum(tl.maximum(end, start), T)
    else:
        start = n * 0
        end = start + T
    return start, end - start


@triton.jit
def _forward_kernel(
    x_ptr, rates_ptr, state_ptr, cu_ptr, traces_ptr, last_ptr, tile_states_ptr,
    N, T, tile_rows, rates_stride_a, rates_stride_d, x_stride_b,
    X_STRIDE_T: tl.constexpr,
    D: tl.constexpr, A: tl.constexpr, STEPS: tl.constexpr, DEPTH: tl.constexpr, BLOCK_D: tl.constexpr,
    SHARED: tl.constexpr, HAS_STATE: tl.constexpr, PACKED: tl.constexpr, KEEP_TILE_STATES: tl.constexpr,
    BESIDE: tl.constexpr,
):  # fmt: skip
    n = (tl.program_id(0) // tl.cdiv(D, BLOCK_D)).to(tl.int64)
    channels = tl.program_id(0) % tl.cdiv(D, BLOCK_D) * BLOCK_D + tl.arange(0, BLOCK_D)
    rates = _load_rates(rates_ptr, rates_stride_a, rates_stride_d, channels, D, A, SHARED)
    alpha, powers, losses = _powers(rates, A, STEPS)
    start, length = _bounds(cu_ptr, n, N, T, PACKED)
    tile_rows = _wide(tile_rows)
    first_row = start if PACKED else n * T
    x_row = x_ptr + (0 if PACKED else n * x_stride_b) + start * X_STRIDE_T
    traces_row = traces_ptr + first_row * (A + BESIDE) * D
    tile_row = tile_states_ptr + (first_row // STEPS + n * STEPS) * D

    h = ()
    error = ()
    for a in tl.static_range(A):
        error = error + (tl.zeros((BLOCK_D,), tl.float32),)
        if HAS_STATE:
            h = h + (tl.load(state_ptr + (a * N + n) * D + channels, mask=channels < D, other=0.0),)
        else:
            h = h + (tl.zeros((BLOCK_D,), tl.float32),)
    whole = length // STEPS * STEPS
    for first in tl.range(0, whole, STEPS, num_stages=DEPTH):
        if KEEP_TILE_STATES:
            for a in tl.static_range(A):
                tl.store(tile_row + a * tile_rows * D + channels, h[a], mask=channels < D)
            tile_row += D
        x = _load_tile(x_row + first * X_STRIDE_T, channels, D, STEPS, X_STRIDE_T)
        h, error = _forward_tile(h, error, x, alpha, powers, losses, traces_row, channels, D, A, STEPS, BESIDE)
        traces_row += STEPS * (A + BESIDE) * D
    x_row += whole * X_STRIDE_T
    for _ in range(whole, length):  # less than a tile is left
        if KEEP_TILE_STATES:
            for a in tl.static_range(A):
                tl.store(tile_row + a * tile_rows * D + channels, h[a], mask=channels < D)
            tile_row += D
        x = _load_tile(x_row, channels, D, 1, X_STRIDE_T)
        h = _forward_step(h, x[0], alpha, traces_row, channels, D, A, BESIDE)
        x_row += X_STRIDE_T
        traces_row += (A + BESIDE) * D
    for a in tl.static_range(A):
        tl.store(last_ptr + (a * N + n) * D + channels, h[a], mask=channels < D)


@triton.jit
def _unit_kernel(slow_ptr, unit_ptr, length_ptr, ROW: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """h / |h| of one step, 0 for 0, and |h|."""
    row = tl.program_id(0).to(tl.int64)
    channels = tl.arange(0, BLOCK_D)
    h = tl.load(slow_ptr + row * ROW + channels, mask=channels < D, other=0.0).to(tl.float32)
    length = tl.sqrt(tl.sum(h * h))
    unit = h / tl.where(length == 0, float("inf"), length)
    tl.store(unit_ptr + row * ROW + channels, unit.to(unit_ptr.dtype.element_ty), mask=channels < D)
    tl.store(length_ptr + row, length)


@triton.jit
def _rates_gradient(
    sums, G, x, alpha, tile_row, tile_rows, channels, A: tl.constexpr, D: tl.constexpr, STEPS: tl.constexpr
):  # fmt: skip
    """sums + Σ_t (x_t - h_{t-1}) G_t over a tile, with h computed again in float32 from the state before the tile: the
    stored traces are rounded to x's dtype, 2^-9 in bfloat16, which the difference x_t - h_{t-1} would magnify."""
    added = ()
    for a in tl.static_range(A):
        h = tl.load(tile_row + a * tile_rows * D + channels, mask=channels < D, other=0.0)
        total = sums[a]
        for i in tl.static_range(STEPS):
            x_t = x[i].to(tl.float32)
            total += (x_t - h) * G[a][i]
            h = tl.fma(alpha[a], x_t, _decayed(h, alpha[a]))
        added = added + (total,)
    return added


@triton.jit
def _backward_tile(
    G_next, error, g, alpha, powers, losses, row, channels, A: tl.constexpr, D: tl.constexpr, STEPS: tl.constexpr
):  # fmt: skip
    """Write dx of a whole tile; (1 - a) G of its first step, with its error, and every G."""
    within = ()  # G as if nothing came after the tile
    for a in tl.static_range(A):
        G_t = g[a][STEPS - 1].to(tl.float32)
        row_G = (G_t,)
        for i in tl.static_range(STEPS - 2, -1, -1):
            G_t = g[a][i].to(tl.float32) + _decayed(G_t, alpha[a])
            row_G = (G_t,) + row_G
        within = within + (row_G,)
    G = ()
    G_before = ()
    error_before = ()
    for a in tl.static_range(A):
        row_G = ()
        for i in tl.static_range(STEPS - 1):
            row_G = row_G + (tl.fma(powers[a][STEPS - 2 - i], G_next[a], within[a][i]),)
        G = G + (row_G + (within[a][STEPS - 1] + G_next[a],),)
        total, missed = _carried(G_next[a], error[a], losses[a], _decayed(within[a][0], alpha[a]))
        G_before = G_before + (total,)
        error_before = error_before + (missed,)
    for i in tl.static_range(STEPS):
        grad_x = alpha[0] * G[0][i]
        for a in tl.static_range(1, A):
            grad_x = tl.fma(alpha[a], G[a][i], grad_x)
        tl.store(row + i * D + channels, grad_x, mask=channels < D)
    return G_before, error_before, G


@triton.jit
def _backward_step(G_next, g, alpha, row, channels, D: tl.constexpr, A: tl.constexpr):
    """Write dx of one step; (1 - a) G of it, and G."""
    G = ()
    G_before = ()
    grad_x = tl.zeros_like(G_next[0])
    for a in tl.static_range(A):
        G_t = g[a][0].to(tl.float32) + G_next[a]
        grad_x = tl.fma(alpha[a], G_t, grad_x)
        G = G + ((G_t,),)
        G_before = G_before + (_decayed(G_t, alpha[a]),)
    tl.store(row + channels, grad_x, mask=channels < D)
    return G_before, G


@triton.jit
def _backward_kernel(
    grad_ptr, slow_ptr, grad_last_ptr, rates_ptr, cu_ptr, x_ptr, tile_states_ptr,
    grad_x_ptr, grad_state_ptr, grad_rates_ptr,
    N, T, tile_rows, rates_stride_a, rates_stride_d, grad_stride_a, grad_stride_b, x_stride_b,
    GRAD_STRIDE_T: tl.constexpr, X_STRIDE_T: tl.constexpr,
    D: tl.constexpr, A: tl.constexpr, STEPS: tl.constexpr, BLOCK_D: tl.constexpr,
    SHARED: tl.constexpr, PACKED: tl.constexpr, GRAD_RATES: tl.constexpr, HAS_SLOW: tl.constexpr,
):  # fmt: skip
    """G_t = g_t + (1 - a) G_{t+1}, then dx_t = Σ_a a G_t, da = Σ_t (x_t - h_{t-1}) G_t and dstate = (1 - a) G_0."""
    n = (tl.program_id(0) // tl.cdiv(D, BLOCK_D)).to(tl.int64)
    channels = tl.program_id(0) % tl.cdiv(D, BLOCK_D) * BLOCK_D + tl.arange(0, BLOCK_D)
    rates = _load_rates(rates_ptr, rates_stride_a, rates_stride_d, channels, D, A, SHARED)
    alpha, powers, losses = _powers(rates, A, STEPS)
    start, length = _bounds(cu_ptr, n, N, T, PACKED)
    tile_rows = _wide(tile_rows)
    first_row = start if PACKED else n * T
    whole = length // STEPS * STEPS
    grad_row = grad_ptr + (0 if PACKED else n * grad_stride_b) + (start + length) * GRAD_STRIDE_T
    grad_x_row = grad_x_ptr + (first_row + length) * D
    slow_row = slow_ptr + (first_row + length) * D if HAS_SLOW else grad_row
    if GRAD_RATES:
        x_row = x_ptr + (0 if PACKED else n * x_stride_b) + (start + length) * X_STRIDE_T
        tile_row = tile_states_ptr + (first_row // STEPS + n * STEPS + whole // STEPS + length - whole) * D

    G_next = ()  # (1 - a) G_{t+1}
    error = ()
    grad_rates = ()
    for a in tl.static_range(A):
        grad_last = tl.load(grad_last_ptr + (a * N + n) * D + channels, mask=channels < D, other=0.0)
        G_next = G_next + (grad_last.to(tl.float32),)
        error = error + (tl.zeros((BLOCK_D,), tl.float32),)
        grad_rates = grad_rates + (tl.zeros((BLOCK_D,), tl.float32),)
    for _ in range(whole, length):  # less than a tile at the end
        grad_row -= GRAD_STRIDE_T
        slow_row -= D
        grad_x_row -= D
        g = _load_tiles(grad_row, grad_stride_a, slow_row, channels, D, D, A, 1, GRAD_STRIDE_T, HAS_SLOW)
        G_next, G = _backward_step(G_next, g, alpha, grad_x_row, channels, D, A)
        if GRAD_RATES:
            x_row -= X_STRIDE_T
            tile_row -= D
            x = _load_tile(x_row, channels, D, 1, X_STRIDE_T)
            grad_rates = _rates_gradient(grad_rates, G, x, alpha, tile_row, tile_rows, channels, A, D, 1)
    grad_row -= STEPS * GRAD_STRIDE_T
    slow_row -= STEPS * D
    coming = _load_tiles(
        grad_row, grad_stride_a, slow_row, channels, tl.where(whole > 0, D, 0), D, A, STEPS, GRAD_STRIDE_T, HAS_SLOW
    )  # fmt: skip
    for first in range(0, whole, STEPS):
        g = coming
        grad_row -= STEPS * GRAD_STRIDE_T
        slow_row -= STEPS * D
        limit = tl.where(first + STEPS < whole, D, 0)
        coming = _load_tiles(
            grad_row, grad_stride_a, slow_row, channels, limit, D, A, STEPS, GRAD_STRIDE_T, HAS_SLOW
        )  # fmt: skip
        grad_x_row -= STEPS * D
        G_next, error, G = _backward_tile(
            G_next, error, g, alpha, powers, losses, grad_x_row, channels, A, D, STEPS
        )  # fmt: skip
        if GRAD_RATES:
            x_row -= STEPS * X_STRIDE_T
            tile_row -= D
            x = _load_tile(x_row, channels, D, STEPS, X_STRIDE_T)
            grad_rates = _rates_gradient(grad_rates, G, x, alpha, tile_row, tile_rows, channels, A, D, STEPS)
    for a in tl.static_range(A):
        tl.store(grad_state_ptr + (a * N + n) * D + channels, G_next[a], mask=channels < D)
        if GRAD_RATES:
            tl.store(grad_rates_ptr + (a * N + n) * D + channels, grad_rates[a], mask=channels < D)


INTERPRETED = not isinstance(_forward_kernel, triton.JITFunction)  # by TRITON_INTERPRET=1, for tests without a GPU


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
        _forward_kernel[(N * triton.cdiv(D, blocks["BLOCK_D"]),)](
            x, wide, None if state is None else state.contiguous(),
            None if cu_seqlens is None else cu_seqlens.contiguous(), traces, last, tile_states,
            N, T, tile_states.shape[1], *wide.stride(), x.stride(0), X_STRIDE_T=x.stride(1), **blocks,
            HAS_STATE=state is not None, SHARED=rates.shape[1] == 1, PACKED=cu_seqlens is not None,
            KEEP_TILE_STATES=keep_tile_states, BESIDE=2 if beside else 0, DEPTH=FORWARD_DEPTH,
        )  # fmt: skip
        if beside:
            _unit_kernel[(B * T,)](
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
        _backward_kernel[(N * triton.cdiv(D, blocks["BLOCK_D"]),)](
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
