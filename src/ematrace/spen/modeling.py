"""SPEN as a transformers model: the skeleton of `ematrace.models` with SPEN's block and the paper's settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ematrace.models import Block, SkeletonForCausalLM, SkeletonModel
from ematrace.spen.configuration import SpenConfig
from ematrace.spen.mixer import SpenBlock

# Version 0.1 had no mixer and no feed-forward module: their layers were the block's own.
MOVED = {"mixer": ("W_h", "W_e", "predictor"), "ffn": ("W_up", "W_down")}
RENAMED: Mapping[str, str] = {
    rf"layers\.(\d+)\.{layer}\.": rf"layers.\1.{module}.{layer}."
    for module, layers in MOVED.items()
    for layer in layers
}


class SpenModel(SkeletonModel):
    """Token embedding, blocks, final norm. No position embedding: order enters through the traces alone.

    >>> import torch
    >>> model = SpenModel(SpenConfig.preset("spen-tiny"))
    >>> output = model(torch.tensor([[1, 2, 3]]))
    >>> output.last_hidden_state.shape, output.past_key_values.seen_tokens
    (torch.Size([1, 3, 64]), 3)
    """

    config_class = SpenConfig
    block_class: ClassVar[type[Block]] = SpenBlock
    renamed: ClassVar[Mapping[str, str]] = RENAMED
    _no_split_modules = ["SpenBlock"]  # noqa: RUF012


class SpenForCausalLM(SkeletonForCausalLM):
    """SPEN with a head tied to the embedding.

    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> model = SpenForCausalLM(SpenConfig.preset("spen-tiny")).eval()
    >>> ids = torch.arange(300).view(1, -1)
    >>> round(model(ids, labels=ids).cross_entropy.item(), 1)  # before training, ln(4096) = 8.3
    8.3
    >>> model.generate(ids[:, :3], max_new_tokens=5, do_sample=False, eos_token_id=None).shape
    torch.Size([1, 8])
    """

    config_class = SpenConfig
    model_class: ClassVar[type[SkeletonModel]] = SpenModel
    renamed: ClassVar[Mapping[str, str]] = RENAMED
    _no_split_modules = ["SpenBlock"]  # noqa: RUF012


def name_in_v0_1(name: str) -> str:
    """What version 0.1 called a parameter: states of its streams are known by a hash over names and weights."""
    return name.replace(".mixer.", ".").replace(".ffn.", ".")
