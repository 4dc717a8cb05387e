"""GELU and top-k in one pass over memory: a row stays in registers while its threshold is searched by counting.

The count of units above a value falls about exponentially with it. Mean and deviation of a row tell where the k-th
largest of normal numbers would be; three or four interpolated probes then find it, where bisection would need one for
each bit. With the row at hand, the logarithm of its summed exponentials, which the load-balance loss needs, is cheap.
"""

# ruff: noqa: RUF005 - Triton compiles the concatenation of tuples, not their unpacking
from __future__ import annotations

from statistics import NormalDist

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # units of a tile; a row is a tuple of tiles
WARPS = 2  # of a row
GRID = {torch.bfloat16: 1 << 16, torch.float16: 1 << 13, torch.float32: 1}
"""Distance between neighbours of a dtype, counted in float32 numbers."""


@triton.jit
def _number(place):
    """The float32 number at a place of their order; 0 is at place 0."""
    return tl.where(place < 0, (-place) ^ -2147483648, place).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _place(number):
    bits = number.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


@triton.jit
def _upper_tail(x):
    """Phi(-x) for x >= 0 as 2^polynomial: within 5e-7, and 2e-4 of itself, up to 6; negligible beyond."""
    x = tl.minimum(x, 8.0)
    p = 2.9388574959048485e-05
    p = tl.fma(x, p, -0.0007179656433382156)
    p = tl.fma(x, p, 0.007850749167503505)
    p = tl.fma(x, p, -0.05298501042810466)
    p = tl.fma(x, p, -0.45911085962054005)
    p = tl.fma(x, p, -1.1510980673227178)
    return tl.exp2(tl.fma(x, p, -1.0000012603352164))


@triton.jit
def _gelu(u, EXACT: tl.constexpr):
    """u Phi(u). Results that are rounded to 16 bits need no better than 1e-6, at a third of the instructions."""
    if EXACT:
        return 0.5 * u * (1.0 + tl.erf(u * 0.7071067811865476))
    else:
        return tl.fma(-tl.abs(u), _upper_tail(tl.abs(u)), tl.maximum(u, 0.0))


@triton.jit
def _gelu_slope(u, EXACT: tl.constexpr):
    """Phi(u) + u phi(u)."""
    density = 0.3989422804014327 * tl.exp2(-0.7213475204444817 * u * u)
    if EXACT:
        return tl.fma(u, density, 0.5 * (1.0 + tl.erf(u * 0.7071067811865476)))
    else:
        tail = _upper_tail(tl.abs(u))
        return tl.fma(u, density, tl.where(u > 0, 1.0 - tail, tail))


@triton.jit
def _count(rank, least, TILES: tl.constexpr):
    """How many units rank at least so high."""
    n = tl.where(rank[0] >= least, 1.0, 0.0)
    for i in tl.static_range(1, TILES):
        n += tl.where(rank[i] >= least, 1.0, 0.0)
    return tl.sum(n)


@triton.jit
def _search(rank, probe, slope, wanted, low, high, n_high, spacing, TILES: tl.constexpr):
    """Places of two numbers, the first reached by at least `wanted` units, the second by fewer: one step of `spacing`
    apart, unless `wanted` units reach the first exactly; and the two counts. A low that was never probed counts -1.

    log2 of the count is taken to be linear between two numbers, and to fall by `slope` where only one is known.
    """
    n_low = tl.full((), -1.0, tl.float32)
    log_wanted = tl.log2(wanted - 0.5)
    log_low = log_wanted
    log_high = tl.log2(tl.maximum(n_high, 0.5))
    steps = 0
    bounded = n_high > 0
    while (high - low > spacing) & (n_low != wanted):
        probe = tl.minimum(tl.maximum(probe, low + spacing), high - spacing) & -spacing
        n = _count(rank, _number(probe), TILES)
        log_n = tl.log2(tl.maximum(n, 0.5))
        enough = n >= wanted
        low = tl.where(enough, probe, low)
        n_low = tl.where(enough, n, n_low)
        log_low = tl.where(enough, log_n, log_low)
        high = tl.where(enough, high, probe)
        n_high = tl.where(enough, n_high, n)
        log_high = tl.where(enough, log_high, log_n)
        bounded = bounded | ~enough
        # From the lower end with the slope between the ends, or from the one end there is.
        least = _number(low)
        most = _number(tl.minimum(high, 0x7F7FFFFF))
        between = least + (most - least) * (log_low - log_wanted) / (log_low - log_high)
        beyond = tl.where(enough, least + (log_low - log_wanted) / slope, most - (log_wanted - log_high) / slope)
        aimed = _place(tl.where(bounded & (n_low >= 0), between, beyond))
        steps += 1
        probe = tl.where(steps % 4 == 0, low + (high - low) // 2, aimed)
    return low, high, n_low, n_high


@triton.jit
def _drop_late_ties(rank, at_least, above, room, TILES: tl.constexpr):
    """Of the units in [at_least, above) those after the first `room` rank last."""
    dropped = ()
    before = 0.0
    for i in tl.static_range(TILES):
        tied = tl.where(rank[i] >= at_least, tl.where(rank[i] >= above, 0.0, 1.0), 0.0)
        late = (tied > 0) & (tl.cumsum(tied) + before > room)
        dropped = dropped + (tl.where(late, float("-inf"), rank[i]),)
        before += tl.sum(tied)
    return dropped


@triton.jit
def _gelu_topk_kernel(
    u_ptr, z_ptr, log_sum_ptr, wanted, quantile, hazard,
    N_UNITS: tl.constexpr, GRID: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr, WITH_SUM: tl.constexpr,
):  # fmt: skip
    """`quantile` and `hazard` (times log2 e) of a normal number that k = `wanted` of N_UNITS exceed."""
    EVEN: tl.constexpr = N_UNITS == TILES * BLOCK
    row = tl.program_id(0).to(tl.int64) * N_UNITS
    unit = tl.arange(0, BLOCK)
    rank = ()
    total = tl.zeros((BLOCK,), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(TILES):
        x = tl.load(u_ptr + row + i * BLOCK + unit, mask=EVEN | (i * BLOCK + unit < N_UNITS), other=0.0).to(tl.float32)
        total += x
        squares = tl.fma(x, x, squares)
        x = tl.where(tl.abs(x) < float("inf"), x, float("inf"))
        if not EVEN:
            x = tl.where(i * BLOCK + unit < N_UNITS, x, float("-inf"))
        rank = rank + (x,)
    mean = tl.sum(total) / N_UNITS
    deviation = tl.sqrt(tl.maximum(tl.sum(squares) / N_UNITS - mean * mean, 1e-30))
    if WITH_SUM:
        largest = rank[0]
        for i in tl.static_range(1, TILES):
            largest = tl.maximum(largest, rank[i])
        most = tl.max(largest)
        shares = tl.exp2((rank[0] - most) * 1.4426950408889634)
        for i in tl.static_range(1, TILES):
            shares += tl.exp2((rank[i] - most) * 1.4426950408889634)
        tl.store(log_sum_ptr + tl.program_id(0), most + 0.6931471805599453 * tl.log2(tl.sum(shares)))

    probe = _place(mean + quantile * deviation)
    low, high, n_low, n_high = _search(
        rank, probe, hazard / deviation, wanted, tl.full((), 0, tl.int32), tl.full((), 0x7F800000 + GRID, tl.int32),
        tl.full((), 0.0, tl.float32), tl.full((), GRID, tl.int32), TILES,
    )  # fmt: skip
    if n_low < 0:  # no positive number is reached by k units
        n_low = _count(rank, 0.0, TILES)
        if n_low < wanted:  # nor is 0: below it the order is that of GELU, which falls and rises again
            ranked = ()
            for i in tl.static_range(TILES):
                value = tl.where(rank[i] < 0, _gelu(rank[i], True), rank[i])
                if not EVEN:
                    value = tl.where(i * BLOCK + unit < N_UNITS, value, float("-inf"))
                ranked = ranked + (value,)
            rank = ranked
            low, high, n_low, n_high = _search(
                rank, tl.full((), -0x3D000000, tl.int32), 30.0, wanted, tl.full((), -0x3F800000, tl.int32),
                tl.full((), 0, tl.int32), n_low, tl.full((), 1, tl.int32), TILES,
            )  # fmt: skip
            n_low = tl.where(n_low < 0, N_UNITS, n_low)
    at_least = _number(low)
    if n_low > wanted:  # units tie: the first ones have room
        rank = _drop_late_ties(rank, at_least, _number(high), wanted - n_high, TILES)
    for i in tl.static_range(TILES):
        value = tl.where(rank[i] < 0, rank[i], _gelu(rank[i], GRID == 1))  # a negative rank is GELU's value already
        z = tl.where(rank[i] >= at_least, value, 0.0).to(z_ptr.dtype.element_ty)
        tl.store(z_ptr + row + i * BLOCK + unit, z, mask=EVEN | (i * BLOCK + unit < N_UNITS))


@triton.jit
def _share_kernel(
    u_ptr, log_sum_ptr, f_ptr, share_ptr, N_UNITS: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    log_sum = tl.load(log_sum_ptr + n)
    share = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(TILES):
        unit = i * BLOCK + tl.arange(0, BLOCK)
        u = tl.load(u_ptr + n * N_UNITS + unit, mask=unit < N_UNITS, other=0.0).to(tl.float32)
        f = tl.load(f_ptr + unit, mask=unit < N_UNITS, other=0.0)
        share = tl.fma(tl.exp2((u - log_sum) * 1.4426950408889634), f, share)
    tl.store(share_ptr + n, tl.sum(share))


@triton.jit
def _backward_kernel(
    grad_ptr, u_ptr, z_ptr, balance_ptr, log_sum_ptr, share_ptr, f_ptr, out_ptr,
    N_UNITS: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr,
    EXACT: tl.constexpr, MASKED: tl.constexpr, BALANCED: tl.constexpr,
):  # fmt: skip
    """GELU's derivative times grad, plus the load-balance loss's own gradient b p (f - Σ p f) with p = softmax(u)."""
    n = tl.program_id(0).to(tl.int64)
    row = n * N_UNITS
    for i in tl.static_range(TILES):
        unit = i * BLOCK + tl.arange(0, BLOCK)
        inside = unit < N_UNITS
        u = tl.load(u_ptr + row + unit, mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + row + unit, mask=inside, other=0.0).to(tl.float32) * _gelu_slope(u, EXACT)
        if MASKED:
            grad = tl.where(tl.load(z_ptr + row + unit, mask=inside, other=0.0) != 0, grad, 0.0)
        if BALANCED:
            p = tl.exp2((u - tl.load(log_sum_ptr + n)) * 1.4426950408889634) * tl.load(balance_ptr + n)
            grad += p * (tl.load(f_ptr + unit, mask=inside, other=0.0) - tl.load(share_ptr + n))
        tl.store(out_ptr + row + unit, grad.to(out_ptr.dtype.element_ty), mask=inside)


def gelu_topk_forward(u: Tensor, k: int, with_sum: bool = False) -> tuple[Tensor, Tensor]:
    """float16, bfloat16 or float32, any leading dimensions; the summed exponentials as [..., 1], or empty."""
    n_units = u.shape[-1]
    rows = u.contiguous().view(-1, n_units)
    z = torch.empty_like(rows)
    log_sum = torch.empty(len(rows) if with_sum else 0, dtype=torch.float32, device=u.device)
    block = min(triton.next_power_of_2(n_units), BLOCK)
    # Where k units of all are wanted there is no finite quantile; any probe will do.
    quantile = NormalDist().inv_cdf(1 - min(k / n_units, 0.999))
    hazard = NormalDist().pdf(quantile) / (1 - NormalDist().cdf(quantile)) * 1.4427
    if len(rows):
        with torch.cuda.device_of(u):
            _gelu_topk_kernel[(len(rows),)](
                rows, z, log_sum, float(k), quantile, hazard, N_UNITS=n_units, GRID=GRID[u.dtype],
                TILES=triton.cdiv(n_units, block), BLOCK=block, WITH_SUM=with_sum, num_warps=WARPS,
            )  # fmt: skip
    return z.view(u.shape), log_sum.view(*u.shape[:-1], 1) if with_sum else log_sum


def weighted_probability(u: Tensor, log_sum: Tensor, f: Tensor) -> Tensor:
    """sum_i f_i exp(u_i - log_sum) of each row, [rows, 1]."""
    n_units = u.shape[-1]
    share = torch.empty_like(log_sum)
    block = min(triton.next_power_of_2(n_units), BLOCK)
    if len(u):
        with torch.cuda.device_of(u):
            _share_kernel[(len(u),)](
                u.contiguous(), log_sum, f, share, N_UNITS=n_units, TILES=triton.cdiv(n_units, block), BLOCK=block
            )
    return share


def gelu_topk_backward(grad: Tensor, u: Tensor, z: Tensor | None, balance: tuple[Tensor, ...] = ()) -> Tensor:
    """GELU's derivative times grad, with z only where z is not 0; plus the load-balance loss's gradient, of which
    `balance` holds the factor, log_sum and share of each row and the f of each unit."""
    n_units = u.shape[-1]
    grad, u = grad.contiguous(), u.contiguous()
    out = torch.empty_like(u)
    block = min(triton.next_power_of_2(n_units), BLOCK)
    if u.numel():
        with torch.cuda.device_of(u):
            _backward_kernel[(u.numel() // n_units,)](
                grad, u, z, *((t.contiguous() for t in balance) if balance else [None] * 4), out,
                N_UNITS=n_units, TILES=triton.cdiv(n_units, block), BLOCK=block,
                EXACT=u.dtype == torch.float32, MASKED=z is not None, BALANCED=bool(balance),
            )  # fmt: skip
    return out
