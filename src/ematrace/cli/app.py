"""The commands, and what they answer: output, one line for bad input, an exit code."""

from __future__ import annotations

import signal
import sys
from typing import Annotated, Any, Union, cast

import tyro
from rich.console import Console
from rich.text import Text

from ematrace.cli import bench, check, language, results, train
from ematrace.cli.reproduce import Reproduce, reproduce

console = Console()
error_console = Console(stderr=True)


def commands(asked: str | None) -> dict[str, type]:
    return {
        "reproduce": Reproduce,
        "ledger": results.Ledger,
        "report": results.Report,
        "train": train.Train,
        "eval": train.Eval,
        "generate": language.Generate,
        "stream": language.adapting_stream() if asked == "stream" else language.Stream,
        "check": check.Check,
        "bench": bench.Bench,
    }


def main() -> None:
    """Entry point. Exit codes: 0 success, 1 an experiment or check failed, 2 bad input or needs, 130 Ctrl-C."""
    choices = commands(next(iter(sys.argv[1:]), None))
    subcommands = tuple(Annotated[kind, tyro.conf.subcommand(name)] for name, kind in choices.items())
    command: object = tyro.cli(
        cast(Any, Union[subcommands]),  # noqa: UP007 - made from a table, which `|` cannot be
        prog="ematrace",
        description=(sys.modules["ematrace"].__doc__ or "").partition("\n")[0],
    )
    signal.signal(signal.SIGTERM, _stop)  # like Ctrl-C: workers are ended, nothing half-written is left
    try:
        match command:
            case Reproduce():
                reproduce(command, console, error_console)
            case results.Ledger():
                results.show_ledger(command, console)
            case results.Report():
                results.write_page(command, console)
            case check.Check():
                check.check(command, console)
            case bench.Bench():
                bench.run(command, console, error_console)
            case train.Train() | train.Eval():
                train.run(command, console, error_console)
            case _:
                language.run(command, console, error_console)
    except KeyboardInterrupt:
        error_console.print("\nstopped; what was finished is kept, nothing else was written")
        raise SystemExit(130) from None
    except BrokenPipeError:  # whoever read the output has seen enough
        sys.stderr.close()
        raise SystemExit(0) from None
    except (ValueError, OSError) as error:
        error_console.print(Text.assemble(("error: ", "red"), str(error)), soft_wrap=True)
        raise SystemExit(2) from None


def _stop(number: int, frame: object) -> None:
    raise KeyboardInterrupt
