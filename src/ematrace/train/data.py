"""The text of a run: a tokenizer, packed training tokens (or a stream of them), packed validation tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ematrace.text import PackedTokens, StreamedTokens, load_tokenizer, open_source, pack, train_bpe
from ematrace.train.batches import Batches, PackedBatches, StreamedBatches, Windows
from ematrace.train.config import Recipe, TrainConfig
from ematrace.train.distributed import World


@dataclass(frozen=True)
class TrainingData:
    """What `prepare` leaves in the run's folder, opened."""

    tokenizer: Any
    batches: Batches
    train: Windows | None
    """None where the training text is streamed."""
    validation: Windows

    @property
    def fingerprints(self) -> dict[str, str]:
        train = "streamed" if self.train is None else self.train.fingerprint
        return {"train": train, "validation": self.validation.fingerprint}


def is_streamed(spec: str) -> bool:
    return spec.startswith("hf:")


def prepare(
    config: TrainConfig, recipe: Recipe, world: World, *, resumed: bool, tell: Callable[[str], None]
) -> TrainingData:
    """Tokenize once, in the first process, into the run's folder; a resumed run opens what it made before."""
    folder = config.out / "tokens"
    if world.first and not resumed:
        _pack(config, folder, tell)
    world.wait()
    tokenizer = load_tokenizer(str(folder / "tokenizer"))
    validation = PackedTokens.open(folder / "validation", tokenizer)
    sizes: dict[str, Any] = {
        "sequences": recipe.sequences,
        "length": recipe.length,
        "micro_batch": recipe.micro_batch,
        "reset": config.reset_at_documents,
    }
    if is_streamed(config.data):
        stream = StreamedTokens(open_source(config.data), tokenizer, recipe.length)
        return TrainingData(
            tokenizer, StreamedBatches(stream, eos_id=tokenizer.eos_token_id, **sizes), None, validation
        )
    train = PackedTokens.open(folder / "train", tokenizer)
    return TrainingData(tokenizer, PackedBatches(train, seed=config.seed, **sizes), train, validation)


def _pack(config: TrainConfig, folder: Path, tell: Callable[[str], None]) -> None:
    source = open_source(config.data)
    if config.tokenizer is None and config.data == "builtin":
        tell(f"training a BPE of {config.vocab_size} entries")
        tokenizer = train_bpe(source, config.vocab_size)
    else:
        tokenizer = load_tokenizer(config.tokenizer or "gpt2")
    tokenizer.save_pretrained(folder / "tokenizer")
    tell("packing tokens")
    apart = config.validation is not None
    if not is_streamed(config.data):
        pack(source, tokenizer, folder / "train", split="all" if apart else "train")
    held_out = open_source(config.validation) if config.validation is not None else source
    pack(held_out, tokenizer, folder / "validation", split="all" if apart else "validation")
