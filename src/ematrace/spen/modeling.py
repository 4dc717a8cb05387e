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
    """Token embedding, blocks, final norm. No position embedding: order enters through the traces alone."""

    config_class = SpenConfig
    block_class: ClassVar[type[Block]] = SpenBlock
    renamed: ClassVar[Mapping[str, str]] = RENAMED
    _no_split_modules = ["SpenBlock"]  # noqa: RUF012


class SpenForCausalLM(SkeletonForCausalLM):
    """SPEN with a head tied to the embedding."""

    config_class = SpenConfig
    model_class: ClassVar[type[SkeletonModel]] = SpenModel
    renamed: ClassVar[Mapping[str, str]] = RENAMED
    _no_split_modules = ["SpenBlock"]  # noqa: RUF012


def name_in_v0_1(name: str) -> str:
    """What version 0.1 called a parameter: states of its streams are known by a hash over names and weights."""
    return name.replace(".mixer.", ".").replace(".ffn.", ".")
