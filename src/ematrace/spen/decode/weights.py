"""A model's weights, laid out once for decoding token by token.

The block (Algorithm 1) is regrouped so that a step needs three matmuls. With ĥ = h_s / |h_s| (0 for 0),

    e = x - W_pred ĥ  and  c = x + W_h [h_f; h_m; h_s] + W_e e
    are                    c = x + M [h_f; h_m; h_s; x; ĥ]  with  M = [W_h  W_e  -W_e W_pred],

the same function of real numbers; in floating point it differs by rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from ematrace.models.feedforward import FEED_FORWARD
from ematrace.spen.mixer import SpenBlock, SpenMixer
from ematrace.spen.modeling import SpenForCausalLM, SpenModel
from ematrace.spen.predictors import StaticPredictor
from ematrace.traces import EMATraces

KNOWN = (
    *(SpenForCausalLM, SpenModel, SpenBlock, SpenMixer, StaticPredictor, EMATraces, *FEED_FORWARD.values()),
    *(nn.Embedding, nn.Identity, nn.LayerNorm, nn.Linear, nn.ModuleList),
)


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
    obstacle = obstacle_to_decoding(model)
    if obstacle is not None:
        raise ValueError(obstacle)
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


def obstacle_to_decoding(model: SpenForCausalLM) -> str | None:
    """Why a decoder would not compute what the model does, or None: it reads weights and calls no layers."""
    if model.config.predictor != "static":
        return f"a decoder needs the static predictor; SpenConfig.predictor is {model.config.predictor!r}"
    for name, layer in model.named_modules():
        hooked = layer._forward_hooks or layer._forward_pre_hooks
        wrapped = type(layer) not in KNOWN or "forward" in vars(layer)
        tensors = [t for t in layer.parameters(recurse=False) if type(t) is not nn.Parameter]
        biased = isinstance(layer, nn.Linear) and layer.bias is not None
        if hooked or wrapped or tensors or biased:
            return f"a decoder reads weights and calls no layers, but {name or 'the model'} was replaced or hooked"
    return None


def _folded(block: SpenBlock) -> FoldedBlock:
    return FoldedBlock(
        M=_plain(block.mixer.folded_weights(torch.float64)),
        norm_weight=_plain(block.norm.weight),
        norm_bias=_plain(block.norm.bias),
        W_up=_plain(block.ffn.W_up.weight),
        W_down_T=_plain(block.ffn.W_down.weight.T),
    )


def _plain(weight: Tensor) -> Tensor:
    return weight.detach().float().contiguous()


def check_ids(ids: Tensor, vocabulary: int) -> None:
    """ids on the CPU, of any shape: a kernel would read whatever lies beside the embedding."""
    lowest, highest = int(ids.min()), int(ids.max())
    if lowest < 0 or highest >= vocabulary:
        wrong = lowest if lowest < 0 else highest
        raise ValueError(f"ids: token {wrong} is not in a vocabulary of {vocabulary}")
