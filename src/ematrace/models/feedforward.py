"""Feed-forward layers: W_down a(W_up x) at each position, with an activation `a` that may keep few of its units."""

from __future__ import annotations

from collections.abc import Mapping

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

    def activate(self, u: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Units z [B, T, d_ff] from u = W_up x, and the loss that balances their use (training only)."""
        return F.gelu(u), None


class TopKFeedForward(FeedForward):
    """GELU, then the k largest units of each token; the rest are 0."""

    def activate(self, u: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        config = self.config
        if self.training and config.load_balance > 0:
            return gelu_topk_balanced(u, config.k, config.topk_grad, mask)
        return gelu_topk(u, config.k, config.topk_grad), None


FEED_FORWARD: Mapping[str, type[FeedForward]] = {"dense": FeedForward, "topk": TopKFeedForward}
