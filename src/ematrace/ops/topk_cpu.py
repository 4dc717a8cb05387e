"""Top-k of GELU and the load-balance loss's parts on CPUs: each a pass over memory, with a row in cache meanwhile.

The k largest of a row are found by counting against a bisected threshold. Counting vectorises; sorting does not. Torch
computes GELU itself, as fast as it copies, so values and order are those of the plain path bit for bit.

A thread computes each of its rows as it would alone: results do not depend on the number of threads.
"""

# mypy: disallow-untyped-decorators=false, disallow-untyped-calls=false
from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from ematrace.jit import SUMS, compiled, inlined
from ematrace.workers import split

Floats = npt.NDArray[np.float32]

_compile = compiled(fastmath=SUMS)
_inline = inlined(fastmath=SUMS)  # a loop with a call in it does not vectorise

LEAST, LEAST_OF_SUMS = 2**18, 2**20
"""Numbers in a thread's part at least: some tenths of a millisecond, less is done sooner than a thread is started."""
PARTS = 16
"""Sums into which rows are divided, whatever the number of threads: so results do not depend on that."""


def gelu_topk_forward(u: Tensor, k: int, with_sum: bool = False) -> tuple[Tensor, Tensor]:
    """float16, bfloat16 or float32, any leading dimensions; the summed exponentials as [..., 1], or empty."""
    exact = u.contiguous().float()
    z = F.gelu(exact)
    log_sum = exact.new_empty((*u.shape[:-1], 1) if with_sum else (0,))
    u_rows, z_rows, sums = _rows(exact), _rows(z), _flat(log_sum)

    def keep(first: int, end: int) -> None:
        rank = np.empty(u_rows.shape[1], np.int32)
        keep_largest(u_rows, z_rows, k, rank, sums, first, end)

    split(keep, len(u_rows), -(-LEAST // u.shape[-1]))
    return z.to(u.dtype), log_sum


def weighted_probability(u: Tensor, log_sum: Tensor, f: Tensor) -> Tensor:
    """sum_i f_i exp(u_i - log_sum) of each row, [rows, 1]."""
    share = torch.empty_like(log_sum, dtype=torch.float32, memory_format=torch.contiguous_format)
    u_rows, sums, of_units, shares = _rows(u), _flat(log_sum), _flat(f), _flat(share)
    split(lambda *part: weigh(u_rows, sums, of_units, shares, *part), len(shares), -(-LEAST_OF_SUMS // u.shape[-1]))
    return share


def kept_weight(z: Tensor, weight: Tensor) -> Tensor:
    """Summed weight of the rows in which a unit is not 0, [n_units]; z [rows, n_units], weight [rows, 1]."""
    z_rows, weights = _rows(z), _flat(weight)
    kept = np.zeros((PARTS, z.shape[1]))
    split(lambda *parts: count(z_rows, weights, kept, *parts), PARTS, -(-LEAST_OF_SUMS * PARTS // max(z.numel(), 1)))
    return torch.from_numpy(kept.sum(0)).to(weight.dtype)


def gelu_topk_backward(grad: Tensor, u: Tensor, z: Tensor | None, balance: tuple[Tensor, ...] = ()) -> Tensor:
    """GELU's derivative times grad, with z only where z is not 0; plus the load-balance loss's gradient, of which
    `balance` holds the factor, log_sum and share of each row and the f of each unit."""
    out = torch.empty_like(u, dtype=torch.float32, memory_format=torch.contiguous_format)
    grads, u_rows, outs = _rows(grad), _rows(u), _rows(out)
    z_rows = _NO_ROWS if z is None else _rows(z)
    numbers = [_flat(t) for t in balance] or [_NONE] * 4
    least = -(-LEAST // u.shape[-1])
    split(lambda *part: differentiate(grads, u_rows, z_rows, *numbers, outs, *part), len(u_rows), least)
    return out.to(u.dtype)


def _rows(t: Tensor) -> Floats:
    return t.detach().float().contiguous().view(-1, t.shape[-1]).numpy()


def _flat(t: Tensor) -> Floats:
    return t.detach().float().contiguous().view(-1).numpy()


@_compile
def keep_largest(u, z, k, rank, log_sum, first, end):  # type: ignore[no-untyped-def]
    """Of z = GELU(u) [rows, n_units] the k of each row that rank first stay, the others become 0; `rank` is scratch.

    If `log_sum` has room for it, the logarithm of each row's summed exponentials.
    """
    n_units = u.shape[1]
    for row in range(first, end):
        for i in range(n_units):
            rank[i] = order(u[row, i], z[row, i])
        threshold, ties = cut(rank, k)
        i = 0
        while ties > 0 and i < n_units:  # the first of those at the threshold move above it
            tied = rank[i] == threshold
            rank[i] += tied
            ties -= tied
            i += 1
        for i in range(n_units):
            z[row, i] = z[row, i] if rank[i] > threshold else ZERO
        if log_sum.size > 0:
            log_sum[row] = log_of_summed_exponentials(u, row)


@_compile
def log_of_summed_exponentials(u, row):  # type: ignore[no-untyped-def]
    most = place(u[row, 0])  # numbers as integers in their order: the largest of those is found several at a time
    for i in range(u.shape[1]):
        most = max(most, place(u[row, i]))
    largest = number(most)
    total = ZERO
    for i in range(u.shape[1]):
        total += exp(u[row, i] - largest)
    return largest + np.log(total)


@_compile
def weigh(u, log_sum, f, share, first, end):  # type: ignore[no-untyped-def]
    """share = Σ_i f_i p_i, p = softmax(u)."""
    for row in range(first, end):
        total = ZERO
        for i in range(u.shape[1]):
            total += f[i] * exp(u[row, i] - log_sum[row])
        share[row] = total


@_compile
def count(z, weight, kept, first, end):  # type: ignore[no-untyped-def]
    """kept[part, i] = Σ weight over the part's rows where z_i ≠ 0, in float64, since rows are many."""
    for part in range(first, end):
        for row in range(part * z.shape[0] // PARTS, (part + 1) * z.shape[0] // PARTS):
            w = np.float64(weight[row])
            for i in range(z.shape[1]):
                kept[part, i] += w if z[row, i] != ZERO else 0.0


@_compile
def differentiate(grad, u, z, factor, log_sum, share, f, out, first, end):  # type: ignore[no-untyped-def]
    """out = grad GELU'(u), with z (else empty) only where that is not 0, + factor p (f - share), if those are there."""
    for row in range(first, end):
        for i in range(u.shape[1]):
            out[row, i] = grad[row, i] * gelu_slope(u[row, i])
        if z.size > 0:
            for i in range(u.shape[1]):
                out[row, i] = out[row, i] if z[row, i] != ZERO else ZERO
        if f.size > 0:
            b, log_total, mean = factor[row], log_sum[row], share[row]
            for i in range(u.shape[1]):
                out[row, i] += b * exp(u[row, i] - log_total) * (f[i] - mean)


@_compile
def cut(rank, k):  # type: ignore[no-untyped-def]
    """A threshold, and how many of the ranks equal to it are kept beside all that are above it, to make k.

    Bisection keeps count(rank > low) > k >= count(rank > high) until a threshold splits off exactly k, or low and high
    are neighbours: then every rank equal to high ties at the cut.
    """
    low = high = np.int64(rank[0])
    for i in range(rank.size):
        low, high = min(low, np.int64(rank[i])), max(high, np.int64(rank[i]))
    low -= 1
    above = 0
    if k == rank.size:
        high, above = low, k
    while above != k and high - low > 1:
        middle = (low + high) >> 1
        above = count_above(rank, np.int32(middle))
        if above > k:
            low = middle
        else:
            high = middle
    threshold = np.int32(high)
    return threshold, k - count_above(rank, threshold)


@_compile
def count_above(rank, threshold):  # type: ignore[no-untyped-def]
    """Counted in float32, exact up to 2^24: integers would be counted in 64 bits, a half or a quarter of the lanes."""
    above = ZERO
    for i in range(rank.size):
        above += ONE if rank[i] > threshold else ZERO
    return np.int64(above)


@_inline
def order(u, z):  # type: ignore[no-untyped-def]
    """A whole number that grows with the rank of a unit in `ematrace.ops.topk`: with u from 0 on, below with z = GELU.

    -0 equals 0, and what is not finite comes first.
    """
    key = place(u if u >= ZERO else z)
    key = np.int32(0) if key == BELOW_ZERO else key
    return INFINITY if (np.float32(u).view(np.int32) & MAGNITUDE) >= INFINITY else key


@_inline
def place(x):  # type: ignore[no-untyped-def]
    """The place of a number in the order of all float32, where -0 comes right before 0."""
    bits = np.float32(x).view(np.int32)
    return np.int32(bits ^ MAGNITUDE if bits < 0 else bits)  # larger magnitude, smaller negative number


@_inline
def number(at):  # type: ignore[no-untyped-def]
    """The number at a place."""
    return np.int32(at ^ MAGNITUDE if at < 0 else at).view(np.float32)


@_inline
def gelu(u):  # type: ignore[no-untyped-def]
    """u (1 + erf(u / √2)) / 2."""
    return HALF * u * (ONE + erf(u * SQRT_HALF))


@_inline
def gelu_slope(u):  # type: ignore[no-untyped-def]
    """Φ(u) + u φ(u)."""
    return HALF * (ONE + erf(u * SQRT_HALF)) + u * (PEAK * exp(-HALF * u * u))


@_inline
def erf(x):  # type: ignore[no-untyped-def]
    s = x * x
    p = (((((P6 * s + P5) * s + P4) * s + P3) * s + P2) * s + P1) * s + P0
    q = (((Q4 * s + Q3) * s + Q2) * s + Q1) * s + Q0
    inside = x * p / q
    inside = ONE if x >= FOUR else inside
    return -ONE if x <= -FOUR else inside


@_inline
def exp(x):  # type: ignore[no-untyped-def]
    """For x up to 88: 2^n e^r with a polynomial for e^r, within 3e-7 of itself; 0 where float32 has no full number."""
    least = x if x > LOWEST else LOWEST  # for NaN, too: it must not become a whole number
    n = np.floor(least * LOG2_E + HALF)
    r = x - n * LN_2
    e_r = (((((E4 * r + E3) * r + E2) * r + E1) * r + E0) * r + ONE) * r + ONE
    power = np.int32((np.int32(n) + 127) << 23).view(np.float32)
    return ZERO if x < LOWEST else e_r * power


# Written without a call or a branch these vectorise, which libm's do not.
# erf(x) = x P(x²) / Q(x²) for |x| < 4, the rational approximation of Eigen and XLA, within 4e-7 of it; beyond, it is ±1
# in float32.
P6, P5, P4, P3, P2, P1, P0 = (
    np.float32(p)
    for p in (
        -2.72614225801306e-10,
        2.77068142495902e-08,
        -2.10102402082508e-06,
        -5.69250639462346e-05,
        -7.34990630326855e-04,
        -2.95459980854025e-03,
        -1.60960333262415e-02,
    )
)
Q4, Q3, Q2, Q1, Q0 = (
    np.float32(q)
    for q in (
        -1.45660718464996e-05,
        -2.13374055278905e-04,
        -1.68282697438203e-03,
        -7.37332916720468e-03,
        -1.42647390514189e-02,
    )
)
# e^r = 1 + r + r² E(r) for |r| < ln 2 / 2, fitted to the smallest largest error relative to e^r, 3e-9.
E4, E3, E2, E1, E0 = (np.float32(e) for e in (0.0013814541, 0.0083687454, 0.041668389, 0.16666521, 0.49999994))
ZERO, HALF, ONE, FOUR = np.float32(0), np.float32(0.5), np.float32(1), np.float32(4)
SQRT_HALF, PEAK = np.float32(0.5**0.5), np.float32((2 * np.pi) ** -0.5)
LOG2_E, LN_2, LOWEST = np.float32(1 / np.log(2)), np.float32(np.log(2)), np.float32(-87.33)
BELOW_ZERO, MAGNITUDE, INFINITY = np.int32(-1), np.int32(2**31 - 1), np.int32(0x7F800000)
_NONE, _NO_ROWS = np.empty(0, np.float32), np.empty((0, 0), np.float32)
