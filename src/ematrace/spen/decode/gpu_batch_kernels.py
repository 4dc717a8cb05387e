"""What lies between the matmuls when many streams are decoded together: two kernels, one program per stream."""

# mypy: disallow-untyped-decorators=false, disallow-untyped-defs=false, disallow-incomplete-defs=false
# mypy: disable-error-code="assignment,misc,unreachable"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def mix_inputs(
    ids_ptr,  # [B] int64
    embedding_ptr,  # [vocabulary, D]
    x_ptr,  # [B, D] float32, updated
    added_ptr,  # [SPLIT, B, D] float32: parts of W_down z of the block before
    state_ptr,  # [A, B, D] float32, updated
    rates_ptr,  # [2, A] float32: 1 - alpha, alpha
    v_ptr,  # [B, (A + 2) D]: traces, x, ĥ
    B,
    D: tl.constexpr,
    A: tl.constexpr,
    SPLIT: tl.constexpr,  # 0: the first block, x is the embedding
    BLOCK: tl.constexpr,
):
    stream = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK)
    inside = channel < D
    at = stream * D + channel
    if SPLIT == 0:
        x = tl.load(embedding_ptr + tl.load(ids_ptr + stream) * D + channel, mask=inside, other=0.0).to(tl.float32)
    else:
        x = tl.load(x_ptr + at, mask=inside, other=0.0)
        for i in tl.static_range(SPLIT):
            x += tl.load(added_ptr + i * B * D + at, mask=inside, other=0.0)
    tl.store(x_ptr + at, x, mask=inside)
    v_ptr += stream * (A + 2) * D + channel
    h = x
    for a in tl.static_range(A):
        h_ptr = state_ptr + a * B * D + at
        h = tl.load(rates_ptr + a) * tl.load(h_ptr, mask=inside, other=0.0) + tl.load(rates_ptr + A + a) * x
        tl.store(h_ptr, h, mask=inside)
        tl.store(v_ptr + a * D, h.to(v_ptr.dtype.element_ty), mask=inside)
    length = tl.sqrt(tl.sum(h * h))
    unit = h / tl.where(length == 0, float("inf"), length)
    tl.store(v_ptr + A * D, x.to(v_ptr.dtype.element_ty), mask=inside)
    tl.store(v_ptr + (A + 1) * D, unit.to(v_ptr.dtype.element_ty), mask=inside)


@triton.jit
def add_norm(
    x_ptr,  # [B, D] float32
    added_ptr,  # [SPLIT, B, D] float32
    weight_ptr,
    bias_ptr,
    n_ptr,  # [B, D]: LN(x + added)
    B,
    eps,
    D: tl.constexpr,
    SPLIT: tl.constexpr,
    KEEP: tl.constexpr,  # x becomes the sum
    BLOCK: tl.constexpr,
):
    channel = tl.arange(0, BLOCK)
    inside = channel < D
    at = tl.program_id(0).to(tl.int64) * D + channel
    c = tl.load(x_ptr + at, mask=inside, other=0.0)
    for i in tl.static_range(SPLIT):
        c += tl.load(added_ptr + i * B * D + at, mask=inside, other=0.0)
    if KEEP:
        tl.store(x_ptr + at, c, mask=inside)
    off = tl.where(inside, c - tl.sum(c) / D, 0.0)
    n = off / tl.sqrt(tl.sum(off * off) / D + eps)
    n = n * tl.load(weight_ptr + channel, mask=inside) + tl.load(bias_ptr + channel, mask=inside)
    tl.store(n_ptr + at, n.to(n_ptr.dtype.element_ty), mask=inside)
