"""What a model carries from token to token: one state per block, which only the block's mixer understands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from ematrace.mixers.base import State, map_state, state_tensors


@dataclass
class MixerCache:
    """The `past_key_values` of these models. Dimension 0 of every tensor in it is the batch.

    >>> import torch
    >>> model = SkeletonModel(SkeletonConfig.preset("skeleton-tiny", mixer="ema"))
    >>> cache = model(torch.tensor([[1, 2, 3]])).past_key_values
    >>> cache.seen_tokens, cache.n_bytes()
    (3, 1536)
    >>> model(torch.tensor([[4]]), past_key_values=cache).past_key_values.n_bytes()  # it does not grow
    1536
    """

    blocks: list[State] = field(default_factory=list)
    """What each block's mixer returned last; None before the first token."""
    seen_tokens: int = 0
    """Steps read, padding included."""
    lengths: Tensor | None = None
    """[B] tokens read by each row, padding not included; only for learned positions."""

    @classmethod
    def empty(cls, n_layers: int) -> MixerCache:
        return cls([None] * n_layers)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.seen_tokens

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        return -1  # no limit

    @property
    def is_compileable(self) -> bool:
        return False

    def crop(self, max_length: int) -> None:
        """Refused: a recurrent state has no way back to an earlier token. Keep a `copy` from there instead."""
        raise ValueError("the state of a mixer cannot be cropped; keep a copy() of the cache to go back to")

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Beam search keeps these beams."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        self._change(lambda t: t.index_select(0, indices.to(t.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._change(lambda t: t.repeat_interleave(repeats, 0))

    def reset(self) -> None:
        self.blocks = [None] * len(self.blocks)
        self.seen_tokens, self.lengths = 0, None

    def copy(self) -> MixerCache:
        """Independent of the original: continuing one leaves the other as it is."""
        copied = MixerCache(list(self.blocks), self.seen_tokens, self.lengths)
        copied._change(lambda t: t.clone())
        return copied

    def n_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in state_tensors(self.blocks))

    def _change(self, change: Callable[[Tensor], Tensor]) -> None:
        self.blocks = [map_state(change, state) for state in self.blocks]
        self.lengths = None if self.lengths is None else change(self.lengths)
