"""Gated DeltaNet (Yang et al. 2025, arXiv 2412.06464): a memory that forgets, and overwrites what a key held before."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ematrace.mixers._chunks import Chunks, chunks_of, ends_of, n_chunks, starts_of
from ematrace.mixers._short_conv import ShortConv
from ematrace.mixers.base import Mixer, State, accumulation_dtype, head_width, map_state, rms_norm
from ematrace.traces.operator import no_autocast

CHUNK = 64


class GatedDeltaMixer(Mixer):
    """For each head, with u = silu(W x), q, k = u_q / |u_q|, u_k / |u_k| and v = u_v:

        a_t = exp(-e^A_log softplus(W_a x_t + dt_bias)),    b_t = σ(W_b x_t)
        S_t = a_t S_{t-1} (I - b_t k_t k_tᵀ) + b_t v_t k_tᵀ
        o_t = rms_norm(S_t q_t),    y_t = W_o (silu(W_g x_t) ⊙ [o of all heads])

    n_heads    divides d_model and the width of values
    expand_v   width of all values together, as a share of d_model
    conv_size  steps of a causal convolution of W x before silu; 0: none (the paper's model has 4)

    The state is S, [B, H, d_v, d_k]; with a convolution also its last conv_size - 1 inputs.
    """

    def __init__(self, d_model: int, n_heads: int = 4, expand_v: float = 1.0, conv_size: int = 0) -> None:
        super().__init__(d_model)
        if not isinstance(conv_size, int) or conv_size < 0 or conv_size == 1:
            raise ValueError(f"conv_size must be 0 (none) or at least 2, got {conv_size!r}")
        self.n_heads, self.conv_size = n_heads, conv_size
        self.d_k = head_width(d_model, n_heads)
        self.d_v = head_width(d_model, n_heads, "expand_v", expand_v)
        keys, values = n_heads * self.d_k, n_heads * self.d_v
        self.W_qkv = nn.Linear(d_model, 2 * keys + values, bias=False)  # W_q, W_k and W_v, one below the other
        self.W_g = nn.Linear(d_model, values, bias=False)
        self.W_ab = nn.Linear(d_model, 2 * n_heads, bias=False)  # W_a and W_b
        self.W_o = nn.Linear(values, d_model, bias=False)
        self.conv = ShortConv(2 * keys + values, conv_size) if conv_size else None
        self.A_log = nn.Parameter(torch.empty(n_heads))
        self.dt_bias = nn.Parameter(torch.empty(n_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As Mamba 2: e^A_log in 1 ... 16 and softplus(dt_bias) in 0.001 ... 0.1, so that heads forget differently."""
        with torch.no_grad():
            self.A_log.uniform_(1, 16).log_()
            dt = self.dt_bias.uniform_(math.log(1e-3), math.log(1e-1)).exp_()
            dt += torch.log(-torch.expm1(-dt))  # the inverse of softplus

    def forward(
        self, x: Tensor, state: State = None, *, mask: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, State]:
        self.check_call(x, state, mask, cu_seqlens)
        dtype = accumulation_dtype(x)
        S, past = map_state(lambda t: t.to(dtype), (state, None) if self.conv is None else state or (None, None))
        u, g = self.W_qkv(x).to(dtype), self.W_g(x).to(dtype)
        log_a, b = self.gates(x, mask)
        with no_autocast(x):
            if self.conv is not None:
                u, past = self.conv(u, past, mask, cu_seqlens)
            q, k, v = F.silu(u).split([self.n_heads * d for d in (self.d_k, self.d_k, self.d_v)], dim=-1)
            q, k, v = (t.unflatten(-1, (self.n_heads, -1)) for t in (q, k, v))
            o, S = gated_delta(unit(q), unit(k), v, log_a, b, S, cu_seqlens)
            o = rms_norm(o).flatten(-2) * F.silu(g)
        y: Tensor = self.W_o(o.to(x.dtype))
        return y, S if self.conv is None else (S, past)

    def gates(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """log a and b, [B, T, H]; both 0 at padding, which then changes nothing."""
        dtype = accumulation_dtype(x)
        a, b = self.W_ab(x).to(dtype).chunk(2, dim=-1)
        log_a = -self.A_log.to(dtype).exp() * F.softplus(a + self.dt_bias.to(dtype))
        b = b.sigmoid()
        if mask is None:
            return log_a, b
        padding = ~mask.unsqueeze(-1)
        return log_a.masked_fill(padding, 0), b.masked_fill(padding, 0)

    def state_size(self, seq_len: int) -> int:
        return self.n_heads * self.d_k * self.d_v + max(self.conv_size - 1, 0) * self.W_qkv.out_features

    def flops(self, seq_len: int) -> float:
        """Without the triangular systems, which torch does not count: C (d_k + d_v) per token and head."""
        K, C = n_chunks(seq_len, CHUNK)
        d_k, d_v = self.d_k, self.d_v
        projections = 2 * sum(W.weight.numel() for W in (self.W_qkv, self.W_g, self.W_ab, self.W_o))
        inside, through_S = 2 * C * (2 * d_k + d_v), 6 * d_k * d_v
        return projections + self.n_heads * K * C * (inside + through_S) / seq_len


def unit(u: Tensor) -> Tensor:
    """u / |u|, with a derivative that stays finite at 0."""
    return u * (u.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


def gated_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_a: Tensor,
    b: Tensor,
    state: Tensor | None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """o_t = S_t q_t with S_t = a_t S_{t-1} (I - b_t k_t k_tᵀ) + b_t v_t k_tᵀ, and the last S; see the loop below.

    q, k [B, T, H, d_k], v [B, T, H, d_v], log_a, b [B, T, H]; state [B or N, H, d_v, d_k]. In each chunk, from S_0 and
    with A_i the sum of log_a up to step i, what step i adds is u_i k_iᵀ:

        u_i = b_i (v_i - e^A_i S_0 k_i - Σ_{j<i} e^(A_i - A_j) (k_i · k_j) u_j)

    a triangular system, solved for all chunks at once but for S_0 (the WY form of the product of I - b k kᵀ). Exponents
    are differences, never positive, so that nothing overflows.
    """
    chunks = chunks_of(q.shape[1], CHUNK, cu_seqlens)
    q, k, v = (chunks.split_heads(t) for t in (q, k, v))
    log_a, b = (chunks.split_heads(t.unsqueeze(-1)) for t in (log_a, b))
    A = log_a.cumsum(-2)
    future = torch.ones(chunks.C, chunks.C, dtype=torch.bool, device=q.device).triu(1)
    decay = (A - A.mT).masked_fill(future, -torch.inf).exp()
    lower = (b * decay * (k @ k.mT)).tril(-1)
    right = torch.cat([b * v, b * A.exp() * k], dim=-1)
    u_v, u_S = torch.linalg.solve_triangular(lower, right, upper=False, unitriangular=True).split(
        [v.shape[-1], k.shape[-1]], dim=-1
    )
    scores = decay * (q @ k.mT)
    total = A[..., -1:, :]
    o, last = _through_chunks(chunks, state, u_v, u_S, A.exp() * q, scores, total.exp(), (total - A).exp() * k)
    return chunks.merge_heads(o), last


def _through_chunks(
    chunks: Chunks,
    state: Tensor | None,
    u_v: Tensor,
    u_S: Tensor,
    q: Tensor,
    scores: Tensor,
    keep: Tensor,
    k: Tensor,
) -> tuple[Tensor, Tensor]:
    """S from chunk to chunk: o [B, K, H, C, d_v] and the last S. Packed sequences start from states of their own."""
    N = q.shape[0] if chunks.offsets is None else chunks.offsets.shape[0] - 1
    if state is None:
        state = q.new_zeros(N, q.shape[2], u_v.shape[-1], k.shape[-1])
    S = state if chunks.offsets is None else state[:1]
    starts, given = (None, None) if chunks.offsets is None else starts_of(chunks.K, state, chunks.offsets)
    out, after = [], []
    # Unbound once: a slice in each turn of the loop would cost a tensor of zeros for all chunks in its backward.
    for i, parts in enumerate(zip(*(t.unbind(1) for t in (u_v, u_S, q, scores, keep, k)), strict=True)):
        u_v_i, u_S_i, q_i, scores_i, keep_i, k_i = parts
        if starts is not None and given is not None:
            S = torch.where(starts[:, i], given[:, i], S)
        u = u_v_i - u_S_i @ S.mT
        out.append(q_i @ S.mT + scores_i @ u)
        S = keep_i * S + u.mT @ k_i
        if starts is not None:
            after.append(S)
    last = S if chunks.offsets is None else ends_of(torch.stack(after, dim=1), state, chunks.offsets)
    return torch.stack(out, dim=1), last


def gated_delta_recurrence(
    q: Tensor, k: Tensor, v: Tensor, log_a: Tensor, b: Tensor, S: Tensor
) -> tuple[Tensor, Tensor]:
    """The specification, one step after the other; S [B, H, d_v, d_k]."""
    o, identity = [], torch.eye(k.shape[-1], dtype=k.dtype, device=k.device)
    a = log_a.exp()[..., None, None]
    b = b[..., None, None]
    for t in range(q.shape[1]):
        q_t, k_t, v_t = q[:, t].unsqueeze(-1), k[:, t].unsqueeze(-1), v[:, t].unsqueeze(-1)
        S = a[:, t] * S @ (identity - b[:, t] * k_t @ k_t.mT) + b[:, t] * v_t @ k_t.mT
        o.append((S @ q_t).squeeze(-1))
    return torch.stack(o, dim=1), S
