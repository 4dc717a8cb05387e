"""Exponential moving averages at a few fixed rates: the paper's context mechanism."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ematrace.mixers.base import Mixer, State
from ematrace.traces import EMATraces

ALPHAS = (0.5, 0.1, 0.02)  # fast, medium and slow, as in the paper


class EmaMixer(Mixer):
    """h_t = (1 - α) h_{t-1} + α x_t for each rate α, and y_t = W_h [h_f; h_m; h_s].

    alphas  the rates, in [0, 1]

    The state is the traces, [B, A, D]. The recurrence is elementwise, so that `flops` counts W_h alone.
    """

    def __init__(self, d_model: int, alphas: Sequence[float] = ALPHAS) -> None:
        super().__init__(d_model)
        self.traces = EMATraces(alphas)
        self.W_h = nn.Linear(len(self.traces.rates) * d_model, d_model, bias=False)

    def forward(
        self, x: Tensor, state: State = None, *, mask: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, State]:
        self.check_call(x, state, mask, cu_seqlens)
        if mask is not None and state is None:  # zeros leave traces of zero as they are
            x, mask = x.masked_fill(~mask.unsqueeze(-1), 0), None
        h_ABTD, last_ABD = self.traces(x, None if state is None else state.transpose(0, 1), cu_seqlens, mask)
        y = self.W_h(h_ABTD.permute(1, 2, 0, 3).flatten(-2))
        return y, last_ABD.transpose(0, 1).clone(memory_format=torch.contiguous_format)

    def state_size(self, seq_len: int) -> int:
        return len(self.traces.rates) * self.d_model

    def flops(self, seq_len: int) -> float:
        return 2.0 * self.W_h.weight.numel()
