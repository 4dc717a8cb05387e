"""The k largest units of one token inside a GPU kernel, chosen as `ematrace.ops.topk` chooses them."""

# mypy: disallow-untyped-decorators=false, disallow-untyped-defs=false, disallow-incomplete-defs=false
# mypy: disable-error-code="assignment,misc,unreachable"
from __future__ import annotations

import triton
import triton.language as tl

BOTTOM, TOP = tl.constexpr(-0x7FFFFFFF), tl.constexpr(0x7FFFFFFF)
"""Below and above the keys of all numbers."""


@triton.jit
def rank_key(z, inside):
    """Integers that compare like z; -0 is 0 and NaN is +infinity, as in ematrace.ops.topk; lanes outside come last."""
    ranked = tl.where(z != z, float("inf"), tl.where(z == 0, 0.0, z))
    bits = ranked.to(tl.int32, bitcast=True)
    return tl.where(inside, bits ^ ((bits >> 31) & 0x7FFFFFFF), -0x80000000)


@triton.jit
def keep_topk(z_low, z_high, at, inside, HALF: tl.constexpr, K: tl.constexpr, hint):
    """The K largest of z, the rest 0; NaN ranks with +infinity, ties go to the lowest index, as in ematrace.ops.topk.

    Any threshold that just K units reach will do. Two are counted at a time, placed where the counts so far put it; the
    first near `hint`, the threshold of the last token. On smooth values that takes about four counts. What is left
    after ten, such as ties, is found by bisection. Returns the threshold besides, as the next hint.
    """
    low = tl.where(inside, tl.where(z_low != z_low, float("inf"), z_low), float("-inf"))
    high = tl.where(inside, tl.where(z_high != z_high, float("inf"), z_high), float("-inf"))
    # n_least >= K units reach `least`, n_more < K reach `more`.
    least, more = tl.full((), float("-inf"), tl.float32), tl.full((), float("inf"), tl.float32)
    n_least, n_more = tl.full((), 2 * HALF, tl.int32), tl.full((), 0, tl.int32)
    a, b = hint * 0.94, hint * 1.06
    counted = 0
    while (n_least != K) & (counted < 10):
        reached = (low >= a).to(tl.int32) + (high >= a).to(tl.int32)
        reached += ((low >= b).to(tl.int32) + (high >= b).to(tl.int32)) << 16
        both = tl.sum(reached)
        n_a, n_b = both & 0xFFFF, (both >> 16) & 0xFFFF
        least, n_least = (
            tl.where(n_b >= K, b, tl.where(n_a >= K, a, least)),
            tl.where(n_b >= K, n_b, tl.where(n_a >= K, n_a, n_least)),
        )
        more, n_more = (
            tl.where(n_a < K, a, tl.where(n_b < K, b, more)),
            tl.where(n_a < K, n_a, tl.where(n_b < K, n_b, n_more)),
        )
        if (more == float("inf")) | (least == float("-inf")):
            # On one side of all so far: go by the slope of a normal distribution's tail.
            above = more == float("inf")
            n_edge = tl.maximum(tl.where(above, n_least, n_more).to(tl.float32), 0.5)
            factor = tl.exp2(0.33 * tl.log2(n_edge / K))
            guess = tl.where(above, least, more) * factor
            around = 0.3 * tl.minimum(tl.abs(factor - 1), 1.0) + 0.003
            a, b = guess * (1 - around), guess * (1 + around)
        else:
            # Between two: interpolate, and stay within a fifth of the likely error.
            scale = tl.rsqrt((n_least - n_more).to(tl.float32))
            width = more - least
            middle = least + width * ((n_least - K).to(tl.float32) * scale * scale)
            a, b = middle - 0.2 * width * scale, middle + 0.2 * width * scale
        counted += 1
    keep_low, keep_high = low >= least, high >= least
    if n_least != K:
        keep_low, keep_high, least = _keep_by_bisection(low, high, at, inside, HALF, K)
    return tl.where(keep_low, z_low, 0.0), tl.where(keep_high, z_high, 0.0), least


@triton.jit
def _keep_by_bisection(low, high, at, inside, HALF: tl.constexpr, K: tl.constexpr):
    """Which are the K largest, exactly, and the K-th: first by key, then among those that tie with it by index."""
    low_key, high_key = rank_key(low, inside), rank_key(high, inside)
    least, more = tl.full((), BOTTOM, tl.int32), tl.full((), TOP, tl.int32)
    while more - 1 != least:
        middle = (least & more) + ((least ^ more) >> 1)
        enough = tl.sum((low_key >= middle).to(tl.int32) + (high_key >= middle).to(tl.int32)) >= K
        least = tl.where(enough, middle, least)
        more = tl.where(enough, more, middle)
    room = K - tl.sum((low_key > least).to(tl.int32) + (high_key > least).to(tl.int32))
    first, last = tl.full((), 0, tl.int32), tl.full((), 2 * HALF - 1, tl.int32)
    while first < last:  # the smallest index up to which `room` tied units lie
        middle = (first + last) // 2
        seen = ((low_key == least) & (at <= middle)).to(tl.int32)
        seen += ((high_key == least) & (at + HALF <= middle)).to(tl.int32)
        enough = tl.sum(seen) >= room
        last = tl.where(enough, middle, last)
        first = tl.where(enough, first, middle + 1)
    keep_low = (low_key > least) | ((low_key == least) & (at <= first))
    keep_high = (high_key > least) | ((high_key == least) & (at + HALF <= first))
    return keep_low, keep_high, (least ^ ((least >> 31) & TOP)).to(tl.float32, bitcast=True)
