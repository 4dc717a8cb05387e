"""A saved model's folder, checked before anything is built from it.

The files are those that its manifest lists. A folder without a manifest, from elsewhere, is held to what it says of
itself: the settings in config.json are complete and in range, and ask for the tensors that the weights hold. Sizes are
compared on the meta device, so that no setting makes us allocate anything. No code of the folder is needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PretrainedConfig

from ematrace.files import read_json
from ematrace.models import ModelConfig, SkeletonConfig, upgrade_names
from ematrace.spen import SpenConfig
from ematrace.train.checkpoints import MANIFEST, verify_manifest

OURS: Mapping[str, type[ModelConfig]] = {cls.model_type: cls for cls in (SpenConfig, SkeletonConfig)}
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
TOKENIZER, GENERATION = "tokenizer.json", "generation_config.json"
# What transformers reads in a folder: these must be in the manifest, if there is one, and be files.
READ = (
    *(CONFIG, GENERATION, "*.safetensors", "*.index.json", "tokenizer.*", "tokenizer_config.json"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "chat_template*", "adapter_config.json"),
)
FLOATING = ("F64", "F32", "F16", "BF16")
MOST_LABELS = 10**6
# Settings with such a name say how many modules there are, unless they end as sizes do.
COUNTED, SIZED = ("layer", "depth", "block", "expert", "stage", "codebook"), ("_size", "_dim", "_length", "_capacity")
MOST_PARTS = 1024
"""Such parts, and entries of a list, unless the weights hold more tensors than that."""
Shapes = dict[str, tuple[int, ...]]


def check_model_folder(folder: Path, trust_remote_code: bool = False) -> None:
    """ValueError or OSError, in one line that names the file, if the folder is damaged or would need its own code."""
    _check_files(folder)
    settings = read_json(folder / CONFIG, allow_nan=True)
    if not trust_remote_code:
        refuse_code(folder, settings)
    elif needs_code(settings):
        return  # only that code knows which tensors there should be
    shapes = dict(_shapes(folder, str(settings.get("model_type")) in OURS))
    _check_counts(folder, settings, len(shapes))
    config = _config(folder, settings)
    model = _on_meta(folder, config)
    if isinstance(config, ModelConfig):
        _compare(folder, _expected(model), upgrade_names(model, shapes))
        if not (folder / TOKENIZER).is_file():
            raise ValueError(f"{folder / TOKENIZER}: missing")
    else:
        _compare_roughly(folder, model, shapes)
    if (folder / GENERATION).is_file():
        with naming(folder / GENERATION):
            GenerationConfig.from_pretrained(folder, local_files_only=True)


def refuse_code(folder: Path, settings: Mapping[str, Any]) -> None:
    """A folder that cannot be used without running Python code that comes with it."""
    code = {CONFIG: needs_code(settings)}
    if (folder / "tokenizer_config.json").is_file():
        code["tokenizer_config.json"] = _named_code(read_json(folder / "tokenizer_config.json"), "AutoTokenizer")
    if os.path.lexists(folder / "custom_generate"):
        code["custom_generate"] = "generate"
    for file, name in code.items():
        if name:
            raise ValueError(
                f"{folder / file}: needs custom code of the folder ({name}), which is not run "
                "without --trust-remote-code (trust_remote_code=True)"
            )


def needs_code(settings: Mapping[str, Any]) -> str:
    """The code that these settings need, or nothing. Our own models carry theirs for others; here it is not used."""
    kernels = settings.get("_attn_implementation")
    if isinstance(kernels, str) and "/" in kernels:  # a repository on the hub
        return kernels
    if str(settings.get("model_type")) in OURS:
        return ""
    return _named_code(settings, "AutoModelForCausalLM") or _named_code(settings, "AutoConfig")


def _named_code(settings: Mapping[str, Any], auto_class: str) -> str:
    named = settings.get("auto_map")
    if isinstance(named, Mapping):
        named = named.get(auto_class)
    return " ".join(str(named).split())[:80] if named else ""


def _check_files(folder: Path) -> None:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder")
    listed = verify_manifest(folder) if os.path.lexists(folder / MANIFEST) else None
    for path in sorted(folder.iterdir()):
        if any(fnmatch(path.name, pattern) for pattern in READ):
            if not path.is_file():  # a pipe or a device would be read for ever
                raise ValueError(f"{path}: not a file")
            if listed is not None and path.name not in listed:
                raise ValueError(f"{path}: not in {MANIFEST}")
            if path.suffix == ".json":
                read_json(path, allow_nan=True)  # configs of some models hold Infinity
    if not (folder / CONFIG).is_file():
        raise ValueError(f"{folder}: no {CONFIG} in this folder, so it is no saved model")


def _shapes(folder: Path, floating: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Of the tensors in the weights, from the headers of their files; all must be `floating` point."""
    for path in _weight_files(folder):
        with naming(path), safe_open(path, framework="pt", device="cpu") as file:
            for name in file.keys():  # noqa: SIM118  not a mapping
                tensor = file.get_slice(name)
                if floating and tensor.get_dtype() not in FLOATING:
                    raise ValueError(f"tensor '{name}': its type is {tensor.get_dtype()}, not a floating-point one")
                yield name, tuple(tensor.get_shape())


def _weight_files(folder: Path) -> list[Path]:
    if os.path.lexists(folder / WEIGHTS):
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        raise ValueError(f"{folder / WEIGHTS}: missing")
    files = read_json(folder / INDEX).get("weight_map")
    if not isinstance(files, dict) or not files or not all(isinstance(name, str) for name in files.values()):
        raise ValueError(f"{folder / INDEX}: field 'weight_map': not a mapping from tensors to files")
    names = sorted(set(files.values()))
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise ValueError(f"{folder / INDEX}: field 'weight_map': no file {name[:80]!r} in the folder")
    return [folder / name for name in names]


def _check_counts(folder: Path, settings: Mapping[str, Any], n_tensors: int) -> None:
    """Numbers that a config class or a model makes lists of, before it makes them; also those of nested configs."""
    most_parts = max(n_tensors, MOST_PARTS)

    def check(field: str, name: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                check(f"{field}.{key}", key, inner)
            return
        counted = any(word in name.lower() for word in COUNTED) and not name.endswith(SIZED)
        most = MOST_LABELS if name == "num_labels" else most_parts if counted else None
        if isinstance(value, list):
            if len(value) > most_parts:
                raise ValueError(f"{folder / CONFIG}: field '{field}': {len(value)} entries, at most {most_parts}")
            for inner in value:
                check(field, name, inner)
        elif isinstance(value, int) and most is not None and value > most:
            raise ValueError(f"{folder / CONFIG}: field '{field}': {value}, but at most {most} are allowed")

    for name, value in settings.items():
        check(name, name, value)


def _config(folder: Path, settings: dict[str, Any]) -> PretrainedConfig:
    ours = OURS.get(str(settings.get("model_type")))
    with naming(folder / CONFIG):
        if ours is None:
            return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        of_transformers = {field.name for field in fields(PretrainedConfig)}
        for field in fields(ours):  # one that a later version adds must have a default here
            if field.name not in of_transformers and field.name not in settings:
                raise ValueError(f"field '{field.name}': missing")
        return ours.from_dict(settings)


def _on_meta(folder: Path, config: PretrainedConfig) -> nn.Module:
    with naming(folder / CONFIG), torch.device("meta"):
        model: nn.Module = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        return model


def _expected(model: nn.Module) -> Shapes:
    """Of the tensors that the model is saved as: a tied weight once, buffers if they are saved."""
    once = {name for name, _ in model.named_parameters()} | {name for name, _ in model.named_buffers()}
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if name in once}


def _compare(folder: Path, expected: Shapes, shapes: Shapes) -> None:
    where = _weight_files(folder)[0]
    for name in sorted(expected.keys() ^ shapes.keys()):
        lacks = "the weights have no tensor" if name in expected else "the model has no tensor"
        raise ValueError(f"{where}: {lacks} '{name}', going by {CONFIG}")
    for name, shape in expected.items():
        _check_shape(where, name, shapes[name], shape)


def _compare_roughly(folder: Path, model: nn.Module, shapes: Shapes) -> None:
    """Where transformers may rename and convert tensors: those that have the same name, and the sum of all."""
    where = _weight_files(folder)[0]
    prefix = f"{model.base_model_prefix}."
    asked = sum(parameter.numel() for parameter in model.parameters())
    there = sum(torch.Size(shape).numel() for shape in shapes.values())
    if asked > 4 * there and not hasattr(model.config, "quantization_config"):
        raise ValueError(f"{folder / CONFIG}: asks for {asked:,} parameters, but {where.name} holds {there:,}")
    for name, parameter in model.named_parameters():
        found = shapes.get(name, shapes.get(name.removeprefix(prefix)))
        if found is not None and not hasattr(model.config, "quantization_config"):
            _check_shape(where, name, found, tuple(parameter.shape))


def _check_shape(where: Path, name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if found != expected:
        raise ValueError(f"{where}: tensor '{name}': {list(found)}, but {CONFIG} asks for {list(expected)}")


def refuse_non_finite(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and not bool(parameter.isfinite().all()):
            raise ValueError(f"tensor '{name}': holds numbers that are not finite")


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Whatever a library makes of a bad file becomes one line about that file."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:  # tokenizers' Rust code panics with an exception that is no `Exception`
        text = " ".join(str(error).split())[:300] or type(error).__name__
        kind = OSError if isinstance(error, OSError | SafetensorError) else ValueError
        raise kind(text if text.startswith(f"{path}:") else f"{path}: {text}") from error
