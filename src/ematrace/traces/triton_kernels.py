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

import triton
import triton.language as tl


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
def forward_kernel(
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
def unit_kernel(slow_ptr, unit_ptr, length_ptr, ROW: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr):
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
def backward_kernel(
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
