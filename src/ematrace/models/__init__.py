"""One language model around any context mechanism, as transformers classes.

>>> from ematrace.models import SkeletonConfig, SkeletonForCausalLM
>>> model = SkeletonForCausalLM(SkeletonConfig.preset("skeleton-tiny", mixer="ema"))
"""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from ematrace.models.block import Block
from ematrace.models.cache import MixerCache
from ematrace.models.configuration import ModelConfig, SkeletonConfig
from ematrace.models.modeling import SkeletonForCausalLM, SkeletonModel, upgrade_names

__all__ = [
    "Block",
    "MixerCache",
    "ModelConfig",
    "SkeletonConfig",
    "SkeletonForCausalLM",
    "SkeletonModel",
    "upgrade_names",
]

AutoConfig.register("ematrace", SkeletonConfig, exist_ok=True)
AutoModel.register(SkeletonConfig, SkeletonModel, exist_ok=True)
AutoModelForCausalLM.register(SkeletonConfig, SkeletonForCausalLM, exist_ok=True)
