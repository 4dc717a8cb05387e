"""SPCN models on disk: one safetensors file, with settings and vocabulary as JSON in its header."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save
from sklearn.exceptions import NotFittedError

from ematrace.files import write_atomically
from ematrace.spcn.kernels import Weights
from ematrace.spcn.settings import check_settings

if TYPE_CHECKING:
    from ematrace.spcn.model import SPCN

FORMAT, VERSION = "ematrace.spcn", 1
_TENSORS = [field for field in Weights._fields if field != "widths"]
Model = TypeVar("Model", bound="SPCN")


def save_model(model: SPCN, path: str | Path) -> None:
    if not hasattr(model, "weights_"):
        raise NotFittedError("SPCN.save: the model is not fitted")
    config = {
        "format": FORMAT,
        "version": VERSION,
        "params": model.get_params() | {"vocabulary": list(model.vocabulary_)},
        "words": len(model.vocabulary_),
        "seen": model.n_tokens_seen_,
    }
    text = json.dumps(config, default=lambda number: number.item())  # parameters may be numpy scalars
    tensors = {f"{side}.{name}": getattr(w, name) for side, w in model.weights_.items() for name in _TENSORS}
    write_atomically(path, save(tensors, metadata={"config": text}))


def load_model(cls: type[Model], path: str | Path) -> Model:
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        with safe_open(path, framework="numpy") as file:
            config = json.loads((file.metadata() or {})["config"])
        return _restore(cls, config, load_file(path))
    except (SafetensorError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a readable SPCN model ({error})") from error


def _restore(cls: type[Model], config: dict[str, Any], tensors: dict[str, Any]) -> Model:
    if config["format"] != FORMAT or config["version"] != VERSION:
        raise KeyError("format")
    model = cls(**config["params"])
    check_settings(model)
    model.vocabulary_ = {word: i for i, word in enumerate(config["params"]["vocabulary"])}
    if len(model.vocabulary_) != config["words"] or not all(isinstance(word, str) for word in model.vocabulary_):
        raise ValueError(f"its vocabulary is not that of {config['words']} words")
    model.n_tokens_seen_ = int(config["seen"])
    model.weights_ = {}
    for side in model.directions_:
        blank = model.initial_weights(side)
        found = {name: tensors[f"{side}.{name}"] for name in _TENSORS}
        for name, tensor in found.items():
            expected = getattr(blank, name)
            if tensor.shape != expected.shape or tensor.dtype != expected.dtype:
                raise ValueError(f"tensor {side}.{name} is {tensor.dtype}{list(tensor.shape)}")
        model.weights_[side] = blank._replace(**found)
    return model
