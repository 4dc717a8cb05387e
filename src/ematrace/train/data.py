"""The text of a run: a tokenizer, packed training tokens (or a stream of them), validation tokens."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ematrace.files import write_atomically
from ematrace.text import Document, PackedTokens, Source, load_tokenizer, open_source, pack, train_bpe
from ematrace.text.held_out import HeldOut, choose_held_out
from ematrace.text.streamed import StreamedTokens, starts_after
from ematrace.text.tokenizers import local_gpt2
from ematrace.train.batches import Batches, Ids, PackedBatches, StreamedBatches, Windows
from ematrace.train.checkpoints import MANIFEST, verify_manifest, write_folder
from ematrace.train.config import Recipe, TrainConfig, resolve_recipe, size_of
from ematrace.train.distributed import World

# A small text gets sequences short enough for some windows of each part, and fewer passes than would overfit.
TRAIN_WINDOWS, VALIDATION_WINDOWS, SHORTEST = 8, 4, 16
EPOCHS, LEAST_STEPS = 60, 20
FEW_TOKENS, FEW_DOCUMENTS = 5_000, 5
LARGEST_VOCABULARY = {"130m": 32_768}
SMALLEST_VOCABULARY = 512
STREAM_CHARACTERS = 20_000_000
"""Of a stream, for a tokenizer."""


@dataclass(frozen=True)
class TrainingData:
    """Everything a run reads."""

    tokenizer: Any
    batches: Batches
    train: Windows | None
    """None where the training text is streamed."""
    validation: Windows
    recipe: Recipe
    """The one asked for, fitted to the text."""
    held_out: HeldOut

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
    config: TrainConfig,
    recipe: Recipe,
    world: World,
    *,
    begun: bool,
    notify: Callable[[str], None],
    held_out: HeldOut | None = None,
) -> TrainingData:
    """Open the text. The first process tokenizes it, unless that is cached, and the others wait.

    A run that has begun keeps the tokenizer in its folder and the part of the text that it held out; the text itself
    is compared by fingerprint.
    """
    if world.first:
        data = _prepare(config, recipe, held_out, begun, notify)
        world.wait()
        return data
    world.wait()
    return _prepare(config, recipe, held_out, True, lambda _: None)


def _prepare(
    config: TrainConfig, recipe: Recipe, held_out: HeldOut | None, begun: bool, notify: Callable[[str], None]
) -> TrainingData:
    source = open_source(config.data)
    if config.validation is None:
        _choose_held_out(config, held_out, source)
    elif not is_streamed(config.data) and next(iter(source), None) is None:
        raise ValueError(f"{source.spec}: empty corpus, no document has any text")
    split = "train" if config.validation is None else "all"
    folder = config.out / "tokenizer"
    if begun and folder.is_dir():
        if (folder / MANIFEST).exists():
            verify_manifest(folder)
        tokenizer = load_tokenizer(folder)
    else:
        tokenizer = _new_tokenizer(config, source, split, notify)
        write_folder(folder, lambda part: tokenizer.save_pretrained(part))
    if is_streamed(config.data):
        validation = _validation(config, recipe, source, tokenizer, begun, notify)
        stream = StreamedTokens(source, tokenizer, recipe.length, split)
        batches: Batches = StreamedBatches(stream, eos_id=tokenizer.eos_token_id, **_sizes(config, recipe))
        return TrainingData(tokenizer, batches, None, validation, recipe, HeldOut.of(source))
    notify("reading the text")
    train = pack(source, tokenizer, split=split)
    validation = _validation(config, recipe, source, tokenizer, begun, notify)
    if isinstance(validation, PackedTokens):
        recipe = fit_to_text(config, recipe, train.n_tokens, validation.n_tokens)
        if not begun:
            describe_text(train, validation, HeldOut.of(source) if config.validation is None else None, notify)
            if config.tokens is None:
                passes = recipe.tokens / train.n_tokens
                notify(f"{recipe.steps:,} steps: {passes:.2g} passes over the text; --tokens changes that")
    batches = PackedBatches(train, seed=config.seed, **_sizes(config, recipe))
    return TrainingData(tokenizer, batches, train, validation, recipe, HeldOut.of(source))


def _choose_held_out(config: TrainConfig, recorded: HeldOut | None, source: Source) -> None:
    if recorded is not None:
        recorded.apply(source)
    elif not is_streamed(config.data):  # a stream is not read twice
        least = (config.length or SHORTEST) + 1  # a sequence and its target; no token has less than a byte
        choose_held_out(source, config.validation_share, least).apply(source)
    elif config.validation_share is not None:
        source.validation_share = config.validation_share


def _sizes(config: TrainConfig, recipe: Recipe) -> dict[str, Any]:
    return {
        "sequences": recipe.sequences,
        "length": recipe.length,
        "micro_batch": recipe.micro_batch,
        "reset": config.reset_at_documents,
    }


def fit_to_text(config: TrainConfig, recipe: Recipe, train_tokens: int, validation_tokens: int) -> Recipe:
    """Shorter sequences and fewer steps for a small text, where the configuration leaves them open."""
    length, tokens = recipe.length, recipe.tokens
    if config.length is None:
        longest = min((train_tokens - 1) // TRAIN_WINDOWS, (validation_tokens - 1) // VALIDATION_WINDOWS)
        while length > max(longest, SHORTEST):
            length //= 2
    if config.tokens is None:
        tokens = min(tokens, max(EPOCHS * train_tokens, LEAST_STEPS * recipe.sequences * length))
    if (length, tokens) == (recipe.length, recipe.tokens):
        return recipe
    return resolve_recipe(replace(config, length=length, tokens=tokens))


def describe_text(
    train: PackedTokens, validation: PackedTokens, held_out: HeldOut | None, notify: Callable[[str], None]
) -> None:
    """How much is trained on and held out, in a line, and a warning where the latter is too little to tell much."""
    notify(f"{_amount(train)} to train on, {_amount(validation)} held out")
    if held_out is not None and held_out.tails:
        notify(f"held out is the last {held_out.share:.0%} of each document: too few to hold out whole ones")
    if validation.n_tokens < FEW_TOKENS or validation.n_documents < FEW_DOCUMENTS:
        more = "--validation-share or --validation" if held_out is not None else "--validation"
        notify(f"warning: little to judge by; {more} gives more")


def _amount(packed: PackedTokens) -> str:
    return f"{packed.n_tokens:,} tokens in {packed.n_documents:,} document{'s' * (packed.n_documents != 1)}"


def _new_tokenizer(config: TrainConfig, source: Source, split: str, notify: Callable[[str], None]) -> Any:
    chosen = config.tokenizer
    if chosen is None and config.data != "builtin" and config.vocab_size is None:
        if (tokenizer := local_gpt2()) is not None:
            notify(f"tokenizer: GPT-2's, {len(tokenizer):,} entries; --tokenizer bpe trains one on the text")
            return tokenizer
        notify("tokenizer: GPT-2's is not on this machine, so one is trained on the text")
    elif chosen not in (None, "bpe"):
        return load_tokenizer(chosen)
    entries = config.vocab_size or _vocabulary_for(config, source)
    notify(f"training a tokenizer of {entries:,} entries")
    documents = source.part(split)
    if is_streamed(config.data):
        documents = _first_characters(documents, STREAM_CHARACTERS)
    return train_bpe(documents, entries)


def _vocabulary_for(config: TrainConfig, source: Source) -> int:
    """A power of two with some 64 characters of text for each entry; the larger models have use for more."""
    largest = LARGEST_VOCABULARY.get(size_of(config.preset), 4096)
    if config.data == "builtin" or is_streamed(config.data):
        return 4096 if config.data == "builtin" else largest
    characters = sum(len(document.text) for document in _first_characters(source, 64 * largest))
    power_of_two: int = 2 ** ((characters // 64).bit_length() - 1) if characters >= 64 else 1
    return max(SMALLEST_VOCABULARY, min(largest, power_of_two))


def _first_characters(documents: Iterable[Document], limit: int) -> Iterator[Document]:
    read = 0
    for document in documents:
        yield document
        read += len(document.text)
        if read >= limit:
            return


def _validation(
    config: TrainConfig,
    recipe: Recipe,
    source: Source,
    tokenizer: Any,
    begun: bool,
    notify: Callable[[str], None],
) -> Windows:
    spec = config.validation
    split = "validation" if spec is None else "all"
    if not is_streamed(spec or config.data):
        return pack(source if spec is None else spec, tokenizer, split=split)
    path = config.out / "validation.npy"  # reading the head of a stream for held-out documents takes a while
    if not (begun and path.exists()):
        notify("reading validation text from the stream")
        stream = StreamedTokens(source if spec is None else spec, tokenizer, recipe.length, split)
        _save_array(path, np.stack(list(islice(stream, recipe.validation_sequences))))
    return HeldOutWindows(_read_windows(path, recipe.length, len(tokenizer)), len(tokenizer), tokenizer.eos_token_id)


def _read_windows(path: Path, length: int, vocab_size: int) -> Ids:
    try:
        windows = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path}: not an array: {str(error).splitlines()[0]}") from None
    if not isinstance(windows, np.ndarray) or windows.dtype != np.int64 or windows.ndim != 2 or not len(windows):
        raise ValueError(f"{path}: not windows of tokens")
    if windows.shape[1] != length + 1:
        raise ValueError(f"{path}: shape {windows.shape}, but length is {length}")
    if windows.min() < 0 or windows.max() >= vocab_size:
        raise ValueError(f"{path}: tokens {windows.min()} to {windows.max()}, but the vocabulary has {vocab_size}")
    return windows


def _save_array(path: Path, array: Ids) -> None:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    write_atomically(path, buffer.getvalue())
