"""No mixing at all: the control that every mechanism must beat."""

from __future__ import annotations

import torch
from torch import Tensor

from ematrace.mixers.base import Mixer, State


class NoMixer(Mixer):
    """y_t = 0: a block around it sees the present token alone. It has no parameters and no state."""

    def forward(
        self, x: Tensor, state: State = None, *, mask: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, State]:
        self.check_call(x, state, mask, cu_seqlens)
        return torch.zeros_like(x), None

    def state_size(self, seq_len: int) -> int:
        return 0

    def flops(self, seq_len: int) -> float:
        return 0.0
