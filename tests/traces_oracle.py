"""What the traces should be, in float64 and with every weight written out: the oracle of the tests of ema_traces.

h_t = (1 - a)^(t+1) s + Σ_{j <= t} a (1 - a)^(t-j) x_j
"""

from __future__ import annotations

import torch
from torch import Tensor


def closed_form(
    x: Tensor, alphas: Tensor, state: Tensor | None = None, cu_seqlens: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Traces [A,B,T,D] and last state [A,B,D] ([A,N,D] when packed), differentiable."""
    x, alphas = x.double(), alphas.double()
    rates = alphas if alphas.dim() == 2 else alphas[:, None].expand(-1, x.shape[2])
    if cu_seqlens is None:
        start = x.new_zeros(len(rates), x.shape[0], x.shape[2]) if state is None else state.double()
        return _dense(x, rates, start)
    offsets = cu_seqlens.tolist()
    N = len(offsets) - 1
    start = x.new_zeros(len(rates), N, x.shape[2]) if state is None else state.double()
    parts = [_dense(x[:, offsets[n] : offsets[n + 1]], rates, start[:, n : n + 1]) for n in range(N)]
    return torch.cat([traces for traces, _ in parts], 2), torch.cat([last for _, last in parts], 1)


def _dense(x: Tensor, rates: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    T = x.shape[1]
    if T == 0:
        return x.new_zeros(len(rates), *x.shape), state
    t = torch.arange(T, device=x.device)
    age = (t[:, None] - t).double()
    keep = (1 - rates)[:, :, None, None]
    weights = torch.where(age >= 0, rates[:, :, None, None] * keep ** age.clamp(min=0), 0.0)
    left = keep[..., 0] ** (t + 1).double()
    traces = torch.einsum("adtj,bjd->abtd", weights, x) + torch.einsum("adt,abd->abtd", left, state)
    return traces, traces[:, :, -1]
