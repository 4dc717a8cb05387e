"""SPEN's mixer: Algorithm 1 of the paper up to the context, lines 1 to 4. Lines 5 to 7 are the skeleton's block.

line 1   h̄ = h_s / |h_s|                                      direction of the slow trace
line 2   x̂ = W_pred h̄                                         prediction of the input
line 3   e = x - x̂                                            its error
line 4   c = x + W_f h_f + W_m h_m + W_s h_s + W_e e          context; W_h = [W_f W_m W_s]
line 5   z = GELU(W_up LN(c))
line 6   z = top-k(z)
line 7   x' = x + W_down z
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ematrace.mixers.base import Mixer
from ematrace.models import Block
from ematrace.spen.predictors import Past, StaticPredictor, build_predictor
from ematrace.traces import EMATraces
from ematrace.traces.fused_columns import can_fuse_columns, fused_columns

Predict = Callable[..., tuple[Tensor, Past]]
SpenState = tuple[Tensor, ...]
"""Traces [B, A, D] in float32, then whatever the predictor carries; the paper's carries nothing."""
FOLDED_FROM = 16  # tokens per channel: computing W_e W_pred costs as much as d / 5 tokens do


class SpenMixer(Mixer):
    """y = W_h [h_f; h_m; h_s] + W_e (x - x̂): EMA traces of the input, and the error of its prediction from them.

    alphas           rates of the traces, fastest first; the last one is the slow trace that predicts
    predictor, predictor_reads, n_heads, gamma      see `SpenConfig`
    predictor_query, predictor_values               of a softmax over a sequence, see `SoftmaxPredictor`

    >>> import torch
    >>> mixer = SpenMixer(d_model=8, alphas=[0.5, 0.02])
    >>> y, state = mixer(torch.ones(1, 10, 8))
    >>> y.shape, mixer.state_size(seq_len=10), mixer.state_size(seq_len=10_000)
    (torch.Size([1, 10, 8]), 16, 16)
    """

    def __init__(
        self,
        d_model: int,
        alphas: Sequence[float] = (0.5, 0.1, 0.02),
        predictor: str = "static",
        predictor_reads: str = "traces_now",
        n_heads: int = 12,
        gamma: float = 0.999,
        predictor_query: str = "slow_trace",
        predictor_values: str = "as_read",
    ) -> None:
        super().__init__(d_model)
        self.alphas = tuple(alphas)
        self.traces = EMATraces(self.alphas)
        self.predictor = build_predictor(
            d_model, len(self.alphas), predictor, predictor_reads, n_heads, gamma, predictor_query, predictor_values
        )
        self.W_h = nn.Linear(len(self.alphas) * d_model, d_model, bias=False)
        self.W_e = nn.Linear(d_model, d_model, bias=False)

    def forward(
        self,
        x: Tensor,
        state: SpenState | None = None,
        *,
        mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> tuple[Tensor, SpenState]:
        self.check_call(x, state, mask, cu_seqlens)
        return self.add_to(0.0, x, state, mask, cu_seqlens)

    def add_to(
        self,
        base: Tensor | float,
        x: Tensor,
        state: SpenState | None = None,
        mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        predictor: Predict | None = None,
    ) -> tuple[Tensor, SpenState]:
        """base + y and the state; `base` is x in Algorithm 1. `predictor` stands in for the mixer's own (PGHU)."""
        if mask is not None:
            x = x * mask.unsqueeze(-1)
        before, past = (None, None) if state is None else (state[0].transpose(0, 1), state[1:] or None)
        trace_mask = mask if state is not None else None  # traces of 0 stay 0 at padding, others would decay
        if predictor is None and trace_mask is None and self.folds(x):
            columns, last = fused_columns(x, self.alphas, before, cu_seqlens)
            return base + F.linear(columns, self.folded_weights()), (_batch_first(last),)
        h, last = self.traces(x, before, cu_seqlens, trace_mask)
        x_hat, past = (predictor or self.predictor)(x, h, past, mask, cu_seqlens)  # Alg. 1 lines 1 and 2
        e = x - x_hat  # Alg. 1 line 3
        c = base + self.W_h(h.permute(1, 2, 0, 3).flatten(-2)) + self.W_e(e)  # Alg. 1 line 4
        return c, (_batch_first(last), *(past or ()))

    def folded_weights(self, dtype: torch.dtype | None = None) -> Tensor:
        """M = [W_h  W_e  -W_e W_pred]: lines 1 to 4 are c = x + M [h_f; h_m; h_s; x; h̄], one matmul for three."""
        layers = (self.W_h, self.W_e, self.static_predictor.W_pred)
        W_h, W_e, W_pred = (layer.weight.to(dtype or layer.weight.dtype) for layer in layers)
        return torch.cat([W_h, W_e, -W_e @ W_pred], 1)

    @property
    def static_predictor(self) -> StaticPredictor:
        """The predictor of the paper's model; the folded weights and PGHU have no others."""
        return cast(StaticPredictor, self.predictor)

    def folds(self, x: Tensor) -> bool:
        """Whether to use the folded weights: where a kernel writes the columns, and there are tokens enough.

        Falls back to the layers when one was replaced or hooked.
        """
        return (
            isinstance(self.predictor, StaticPredictor)
            and x.shape[0] * x.shape[1] >= FOLDED_FROM * x.shape[2]
            and can_fuse_columns(x)
            and all(is_untouched(layer) for layer in (self.W_h, self.W_e, self.predictor, self.predictor.W_pred))
        )

    def state_size(self, seq_len: int) -> int:
        return len(self.alphas) * self.d_model + int(self.predictor.state_size(seq_len))

    def flops(self, seq_len: int) -> float:
        mixed = (len(self.alphas) + 1) * self.d_model
        return 2.0 * mixed * self.d_model + float(self.predictor.flops(seq_len))


def _batch_first(last: Tensor) -> Tensor:
    """[A, B, D] to [B, A, D], in memory of its own: a short sequence's last traces are a slice of all of them."""
    return last.transpose(0, 1).clone(memory_format=torch.contiguous_format)


class SpenBlock(Block):
    """The skeleton's block with the sum of line 4 in the paper's order, x first."""

    mixer: SpenMixer

    def algorithm1(
        self, x: Tensor, state: SpenState | None = None, predictor: Predict | None = None
    ) -> tuple[Tensor, Tensor, SpenState]:
        """x', the units z and the state: what `forward` computes, with the parts that parity and PGHU look into."""
        c, state = self.mixer.add_to(x, x, state, predictor=predictor)  # Alg. 1 lines 1 to 4
        x_next, z, _ = self.respond(x, c)  # Alg. 1 lines 5 to 7
        return x_next, z, state

    def context(
        self, x: Tensor, state: Any = None, mask: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        return self.mixer.add_to(x, x, state, mask, cu_seqlens)


def is_untouched(layer: nn.Module) -> bool:
    """Whether a layer computes what its weight alone says: not replaced, wrapped, quantised or hooked, and no bias."""
    hooks = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    if type(layer) not in (nn.Linear, StaticPredictor) or hooks:
        return False
    if torch.compiler.is_compiling():  # which does not see through the rest
        return True
    wrapped = "forward" in vars(layer)
    weight, bias = (getattr(layer, name, None) for name in ("weight", "bias"))
    return not wrapped and bias is None and type(weight) in (nn.Parameter, Tensor, NoneType)
