"""Decoders: one token of a stream at a time, with the weights laid out once for just that.

The block (Algorithm 1) is regrouped so that a step needs three products. With ĥ = h_s / |h_s| (0 for 0),

    e = x - W_pred ĥ  and  c = x + W_h [h_f; h_m; h_s] + W_e e
    are                    c = x + M [h_f; h_m; h_s; x; ĥ]  with  M = [W_h  W_e  -W_e W_pred],

the same function of real numbers; in floating point it differs by rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from ematrace.spen.block import SpenBlock, is_untouched
from ematrace.spen.modeling import SpenForCausalLM


class Decoder(Protocol):
    """One token for each of B streams, with the weights that the model had at the time; static predictor only."""

    n_streams: int | None
    """The number of streams it was built for, or None for any."""

    def step(self, ids: Tensor, state: Tensor) -> Tensor:
        """ids [B] int64 and state [n_layers, A, B, D] float32, which is updated in place, to logits [B, vocabulary].

        The logits are float32 and hold until the next call.
        """


@dataclass(frozen=True)
class FoldedBlock:
    """A rates, d = d_model."""

    M: Tensor
    """[d, (A + 2) d], what mixes the traces (in the order of `alphas`), x and ĥ into the context."""
    norm_weight: Tensor
    norm_bias: Tensor
    W_up: Tensor
    """[d_ff, d]."""
    W_down_T: Tensor
    """[d_ff, d], transposed: the weights of an active unit are one row."""


@dataclass(frozen=True)
class FoldedWeights:
    """All in float32 and contiguous; what needed no change shares the model's memory. `head` may be `embedding`."""

    blocks: tuple[FoldedBlock, ...]
    embedding: Tensor
    """[vocabulary, d]."""
    norm_weight: Tensor
    norm_bias: Tensor
    head: Tensor
    """[vocabulary, d]."""


@torch.no_grad()
def folded_weights(model: SpenForCausalLM) -> FoldedWeights:
    require_static_predictor(model)
    backbone = model.model
    embedding = _plain(backbone.embed_tokens.weight)
    tied = model.lm_head.weight is backbone.embed_tokens.weight
    return FoldedWeights(
        blocks=tuple(_folded(cast(SpenBlock, block)) for block in backbone.layers),
        embedding=embedding,
        norm_weight=_plain(backbone.norm.weight),
        norm_bias=_plain(backbone.norm.bias),
        head=embedding if tied else _plain(model.lm_head.weight),
    )


def _folded(block: SpenBlock) -> FoldedBlock:
    for name, layer in block.named_modules():
        if isinstance(layer, nn.Linear) and not is_untouched(layer):
            raise ValueError(f"a decoder reads weights and calls no layers, but {name} is more than its weight")
    return FoldedBlock(
        M=_plain(block.folded_weights(torch.float64)),
        norm_weight=_plain(block.norm.weight),
        norm_bias=_plain(block.norm.bias),
        W_up=_plain(block.W_up.weight),
        W_down_T=_plain(block.W_down.weight.T),
    )


def _plain(weight: Tensor) -> Tensor:
    return weight.detach().float().contiguous()


def require_static_predictor(model: SpenForCausalLM) -> None:
    if model.config.predictor != "static":
        raise ValueError(f"a decoder needs the static predictor; SpenConfig.predictor is {model.config.predictor!r}")


def build_decoder(model: SpenForCausalLM, n_streams: int = 1, dtype: torch.dtype | None = None) -> Decoder:
    """The decoder of the device that the model is on; `dtype` is that of its weights (default: the decoder's own)."""
    if model.device.type == "cuda":
        from ematrace.spen.decoder_gpu import GpuDecoder

        return GpuDecoder(model, n_streams) if dtype is None else GpuDecoder(model, n_streams, dtype)
    if model.device.type == "cpu":
        from ematrace.spen.decoder_cpu import CpuDecoder

        return CpuDecoder(model) if dtype is None else CpuDecoder(model, dtype)
    raise ValueError(f"there are decoders for cpu and cuda; the model is on {model.device.type}")
