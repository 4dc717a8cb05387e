"""SPEN: a language model whose only context is traces of exponential moving averages."""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from ematrace.mixers import register_mixer
from ematrace.models import MixerCache as SpenCache
from ematrace.pghu import PGHU
from ematrace.spen.configuration import SpenConfig
from ematrace.spen.mixer import SpenMixer
from ematrace.spen.modeling import SpenForCausalLM, SpenModel
from ematrace.spen.stream import SpenStream, Surprise

__all__ = ["PGHU", "SpenCache", "SpenConfig", "SpenForCausalLM", "SpenMixer", "SpenModel", "SpenStream", "Surprise"]

register_mixer("spen", SpenMixer)
AutoConfig.register("spen", SpenConfig, exist_ok=True)
AutoModel.register(SpenConfig, SpenModel, exist_ok=True)
AutoModelForCausalLM.register(SpenConfig, SpenForCausalLM, exist_ok=True)
