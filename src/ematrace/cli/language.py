"""The commands that use a language model: generate, stream."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal

import tyro
from rich.console import Console

from ematrace.files import read_json
from ematrace.pghu import PGHU


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
    """package.module:Class of the model's mixer, if it is not part of ematrace; naming it here imports it."""
    device: str = "auto"
    """cpu, cuda or cuda:N; auto is a GPU where there is one."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model, if it needs any. Models of ematrace never do."""


@dataclass(frozen=True)
class Stream:
    """Read text from standard input, token by token, and say how surprising each token was.

    The text begins after an end-of-text token (or goes on from --state), so that its first token has a surprise too.
    Examples: `ematrace stream run < text.txt`, `ematrace stream run --adapt --pghu.eta 1e-4 < text.txt`.
    """

    model: tyro.conf.Positional[str]
    """A run's folder or a folder with a SPEN in it."""
    adapt: bool = False
    """Let precision-gated Hebbian updates (PGHU) change the predictor while reading; also gives the uncertainty. Slow:
    each token changes the weights that read the next, so a line is no longer read at once."""
    state: Path | None = None
    """Go on from this file if it exists, and write the state after the last token to it."""
    format: Literal["auto", "text", "tsv", "json"] = "auto"
    """text marks the tokens by their surprise; tsv and json have a line for each; auto is text on a terminal."""
    decoder: Literal["auto", "eager"] = "auto"
    """auto reads with SPEN's decoder where it applies and is faster; eager is the model itself."""
    device: str = "auto"
    """cpu, cuda or cuda:N; auto is a GPU where there is one."""
    pghu: PGHU = field(default_factory=PGHU)
    """Settings of --adapt."""
    ONLY_WITH: ClassVar[dict[str, str]] = {"--pghu.": "adapt"}


def run(command: object, console: Console, error_console: Console) -> None:
    match command:
        case Generate():
            generate_text(command)
        case Stream():
            stream_text(command, console, error_console)


def generate_text(command: Generate) -> None:
    import torch
    from transformers import GenerationConfig, TextStreamer

    from ematrace.spen import SpenForCausalLM, SpenStream
    from ematrace.spen.generation import generate

    if command.max_new_tokens < 1:
        raise ValueError(f"--max-new-tokens is {command.max_new_tokens}; it must be at least 1")
    if not 0 <= command.temperature < math.inf:
        raise ValueError(f"--temperature is {command.temperature:g}; it must not be negative or infinite")
    if not 0 < command.top_p <= 1:
        raise ValueError(f"--top-p is {command.top_p:g}; it must be in (0, 1]")
    if not 0 <= command.seed < 2**63:
        raise ValueError(f"--seed is {command.seed}; it must lie in [0, 2^63)")
    model, tokenizer, _ = load_language_model(command.model, command.device, command.mixer, command.trust_remote_code)
    prompt = command.prompt.encode(errors="replace").decode()  # bytes of the command line that are not UTF-8
    ids = tokenizer(prompt, return_tensors="pt").input_ids.long().to(model.device)
    eos = end_of_text(command.model, tokenizer)
    if not ids.shape[1]:
        ids = torch.full((1, 1), eos, device=model.device)
    limit = getattr(model.config, "max_position_embeddings", None)
    if limit is not None and ids.shape[1] + command.max_new_tokens > limit:
        asked = f"the prompt's {ids.shape[1]} tokens and --max-new-tokens {command.max_new_tokens}"
        raise ValueError(f"{command.model}: sees at most {limit} tokens, but is asked for {asked}")
    text = TextStreamer(tokenizer, skip_special_tokens=True)
    if isinstance(model, SpenForCausalLM):
        stream = SpenStream(model, decoder="auto" if command.decoder == "auto" else None)
        text.put(ids)
        settings = (command.max_new_tokens, command.temperature, command.top_p, command.seed)
        for token in generate(stream, ids, *settings, eos=eos):
            text.put(torch.tensor([token]))
        text.end()
        return
    torch.manual_seed(command.seed)
    model.generation_config = GenerationConfig(eos_token_id=eos, pad_token_id=eos)  # the options say all the rest
    drawn = {"do_sample": True, "temperature": command.temperature, "top_p": command.top_p, "top_k": 0}
    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=command.max_new_tokens,
        streamer=text,
        **(drawn if command.temperature > 0 else {"do_sample": False}),
    )


def stream_text(command: Stream, console: Console, error_console: Console) -> None:
    from ematrace.evaluation import model_folder
    from ematrace.report.streaming import StreamPrinter, legend
    from ematrace.spen import SpenConfig, SpenStream

    if sys.stdin is None or sys.stdout is None:
        raise ValueError(f"standard {'input' if sys.stdin is None else 'output'} is closed")
    if command.state is not None:
        writable(command.state)
    config = Path(model_folder(command.model)) / "config.json"
    kind = read_json(config, allow_nan=True).get("model_type") if config.is_file() else SpenConfig.model_type
    if kind == SpenConfig.model_type:
        model, tokenizer, _ = load_language_model(command.model, command.device)
        kind = model.config.model_type  # a model of the hub may be another
    if kind != SpenConfig.model_type:
        raise ValueError(f"{command.model}: model_type is {kind!r}; only a SPEN has a state to stream with")
    pghu = command.pghu if command.adapt else None
    stream = SpenStream(model, pghu, decoder="auto" if command.decoder == "auto" else None)
    if command.state is not None and os.path.lexists(command.state):  # a link that leads nowhere is refused
        stream.load(command.state)
    else:
        stream.feed([end_of_text(command.model, tokenizer)])
    layout = ("text" if sys.stdout.isatty() else "tsv") if command.format == "auto" else command.format
    if layout == "text":
        error_console.print(legend(console))
    if sys.stdin.isatty():
        error_console.print("reading what you type, line by line; end with Ctrl-D on a line of its own")
    finished = stream.snapshot()
    try:
        printer = StreamPrinter(console, layout, tokenizer)
        for line in lines_of(sys.stdin.buffer, "standard input"):
            ids = tokenizer(line, split_special_tokens=True).input_ids
            if ids:
                printer.show(ids, stream.surprise(ids))
                finished = stream.snapshot()
        printer.close(stream, error_console)
    finally:  # also after Ctrl-C, a line that is not UTF-8, or when nobody reads the output any more
        if command.state is not None:
            stream.restore(finished)
            stream.save(command.state)


def end_of_text(name: str, tokenizer: Any) -> int:
    if tokenizer.eos_token_id is None:
        raise ValueError(f"{name}: its tokenizer has no end-of-text token")
    return int(tokenizer.eos_token_id)


def lines_of(file: BinaryIO, name: str) -> Iterator[str]:
    """Lines with their ends; text that is not UTF-8 is refused with the place where it stops being so."""
    offset = 0
    for line in file:
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{name}: not UTF-8 at byte {offset + error.start}") from None
        offset += len(line)


def load_language_model(
    name: str, device: str, mixer: str | None = None, trust_remote_code: bool = False
) -> tuple[Any, Any, Path]:
    """Model, tokenizer and the folder it came from (which is no folder for a name on the hub).

    `mixer` is the user's consent to import it, `trust_remote_code` to run code that comes with the model.
    """
    from ematrace.evaluation import model_folder
    from ematrace.mixers import register_mixer
    from ematrace.train import load_model
    from ematrace.train.distributed import choose_device

    chosen = choose_device(device)
    if mixer is not None:
        register_mixer(mixer)
    folder = model_folder(name)
    model, tokenizer = load_model(folder, trust_remote_code=trust_remote_code)
    model.config.return_dict = True  # the commands ask outputs for their parts by name
    return model.eval().to(chosen), tokenizer, Path(folder)


def writable(path: Path) -> None:
    """Said now, not after minutes of work."""
    if path.is_dir():
        raise IsADirectoryError(f"{path}: a folder; give a file's name")
    path.parent.mkdir(parents=True, exist_ok=True)
