"""What a SPEN carries from token to token: traces, and whatever an attention predictor needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class BlockState:
    """State of one block. The static predictor needs none, so the paper's model carries the traces alone."""

    traces: Tensor | None = None
    """[A, B, D], float32."""
    predictor: tuple[Tensor, ...] | None = None
    """Linear attention: one matrix [B, D, D]. Softmax: past keys and values [B, H, S, D/H] and their mask [B, S]."""

    def map(self, change: Callable[[Tensor, int], Tensor]) -> BlockState:
        """Apply `change(tensor, batch_dimension)` to everything held."""
        traces = None if self.traces is None else change(self.traces, 1)
        return BlockState(traces, None if self.predictor is None else tuple(change(p, 0) for p in self.predictor))


@dataclass
class SpenCache:
    """One state per block, of constant size for the static and linear predictors whatever the length of the context."""

    blocks: list[BlockState] = field(default_factory=list)
    seen_tokens: int = 0

    @classmethod
    def empty(cls, n_layers: int) -> SpenCache:
        return cls([BlockState() for _ in range(n_layers)])

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.seen_tokens

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        return -1  # no limit

    @property
    def is_compileable(self) -> bool:
        return False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Beam search keeps these beams."""
        self.blocks = [block.map(lambda t, dim: t.index_select(dim, beam_idx.to(t.device))) for block in self.blocks]

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.blocks = [block.map(lambda t, dim: t.repeat_interleave(repeats, dim)) for block in self.blocks]

    def batch_select_indices(self, indices: Tensor) -> None:
        self.blocks = [block.map(lambda t, dim: t.index_select(dim, indices.to(t.device))) for block in self.blocks]

    def reset(self) -> None:
        self.blocks = [BlockState() for _ in self.blocks]
        self.seen_tokens = 0

    def copy(self) -> SpenCache:
        """Independent of the original: continuing one leaves the other as it is."""
        return SpenCache([block.map(lambda t, _: t.clone()) for block in self.blocks], self.seen_tokens)

    def n_bytes(self) -> int:
        tensors = [t for block in self.blocks for t in (block.traces, *(block.predictor or ())) if t is not None]
        return sum(t.numel() * t.element_size() for t in tensors)
