"""The commands that train a language model and evaluate models: train, eval."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.console import Console
from tyro.constructors import PrimitiveConstructorSpec

from ematrace.cli.language import Generate, generate_text, load_language_model, writable
from ematrace.files import write_atomically
from ematrace.train.config import TrainConfig

if TYPE_CHECKING:
    from ematrace.baselines.language import Unigram
    from ematrace.evaluation import Evaluation
    from ematrace.text import Source
    from ematrace.train import TrainSummary

SAMPLE = 60
"""Tokens that are shown at the end of a run."""
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


Train.__doc__ = (TrainConfig.__doc__ or "").partition("\n\n    >>> ")[0]  # its example is Python, not a command


@dataclass(frozen=True)
class Eval:
    """Perplexity of a model on text, by domain and by position; several models are compared on the same text.

    Examples: `ematrace eval run --data builtin`, `ematrace eval run-a run-b --data "texts/*.txt"`.
    """

    model: tyro.conf.Positional[tuple[str, ...]]
    """A run's folder, a folder that save_pretrained wrote, or a name on the Hugging Face hub; or several of them."""
    data: str
    """Text: `builtin`, a path or glob (.txt, .jsonl, also .xz/.gz/.zst; .conllu), or hf:NAME[/CONFIG]."""
    split: Literal["auto", "all", "train", "validation"] = "auto"
    """Part of the text; auto is what was held out of it when the model was trained on it, else all."""
    max_tokens: Count | None = None
    """Stop after this many tokens (1e6, 20M)."""
    context: int | None = None
    """Tokens that a model sees at most (default: what it can)."""
    unigram: Path | None = None
    """Counts of the unigram model beside it (default: those of the model's training text, if it has them)."""
    mixer: str | None = None
    """package.module:Class of the model's mixer, if it is not part of ematrace; naming it here imports it."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model."""
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
            evaluate_models(command, console, error_console)


def train_model(command: TrainConfig, console: Console) -> None:
    from ematrace.report.training import TrainingBar
    from ematrace.train import train

    summary = train(command, display=TrainingBar(console))
    if summary.stopped is None and os.environ.get("RANK", "0") == "0":
        show_result(command, summary, console)
    raise SystemExit(summary.exit_code)


def show_result(command: TrainConfig, summary: TrainSummary, console: Console) -> None:
    """The end of a run: the held-out loss beside that of token frequencies, a sample, and what to type next."""
    from ematrace.report.training import held_out_lines, next_commands

    command = replace(command, validation=summary.settings["validation"])  # a resumed run has its own
    lines = held_out_lines(summary, evaluate_held_out(command, summary))
    console.print("\n".join(["", *lines, "", "a sample:"]), soft_wrap=True, highlight=False, markup=False)
    limited = not command.preset.startswith("spen")  # to the positions that it was trained on
    tokens = min(SAMPLE, summary.settings["length"] - 1) if limited else SAMPLE
    generate_text(Generate(str(command.out), "", max_new_tokens=tokens, decoder="eager", device=command.device))
    console.print("\n".join(["", *next_commands(command)]), soft_wrap=True, highlight=False, markup=False)


def evaluate_held_out(command: TrainConfig, summary: TrainSummary) -> Evaluation | None:
    """As `ematrace eval` does it, on as many tokens as a validation has; None where the text is streamed."""
    from ematrace.baselines.language import UNIGRAM, Unigram
    from ematrace.evaluation import evaluate
    from ematrace.text import open_source
    from ematrace.text.held_out import held_out_split

    source = open_source(command.validation or command.data)
    counts = summary.model / UNIGRAM
    if not counts.is_file() or source.spec.startswith("hf:"):
        return None
    split = "all" if command.validation is not None else held_out_split(summary.model, source)
    model, tokenizer, _ = load_language_model(str(command.out), command.device)
    tokens = summary.settings["validation_sequences"] * summary.settings["length"]
    return evaluate(model, tokenizer, source.part(split), max_tokens=tokens, unigram=Unigram.load(counts))


def evaluate_models(command: Eval, console: Console, error_console: Console) -> None:
    from ematrace.evaluation import as_json, comparison_json, model_folder
    from ematrace.report.language import comparison_table, evaluation_tables
    from ematrace.text import open_source

    started = time.monotonic()
    if not command.model:
        raise ValueError("model: give a run's folder, or several to compare")
    if len(set(command.model)) < len(command.model):
        raise ValueError(f"model: {next(m for m in command.model if command.model.count(m) > 1)} is given twice")
    several = len(command.model) > 1
    for name, limit in (("context", command.context), ("max_tokens", command.max_tokens)):
        if limit is not None and limit < 1:
            raise ValueError(f"{name} is {limit}; it must be at least 1")
    if several and command.unigram is not None:
        raise ValueError("unigram: with several models each has its own")
    if command.out is not None:
        writable(command.out)
    source = open_source(command.data)

    def warn(text: str) -> None:
        error_console.print(text, soft_wrap=True, highlight=False, markup=False)

    split = part_to_score([Path(model_folder(name)) for name in command.model], source, command.split, warn)
    results = score_models(command, source, split, error_console)
    settings = {"data": command.data, "split": split, "context": command.context}
    seconds = time.monotonic() - started
    if several:
        record = comparison_json(results, **settings, seconds=seconds)
        shown = comparison_table(results)
    else:
        ((name, result),) = results.items()
        record = as_json(result, model=name, **settings, seconds=seconds)
        shown = evaluation_tables(result, name)
    if command.out is not None:
        write_atomically(command.out, (json.dumps(record, indent=1) + "\n").encode())
    if command.as_json:
        print(json.dumps(record))
    else:
        part = "" if split == "all" else f", the {split} part"
        console.print(f"{', '.join(command.model)} on {command.data}{part}", soft_wrap=True, highlight=False)
        console.print(shown)


def score_models(command: Eval, source: Source, split: str, error_console: Console) -> dict[str, Evaluation]:
    from ematrace.evaluation import evaluate, first_tokens
    from ematrace.report.progress import token_counter

    results: dict[str, Evaluation] = {}
    cut, max_tokens = None, command.max_tokens
    for name in command.model:
        consent = (command.mixer, command.trust_remote_code)
        model, tokenizer, folder = load_language_model(name, command.device, *consent)
        unigram = unigram_of(folder, command.unigram, len(tokenizer))
        if len(command.model) > 1 and max_tokens is not None:  # the same text whatever the tokenizer
            cut, max_tokens = first_tokens(source.part(split), tokenizer, max_tokens), None
        documents = source.part(split) if cut is None else cut
        with token_counter(error_console) as progress:
            results[name] = evaluate(
                model,
                tokenizer,
                documents,
                context=command.context,
                max_tokens=max_tokens,
                unigram=unigram,
                progress=progress,
            )
    return results


def part_to_score(folders: list[Path], source: Source, asked: str, warn: Callable[[str], None]) -> str:
    """Which split of the text, and on `source` what it is: held out by every model that was trained on this text.

    A model that was trained on all of it has held out nothing; there is a warning unless that part was asked for.
    """
    from ematrace.text import open_source
    from ematrace.text.held_out import HeldOut, held_out_split, is_training_text

    parts = []
    for folder in folders:
        theirs = open_source(source.spec)
        if held_out_split(folder, theirs) == "validation":
            parts.append(HeldOut.of(theirs))
        elif asked in ("auto", "validation") and is_training_text(folder, theirs):
            warn(f"warning: {folder} was trained on all of {source.spec}, so its figures are of its training text")
    if len({part.tails for part in parts}) > 1:
        raise ValueError(f"{source.spec}: the models held out different parts of it; give text that is new to all")
    if parts:
        min(parts, key=lambda part: part.share).apply(source)  # a smaller part lies inside a larger one
    return ("validation" if parts else "all") if asked == "auto" else asked


def unigram_of(folder: Path, given: Path | None, entries: int) -> Unigram | None:
    """The unigram model of what the language model was trained on."""
    from ematrace.baselines.language import UNIGRAM, Unigram

    counts = given or (folder / UNIGRAM)
    if given is None and not counts.is_file():
        return None
    unigram = Unigram.load(counts)
    if unigram.vocab_size != entries:
        raise ValueError(f"{counts}: counts of {unigram.vocab_size} tokens, but the tokenizer has {entries}")
    return unigram
