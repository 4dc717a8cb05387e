"""Feed-forward layers: W_down a(W_up x) at each position, with an activation `a` that may keep few of its units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ematrace.models.configuration import ModelConfig
from ematrace.ops import gelu_topk, gelu_topk_balanced


class FeedForward(nn.Module):
    """GELU of all d_ff units."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.W_up = nn.Linear(config.d_model, config.d_ff, bias=False)
        self.W_down = nn.Linear(config.d_ff, config.d_model, bias=False)
        self.W_down.initial_scale = config.n_layers**-0.5  # the outputs of n_layers add up in the residual stream

    def units(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Units z [B, T, d_ff] of x [B, T, d_model], and the loss that balances their use (training only)."""
        return self.activate(self.W_up(x), mask)

    def activate(self, u: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """z = a(u) from u = W_up x, and that loss."""
        return F.gelu(u), None


Grad = Literal["ste", "masked"]
SPLIT: Mapping[str, tuple[Grad, Grad]] = {"ste_weights": ("ste", "masked"), "ste_through": ("masked", "ste")}
"""Gradients of top-k that differ between the weights W_up and the layer's input."""


class TopKFeedForward(FeedForward):
    """GELU, then the k largest units of each token; the rest are 0."""

    def units(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if self.config.topk_grad not in SPLIT or not torch.is_grad_enabled():
            return super().units(x, mask)
        of_weights, of_input = SPLIT[self.config.topk_grad]
        z = gelu_topk(self.W_up(x.detach()), self.config.k, of_weights)
        same = gelu_topk(F.linear(x, self.W_up.weight.detach()), self.config.k, of_input)  # for x's gradient alone
        return z + (same - same.detach()), None

    def activate(self, u: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        config = self.config
        grad: Grad = "ste" if config.topk_grad == "ste" else "masked"
        if self.training and config.load_balance > 0:
            return gelu_topk_balanced(u, config.k, grad, mask)
        return gelu_topk(u, config.k, grad), None


FEED_FORWARD: Mapping[str, type[FeedForward]] = {"dense": FeedForward, "topk": TopKFeedForward}
