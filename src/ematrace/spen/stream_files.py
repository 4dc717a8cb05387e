"""The state of a stream, and the safetensors file that holds it.

A file carries a checksum, the fingerprint of the model that made it and the settings of PGHU. Files of version 0.1,
which have no checksum and no predicted logits, load as well.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ematrace.files import write_atomically
from ematrace.models import MixerCache
from ematrace.pghu import PGHU
from ematrace.spen.fast_weights import FastWeights
from ematrace.spen.modeling import SpenForCausalLM, name_in_v0_1

FORMAT = "ematrace-stream-with-checksum-2"
FORMAT_OF_V0_1 = "ematrace-stream-1"
CHECKSUM = "sha256"
MOST_TOKENS = 2**62


@dataclass
class StreamState:
    """All that a stream carries from token to token."""

    cache: MixerCache
    fast_weights: list[FastWeights]
    """With PGHU, of each block, once a token was read."""
    predicted: Tensor | None
    """[B, vocabulary] logits of the token that comes next, once one was read."""


def save_state(path: str | Path, model: SpenForCausalLM, pghu: PGHU | None, state: StreamState) -> Path:
    tensors: dict[str, Tensor] = {}
    for i, block in enumerate(state.cache.blocks):
        if block is not None:
            tensors[f"{i}.traces"] = block[0].transpose(0, 1)  # [A, B, D] in the file
            tensors |= {f"{i}.predictor.{j}": t for j, t in enumerate(block[1:])}
    for i, weights in enumerate(state.fast_weights):
        tensors |= {f"{i}.fast.{name}": t for name, t in vars(weights).items()}
    if state.predicted is not None:
        tensors["predicted"] = state.predicted
    tensors = {name: t.contiguous().cpu() for name, t in tensors.items()}
    for name, t in tensors.items():  # `load_state` would refuse it, and what the file holds now may be good
        if not _finite(t):
            raise ValueError(f"{path}: not written: tensor '{name}' of the state holds numbers that are not finite")
    metadata = {
        "format": FORMAT,
        "model": fingerprint(model),
        "seen_tokens": str(state.cache.seen_tokens),
        "pghu": _settings(pghu),
    }
    return write_atomically(path, save(tensors, metadata | {CHECKSUM: _checksum(metadata, tensors)}))


def load_state(path: str | Path, model: SpenForCausalLM, pghu: PGHU | None) -> StreamState:
    metadata, tensors = _read(path)
    if metadata.get("format") not in (FORMAT, FORMAT_OF_V0_1):
        raise ValueError(f"{path}: format is {metadata.get('format')!r}; the state of a stream has {FORMAT!r}")
    checksum = metadata.pop(CHECKSUM, None)
    if metadata["format"] == FORMAT and checksum != _checksum(metadata, tensors):
        raise ValueError(f"{path}: damaged: its content does not match its checksum")
    if metadata.get("model") == fingerprint(model, model.config.transformers_version):
        metadata["model"] = fingerprint(model)  # saved with the transformers that the model itself was saved with
    if (theirs := metadata.get("model")) != (ours := fingerprint(model)):
        raise ValueError(f"{path}: written by another model ({str(theirs)[:8]}…, this one is {ours[:8]}…)")
    if metadata.get("pghu") != _settings(pghu):
        raise ValueError(f"{path}: pghu is {metadata.get('pghu')}, this stream's is {_settings(pghu)}")
    seen_tokens = _count(path, metadata.get("seen_tokens", ""))
    _check_tensors(path, tensors, model, pghu, seen_tokens)
    # Copied: a tensor inside of a file begins at any eighth byte, where torch's matmuls round in another order.
    tensors = {name: t.to(model.device, copy=True) for name, t in tensors.items()}
    blocks: list[tuple[Tensor, ...] | None] = []
    for i in range(model.config.n_layers):
        n_past = sum(name.startswith(f"{i}.predictor.") for name in tensors)
        past = tuple(tensors[f"{i}.predictor.{j}"] for j in range(n_past))
        traces = tensors.get(f"{i}.traces")
        blocks.append(None if traces is None else (traces.transpose(0, 1).contiguous(), *past))
    fast = range(sum(name.endswith(".fast.delta") for name in tensors))
    names = ("base_scale", "delta", "variance")
    fast_weights = [FastWeights(**{name: tensors[f"{i}.fast.{name}"] for name in names}) for i in fast]
    return StreamState(MixerCache(blocks, seen_tokens), fast_weights, tensors.get("predicted"))


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
        digest.update(_bytes(parameter))
    return digest.hexdigest()


def _checksum(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    forms = {name: [str(t.dtype), list(t.shape)] for name, t in tensors.items()}
    digest = hashlib.sha256(json.dumps([dict(metadata), forms], sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(_bytes(tensors[name]))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _settings(pghu: PGHU | None) -> str:
    return json.dumps(None if pghu is None else asdict(pghu))


def _count(path: str | Path, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) < MOST_TOKENS):
        raise ValueError(f"{path}: seen_tokens is {text[:40]!r}; it must be a number of tokens")
    return int(text)


def _check_tensors(
    path: str | Path, tensors: Mapping[str, Tensor], model: SpenForCausalLM, pghu: PGHU | None, seen_tokens: int
) -> None:
    """What a stream of this model holds after so many tokens, all of it and nothing else, in numbers."""
    n_streams = next((t.shape[1] for name, t in tensors.items() if name.endswith(".traces") and t.ndim == 3), 0)
    expected = _expected(model, pghu, n_streams, seen_tokens) if seen_tokens else {}
    if "predicted" in expected and "predicted" not in tensors:  # in no file of version 0.1
        del expected["predicted"]
    for name in sorted(expected.keys() ^ tensors.keys()):
        problem = "missing" if name in expected else "unknown"
        raise ValueError(f"{path}: tensor '{name}': {problem}")
    for name, (shape, dtype) in expected.items():
        t = tensors[name]
        known = t.dtype == dtype or (name == "predicted" and t.dtype == torch.float32)  # decoders' logits are float32
        if tuple(t.shape) != shape or not known or not n_streams:
            raise ValueError(f"{path}: tensor '{name}': {t.dtype} {list(t.shape)}, should be {dtype} {list(shape)}")
        if not _finite(t):
            raise ValueError(f"{path}: tensor '{name}': holds numbers that are not finite")


def _finite(t: Tensor) -> bool:
    return not t.is_floating_point() or bool(t.isfinite().all())


def _expected(
    model: SpenForCausalLM, pghu: PGHU | None, B: int, S: int
) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shape and dtype of each tensor in the state of B streams after S tokens."""
    config = model.config
    D, H, A = config.d_model, config.n_heads, len(config.alphas)
    exact = torch.float64 if model.dtype == torch.float64 else torch.float32
    of_block: dict[str, tuple[tuple[int, ...], torch.dtype]] = {"traces": ((A, B, D), exact)}
    if config.predictor_reads != "traces_now":  # the others look at the traces of this step alone
        if config.predictor == "linear":
            of_block["predictor.0"] = (B, D, D), exact
        else:  # keys, values and their mask
            of_block |= {f"predictor.{j}": ((B, H, S, D // H), model.dtype) for j in range(2)}
            of_block["predictor.2"] = (B, S), torch.bool
    if pghu is not None:
        of_block |= {f"fast.{name}": (shape, exact) for name, shape in _fast_shapes(B, D).items()}
    expected = {f"{i}.{name}": form for i in range(config.n_layers) for name, form in of_block.items()}
    return {**expected, "predicted": ((B, config.vocab_size), model.dtype)}


def _fast_shapes(B: int, D: int) -> dict[str, tuple[int, ...]]:
    return {"base_scale": (), "delta": (B, D, D), "variance": (B, D)}


def _read(path: str | Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata: dict[str, str] = file.metadata() or {}
            return dict(metadata), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise OSError(f"{path}: {error.strerror or error}") from None
    except (SafetensorError, ValueError, TypeError, AttributeError, KeyError, RuntimeError) as error:
        raise ValueError(f"{path}: not a whole safetensors file ({' '.join(str(error).split())})") from None
