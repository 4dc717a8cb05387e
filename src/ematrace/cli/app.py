"""The commands, and what they answer: output, one line for bad input, an exit code."""

from __future__ import annotations

import platform
import signal
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

import ematrace
from ematrace.cli import bench, check, discard_output, export, language, results, train
from ematrace.cli.parsing import parse
from ematrace.cli.reproduce import Reproduce, reproduce
from ematrace.memory import kept_memory
from ematrace.names import did_you_mean
from ematrace.sharing import shared_processors

# name: what is asked for, and what answers it. None of these modules imports torch before it is called.
COMMANDS: dict[str, tuple[type[Any], Callable[[Any, Console, Console], None]]] = {
    "reproduce": (Reproduce, reproduce),
    "ledger": (results.Ledger, results.show_ledger),
    "report": (results.Report, results.write_page),
    "train": (train.Train, train.run),
    "eval": (train.Eval, train.run),
    "generate": (language.Generate, language.run),
    "stream": (language.Stream, language.run),
    "export": (export.Export, export.run),
    "check": (check.Check, check.check),
    "bench": (bench.Bench, bench.run),
}
WRITE_FILES = ("train", "reproduce")  # after minutes: they do so, whether somebody still reads along or not


class _Console(Console):
    goes_on = False
    """Whether the command has more to do than to be read."""

    def on_broken_pipe(self) -> None:
        if not self.goes_on:
            raise  # to `main`, which also handles what is printed without rich
        discard_output()


console = _Console()
error_console = _Console(stderr=True)


def run(arguments: Sequence[str]) -> None:
    """Parse and call; bad input is one line and exit code 2."""
    name, *rest = arguments or [""]
    if name in ("-h", "--help"):
        show_overview(console)
        return
    if name == "--version":
        console.print(version(), highlight=False)
        return
    if not name:
        show_overview(error_console)
        raise SystemExit(2)
    signal.signal(signal.SIGTERM, _stop)  # like Ctrl-C: workers are ended, nothing half-written is left
    try:
        if name not in COMMANDS:
            what = "option" if name.startswith("-") else "command"
            known = [*COMMANDS, "--help", "--version"]
            hint = did_you_mean(name, known) or "; `ematrace --help` lists the commands"
            raise ValueError(f"no {what} {name!r}{hint}")
        kind, answer = COMMANDS[name]
        command = parse(kind, f"ematrace {name}", rest)
        console.goes_on = name in WRITE_FILES
        with shared_processors(), kept_memory():
            answer(command, console, error_console)
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as error:
        error_console.print(Text.assemble(("error: ", "red"), in_words(error)), soft_wrap=True)
        raise SystemExit(2) from None


def show_overview(console: Console) -> None:
    """A line for each command: the first sentence of its help."""
    commands = Table.grid(padding=(0, 2))
    for name, (kind, _) in COMMANDS.items():
        commands.add_row(f"  {name}", _first_line(kind.__doc__).partition(". ")[0].rstrip("."))
    console.print(_first_line(ematrace.__doc__), "\nusage: ematrace COMMAND ...\n", commands, sep="\n", highlight=False)
    console.print("\nematrace COMMAND --help explains a command.", highlight=False)


def in_words(error: ValueError | OSError) -> str:
    """The error without numbers: which file, and what is wrong with it."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    where = error.filename or "standard output"  # whatever else we write has a name
    return f"{where}: {error.strerror}"


def version() -> str:
    return f"ematrace {ematrace.__version__} (Python {platform.python_version()}, torch {metadata.version('torch')})"


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]


def _stop(number: int, frame: object) -> None:
    raise KeyboardInterrupt
