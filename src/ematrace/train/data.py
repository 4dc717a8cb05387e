"""The text of a run: a tokenizer, packed training tokens (or a stream of them), validation tokens."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ematrace.files import write_atomically
from ematrace.text import load_tokenizer, open_source, pack, train_bpe
from ematrace.text.streamed import StreamedTokens, starts_after
from ematrace.train.batches import Batches, Ids, PackedBatches, StreamedBatches, Windows
from ematrace.train.checkpoints import write_folder
from ematrace.train.config import Recipe, TrainConfig
from ematrace.train.distributed import World


@dataclass(frozen=True)
class TrainingData:
    """Everything a run reads."""

    tokenizer: Any
    batches: Batches
    train: Windows | None
    """None where the training text is streamed."""
    validation: Windows

    @property
    def fingerprints(self) -> dict[str, str]:
        train = "streamed" if self.train is None else self.train.fingerprint
        return {"train": train, "validation": self.validation.fingerprint}


class HeldOutWindows:
    """Windows [n, length+1] taken from the head of a stream, for validation."""

    def __init__(self, windows: Ids, vocab_size: int, eos_id: int):
        self.windows, self.vocab_size, self.eos_id = windows, vocab_size, eos_id
        self.n_tokens = int(windows.size)
        self.fingerprint = hashlib.sha256(windows.tobytes()).hexdigest()

    def n_windows(self, length: int) -> int:
        return len(self.windows)

    def window(self, i: int, length: int) -> Ids:
        window: Ids = self.windows[i]
        return window

    def document_starts(self, i: int, length: int) -> Any:
        return starts_after(self.windows[i], self.eos_id)

    def counts(self) -> Ids:
        return np.bincount(self.windows[:, 1:].ravel(), minlength=self.vocab_size)


def is_streamed(spec: str) -> bool:
    return spec.startswith("hf:")


def prepare(
    config: TrainConfig, recipe: Recipe, world: World, *, begun: bool, notify: Callable[[str], None]
) -> TrainingData:
    """Open the text. The first process tokenizes it, unless that is cached, and the others wait.

    A run that has begun keeps the tokenizer in its folder; its text is compared by fingerprint.
    """
    if world.first:
        data = _prepare(config, recipe, begun, notify)
        world.wait()
        return data
    world.wait()
    return _prepare(config, recipe, True, notify)


def _prepare(config: TrainConfig, recipe: Recipe, begun: bool, notify: Callable[[str], None]) -> TrainingData:
    folder = config.out / "tokenizer"
    if begun and folder.is_dir():
        tokenizer = load_tokenizer(folder)
    else:
        tokenizer = _new_tokenizer(config, notify)
        write_folder(folder, lambda part: tokenizer.save_pretrained(part))
    validation = _validation(config, recipe, tokenizer, begun, notify)
    sizes: dict[str, Any] = {
        "sequences": recipe.sequences,
        "length": recipe.length,
        "micro_batch": recipe.micro_batch,
        "reset": config.reset_at_documents,
    }
    split = "train" if config.validation is None else "all"
    if is_streamed(config.data):
        stream = StreamedTokens(config.data, tokenizer, recipe.length, split)
        batches = StreamedBatches(stream, eos_id=tokenizer.eos_token_id, **sizes)
        return TrainingData(tokenizer, batches, None, validation)
    notify("reading the training text")
    train = pack(config.data, tokenizer, split=split)
    return TrainingData(tokenizer, PackedBatches(train, seed=config.seed, **sizes), train, validation)


def _new_tokenizer(config: TrainConfig, notify: Callable[[str], None]) -> Any:
    chosen = config.tokenizer or ("bpe" if config.data == "builtin" else "gpt2")
    if chosen != "bpe":
        return load_tokenizer(chosen)
    notify(f"training a tokenizer of {config.vocab_size} entries")
    split = "train" if config.validation is None else "all"
    return train_bpe(open_source(config.data).part(split), config.vocab_size)


def _validation(
    config: TrainConfig, recipe: Recipe, tokenizer: Any, begun: bool, notify: Callable[[str], None]
) -> Windows:
    spec, split = (config.data, "validation") if config.validation is None else (config.validation, "all")
    if not is_streamed(spec):
        notify("reading the validation text")
        return pack(spec, tokenizer, split=split)
    path = config.out / "validation.npy"  # reading the head of a stream for held-out documents takes a while
    if not (begun and path.exists()):
        notify("reading validation text from the stream")
        found = list(islice(StreamedTokens(spec, tokenizer, recipe.length, split), recipe.validation_sequences))
        _save_array(path, np.stack(found))
    windows = np.load(path, allow_pickle=False)
    if windows.ndim != 2 or windows.shape[1] != recipe.length + 1:
        raise ValueError(f"{path}: shape {windows.shape}, but length is {recipe.length}")
    return HeldOutWindows(windows, len(tokenizer), tokenizer.eos_token_id)


def _save_array(path: Path, array: Ids) -> None:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    write_atomically(path, buffer.getvalue())
