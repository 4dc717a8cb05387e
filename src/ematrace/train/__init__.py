"""Training of language models: the loop, its schedule, batches, checkpoints, and several processes."""

from ematrace.train.checkpoints import DamagedCheckpoint
from ematrace.train.config import PRESETS, Recipe, TrainConfig, defaults_for
from ematrace.train.loop import train
from ematrace.train.metrics import Display
from ematrace.train.models import build_model, load_model
from ematrace.train.run import NonFiniteLoss
from ematrace.train.summary import TrainSummary

__all__ = [
    "PRESETS",
    "DamagedCheckpoint",
    "Display",
    "NonFiniteLoss",
    "Recipe",
    "TrainConfig",
    "TrainSummary",
    "build_model",
    "defaults_for",
    "load_model",
    "train",
]
