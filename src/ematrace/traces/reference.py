"""The specification: a loop over time that every other backend is tested against."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from ematrace.traces.arguments import check_offsets


def ema_reference(x_BTD: Tensor, rates_AG: Tensor, state_ABD: Tensor) -> tuple[Tensor, Tensor]:
    """h_t = (1 - a) h_{t-1} + a x_t in the dtype of x, for a dense batch with T >= 1; rates are [A,1] or [A,D]."""
    h, a = state_ABD, rates_AG.to(x_BTD.dtype).unsqueeze(1)
    traces = []
    for x_t in x_BTD.unbind(1):
        h = torch.lerp(h, x_t.expand_as(h), a)  # exact at a = 0 and a = 1, and 1 - a is never rounded
        traces.append(h)
    return torch.stack(traces, dim=2), h


def ema_reference_packed(
    x_1TD: Tensor, rates_AG: Tensor, state_AND: Tensor, cu_seqlens: Tensor
) -> tuple[Tensor, Tensor]:
    """The loop over each packed sequence in turn; it waits for the offsets, so that it can check them as well."""
    check_offsets(cu_seqlens, x_1TD.shape[1])
    traces, states = [], []
    for n, (start, end) in enumerate(pairwise(cu_seqlens.tolist())):
        h = state_AND[:, n : n + 1]
        if end > start:
            trace, h = ema_reference(x_1TD[:, start:end], rates_AG, h)
            traces.append(trace)
        states.append(h)
    return torch.cat(traces, dim=2), torch.cat(states, dim=1)
