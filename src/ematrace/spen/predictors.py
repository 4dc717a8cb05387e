"""Predictors of the current input, the part that the paper's ablation exchanges.

Each is a module `forward(x, traces, past, mask, cu_seqlens) -> (x_hat, past)`: x [B, T, D] the block's input, traces
[A, B, T, D] the slow one last, `past` what the predictor itself carries from call to call.

Those that read a sequence see s < t only, so x_hat_0 = 0: with s = t they could copy x_t and make the error vanish.
Those that read the traces of step t do see x_t inside the traces; that is how the paper's own predictor is defined.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ematrace.spen.configuration import SpenConfig

Past = tuple[Tensor, ...] | None
CHUNK = 64
"""Steps that linear attention handles as one matrix product."""


class StaticPredictor(nn.Module):
    """x_hat_t = W_pred h_t / |h_t| with h the slow trace (Alg. 1, lines 1 and 2)."""

    def __init__(self, config: SpenConfig) -> None:
        super().__init__()
        self.W_pred = nn.Linear(config.d_model, config.d_model, bias=False)

    def forward(
        self, x: Tensor, traces: Tensor, past: Past = None, mask: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, Past]:
        return self.W_pred(unit(traces[-1])), None


class TraceAttention(nn.Module):
    """Attention over the A trace vectors of this very step: content-dependent weights on what is already averaged."""

    def __init__(self, config: SpenConfig) -> None:
        super().__init__()
        d = config.d_model
        self.softmax = config.predictor == "softmax"
        self.n_heads = config.n_heads if self.softmax else 1
        self.W_q, self.W_k, self.W_v = (nn.Linear(d, d, bias=False) for _ in range(3))
        self.W_o = nn.Linear(d, d, bias=False) if self.softmax else nn.Identity()

    def forward(
        self, x: Tensor, traces: Tensor, past: Past = None, mask: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, Past]:
        q = self.W_q(rms(traces[-1]) if self.softmax else unit(traces[-1]))
        k = self.W_k(rms(traces) if self.softmax else unit(traces))
        v = self.W_v(traces)
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)) for t in (q, k, v))  # [(A,) B, T, H, D/H]
        scores = torch.einsum("bthd,abthd->abth", q, k)
        if self.softmax:
            scores = (scores / q.shape[-1] ** 0.5).softmax(dim=0)
        return self.W_o(torch.einsum("abth,abthd->bthd", scores, v).flatten(-2)), None


class SequencePredictor(nn.Module):
    """Keys from what is read (the traces side by side, or the inputs); queries from the slow trace; the past only."""

    def __init__(self, config: SpenConfig) -> None:
        super().__init__()
        d = config.d_model
        self.reads_traces = config.predictor_reads == "trace_sequence"
        source = d * len(config.alphas) if self.reads_traces else d
        self.W_q = nn.Linear(d, d, bias=False)
        self.W_k = nn.Linear(source, d, bias=False)

    def source(self, x: Tensor, traces: Tensor) -> Tensor:
        """[B, T, A D] or [B, T, D]."""
        return traces.permute(1, 2, 0, 3).flatten(-2) if self.reads_traces else x


class LinearAttentionPredictor(SequencePredictor):
    """x_hat_t = sum_{s<t} gamma^(t-1-s) (q_t . k_s) v_s, values from the input whatever the keys read.

    Queries and keys are made from unit vectors: the sum has no normaliser and runs over 1/(1-gamma) = 1,000 tokens.
    """

    def __init__(self, config: SpenConfig) -> None:
        super().__init__(config)
        self.gamma = config.gamma
        self.W_v = nn.Linear(config.d_model, config.d_model, bias=False)

    def forward(
        self, x: Tensor, traces: Tensor, past: Past = None, mask: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, Past]:
        q, k, v = self.W_q(unit(traces[-1])), self.W_k(unit(self.source(x, traces))), self.W_v(x)  # 0 at padding
        if cu_seqlens is not None:
            return each_segment(cu_seqlens, lambda part: self._attend(q[:, part], k[:, part], v[:, part])[0]), None
        x_hat, memory = self._attend(q, k, v, None if past is None else past[0])
        return x_hat, (memory,)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return decayed_linear_attention(q, k, v, self.gamma, memory)


class SoftmaxPredictor(SequencePredictor):
    """Standard multi-head attention; keys and values from what is read.

    Queries and keys are made from vectors scaled to root mean square 1, as a pre-norm transformer does.
    """

    def __init__(self, config: SpenConfig) -> None:
        super().__init__(config)
        self.n_heads = config.n_heads
        self.W_v = nn.Linear(self.W_k.in_features, config.d_model, bias=False)
        self.W_o = nn.Linear(config.d_model, config.d_model, bias=False)

    def forward(
        self, x: Tensor, traces: Tensor, past: Past = None, mask: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, Past]:
        source = self.source(x, traces)
        q, k, v = (
            self._heads(self.W_q(rms(traces[-1]))),
            self._heads(self.W_k(rms(source))),
            self._heads(self.W_v(source)),
        )
        if cu_seqlens is not None:
            mixed = each_segment(
                cu_seqlens, lambda part: strictly_causal_attention(q[:, :, part], k[:, :, part], v[:, :, part]), dim=2
            )
            return self.W_o(mixed.transpose(1, 2).flatten(-2)), None
        seen = torch.ones_like(q[:, 0, :, 0], dtype=torch.bool) if mask is None else mask.bool()
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
            seen = torch.cat([past[2], seen], dim=1)
        padded = mask is not None or past is not None
        mixed = strictly_causal_attention(q, k, v, seen if padded else None)
        return self.W_o(mixed.transpose(1, 2).flatten(-2)), (k, v, seen)

    def _heads(self, y: Tensor) -> Tensor:
        heads: Tensor = y.unflatten(-1, (self.n_heads, -1))
        return heads.transpose(1, 2)


def build_predictor(config: SpenConfig) -> nn.Module:
    if config.predictor == "static":
        return StaticPredictor(config)
    if config.predictor_reads == "traces_now":
        return TraceAttention(config)
    return LinearAttentionPredictor(config) if config.predictor == "linear" else SoftmaxPredictor(config)


def unit(h: Tensor) -> Tensor:
    """h / |h| (Alg. 1, line 1), in float32 at least; 0 for 0, and no gradient there: 1 / eps would overflow float16."""
    exact = h if h.dtype == torch.float64 else h.float()
    length = torch.linalg.vector_norm(exact, dim=-1, keepdim=True)
    normalised: Tensor = exact / length.masked_fill(length == 0, torch.inf)
    return normalised.to(h.dtype)


def rms(h: Tensor) -> Tensor:
    """h scaled to root mean square 1, with 0 for 0."""
    scale: float = h.shape[-1] ** 0.5
    return unit(h) * scale


def decayed_linear_attention(
    q: Tensor, k: Tensor, v: Tensor, gamma: float, memory: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """y_t = q_t S_t and S_{t+1} = gamma S_t + k_t v_t^T, over chunks: products inside a chunk, S between chunks.

    q, k [B, T, K], v [B, T, V], S [B, K, V] in float32 (float64 stays).
    """
    exact = torch.float64 if v.dtype == torch.float64 else torch.float32
    with torch.autocast(q.device.type, enabled=False):
        dtype, (q, k, v) = v.dtype, (t.to(exact) for t in (q, k, v))
        S = q.new_zeros(q.shape[0], q.shape[2], v.shape[2]) if memory is None else memory
        outputs = []
        for q_c, k_c, v_c in zip(q.split(CHUNK, 1), k.split(CHUNK, 1), v.split(CHUNK, 1), strict=True):
            n = q_c.shape[1]
            step = torch.arange(n, device=q.device)
            lag = step[:, None] - 1 - step
            decay = torch.where(lag >= 0, gamma ** lag.clamp(min=0).to(exact), 0.0)
            from_past = (gamma ** step.to(exact))[:, None] * (q_c @ S)
            outputs.append(((q_c @ k_c.mT) * decay) @ v_c + from_past)
            to_end = (gamma ** (n - 1 - step).to(exact))[:, None]
            S = gamma**n * S + (k_c * to_end).mT @ v_c
        return (torch.cat(outputs, 1) if outputs else v).to(dtype), S


def strictly_causal_attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None = None) -> Tensor:
    """Softmax attention of query t over keys s < t; 0 where there is none. Queries are the last of the keys' steps.

    q [B, H, T, K]; k, v [B, H, S, K] with S >= T; seen [B, S] False at padding.
    """
    n_queries, n_keys = q.shape[2], k.shape[2]
    if seen is None and n_queries == n_keys:  # shifted by one, strictly past becomes ordinary causal attention
        later = F.scaled_dot_product_attention(q[:, :, 1:], k[:, :, :-1], v[:, :, :-1], is_causal=True)
        return torch.cat([torch.zeros_like(q[:, :, :1]).to(later.dtype), later], dim=2)
    query_step = torch.arange(n_keys - n_queries, n_keys, device=q.device)
    allowed = (torch.arange(n_keys, device=q.device) < query_step[:, None])[None, None]
    if seen is not None:
        allowed = allowed & seen[:, None, None, :]
    some = allowed.any(-1, keepdim=True)
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed | ~some)
    return torch.where(some, mixed, 0.0)


def each_segment(cu_seqlens: Tensor, attend: Callable[[slice], Tensor], dim: int = 1) -> Tensor:
    """Run `attend` on each packed sequence by itself and put the results side by side again."""
    ends: list[int] = cu_seqlens.tolist()
    return torch.cat([attend(slice(a, b)) for a, b in itertools.pairwise(ends)], dim=dim)
