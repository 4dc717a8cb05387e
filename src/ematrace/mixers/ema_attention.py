"""EMA traces and attention side by side: does either have something that the other lacks?"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ematrace.mixers.attention import AttentionMixer
from ematrace.mixers.base import Mixer, State
from ematrace.mixers.ema import ALPHAS, EmaMixer


class EmaAttentionMixer(Mixer):
    """y_t = ema(x)_t + attention(x)_t, each with its own weights and options; the state is the pair of theirs."""

    def __init__(
        self, d_model: int, alphas: Sequence[float] = ALPHAS, n_heads: int = 4, positions: str = "rope"
    ) -> None:
        super().__init__(d_model)
        self.ema = EmaMixer(d_model, alphas)
        self.attention = AttentionMixer(d_model, n_heads, positions)

    def forward(
        self, x: Tensor, state: State = None, *, mask: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, State]:
        of_ema, of_attention = (None, None) if state is None else state
        averaged, of_ema = self.ema(x, of_ema, mask=mask, cu_seqlens=cu_seqlens)
        attended, of_attention = self.attention(x, of_attention, mask=mask, cu_seqlens=cu_seqlens)
        return averaged + attended, (of_ema, of_attention)

    def state_size(self, seq_len: int) -> int:
        return self.ema.state_size(seq_len) + self.attention.state_size(seq_len)

    def flops(self, seq_len: int) -> float:
        return self.ema.flops(seq_len) + self.attention.flops(seq_len)
