"""The traces as matrix products over chunks of time, in plain torch: any device, derivatives of any kind and order.

Shapes: A rates, B sequences, T steps, D channels, G groups of channels that share a rate (1 or D), N packed sequences,
K chunks of C steps.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 32
PADDING = 2**62  # the segment of steps appended to fill the last chunk


def ema_chunked(
    x_BTD: Tensor, rates_AG: Tensor, state_ASD: Tensor | None, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor]:
    """h_t = (what x alone gives) + (1 - a)^(steps since the start) · state, by linearity."""
    finite_BTD = torch.isfinite(x_BTD)
    work = torch.where(finite_BTD, x_BTD, 0).to(_product_dtype(x_BTD))
    keep_AG = 1 - rates_AG
    time_T = torch.arange(x_BTD.shape[1], device=x_BTD.device)
    segment_T = None if cu_seqlens is None else segment_of(time_T, cu_seqlens)
    h_ABTD = _scan(work.unsqueeze(0), rates_AG, keep_AG, segment_T)
    undefined_BTD = _undefined(finite_BTD, segment_T, cu_seqlens).to(work.dtype)
    h_ABTD = torch.addcmul(h_ABTD, undefined_BTD, rates_AG.to(work.dtype)[:, None, None])
    if state_ASD is not None:
        state = state_ASD.to(work.dtype)
        if segment_T is None or cu_seqlens is None:
            steps_T, state = time_T + 1, state.unsqueeze(2)
        else:
            steps_T, state = time_T + 1 - cu_seqlens[segment_T], state[:, segment_T].unsqueeze(1)
        decay_ATG = powers(keep_AG, steps_T).transpose(1, 2).to(work.dtype)
        h_ABTD = torch.addcmul(h_ABTD, decay_ATG.unsqueeze(1), state)
    if cu_seqlens is None:
        return h_ABTD, h_ABTD[:, :, -1]
    last_AND = h_ABTD[:, 0, (cu_seqlens[1:] - 1).clamp(0, x_BTD.shape[1] - 1)]
    before = torch.zeros_like(last_AND) if state_ASD is None else state_ASD.to(work.dtype)
    empty_N = cu_seqlens[1:] <= cu_seqlens[:-1]
    return h_ABTD, torch.where(empty_N.unsqueeze(-1), before, last_AND)


def _undefined(finite_BTD: Tensor, segment_T: Tensor | None, cu_seqlens: Tensor | None) -> Tensor:
    """NaN from the first step on that is not finite, 0 before it, in each sequence.

    In a matrix product NaN times a weight of 0 would reach steps before it and other sequences, so that it is kept out
    of them and added afterwards.
    """
    count_BTD = (~finite_BTD).cumsum(1, dtype=torch.int32)
    if segment_T is not None and cu_seqlens is not None:
        starts_T = cu_seqlens[segment_T].clamp(0, count_BTD.shape[1])
        count_BTD = count_BTD - F.pad(count_BTD, (0, 0, 1, 0))[:, starts_T]
    return torch.where(count_BTD > 0, torch.nan, 0.0)


def segment_of(time_T: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Which packed sequence a step belongs to: as many as have ended by then.

    Counted by a sum rather than searched for: inductor of torch 2.11 compiles searchsorted wrongly on a GPU when ends
    repeat, as they do at empty sequences.
    """
    T = time_T.shape[0]
    ends = cu_seqlens[1:-1].long().clamp(0, T)
    ended = torch.zeros(T + 1, dtype=torch.long, device=time_T.device).scatter_add(0, ends, torch.ones_like(ends))
    return ended.cumsum(0)[:T]


def powers(base_AG: Tensor, exponents_T: Tensor) -> Tensor:
    """base^n as [A,G,T] for n >= 0, with 0^0 = 1 and derivatives that stay finite at base 0 and 1.

    In the dtype of the rates, float64: (1 - a)^n in float32 would be off by n times the rounding of 1 - a.
    """
    return base_AG.unsqueeze(-1) ** exponents_T.to(base_AG.dtype)


def _product_dtype(x: Tensor) -> torch.dtype:
    """float32 for inputs up to float32, unless the user lets torch round the factors of float32 products."""
    if x.dtype == torch.float64:
        return torch.float64
    return torch.float32 if x.device.type == "mps" or _float32_products_are_exact() else torch.float64


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _float32_products_are_exact() -> bool:
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # torch refuses to answer when its newer switches (fp32_precision) have been used
        return False


def _scan(u_ABTD: Tensor, gain_AG: Tensor | None, keep_AG: Tensor, segment_T: Tensor | None) -> Tensor:
    """h_t = keep · h_{t-1} + gain · u_t from h = 0, anew in each segment; u's first dimension may be 1 (shared by all).

    Within a chunk a lower-triangular matrix of weights does it; the chunks' last steps are then scanned likewise.
    """
    T, G = u_ABTD.shape[2], keep_AG.shape[1]
    K = -(-T // CHUNK)
    u = F.pad(u_ABTD, (0, 0, 0, K * CHUNK - T)).unflatten(2, (K, CHUNK)).unflatten(-1, (G, u_ABTD.shape[-1] // G))
    decay_AGC = powers(keep_AG, torch.arange(CHUNK + 1, device=u.device))
    weights = _toeplitz(decay_AGC[..., :CHUNK] if gain_AG is None else decay_AGC[..., :CHUNK] * gain_AG.unsqueeze(-1))
    weights = weights.to(u.dtype).unsqueeze(2)
    segment_KC = None
    if segment_T is not None:
        segment_KC = F.pad(segment_T, (0, K * CHUNK - T), value=PADDING).unflatten(0, (K, CHUNK))
        weights = weights * (segment_KC.unsqueeze(-1) == segment_KC.unsqueeze(-2))
    h = torch.einsum("agkij,abkjgd->abkigd", weights, u)
    if K > 1:
        before_K = None if segment_KC is None else segment_KC[:-1, -1]
        carry = _scan(h[:, :, :-1, -1].flatten(-2), None, decay_AGC[..., CHUNK], before_K)
        carry = carry.unflatten(-1, h.shape[-2:]).unsqueeze(3)
        enters = decay_AGC[..., 1:].to(u.dtype).transpose(1, 2)[:, None, None, :, :, None]
        if segment_KC is not None and before_K is not None:
            enters = enters * (segment_KC[1:] == before_K.unsqueeze(1))[:, :, None, None]
        h = torch.cat([h[:, :, :1], torch.addcmul(h[:, :, 1:], enters, carry)], dim=2)
    return h.flatten(-2).flatten(2, 3)[:, :, :T]


def _toeplitz(column_AGC: Tensor) -> Tensor:
    """[..., C] to [..., C, C] with column[i - j] in row i at and below the diagonal, zero above."""
    C = column_AGC.shape[-1]
    return F.pad(column_AGC, (C - 1, 0)).unfold(-1, C, 1).flip(-1)
