"""Linear attention (Katharopoulos et al. 2020, arXiv 2006.16236): all of the past in one matrix, with equal weight."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ematrace.mixers._chunks import before, chunk_flops, chunks_of, recurrence
from ematrace.mixers.base import Mixer, State, accumulation_dtype, check_choice, head_width, rms_norm
from ematrace.traces.operator import no_autocast

CHUNK = 64
FEATURE_MAPS = ("elu", "relu", "identity")
NORMALIZERS = ("sum", "rms", "none")


class LinearAttentionMixer(Mixer):
    """For each head, with q, k, v = W_q x, W_k x, W_v x and a feature map φ:

        S_t = S_{t-1} + φ(k_t) v_tᵀ,    z_t = z_{t-1} + φ(k_t)
        o_t = S_tᵀ φ(q_t) / (z_t · φ(q_t)),    y_t = W_o [o of all heads]

    n_heads      divides d_model
    feature_map  φ: "elu" is elu(·) + 1, the paper's; "relu"; "identity"
    normalizer   "sum" divides by z · φ(q) as above, the paper's; "rms" takes rms_norm(Sᵀ φ(q)), which needs no z and
                 allows for negative features; "none" leaves Sᵀ φ(q) / √d_head as it is

    The state is S, [B, H, d_head, d_head], and z as one more column where there is one.
    """

    def __init__(self, d_model: int, n_heads: int = 4, feature_map: str = "elu", normalizer: str = "sum") -> None:
        super().__init__(d_model)
        check_choice("feature_map", feature_map, FEATURE_MAPS)
        check_choice("normalizer", normalizer, NORMALIZERS)
        if feature_map == "identity" and normalizer == "sum":
            raise ValueError("normalizer 'sum' needs features that are not negative: feature_map 'elu' or 'relu'")
        self.n_heads, self.d_head = n_heads, head_width(d_model, n_heads)
        self.feature_map, self.normalizer = feature_map, normalizer
        self.d_value = self.d_head + (normalizer == "sum")
        self.W_qkv = nn.Linear(d_model, 3 * d_model, bias=False)  # W_q, W_k and W_v, one below the other
        self.W_o = nn.Linear(d_model, d_model, bias=False)

    def forward(
        self, x: Tensor, state: State = None, *, mask: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, State]:
        self.check_call(x, state, mask, cu_seqlens)
        q, k, v = self.W_qkv(x).to(accumulation_dtype(x)).unflatten(-1, (3, self.n_heads, self.d_head)).unbind(2)
        q, k = self.features(q), self.features(k)
        if mask is not None:
            k = k.masked_fill(~mask[:, :, None, None], 0)
        if self.normalizer == "sum":  # z is S for a value that is always 1
            v = F.pad(v, (0, 1), value=1.0)
        with no_autocast(x):
            o, last = linear_attention(q, k, v, None if state is None else state.to(k.dtype), cu_seqlens)
            o = self.normalize(o)
        y: Tensor = self.W_o(o.flatten(-2).to(x.dtype))
        return y, last

    def features(self, u: Tensor) -> Tensor:
        if self.feature_map == "elu":
            return F.elu(u) + 1
        return F.relu(u) if self.feature_map == "relu" else u

    def normalize(self, o: Tensor) -> Tensor:
        if self.normalizer == "sum":
            return o[..., :-1] / o[..., -1:].clamp(min=1e-6)
        return rms_norm(o) if self.normalizer == "rms" else o * self.d_head**-0.5

    def state_size(self, seq_len: int) -> int:
        return self.n_heads * self.d_head * self.d_value

    def flops(self, seq_len: int) -> float:
        projections = 2 * (self.W_qkv.weight.numel() + self.W_o.weight.numel())
        return projections + chunk_flops(seq_len, CHUNK, self.d_head, self.d_value) * self.n_heads


def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor | None, cu_seqlens: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """o_t = S_tᵀ q_t with S_t = S_{t-1} + k_t v_tᵀ for q, k [B, T, H, d_k], v [B, T, H, d_v]; o and the last S.

    Within a chunk as masked attention, from chunk to chunk through S.
    """
    chunks = chunks_of(q.shape[1], CHUNK, cu_seqlens)
    q, k, v = (chunks.split_heads(u) for u in (q, k, v))
    S, last = recurrence(k.new_ones(1, chunks.K, 1, 1, 1), k.transpose(-1, -2) @ v, state, chunks.offsets)
    o = (q @ k.transpose(-1, -2)).tril() @ v + q @ before(S, state, chunks.offsets)
    return chunks.merge_heads(o), last


def linear_attention_recurrence(q: Tensor, k: Tensor, v: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """The specification, one step after the other; S [B, H, d_k, d_v]."""
    o = []
    for q_t, k_t, v_t in zip(q.unbind(1), k.unbind(1), v.unbind(1), strict=True):
        S = S + k_t.unsqueeze(-1) * v_t.unsqueeze(-2)
        o.append((S * q_t.unsqueeze(-1)).sum(-2))
    return torch.stack(o, dim=1), S
