"""Gated linear attention (Yang et al. 2024, arXiv 2312.06635): linear attention that forgets, channel by channel."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ematrace.mixers._chunks import before, chunk_flops, chunks_of, recurrence
from ematrace.mixers.base import Mixer, State, accumulation_dtype, check_positive, head_width, is_number, rms_norm
from ematrace.traces.operator import no_autocast

CHUNK = 16  # scores within a chunk hold C d_k numbers for each token


class GlaMixer(Mixer):
    """For each head, with q, k, v = W_q x / √d_k, W_k x, W_v x:

        α_t = σ(W_α2 W_α1 x_t)^(1/τ)
        S_t = diag(α_t) S_{t-1} + k_t v_tᵀ
        o_t = rms_norm(S_tᵀ q_t),    y_t = W_o (silu(W_r x_t) ⊙ [o of all heads])

    n_heads           divides the widths of keys and values
    expand_k          width of all keys together, as a share of d_model
    expand_v          the same for values
    gate_rank         rows of W_α1
    gate_temperature  τ: the larger, the closer to 1 is α at the start

    The state is S, [B, H, d_k, d_v]. The paper's gates have a bias, and its norm is a layer norm.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int = 4,
        expand_k: float = 0.5,
        expand_v: float = 1.0,
        gate_rank: int = 16,
        gate_temperature: float = 16.0,
    ) -> None:
        super().__init__(d_model)
        check_positive("gate_rank", gate_rank)
        if not is_number(gate_temperature) or not gate_temperature > 0:
            raise ValueError(f"gate_temperature must be positive, got {gate_temperature!r}")
        self.n_heads, self.gate_temperature = n_heads, gate_temperature
        self.d_k = head_width(d_model, n_heads, "expand_k", expand_k)
        self.d_v = head_width(d_model, n_heads, "expand_v", expand_v)
        keys, values = n_heads * self.d_k, n_heads * self.d_v
        self.W_qkvr = nn.Linear(d_model, 2 * keys + 2 * values, bias=False)  # W_q, W_k, W_v, W_r, one below the other
        self.W_a1 = nn.Linear(d_model, gate_rank, bias=False)
        self.W_a2 = nn.Linear(gate_rank, keys, bias=False)
        self.W_o = nn.Linear(values, d_model, bias=False)

    def forward(
        self, x: Tensor, state: State = None, *, mask: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, State]:
        self.check_call(x, state, mask, cu_seqlens)
        dtype = accumulation_dtype(x)
        keys, values = self.n_heads * self.d_k, self.n_heads * self.d_v
        q, k, v, r = self.W_qkvr(x).to(dtype).split([keys, keys, values, values], dim=-1)
        log_a = F.logsigmoid(self.W_a2(self.W_a1(x)).to(dtype)) / self.gate_temperature
        if mask is not None:
            padding = ~mask.unsqueeze(-1)
            k, log_a = k.masked_fill(padding, 0), log_a.masked_fill(padding, 0)
        q, k, v, log_a = (u.unflatten(-1, (self.n_heads, -1)) for u in (q * self.d_k**-0.5, k, v, log_a))
        with no_autocast(x):
            o, last = gla(q, k, v, log_a, None if state is None else state.to(dtype), cu_seqlens)
            o = rms_norm(o).flatten(-2) * F.silu(r)
        y: Tensor = self.W_o(o.to(x.dtype))
        return y, last

    def state_size(self, seq_len: int) -> int:
        return self.n_heads * self.d_k * self.d_v

    def flops(self, seq_len: int) -> float:
        projections = 2 * sum(W.weight.numel() for W in (self.W_qkvr, self.W_a1, self.W_a2, self.W_o))
        return projections + chunk_flops(seq_len, CHUNK, self.d_k, self.d_v) * self.n_heads


def gla(
    q: Tensor, k: Tensor, v: Tensor, log_a: Tensor, state: Tensor | None, cu_seqlens: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """o_t = S_tᵀ q_t with S_t = diag(e^log_a_t) S_{t-1} + k_t v_tᵀ, for q, k, log_a [B, T, H, d_k], v [B, T, H, d_v].

    With A_i the sum of log_a from the chunk's start to step i, step j ≤ i counts e^(A_i - A_j) in step i. Exponents are
    formed as differences, never positive, so that nothing overflows however strong the decay.
    """
    chunks = chunks_of(q.shape[1], CHUNK, cu_seqlens)
    q, k, v, log_a = (chunks.split_heads(u) for u in (q, k, v, log_a))
    A = log_a.cumsum(-2)
    total = A[..., -1:, :]
    update = (k * (total - A).exp()).transpose(-1, -2) @ v
    S, last = recurrence(total.exp().transpose(-1, -2), update, state, chunks.offsets)
    future = torch.ones(chunks.C, chunks.C, dtype=torch.bool, device=q.device).triu(1).unsqueeze(-1)
    decay = (A.unsqueeze(-2) - A.unsqueeze(-3)).masked_fill(future, -torch.inf).exp()  # [..., i, j, d_k]
    scores = (decay * k.unsqueeze(-3) @ q.unsqueeze(-1)).squeeze(-1)
    o = scores @ v + (q * A.exp()) @ before(S, state, chunks.offsets)
    return chunks.merge_heads(o), last


def gla_recurrence(q: Tensor, k: Tensor, v: Tensor, log_a: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """The specification, one step after the other; S [B, H, d_k, d_v]."""
    o = []
    for q_t, k_t, v_t, log_a_t in zip(q.unbind(1), k.unbind(1), v.unbind(1), log_a.unbind(1), strict=True):
        S = log_a_t.exp().unsqueeze(-1) * S + k_t.unsqueeze(-1) * v_t.unsqueeze(-2)
        o.append((S * q_t.unsqueeze(-1)).sum(-2))
    return torch.stack(o, dim=1), S
