"""One block of the skeleton: a mixer over time, then a feed-forward layer at each position."""

from __future__ import annotations

from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from ematrace.mixers import build_mixer, registered_mixer
from ematrace.mixers.base import Mixer, State
from ematrace.models.configuration import ModelConfig
from ematrace.models.feedforward import FEED_FORWARD


class Block(GradientCheckpointingLayer):
    """y = mixer(norm(x));  c = x + y;  z = ffn(norm(c));  x' = (c or x) + z.

    >>> import torch
    >>> block = Block(SkeletonConfig.preset("skeleton-tiny", mixer="ema"))
    >>> x, state, load_balance = block(torch.zeros(2, 5, 64))
    >>> x.shape, type(block.mixer).__name__, type(block.ffn).__name__
    (torch.Size([2, 5, 64]), 'EmaMixer', 'FeedForward')
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        pre_norm = config.skeleton().norm == "pre"
        self.mixer_norm = nn.LayerNorm(config.d_model, config.layer_norm_epsilon) if pre_norm else nn.Identity()
        self.mixer = mixer_of(config)
        self.norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_epsilon)
        self.ffn = FEED_FORWARD[config.ffn](config)

    def forward(
        self, x: Tensor, state: State = None, mask: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, State, Tensor | None]:
        """x [B, T, D] to x' [B, T, D], the mixer's state after it, and the load-balance loss (training only).

        Padding (mask False) lies before a row's first token and enters every block as 0.
        """
        if mask is not None:
            x = x * mask.unsqueeze(-1)
        c, state = self.context(x, state, mask, cu_seqlens)
        x, _, balance = self.respond(x, c, mask)
        return x, state, balance

    def context(
        self, x: Tensor, state: State = None, mask: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """c = x + mixer(norm(x)), and the mixer's state."""
        y, state = self.mixer(self.mixer_norm(x), state, mask=mask, cu_seqlens=cu_seqlens)
        return x + y, state

    def respond(self, x: Tensor, c: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
        """x', the feed-forward units z after their activation, and the load-balance loss (training only)."""
        z, balance = self.ffn.units(self.norm(c), mask)  # Alg. 1 lines 5 and 6
        x_next = (x if self.config.residual == "ffn" else c) + self.ffn.W_down(z)  # Alg. 1 line 7
        return x_next, z, balance


def mixer_of(config: ModelConfig) -> Mixer:
    """The mixer that a config names. A config is data: a class from outside is taken only if it is registered."""
    skeleton = config.skeleton()
    registered_mixer(skeleton.mixer)  # refuses a name that nobody has agreed to; `build_mixer` would import it
    mixer = build_mixer(skeleton.mixer, d_model=config.d_model, **skeleton.mixer_options)
    if type(mixer).__module__.partition(".")[0] != __name__.partition(".")[0]:
        for module in mixer.modules():  # its author chose its initial weights: transformers leaves them alone
            module._is_hf_initialized = True  # type: ignore[assignment]
    return mixer
