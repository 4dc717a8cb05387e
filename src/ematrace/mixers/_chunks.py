"""Linear recurrences over time without a loop over time, for a dense batch or for packed sequences.

Shapes: B rows, T steps, N packed sequences, K chunks of C steps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ematrace.traces.chunked import segment_of


def linear_scan(a: Tensor, b: Tensor) -> Tensor:
    """h_t = a_t h_{t-1} + b_t along dimension 1 from h_{-1} = 0; a broadcasts against b.

    Pairs of steps are composed, (a', b') after (a, b) = (a' a, a' b + b'), and the half as many pairs scanned likewise:
    O(T) work, O(log T) depth, and no division by products of a, which underflow.
    """
    T = b.shape[1]
    if T <= 1:
        return b
    half = T // 2
    a_even, b_even, a_odd, b_odd = a[:, ::2], b[:, ::2], a[:, 1::2], b[:, 1::2]
    h_odd = linear_scan(a_odd * a_even[:, :half], a_odd * b_even[:, :half] + b_odd)
    h_even = torch.cat([b_even[:, :1], a_even[:, 1:] * h_odd[:, : b_even.shape[1] - 1] + b_even[:, 1:]], dim=1)
    h = torch.stack([h_even[:, :half], h_odd], dim=2).flatten(1, 2)
    return torch.cat([h, h_even[:, half:]], dim=1) if T % 2 else h


def recurrence(a: Tensor, b: Tensor, state: Tensor | None, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor]:
    """h_t = a_t h_{t-1} + b_t for b [B, T, ...] from h_{-1} = state [B or N, ...] or 0.

    Returns all h, and the last of each sequence. A packed sequence starts anew: there a is 0. Steps after the last
    offset of `cu_seqlens` must have a = 1 and b = 0.
    """
    B, T, *shape = b.shape
    N = B if cu_seqlens is None else cu_seqlens.shape[0] - 1
    if state is None:
        state = b.new_zeros(N, *shape)
    if T == 0:
        return b, state.clone()
    if cu_seqlens is None:
        first = torch.addcmul(b[:, :1], a[:, :1], state.unsqueeze(1))
        h = linear_scan(a, torch.cat([first, b[:, 1:]], dim=1))
    else:
        starts, given = starts_of(T, state, cu_seqlens)
        h = linear_scan(a.masked_fill(starts, 0), torch.where(starts, torch.addcmul(b, a, given), b))
    return h, ends_of(h, state, cu_seqlens)


def before(h: Tensor, state: Tensor | None, cu_seqlens: Tensor | None) -> Tensor:
    """h_{t-1} for the h_t of `recurrence`."""
    B, T, *shape = h.shape
    if state is None:
        state = h.new_zeros(B if cu_seqlens is None else cu_seqlens.shape[0] - 1, *shape)
    if cu_seqlens is None:
        return torch.cat([state.unsqueeze(1), h[:, :-1]], dim=1)
    starts, given = starts_of(T, state, cu_seqlens)
    return torch.where(starts, given, torch.cat([h[:, :1], h[:, :-1]], dim=1))


def starts_of(T: int, state: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    """Whether a step is the first of its sequence, [1, T, 1, ...], and that sequence's given state, [1, T, ...]."""
    time_T = torch.arange(T, device=state.device)
    segment_T = segment_of(time_T, cu_seqlens)
    starts = (time_T == cu_seqlens[segment_T]).view(1, T, *[1] * (state.ndim - 1))
    return starts, state[segment_T].unsqueeze(0)


def ends_of(h: Tensor, state: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """The last h of each sequence, [B or N, ...], or the state given for it if it is empty."""
    if cu_seqlens is None:
        return h[:, -1].clone()  # a slice would keep all of h in memory
    empty_N = (cu_seqlens[1:] <= cu_seqlens[:-1]).view(-1, *[1] * (state.ndim - 1))
    return torch.where(empty_N, state, h[0, (cu_seqlens[1:] - 1).clamp(min=0)])


class Chunks(NamedTuple):
    """How T steps are laid out in K chunks of C steps. Packed sequences start in a chunk of their own."""

    T: int
    C: int
    K: int
    place_T: Tensor | None = None
    """where step t stands among the K C places; None for a dense batch: at t"""
    offsets: Tensor | None = None
    """[N+1], in chunks, what cu_seqlens is in steps"""

    def split(self, x: Tensor) -> Tensor:
        """[B, T, ...] to [B, K, C, ...], zeros where there is no step."""
        if self.place_T is None:
            x = F.pad(x, (0, 0) * (x.ndim - 2) + (0, self.K * self.C - self.T))
        else:
            x = x.new_zeros(1, self.K * self.C, *x.shape[2:]).index_copy(1, self.place_T, x)
        split: Tensor = x.unflatten(1, (self.K, self.C))
        return split

    def split_heads(self, x: Tensor) -> Tensor:
        """[B, T, H, d] to [B, K, H, C, d], as batched matmuls want it."""
        return self.split(x).transpose(2, 3)

    def merge(self, y: Tensor) -> Tensor:
        """[B, K, C, ...] to [B, T, ...]."""
        y = y.flatten(1, 2)
        return y[:, : self.T] if self.place_T is None else y[:, self.place_T]

    def merge_heads(self, y: Tensor) -> Tensor:
        """[B, K, H, C, d] to [B, T, H, d]."""
        return self.merge(y.transpose(2, 3))


def chunks_of(T: int, size: int, cu_seqlens: Tensor | None) -> Chunks:
    """Chunks of `size` steps, or of T steps where there are fewer.

    The number of chunks of packed sequences is a bound that needs only their number, so that shapes do not depend on
    what `cu_seqlens` holds, and nobody waits for a GPU to read it.
    """
    C = max(1, min(size, T))
    if cu_seqlens is None:
        return Chunks(T, C, max(1, -(-T // C)))
    time_T = torch.arange(T, device=cu_seqlens.device)
    segment_T = segment_of(time_T, cu_seqlens)
    offsets = F.pad(((cu_seqlens.diff() + C - 1) // C).cumsum(0), (1, 0))
    place_T = offsets[segment_T] * C + time_T - cu_seqlens[segment_T]
    return Chunks(T, C, T // C + cu_seqlens.shape[0] - 1, place_T, offsets)


def n_chunks(T: int, size: int) -> tuple[int, int]:
    """Number and length of the chunks of a sequence of T steps."""
    chunks = chunks_of(T, size, None)
    return chunks.K, chunks.C


def chunk_flops(T: int, size: int, d_k: int, d_v: int) -> float:
    """Per token and head: scores and values within each chunk, reading S and adding to it."""
    K, C = n_chunks(T, size)
    return K * C * (2 * C * (d_k + d_v) + 4 * d_k * d_v) / T
