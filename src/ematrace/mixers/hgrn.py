"""HGRN: a gated recurrence without matmuls in time (Qin et al. 2023, arXiv 2311.04823)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ematrace.mixers._chunks import recurrence
from ematrace.mixers.base import Mixer, State, accumulation_dtype, is_number, rms_norm


class HgrnMixer(Mixer):
    """The forget gate f and the input gate 1 - f are tied and depend on the input:

        f_t = γ + (1 - γ) σ(W_f x_t)
        h_t = f_t ⊙ h_{t-1} + (1 - f_t) ⊙ silu(W_i x_t)
        y_t = W_o (rms_norm(h_t) ⊙ σ(W_g x_t))

    lower_bound  γ, the least that is kept of the past in a step, in [0, 1); the paper learns one for each layer

    The state is h, [B, D]. This is the real-valued HGRN; the paper's rotates complex h. `flops`
    counts the four projections: the recurrence is elementwise.
    """

    def __init__(self, d_model: int, lower_bound: float = 0.0) -> None:
        super().__init__(d_model)
        if not is_number(lower_bound) or not 0 <= lower_bound < 1:
            raise ValueError(f"lower_bound must lie in [0, 1), got {lower_bound!r}")
        self.lower_bound = lower_bound
        self.W_ifg = nn.Linear(d_model, 3 * d_model, bias=False)  # W_i, W_f and W_g, one below the other
        self.W_o = nn.Linear(d_model, d_model, bias=False)

    def forward(
        self, x: Tensor, state: State = None, *, mask: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, State]:
        self.check_call(x, state, mask, cu_seqlens)
        i, f, g = self.W_ifg(x).to(accumulation_dtype(x)).chunk(3, dim=-1)
        f = self.lower_bound + (1 - self.lower_bound) * f.sigmoid()
        if mask is not None:
            f = f.masked_fill(~mask.unsqueeze(-1), 1)  # keeps all, takes nothing
        h, last = recurrence(f, (1 - f) * F.silu(i), None if state is None else state.to(f.dtype), cu_seqlens)
        y: Tensor = self.W_o((rms_norm(h) * g.sigmoid()).to(x.dtype))
        return y, last

    def state_size(self, seq_len: int) -> int:
        return self.d_model

    def flops(self, seq_len: int) -> float:
        return 2.0 * (self.W_ifg.weight.numel() + self.W_o.weight.numel())


def hgrn_recurrence(f_BTD: Tensor, i_BTD: Tensor, h_BD: Tensor) -> Tensor:
    """The specification: h_t = f_t h_{t-1} + (1 - f_t) i_t, one step after the other, [B, T, D]."""
    h = []
    for f_t, i_t in zip(f_BTD.unbind(1), i_BTD.unbind(1), strict=True):
        h_BD = f_t * h_BD + (1 - f_t) * i_t
        h.append(h_BD)
    return torch.stack(h, dim=1)
