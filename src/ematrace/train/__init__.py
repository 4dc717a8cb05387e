"""Training of language models: the loop, its schedule, batches, checkpoints, and several processes."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ematrace.train.config import PRESETS, Recipe, TrainConfig, defaults_for

if TYPE_CHECKING:
    from ematrace.train.checkpoints import DamagedCheckpoint
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

_HOMES = {
    "DamagedCheckpoint": "checkpoints",
    "Display": "metrics",
    "NonFiniteLoss": "run",
    "TrainSummary": "summary",
    "build_model": "models",
    "load_model": "models",
    "train": "loop",
}


def __getattr__(name: str) -> Any:
    """Imported when first asked for: the command line needs the settings alone and should not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'ematrace.train' has no attribute {name!r}")
    return getattr(import_module(f"ematrace.train.{_HOMES[name]}"), name)
