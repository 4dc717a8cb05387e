"""GELU and top-k in one pass: one program per row, the threshold found by bisection on the bit pattern."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _gelu_topk_kernel(u_ptr, z_ptr, n_units, k, BLOCK: tl.constexpr, BITS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    unit = tl.arange(0, BLOCK)
    inside = unit < n_units
    u = tl.load(u_ptr + row * n_units + unit, mask=inside, other=0.0).to(tl.float32)
    z = (0.5 * u * (1.0 + tl.erf(u * 0.7071067811865476))).to(z_ptr.dtype.element_ty)

    # Floats compare like integers once negatives are flipped; -0 joins +0, NaN joins +infinity, lanes outside are last.
    exact = z.to(tl.float32)  # Triton's interpreter compares bfloat16 as integers
    ranked = tl.where(exact != exact, float("inf"), tl.where(exact == 0, 0.0, exact)).to(z_ptr.dtype.element_ty)
    if BITS == 16:
        bits = ranked.to(tl.int16, bitcast=True).to(tl.int32)
        key = tl.where(bits < 0, bits ^ 0x7FFF, bits) + 0x8000
    else:
        bits = ranked.to(tl.int32, bitcast=True).to(tl.int64)
        key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits) + 0x80000000
    key = tl.where(inside, key, -1)

    # Largest threshold that at least k units reach, most significant bit first.
    threshold = tl.zeros((), key.dtype)
    for i in tl.static_range(BITS):
        candidate = threshold + (1 << (BITS - 1 - i))
        enough = tl.sum((key >= candidate).to(tl.int32)) >= k
        threshold = tl.where(enough, candidate, threshold)
    above = key > threshold
    tied = key == threshold
    room = k - tl.sum(above.to(tl.int32))
    keep = above | (tied & (tl.cumsum(tied.to(tl.int32)) <= room))
    tl.store(z_ptr + row * n_units + unit, tl.where(keep, z, 0.0), mask=inside)


def gelu_topk_forward(u: Tensor, k: int) -> Tensor:
    """float16, bfloat16 or float32, any leading dimensions."""
    n_units = u.shape[-1]
    rows = u.contiguous().view(-1, n_units)
    z = torch.empty_like(rows)
    block = triton.next_power_of_2(n_units)
    bits = 8 * u.element_size()
    if len(rows):
        warps = min(max(block // 1024, 1), 16)
        _gelu_topk_kernel[(len(rows),)](rows, z, n_units, k, BLOCK=block, BITS=bits, num_warps=warps)
    return z.view(u.shape)
