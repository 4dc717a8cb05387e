"""A causal depthwise convolution over a few steps, with what it must remember of the past."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ematrace.traces.chunked import segment_of


class ShortConv(nn.Module):
    """y_t = Σ_j w_j ⊙ u_{t-j} over j = 0 ... size-1, where u_{-1}, u_{-2}, ... are those of earlier calls, else 0."""

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.weight = nn.Parameter(torch.empty(size, channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.weight, -(self.size**-0.5), self.size**-0.5)  # as nn.Conv1d's

    def forward(
        self, u: Tensor, past: Tensor | None, mask: Tensor | None, cu_seqlens: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """u [B, T, channels]; past [B or N, size-1, channels] holds the last inputs of each sequence."""
        N = u.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        if past is None:
            past = u.new_zeros(N, self.size - 1, u.shape[2])
        row_BT, position_BT, start_N, length_N = _places(u, mask, cu_seqlens)
        y = u * self.weight[0].to(u.dtype)
        for j in range(1, self.size):
            earlier = F.pad(u, (0, 0, j, 0))[:, : u.shape[1]]
            held = past[row_BT, (self.size - 1 + position_BT - j).clamp(0, self.size - 2)]
            u_j = torch.where((position_BT >= j).unsqueeze(-1), earlier, held)
            y = torch.addcmul(y, u_j, self.weight[j].to(u.dtype))
        return y, self._last(u, past, start_N, length_N, packed=cu_seqlens is not None)

    def _last(self, u: Tensor, past: Tensor, start_N: Tensor, length_N: Tensor, packed: bool) -> Tensor:
        """The last size - 1 of past and new inputs."""
        if u.shape[1] == 0:
            return past.clone()
        held = self.size - 1
        index = torch.arange(held, device=u.device) + length_N.unsqueeze(1) - held  # in the new ones, [N, size-1]
        row = torch.arange(past.shape[0], device=u.device).unsqueeze(1)
        new = u[0 if packed else row, (start_N.unsqueeze(1) + index).clamp(0, u.shape[1] - 1)]
        return torch.where((index >= 0).unsqueeze(-1), new, past[row, (held + index).clamp(0, held - 1)])


def _places(u: Tensor, mask: Tensor | None, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Each step's sequence and position in it, [B, T]; where each sequence starts and how long it is, [N]."""
    B, T, _ = u.shape
    time_T = torch.arange(T, device=u.device)
    if cu_seqlens is not None:
        segment_T = segment_of(time_T, cu_seqlens)
        start_N = cu_seqlens[:-1].long()
        return segment_T.unsqueeze(0), (time_T - start_N[segment_T]).unsqueeze(0), start_N, cu_seqlens.diff().long()
    length_B = torch.full((B,), T, device=u.device) if mask is None else mask.sum(1)
    row_BT = torch.arange(B, device=u.device).unsqueeze(1).expand(B, T)
    start_B = T - length_B
    return row_BT, time_T - start_B.unsqueeze(1), start_B, length_B
