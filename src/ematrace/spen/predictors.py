"""Predictors of the current input, the part that the paper's ablation exchanges.

Each is a module `forward(x, traces, past, mask, cu_seqlens) -> (x_hat, past)`: x [B, T, D] the block's input, traces
[A, B, T, D] the slow one last, `past` what the predictor itself carries from call to call: None, or tensors whose
dimension 0 is the batch (with `cu_seqlens`: the packed sequences).

Those that read a sequence see s < t only, so x_hat_0 = 0: with s = t they could copy x_t and make the error vanish.
Those that read the traces of step t do see x_t inside the traces; that is how the paper's own predictor is defined.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ematrace.mixers._chunks import before, chunk_flops, chunks_of, recurrence
from ematrace.mixers.base import accumulation_dtype, check_choice
from ematrace.traces.operator import no_autocast

Past = tuple[Tensor, ...] | None
QUERIES = ("slow_trace", "input")
VALUES = ("as_read", "normalised")
CHUNK = 128
"""Steps that linear attention handles in one matmul."""


class Predictor(nn.Module):
    """What all of them answer besides x_hat; see `ematrace.mixers.base.Mixer` for the units."""

    def state_size(self, seq_len: int) -> int:
        return 0

    def flops(self, seq_len: int) -> float:
        layers = (layer for layer in self.children() if isinstance(layer, nn.Linear))
        return 2.0 * sum(layer.weight.numel() for layer in layers)


class StaticPredictor(Predictor):
    """x_hat_t = W_pred h_t / |h_t| with h the slow trace (Alg. 1, lines 1 and 2)."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.W_pred = nn.Linear(d_model, d_model, bias=False)

    def forward(
        self, x: Tensor, traces: Tensor, past: Past = None, mask: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, Past]:
        return self.W_pred(unit(traces[-1])), None


class TraceAttention(Predictor):
    """Attention over the A trace vectors of this very step: content-dependent weights on what is already averaged."""

    def __init__(self, d_model: int, n_traces: int, n_heads: int, softmax: bool) -> None:
        super().__init__()
        self.n_traces = n_traces
        self.softmax = softmax
        self.n_heads = n_heads if softmax else 1
        self.W_q, self.W_k, self.W_v = (nn.Linear(d_model, d_model, bias=False) for _ in range(3))
        self.W_o = nn.Linear(d_model, d_model, bias=False) if softmax else nn.Identity()

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

    def flops(self, seq_len: int) -> float:
        d = self.W_q.in_features
        keys_and_values = 2 * (self.n_traces - 1) * 2.0 * d * d  # of the other traces; one of each is in `super`
        return super().flops(seq_len) + keys_and_values + 2 * 2.0 * self.n_traces * d


class SequencePredictor(Predictor):
    """Keys from what is read (the traces side by side, or the inputs); queries from the slow trace; the past only."""

    def __init__(self, d_model: int, n_traces: int, reads_traces: bool) -> None:
        super().__init__()
        self.reads_traces = reads_traces
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model * n_traces if reads_traces else d_model, d_model, bias=False)

    def source(self, x: Tensor, traces: Tensor) -> Tensor:
        """[B, T, A D] or [B, T, D]."""
        return traces.permute(1, 2, 0, 3).flatten(-2) if self.reads_traces else x


class LinearAttentionPredictor(SequencePredictor):
    """x_hat_t = sum_{s<t} gamma^(t-1-s) (q_t . k_s) v_s, values from the input whatever the keys read.

    Queries and keys are made from unit vectors: the sum has no normaliser and runs over 1/(1-gamma) = 1,000 tokens.
    The past is one matrix [B, D, D].
    """

    def __init__(self, d_model: int, n_traces: int, reads_traces: bool, gamma: float) -> None:
        super().__init__(d_model, n_traces, reads_traces)
        self.gamma = gamma
        self.W_v = nn.Linear(d_model, d_model, bias=False)

    def forward(
        self, x: Tensor, traces: Tensor, past: Past = None, mask: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, Past]:
        q, k, v = self.W_q(unit(traces[-1])), self.W_k(unit(self.source(x, traces))), self.W_v(x)  # 0 at padding
        memory = None if past is None else past[0]
        x_hat, memory = decayed_linear_attention(q, k, v, self.gamma, memory, mask, cu_seqlens)
        return x_hat, (memory,)

    def state_size(self, seq_len: int) -> int:
        return self.W_q.in_features**2

    def flops(self, seq_len: int) -> float:
        d = self.W_q.in_features
        return super().flops(seq_len) + chunk_flops(seq_len, CHUNK, d, d)


class SoftmaxPredictor(SequencePredictor):
    """Standard multi-head attention; keys and values from what is read.

    Queries and keys are made from vectors scaled to root mean square 1, as a pre-norm transformer does. Two switches
    take it further towards the attention of a transformer: queries from the input of this step instead of the slow
    trace, and values from vectors scaled likewise.
    The past is keys and values [B, H, S, D/H] and their mask [B, S].
    """

    def __init__(
        self,
        d_model: int,
        n_traces: int,
        reads_traces: bool,
        n_heads: int,
        query: str = "slow_trace",
        values: str = "as_read",
    ) -> None:
        super().__init__(d_model, n_traces, reads_traces)
        self.n_heads = n_heads
        self.query, self.values = query, values
        self.W_v = nn.Linear(self.W_k.in_features, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)

    def forward(
        self, x: Tensor, traces: Tensor, past: Past = None, mask: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, Past]:
        source = self.source(x, traces)
        q, k, v = (
            self._heads(self.W_q(rms(x if self.query == "input" else traces[-1]))),
            self._heads(self.W_k(rms(source))),
            self._heads(self.W_v(rms(source) if self.values == "normalised" else source)),
        )
        if cu_seqlens is None:
            mixed, past = attend_and_keep(q, k, v, past, mask)
        else:
            parts = [
                attend_and_keep(q[:, :, part], k[:, :, part], v[:, :, part], past and tuple(t[n : n + 1] for t in past))
                for n, part in enumerate(segments(cu_seqlens))
            ]
            mixed, past = torch.cat([y for y, _ in parts], 2), stacked_left([kept for _, kept in parts])
        return self.W_o(mixed.transpose(1, 2).flatten(-2)), past

    def _heads(self, y: Tensor) -> Tensor:
        heads: Tensor = y.unflatten(-1, (self.n_heads, -1))
        return heads.transpose(1, 2)

    def state_size(self, seq_len: int) -> int:
        return 2 * seq_len * self.W_q.in_features

    def flops(self, seq_len: int) -> float:
        return super().flops(seq_len) + 2 * 2.0 * (seq_len - 1) ** 2 * self.W_q.in_features / seq_len


def build_predictor(
    d_model: int,
    n_traces: int,
    predictor: str,
    reads: str,
    n_heads: int = 1,
    gamma: float = 0.999,
    query: str = "slow_trace",
    values: str = "as_read",
) -> Predictor:
    """The predictor that `SpenConfig.predictor` and `predictor_reads` name; the last two are `SoftmaxPredictor`'s."""
    check_choice("predictor_query", query, QUERIES)
    check_choice("predictor_values", values, VALUES)
    if (query, values) != (QUERIES[0], VALUES[0]) and (predictor != "softmax" or reads == "traces_now"):
        raise ValueError("predictor_query and predictor_values are switches of the softmax over a sequence")
    if predictor == "static":
        return StaticPredictor(d_model)
    if reads == "traces_now":
        return TraceAttention(d_model, n_traces, n_heads, softmax=predictor == "softmax")
    reads_traces = reads == "trace_sequence"
    if predictor == "linear":
        return LinearAttentionPredictor(d_model, n_traces, reads_traces, gamma)
    return SoftmaxPredictor(d_model, n_traces, reads_traces, n_heads, query, values)


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
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gamma: float,
    memory: Tensor | None = None,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """y_t = q_t S_t with S_{t+1} = gamma S_t + k_t v_t^T, and the last S: matmuls inside a chunk, S between chunks.

    q, k [B, T, K], v [B, T, V]; memory, the S to begin with, [B or N, K, V] in float32 (float64 stays). Where mask
    [B, T] is False, k must be 0, and S does not decay. Without memory, padding comes before the first token: there is
    nothing yet that could decay, and the mask is not read.
    """
    exact, dtype = accumulation_dtype(v), v.dtype
    chunks = chunks_of(q.shape[1], CHUNK, cu_seqlens)
    if memory is None or mask is None:
        mask = torch.ones_like(q[:1, :, 0])
    with no_autocast(q):
        q, k, v = (chunks.split(t.to(exact)) for t in (q, k, v))  # [B, K, C, ...]
        real = chunks.split(mask.to(exact))
        step, n_steps = real.cumsum(-1) - real, real.sum(-1)  # before each step of a chunk, and in all
        lag = step[..., :, None] - 1 - step[..., None, :]
        decay = torch.where(lag >= 0, gamma ** lag.clamp(min=0), 0.0)
        to_end = gamma ** (n_steps[..., None] - 1 - step).clamp(min=0)
        added = (k * to_end[..., None]).mT @ v
        memory = None if memory is None else memory.to(exact)
        S, last = recurrence((gamma**n_steps)[..., None, None], added, memory, chunks.offsets)
        from_past = (gamma**step)[..., None] * (q @ before(S, memory, chunks.offsets))
        return chunks.merge(((q @ k.mT) * decay) @ v + from_past).to(dtype), last


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


def attend_and_keep(
    q: Tensor, k: Tensor, v: Tensor, past: Past = None, mask: Tensor | None = None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Strictly causal attention over the past and these steps, and the past with these steps added."""
    seen = torch.ones_like(q[:, 0, :, 0], dtype=torch.bool) if mask is None else mask.bool()
    if past is not None:
        k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        seen = torch.cat([past[2], seen], dim=1)
    padded = mask is not None or past is not None
    return strictly_causal_attention(q, k, v, seen if padded else None), (k, v, seen)


def stacked_left(pasts: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """The keys, values and masks of several sequences as one batch, the shorter ones padded before their first step."""
    longest = max(seen.shape[1] for _, _, seen in pasts)
    k, v = (torch.cat([F.pad(past[i], (0, 0, longest - past[i].shape[2], 0)) for past in pasts]) for i in range(2))
    return k, v, torch.cat([F.pad(seen, (longest - seen.shape[1], 0)) for _, _, seen in pasts])


def segments(cu_seqlens: Tensor) -> list[slice]:
    """Where each packed sequence is."""
    return [slice(start, end) for start, end in itertools.pairwise(cu_seqlens.tolist())]
