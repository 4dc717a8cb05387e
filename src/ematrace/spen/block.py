"""One SPEN block (Algorithm 1 of the paper)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from ematrace.ops import gelu_topk, gelu_topk_balanced
from ematrace.spen.cache import BlockState
from ematrace.spen.configuration import SpenConfig
from ematrace.spen.predictors import build_predictor
from ematrace.traces import ema_traces


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
        traces, trace_state = ema_traces(x, self.config.alphas, state.traces, cu_seqlens)
        x_hat, past = self.predictor(x, traces, state.predictor, mask, cu_seqlens)
        x_next, _, balance = self.respond(x, traces, x_hat, mask)
        return x_next, BlockState(trace_state, past), balance

    def respond(
        self, x: Tensor, traces: Tensor, x_hat: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Alg. 1, lines 3 to 7: x', the feed-forward units z after GELU and top-k, load-balance loss in training."""
        e = x - x_hat
        h = traces.permute(1, 2, 0, 3).flatten(-2)
        c = x + self.W_h(h) + self.W_e(e)
        z, balance = self.activate(self.W_up(self.norm(c)), mask)
        return (x if self.config.residual == "ffn" else c) + self.W_down(z), z, balance

    def activate(self, u: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        config = self.config
        if config.ffn == "dense":
            return F.gelu(u), None
        if self.training and config.load_balance > 0:
            return gelu_topk_balanced(u, config.k, config.topk_grad, mask)
        return gelu_topk(u, config.k, config.topk_grad), None
