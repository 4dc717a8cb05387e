"""A model as a folder to share: weights, tokenizer, a model card, and its code in plain torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ematrace.files import read_json, write_atomically
from ematrace.mixers import MIXERS
from ematrace.models import ModelConfig
from ematrace.models.card import model_card
from ematrace.text.held_out import TRAINING
from ematrace.train.checkpoints import write_folder
from ematrace.train.models import load_model
from ematrace.train.state import model_tensors, write_model


def export_model(folder: Path, target: Path) -> Path:
    """Verify the model in `folder` and write it to the new folder `target`.

    What names files of this machine, the training text for one, stays here.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"{target}: exists already; give the name of a new folder")
    model, tokenizer = load_model(folder)
    config = model.config
    if not isinstance(config, ModelConfig):
        raise ValueError(f"{folder}: a {type(model).__name__}, which transformers loads without code of its own")
    mixer = config.skeleton().mixer
    if config.model_type != "spen" and mixer not in MIXERS:
        raise ValueError(f"{folder}: the code of mixer {mixer!r} is not part of ematrace and cannot go along")
    settings = read_json(folder / TRAINING).get("settings") if (folder / TRAINING).is_file() else None

    def fill(part: Path) -> None:
        write_model(model, model_tensors(model), tokenizer, part)
        write_card(model, settings, part)

    return write_folder(target, fill)


def write_card(model: Any, training: Any, folder: Path) -> None:
    """The model card with the settings of its training; for models of this package."""
    if isinstance(model.config, ModelConfig):
        known = training if isinstance(training, Mapping) else None
        write_atomically(folder / "README.md", model_card(model.config, model.num_parameters(), known).encode())
