"""The commands for language models: train, eval, generate, stream."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import tyro
from rich.console import Console
from tyro.constructors import PrimitiveConstructorSpec

from ematrace.files import write_atomically
from ematrace.train.config import TrainConfig

THOUSANDS = {"K": "e3", "M": "e6", "B": "e9", "T": "e12"}


def parse_count(text: str) -> int:
    """A whole number as people write large ones.

    >>> [parse_count(text) for text in ("1e6", "20M", "1.5B", "54_132_736")]
    [1000000, 20000000, 1500000000, 54132736]
    """
    suffix = text[-1:].upper()
    number = float(text[:-1] + THOUSANDS[suffix] if suffix in THOUSANDS else text)
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


@dataclass(frozen=True)
class Generate:
    """Continue a prompt. Example: `ematrace generate run "def main():" --max-new-tokens 50`."""

    model: tyro.conf.Positional[str]
    """A run's folder, a folder that save_pretrained wrote, or a name on the Hugging Face hub."""
    prompt: tyro.conf.Positional[str]
    """The text to continue."""
    max_new_tokens: int = 100
    """Tokens to add."""
    temperature: float = 0.8
    """Below 1 sharpens the distribution; 0 always takes the likeliest token."""
    top_p: float = 0.95
    """Draw from the likeliest tokens that make up this much probability."""
    seed: int = 0
    """Draws the tokens."""
    decoder: Literal["auto", "eager"] = "auto"
    """auto generates with SPEN's decoder where it applies, else with the model; eager is the model itself."""
    mixer: str | None = None
    """package.module:Class of the mixer that the model's config names, if it is not part of ematrace. Naming it here
    imports it."""
    device: str = "auto"
    """cpu, cuda or cuda:N; auto is a GPU where there is one."""


@dataclass(frozen=True)
class Stream:
    """Read text from standard input, token by token, and say how surprising each token was.

    Examples: `ematrace stream run < text.txt`, `ematrace stream run --adapt --pghu.eta 1e-4 < text.txt`.
    """

    model: tyro.conf.Positional[str]
    """A run's folder or a folder with a SPEN in it."""
    adapt: bool = False
    """Let precision-gated Hebbian updates (PGHU) change the predictor while reading; also gives the uncertainty."""
    state: Path | None = None
    """Go on from this file if it exists, and write the state after the last token to it."""
    format: Literal["auto", "text", "tsv", "json"] = "auto"
    """text colours the tokens by their surprise; tsv and json have a line for each; auto is text on a terminal."""
    decoder: Literal["auto", "eager"] = "auto"
    """auto reads with SPEN's decoder where it applies and is faster; eager is the model itself."""
    mixer: str | None = None
    """package.module:Class of the mixer that the model's config names, if it is not part of ematrace. Naming it here
    imports it."""
    device: str = "auto"
    """cpu, cuda or cuda:N; auto is a GPU where there is one."""


def adapting_stream() -> type[Stream]:
    """`Stream` with the settings of its rule, whose import takes seconds: only who runs the command waits for them."""
    from ematrace.spen import PGHU

    pghu = field(default_factory=PGHU, metadata={"help": "Settings of --adapt."})
    return make_dataclass(
        "Stream", [("pghu", PGHU, pghu)], bases=(Stream,), frozen=True, namespace={"__doc__": Stream.__doc__}
    )


def run(command: object, console: Console, error_console: Console) -> None:
    match command:
        case TrainConfig():
            train_model(command, console)
        case Eval():
            evaluate_model(command, console, error_console)
        case Generate():
            generate_text(command)
        case Stream():
            stream_text(command, console, error_console)


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


def generate_text(command: Generate) -> None:
    import torch
    from transformers import TextStreamer

    from ematrace.spen import SpenForCausalLM, SpenStream
    from ematrace.spen.generation import generate

    if command.max_new_tokens < 1 or command.temperature < 0 or not 0 < command.top_p <= 1:
        raise ValueError("--max-new-tokens must be positive, --temperature not negative, --top-p in (0, 1]")
    model, tokenizer, _ = load_language_model(command.model, command.device, command.mixer)
    prompt = command.prompt.encode(errors="replace").decode()  # bytes of the command line that are not UTF-8
    ids = tokenizer(prompt, return_tensors="pt").input_ids.long().to(model.device)
    if not ids.shape[1]:
        ids = torch.full((1, 1), tokenizer.eos_token_id, device=model.device)
    limit = getattr(model.config, "max_position_embeddings", None)
    if limit is not None and ids.shape[1] + command.max_new_tokens > limit:
        asked = f"the prompt's {ids.shape[1]} tokens and --max-new-tokens {command.max_new_tokens}"
        raise ValueError(f"{command.model}: sees at most {limit} tokens, but is asked for {asked}")
    text = TextStreamer(tokenizer, skip_special_tokens=True)
    if isinstance(model, SpenForCausalLM):
        stream = SpenStream(model, decoder="auto" if command.decoder == "auto" else None)
        text.put(ids)
        settings = (command.max_new_tokens, command.temperature, command.top_p, command.seed)
        for token in generate(stream, ids, *settings, eos=tokenizer.eos_token_id):
            text.put(torch.tensor([token]))
        text.end()
        return
    torch.manual_seed(command.seed)
    drawn = {"do_sample": True, "temperature": command.temperature, "top_p": command.top_p, "top_k": 0}
    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=command.max_new_tokens,
        streamer=text,
        pad_token_id=tokenizer.eos_token_id,
        **(drawn if command.temperature > 0 else {"do_sample": False}),
    )


def stream_text(command: Stream, console: Console, error_console: Console) -> None:
    from ematrace.report.language import StreamPrinter
    from ematrace.spen import SpenForCausalLM, SpenStream

    if command.state is not None:
        writable(command.state)
    model, tokenizer, _ = load_language_model(command.model, command.device, command.mixer)
    if not isinstance(model, SpenForCausalLM):
        raise ValueError(f"{command.model}: a {type(model).__name__}; only a SPEN has a state to stream with")
    pghu = getattr(command, "pghu", None) if command.adapt else None
    stream = SpenStream(model, pghu, decoder="auto" if command.decoder == "auto" else None)
    resumed = command.state is not None and command.state.exists()
    if command.state is not None and resumed:
        stream.load(command.state)
    layout = ("text" if sys.stdout.isatty() else "tsv") if command.format == "auto" else command.format
    printer = StreamPrinter(console, layout, tokenizer)
    predicted = None if resumed else stream.feed([tokenizer.eos_token_id])[:, -1]
    finished = stream.snapshot()
    try:
        for line in lines_of(sys.stdin.buffer, "standard input"):
            ids = tokenizer(line, split_special_tokens=True).input_ids
            if ids:
                surprise = stream.surprise(ids, predicted)
                predicted = surprise.predicted
                printer.show(ids, surprise)
                finished = stream.snapshot()
    except KeyboardInterrupt:  # the way to end a live feed: keep all lines that were read to their end
        if command.state is not None:
            stream.restore(finished)
            stream.save(command.state)
        raise
    printer.close(stream, error_console)
    if command.state is not None:
        stream.save(command.state)


def lines_of(file: BinaryIO, name: str) -> Iterator[str]:
    """Lines with their ends; text that is not UTF-8 is refused with the place where it stops being so."""
    offset = 0
    for line in file:
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{name}: not UTF-8 at byte {offset + error.start}") from None
        offset += len(line)


def load_language_model(name: str, device: str, mixer: str | None = None) -> tuple[Any, Any, Path]:
    """Model, tokenizer and the folder it came from (which is no folder for a name on the hub).

    `mixer` is the user's consent to import it.
    """
    from ematrace.evaluation import model_folder
    from ematrace.mixers import register_mixer
    from ematrace.train import load_model
    from ematrace.train.distributed import choose_device

    chosen = choose_device(device)
    if mixer is not None:
        register_mixer(mixer)
    folder = model_folder(name)
    model, tokenizer = load_model(folder)
    return model.eval().to(chosen), tokenizer, Path(folder)


def writable(path: Path) -> None:
    """Said now, not after minutes of work."""
    if path.is_dir():
        raise IsADirectoryError(f"{path}: a folder; give a file's name")
    path.parent.mkdir(parents=True, exist_ok=True)


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
