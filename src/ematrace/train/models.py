"""Models by name: presets of SPEN, of the skeleton and of GPT-2, and whatever transformers can load."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ematrace.names import did_you_mean, parse_assignments
from ematrace.text.hub import hub_is_reachable
from ematrace.train.config import defaults_for

# Width, blocks, heads: GPT-2 small, and transformers as wide and deep as the other presets.
GPT2_SIZES: Mapping[str, tuple[int, int, int]] = {
    "gpt2-130m": (768, 12, 12),
    "gpt2-7m": (128, 2, 4),
    "gpt2-tiny": (64, 2, 4),
}
# A single pass over the data has nothing to overfit, and the other models have no dropout either.
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


@dataclass(frozen=True)
class ModelPreset:
    """A config class of transformers, and the fields that the preset sets."""

    config: type[Any]
    fields: Mapping[str, Any]
    length_field: str | None = None
    """Where the config has the number of learned positions."""


def model_presets() -> dict[str, ModelPreset]:
    """Every model that can be trained, by the name of its preset."""
    from transformers import GPT2Config

    from ematrace.models import SkeletonConfig
    from ematrace.spen import SpenConfig

    sizes = ("n_embd", "n_layer", "n_head")
    gpt2 = {name: {**NO_DROPOUT, **dict(zip(sizes, of, strict=True))} for name, of in GPT2_SIZES.items()}
    families = (
        (SpenConfig, SpenConfig.presets, None),
        (SkeletonConfig, SkeletonConfig.presets, "max_positions"),
        (GPT2Config, gpt2, "n_positions"),
    )
    return {
        name: ModelPreset(config, fields, length_field)
        for config, presets, length_field in families
        for name, fields in presets.items()
    }


def build_model(
    preset: str,
    vocab_size: int,
    eos_id: int | None = None,
    overrides: Iterable[str] = (),
    *,
    length: int = 1024,
) -> Any:
    """A fresh model; `overrides` are fields of its config, "field=value"; `length` is the number of learned positions.

    A mixer named in `overrides` is imported: whoever names it there wants it to run.

    >>> model = build_model("skeleton-tiny", vocab_size=512, overrides=["mixer=ema", "k=8"])
    >>> model.config.mixer, model.config.k, model.num_parameters()
    ('ema', 8, 123520)
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoModelForCausalLM

    defaults_for(preset)  # refuses a name that is no preset
    chosen = model_presets()[preset]
    changes = parse_assignments(overrides, "overrides")
    known = {field.name for field in fields(chosen.config)} | chosen.config.attribute_map.keys()
    for name in changes:  # transformers keeps a field it does not know without a word, and a typo would do nothing
        if name not in known:
            raise ValueError(
                f"overrides: field '{name}': the configuration of {preset} has no such field{did_you_mean(name, known)}"
            )
    if isinstance(changes.get("mixer"), str):
        _import_mixer(changes["mixer"])
    settings = {**chosen.fields, "vocab_size": vocab_size, "eos_token_id": eos_id, "bos_token_id": eos_id}
    if chosen.length_field is not None:
        settings[chosen.length_field] = length
    try:
        config = chosen.config(**settings | changes)
    except StrictDataclassError as error:
        raise ValueError(f"overrides: {' '.join(str(error).split())}") from error
    return AutoModelForCausalLM.from_config(config, trust_remote_code=False)


def _import_mixer(name: str) -> None:
    from ematrace.mixers import register_mixer, registered_mixer

    try:
        registered_mixer(name)
    except ValueError:
        register_mixer(name)


def load_model(path_or_name: str | Path, *, trust_remote_code: bool = False) -> tuple[Any, Any]:
    """Model and tokenizer from a folder of `save_pretrained` or from the hub, safetensors only.

    A folder is verified first: see `model_folder`. Runs no code that comes with the model unless `trust_remote_code`.
    One whose config names a mixer from outside the package loads after `ematrace.mixers.register_mixer`.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> run = {"tokenizer": "bpe", "tokens": 5120, "sequences": 2, "length": 64, "lr": 0.01}  # 40 steps
    >>> with TemporaryDirectory() as folder:
    ...     size = Path(folder, "tale.txt").write_text("the cat sees the dog " * 2000)
    ...     summary = train(TrainConfig(f"{folder}/tale.txt", out=Path(folder, "run"), **run))
    ...     model, tokenizer = load_model(summary.model)
    >>> ids = model.generate(**tokenizer("the cat", return_tensors="pt"), max_new_tokens=3, do_sample=False)
    >>> tokenizer.decode(ids[0])
    'the cat sees the dog'
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from ematrace.train.model_folder import check_model_folder, naming, refuse_non_finite

    name = str(path_or_name)
    folder = Path(name)
    if folder.is_dir():
        check_model_folder(folder, trust_remote_code)
    elif folder.is_file():
        raise ValueError(f"{name}: a file; give a model's folder")
    elif not folder.exists():
        _refuse_mistyped(name)
    # Without network the hub's client would retry for half a minute, even about a folder.
    offline = folder.exists() or not hub_is_reachable()
    # trust_remote_code left out, transformers would ask on standard input.
    options = {"local_files_only": offline, "trust_remote_code": trust_remote_code}
    on_hub = f"{name}: not a folder here, and not loaded from the hub"
    with naming(folder / "model.safetensors" if folder.is_dir() else on_hub), no_bars():
        model, loading = AutoModelForCausalLM.from_pretrained(
            name, use_safetensors=True, output_loading_info=True, **options
        )
        for tensor in sorted(loading["missing_keys"]):  # transformers draws them at random and goes on
            raise ValueError(f"the weights have no tensor '{tensor}'")
        refuse_non_finite(model)
    with naming(f"{folder}: tokenizer.json or tokenizer_config.json" if folder.is_dir() else on_hub):
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
        check_tokenizer(tokenizer, model)
    return model, tokenizer


def check_tokenizer(tokenizer: Any, model: Any) -> None:
    """It works, and the model knows its tokens."""
    from ematrace.train.model_folder import OURS

    tokenizer.decode(tokenizer("a", split_special_tokens=True).input_ids)
    largest, known = max(tokenizer.get_vocab().values(), default=0), model.config.get_text_config().vocab_size
    if largest >= known and model.config.model_type in OURS:
        raise ValueError(f"has a token {largest}, but the model's vocabulary has {known}")


def _refuse_mistyped(name: str) -> None:
    """FileNotFoundError for a name that is meant as a folder: nobody looks for it on the hub."""
    nearby = [folder.name for folder in Path().iterdir() if folder.is_dir()]
    suggestion = did_you_mean(name, nearby)
    if suggestion or name.startswith(("/", ".", "~", "\\")) or name.count("/") > 1:
        raise FileNotFoundError(f"{name}: no such folder{suggestion}")


@contextmanager
def no_bars() -> Iterator[None]:
    """transformers draws a progress bar over each file that it reads or writes, across a run's own."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
