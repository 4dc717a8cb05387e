"""SPCN models on disk: one safetensors file, with settings and vocabulary as JSON in its header.

A file carries a checksum, and what its tensors must look like follows from its settings: both are checked before memory
is taken for anything. Files of version 0.1 have no checksum and load as well, if their weights are such as can be used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from sklearn.exceptions import NotFittedError

from ematrace.files import parse_json, write_atomically
from ematrace.spcn.kernels import Weights, aligned
from ematrace.spcn.settings import FIRST_NETWORK, check_settings
from ematrace.spcn.weights import padded_shapes

if TYPE_CHECKING:
    from ematrace.spcn.model import SPCN

FORMAT, VERSION, WITHOUT_CHECKSUM = "ematrace.spcn", 2, 1
CHECKSUM = "sha256"
Model = TypeVar("Model", bound="SPCN")
Arrays = Mapping[str, npt.NDArray[Any]]


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
    names = [name for name in Weights._fields if name != "widths"]
    tensors = {f"{side}.{name}": getattr(w, name) for side, w in model.weights_.items() for name in names}
    write_atomically(path, save(tensors, metadata={"config": text, CHECKSUM: checksum(text, tensors)}))


def load_model(cls: type[Model], path: str | Path) -> Model:
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            model = _from_config(cls, metadata["config"])
            found = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            _check_shapes(model, {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in found.items()})
            tensors = {name: file.get_tensor(name) for name in found}
        has_checksum = json.loads(metadata["config"])["version"] != WITHOUT_CHECKSUM
        if has_checksum and metadata[CHECKSUM] != checksum(metadata["config"], tensors):
            raise ValueError("damaged: its content does not match its checksum")
        for name, tensor in tensors.items():
            if not np.isfinite(tensor).all():
                raise ValueError(f"tensor {name} holds numbers that are not finite")
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None
    except (SafetensorError, AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else " ".join(str(error).split())[:300]
        raise ValueError(f"{path}: not a readable SPCN model ({reason})") from None
    widths = np.array(model.widths, np.int64)
    model.weights_ = {
        side: Weights(
            widths=widths, **{name: aligned(tensors[f"{side}.{name}"]) for name in Weights._fields if name != "widths"}
        )
        for side in model.directions_
    }
    if not has_checksum:
        _try_out(model, path)
    return model


def _try_out(model: SPCN, path: Path) -> None:
    """Damage without a checksum shows in what weights do: with each word alone and all in a row, states stay finite."""
    words = list(model.vocabulary_)
    try:
        model.encode([*([word] for word in words), words])
    except FloatingPointError as error:
        reason = str(error).partition(";")[0]
        raise ValueError(f"{path}: not a readable SPCN model (its weights are too large: {reason})") from None


def checksum(config: str, tensors: Arrays) -> str:
    """sha256 over the settings, and over names, types, shapes and bytes of all tensors."""
    digest = hashlib.sha256(config.encode())
    for name in sorted(tensors):
        tensor = np.ascontiguousarray(tensors[name])
        digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode())
        digest.update(tensor.data)
    return digest.hexdigest()


def _from_config(cls: type[Model], text: str) -> Model:
    """A model with settings and vocabulary, and no weights yet."""
    config = parse_json(text, "config")
    if config["format"] != FORMAT or config["version"] not in (VERSION, WITHOUT_CHECKSUM):
        raise ValueError(f"its format is {config['format']!r}, version {config['version']!r}")
    model = cls(**{"network": FIRST_NETWORK, **config["params"]})
    check_settings(model)
    words = model.vocabulary
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError("its vocabulary is not a list of words")
    model.vocabulary_ = {word: i for i, word in enumerate(words)}
    if not len(model.vocabulary_) == len(words) == config["words"]:
        raise ValueError(f"its vocabulary is not that of {config['words']} words")
    seen = config["seen"]
    if not isinstance(seen, int) or not 0 <= seen < 2**63:
        raise ValueError(f"seen is {seen!r}; it must be a number of tokens")
    model.n_tokens_seen_ = seen
    return model


def _check_shapes(model: SPCN, found: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
    dtype = {"float32": "F32", "float64": "F64"}[model.dtype]
    shapes = padded_shapes(len(model.vocabulary_), model.widths)
    expected = {f"{side}.{name}": (dtype, shape) for side in model.directions_ for name, shape in shapes.items()}
    for name in sorted(expected.keys() ^ found.keys()):
        raise ValueError(f"tensor {name} is {'missing' if name in expected else 'unknown'}")
    for name, form in expected.items():
        if found[name] != form:
            raise ValueError(f"tensor {name} is {found[name][0]}{list(found[name][1])}, not {form[0]}{list(form[1])}")
