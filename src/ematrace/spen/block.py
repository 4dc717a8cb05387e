"""One SPEN block (Algorithm 1 of the paper)."""

from __future__ import annotations

from types import NoneType
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from ematrace.ops import gelu_topk, gelu_topk_balanced
from ematrace.spen.cache import BlockState
from ematrace.spen.configuration import SpenConfig
from ematrace.spen.predictors import StaticPredictor, build_predictor
from ematrace.traces import ema_traces
from ematrace.traces.beside import can_stand_beside, ema_traces_beside

FOLDED_FROM = 16  # tokens for each channel: multiplying out W_e W_pred costs as much as d / 5 tokens do


class SpenBlock(GradientCheckpointingLayer):
    """Traces of the input and the error of its prediction, mixed into a context for a sparse feed-forward layer."""

    def __init__(self, config: SpenConfig) -> None:
        super().__init__()
        self.config = config
        d = config.d_model
        self.predictor = build_predictor(config)
        self.W_h = nn.Linear(len(config.alphas) * d, d, bias=False)  # W_f, W_m and W_s side by side
        self.W_e = nn.Linear(d, d, bias=False)
        self.norm = nn.LayerNorm(d, eps=config.layer_norm_epsilon)
        self.W_up = nn.Linear(d, config.d_ff, bias=False)
        self.W_down = nn.Linear(config.d_ff, d, bias=False)
        self.W_down.initial_scale = config.n_layers**-0.5  # the outputs of n_layers add up in the residual stream

    def forward(
        self, x: Tensor, state: BlockState, mask: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, BlockState, Tensor | None]:
        """x [B, T, D] to x' [B, T, D], the state after it, and the load-balance loss (training only).

        Padding (mask False) lies before a row's first token: its input is 0, so the traces are still 0 when it begins.
        """
        if mask is not None:
            x = x * mask.unsqueeze(-1)
        if self.folds(x):
            columns, trace_state = ema_traces_beside(x, self.config.alphas, state.traces, cu_seqlens)
            c, past = x + F.linear(columns, self.folded_weights()), None
        else:
            traces, trace_state = ema_traces(x, self.config.alphas, state.traces, cu_seqlens)
            x_hat, past = self.predictor(x, traces, state.predictor, mask, cu_seqlens)
            c = self.context(x, traces, x_hat)
        x_next, _, balance = self.respond(x, c, mask)
        return x_next, BlockState(trace_state, past), balance

    def context(self, x: Tensor, traces: Tensor, x_hat: Tensor) -> Tensor:
        """Alg. 1, lines 3 and 4."""
        e = x - x_hat
        h = traces.permute(1, 2, 0, 3).flatten(-2)
        c: Tensor = x + self.W_h(h) + self.W_e(e)
        return c

    def folded_weights(self, dtype: torch.dtype | None = None) -> Tensor:
        """M = [W_h  W_e  -W_e W_pred]: with ĥ = h_s / |h_s| lines 1 to 4 are c = x + M [h_f; h_m; h_s; x; ĥ]."""
        predictor = cast(StaticPredictor, self.predictor)
        W_h, W_e, W_pred = (
            layer.weight.to(dtype or layer.weight.dtype) for layer in (self.W_h, self.W_e, predictor.W_pred)
        )
        return torch.cat([W_h, W_e, -W_e @ W_pred], 1)

    def folds(self, x: Tensor) -> bool:
        """One product instead of three, where there is a kernel that puts its columns side by side.

        Layers that somebody has exchanged, or listens to, are called as they are.
        """
        return (
            isinstance(self.predictor, StaticPredictor)
            and x.shape[0] * x.shape[1] >= FOLDED_FROM * x.shape[2]
            and can_stand_beside(x)
            and all(is_untouched(layer) for layer in (self.W_h, self.W_e, self.predictor, self.predictor.W_pred))
        )

    def respond(self, x: Tensor, c: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Alg. 1, lines 5 to 7: x', the feed-forward units z after GELU and top-k, load-balance loss in training."""
        z, balance = self.activate(self.W_up(self.norm(c)), mask)
        return (x if self.config.residual == "ffn" else c) + self.W_down(z), z, balance

    def activate(self, u: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        config = self.config
        if config.ffn == "dense":
            return F.gelu(u), None
        if self.training and config.load_balance > 0:
            return gelu_topk_balanced(u, config.k, config.topk_grad, mask)
        return gelu_topk(u, config.k, config.topk_grad), None


def is_untouched(layer: nn.Module) -> bool:
    """Whether a layer does what its weight alone says: nobody has exchanged or wrapped it, quantised its weight, given
    it a bias, or listens to its calls."""
    hooks = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    if type(layer) not in (nn.Linear, StaticPredictor) or hooks:
        return False
    if torch.compiler.is_compiling():  # which does not see through the rest
        return True
    wrapped = "forward" in vars(layer)
    weight, bias = (getattr(layer, name, None) for name in ("weight", "bias"))
    return not wrapped and bias is None and type(weight) in (nn.Parameter, Tensor, NoneType)
