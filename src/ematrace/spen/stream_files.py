"""The state of a stream as a safetensors file. The format is that of version 0.1, whose files load as well."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ematrace.files import write_atomically
from ematrace.models import MixerCache
from ematrace.spen.fast_weights import PGHU, FastWeights
from ematrace.spen.modeling import SpenForCausalLM, name_in_v0_1

FORMAT = "ematrace-stream-1"


def save_state(
    path: str | Path, model: SpenForCausalLM, pghu: PGHU | None, cache: MixerCache, fast_weights: list[FastWeights]
) -> Path:
    tensors: dict[str, Tensor] = {}
    for i, state in enumerate(cache.blocks):
        if state is not None:
            tensors[f"{i}.traces"] = state[0].transpose(0, 1)  # [A, B, D] in the file
            tensors |= {f"{i}.predictor.{j}": t for j, t in enumerate(state[1:])}
    for i, weights in enumerate(fast_weights):
        tensors |= {f"{i}.fast.{name}": t for name, t in vars(weights).items()}
    metadata = {
        "format": FORMAT,
        "model": fingerprint(model),
        "seen_tokens": str(cache.seen_tokens),
        "pghu": _settings(pghu),
    }
    return write_atomically(path, save({name: t.contiguous().cpu() for name, t in tensors.items()}, metadata))


def load_state(path: str | Path, model: SpenForCausalLM, pghu: PGHU | None) -> tuple[MixerCache, list[FastWeights]]:
    metadata, tensors = _read(path, model.device)
    if metadata.get("model") == fingerprint(model, model.config.transformers_version):
        metadata["model"] = fingerprint(model)  # saved with the transformers that the model itself was saved with
    expected = {"format": FORMAT, "model": fingerprint(model), "pghu": _settings(pghu)}
    for field, value in expected.items():
        if metadata.get(field) != value:
            raise ValueError(f"{path}: {field} is {metadata.get(field)}, this stream's is {value}")
    blocks: list[tuple[Tensor, ...] | None] = []
    for i in range(model.config.n_layers):
        n_past = sum(name.startswith(f"{i}.predictor.") for name in tensors)
        past = tuple(tensors[f"{i}.predictor.{j}"] for j in range(n_past))
        traces = tensors.get(f"{i}.traces")
        blocks.append(None if traces is None else (traces.transpose(0, 1), *past))
    fast = range(sum(name.endswith(".fast.delta") for name in tensors))
    names = ("base_scale", "delta", "variance")
    fast_weights = [FastWeights(**{name: tensors[f"{i}.fast.{name}"] for name in names}) for i in fast]
    return MixerCache(blocks, int(metadata["seen_tokens"])), fast_weights


def fingerprint(model: SpenForCausalLM, transformers_version: str | None = None) -> str:
    """sha256 over settings and weights: a state continues exactly only with the model that made it.

    Names are those of version 0.1, and the settings include the version of transformers, as they did then.
    """
    settings = model.config.to_diff_dict()
    if transformers_version is not None:
        settings["transformers_version"] = transformers_version
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    for name, parameter in sorted((name_in_v0_1(name), p) for name, p in model.named_parameters()):
        digest.update(name.encode())
        digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _settings(pghu: PGHU | None) -> str:
    return json.dumps(None if pghu is None else asdict(pghu))


def _read(path: str | Path, device: torch.device) -> tuple[dict[str, str], dict[str, Tensor]]:
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            metadata: dict[str, Any] = file.metadata() or {}
            return metadata, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path}: not a whole safetensors file ({error})") from None
