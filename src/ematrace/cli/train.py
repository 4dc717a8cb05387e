"""The commands that train a language model and evaluate models: train, eval."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from tyro.constructors import PrimitiveConstructorSpec

from ematrace.cli.language import load_language_model, writable
from ematrace.files import write_atomically
from ematrace.train.config import TrainConfig

THOUSANDS = {"K": "e3", "M": "e6", "B": "e9", "T": "e12"}


def parse_count(text: str) -> int:
    """A whole number as people write large ones.

    >>> [parse_count(text) for text in ("1e6", "20M", "1.5B", "54_132_736")]
    [1000000, 20000000, 1500000000, 54132736]
    """
    suffix = text[-1:].upper()
    try:
        number = float(text[:-1] + THOUSANDS[suffix] if suffix in THOUSANDS else text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number; write 5000, 1e6 or 20M") from None
    if not number.is_integer():
        raise ValueError(f"{text} is not a whole number")
    return int(number)


Count = Annotated[
    int,
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="COUNT",
        instance_from_str=lambda texts: parse_count(texts[0]),
        is_instance=lambda value: isinstance(value, int),
        str_from_instance=lambda value: [str(value)],
    ),
]


@dataclass(frozen=True)
class Train(TrainConfig):
    tokens: Count | None = None
    """Tokens to train on (1e6, 20M, 8B); the run has tokens // (sequences * length) steps."""


Train.__doc__ = TrainConfig.__doc__


@dataclass(frozen=True)
class Eval:
    """Perplexity of a model on text: in all, by domain and by position in the document.

    Examples: `ematrace eval run --data builtin`, `ematrace eval gpt2 --data "texts/*.txt"`.
    """

    model: tyro.conf.Positional[str]
    """A run's folder, a folder that save_pretrained wrote, or a name on the Hugging Face hub."""
    data: str
    """Text: `builtin`, a path or glob (.txt, .jsonl, also .xz/.gz/.zst; .conllu), or hf:NAME[/CONFIG]."""
    split: Literal["auto", "all", "train", "validation"] = "auto"
    """Part of the documents; auto is the held-out part of the text that the model was trained on, else all."""
    max_tokens: Count | None = None
    """Stop after this many tokens (1e6, 20M)."""
    context: int | None = None
    """Tokens that a model sees at most (default: what it can)."""
    unigram: Path | None = None
    """Counts of the unigram model beside it (default: those of the model's training text, if it has them)."""
    mixer: str | None = None
    """package.module:Class of the mixer that the model's config names, if it is not part of ematrace. Naming it here
    imports it."""
    device: str = "auto"
    """cpu, cuda or cuda:N; auto is a GPU where there is one."""
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False
    """For machines: the same figures on one line."""
    out: Path | None = None
    """File for the figures, with settings, versions and hardware."""


def run(command: object, console: Console, error_console: Console) -> None:
    match command:
        case TrainConfig():
            train_model(command, console)
        case Eval():
            evaluate_model(command, console, error_console)


def train_model(command: TrainConfig, console: Console) -> None:
    from ematrace.report.training import TrainingBar
    from ematrace.train import train

    raise SystemExit(train(command, display=TrainingBar(console)).exit_code)


def evaluate_model(command: Eval, console: Console, error_console: Console) -> None:
    from ematrace.evaluation import as_json, evaluate
    from ematrace.report.language import evaluation_tables
    from ematrace.report.progress import token_counter
    from ematrace.text import open_source

    started = time.monotonic()
    if command.out is not None:
        writable(command.out)
    model, tokenizer, folder = load_language_model(command.model, command.device, command.mixer)
    split, unigram = training_text(folder, command)
    documents = open_source(command.data).part(split)
    with token_counter(error_console) as progress:
        result = evaluate(
            model, tokenizer, documents, context=command.context, max_tokens=command.max_tokens,
            unigram=unigram, progress=progress,
        )  # fmt: skip
    settings = {"model": command.model, "data": command.data, "split": split, "context": command.context}
    record = as_json(result, **settings, seconds=time.monotonic() - started)
    if command.out is not None:
        write_atomically(command.out, (json.dumps(record, indent=1) + "\n").encode())
    if command.as_json:
        print(json.dumps(record))
    else:
        part = "" if split == "all" else f", the {split} part"
        console.print(f"{command.model} on {command.data}{part}", soft_wrap=True, highlight=False)
        console.print(evaluation_tables(result, command.model))


def training_text(folder: Path, command: Eval) -> tuple[str, Any]:
    """Which part of the text to score, and the unigram model of what the language model was trained on."""
    from ematrace.baselines.language import UNIGRAM, Unigram
    from ematrace.text import open_source
    from ematrace.text.held_out import held_out_split

    split = held_out_split(folder, open_source(command.data)) if command.split == "auto" else command.split
    counts = command.unigram or (folder / UNIGRAM)
    if command.unigram is None and not counts.is_file():
        return split, None
    return split, Unigram.load(counts)
