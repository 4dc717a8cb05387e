"""Models by name: SPEN's presets, transformers of the same size, and whatever transformers can load."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ematrace.text.hub import hub_is_reachable
from ematrace.train.config import PRESETS

# Width, blocks, heads: GPT-2 small, and transformers as wide and deep as the other SPEN presets.
GPT2_SIZES: Mapping[str, tuple[int, int, int]] = {
    "gpt2-130m": (768, 12, 12),
    "gpt2-7m": (128, 2, 4),
    "gpt2-tiny": (64, 2, 4),
}


def build_model(
    preset: str,
    vocab_size: int,
    eos_id: int | None = None,
    overrides: Iterable[str] = (),
    *,
    length: int = 1024,
) -> Any:
    """A fresh model; `overrides` are fields of its configuration, "field=value"; `length` is for learned positions."""
    if preset not in PRESETS:
        raise ValueError(f"preset is {preset!r}; it must be one of {', '.join(PRESETS)}")
    changes = parse_overrides(overrides)
    if preset.startswith("spen-"):
        from ematrace.spen import SpenConfig, SpenForCausalLM

        _refuse_unknown(changes, SpenConfig.preset(preset).to_dict(), preset)
        ids = {"eos_token_id": eos_id, "bos_token_id": eos_id}
        return SpenForCausalLM(SpenConfig.preset(preset, **{"vocab_size": vocab_size} | ids | changes))
    from transformers import GPT2Config, GPT2LMHeadModel

    width, blocks, heads = GPT2_SIZES[preset]
    settings = {
        "vocab_size": vocab_size,
        "n_positions": length,
        "n_embd": width,
        "n_layer": blocks,
        "n_head": heads,
        # A single pass over the data has nothing to overfit, and SPEN has no dropout either.
        **{"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
        **{"eos_token_id": eos_id, "bos_token_id": eos_id},
    }
    _refuse_unknown(changes, GPT2Config().to_dict(), preset)
    return GPT2LMHeadModel(GPT2Config(**settings | changes))


def parse_overrides(overrides: Iterable[str]) -> dict[str, Any]:
    """Values as JSON where they are JSON, else as text.

    >>> parse_overrides(["k=30", "ffn=dense", "alphas=[0.5, 0.1]"])
    {'k': 30, 'ffn': 'dense', 'alphas': [0.5, 0.1]}
    """
    changes: dict[str, Any] = {}
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals or not name:
            raise ValueError(f"overrides: {override!r} is not of the form field=value")
        if name in changes:
            raise ValueError(f"overrides: field '{name}': given twice")
        try:
            changes[name] = json.loads(text)
        except json.JSONDecodeError:
            changes[name] = text
    return changes


def _refuse_unknown(changes: Mapping[str, Any], known: Mapping[str, Any], preset: str) -> None:
    # transformers keeps a field it does not know without a word, and a misspelt switch would do nothing.
    for name in changes:
        if name not in known:
            raise ValueError(f"overrides: field '{name}': the configuration of {preset} has no such field")


def load_model(path_or_name: str | Path) -> tuple[Any, Any]:
    """Model and tokenizer from a folder of `save_pretrained` or from the hub, safetensors only."""
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import ematrace.spen  # noqa: F401  registers SPEN with the Auto classes

    name = str(path_or_name)
    if Path(name).is_dir() and not (Path(name) / "config.json").is_file():
        raise ValueError(f"{name}: no config.json in this folder, so it is no saved model")
    try:
        # Without network the hub's client would retry for half a minute, even about a folder.
        offline = Path(name).exists() or not hub_is_reachable()
        with no_bars():
            model, told = AutoModelForCausalLM.from_pretrained(
                name,
                use_safetensors=True,
                local_files_only=offline,
                trust_remote_code=False,  # left out, transformers would ask on standard input
                output_loading_info=True,
            )
        tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=offline, trust_remote_code=False)
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        where = "not a folder here, and not loaded from the hub" if not Path(name).exists() else "not loaded"
        raise OSError(f"{name}: {where}: {first.strip()}") from error
    if told["missing_keys"]:  # transformers draws them at random and goes on
        raise ValueError(f"{name}: the weights have no tensor '{min(told['missing_keys'])}'")
    return model, tokenizer


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
