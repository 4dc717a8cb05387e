"""The `ematrace` command: parse, call, show."""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, cast

import tyro
from rich.console import Console
from rich.text import Text

from ematrace import bench_cli, language_cli

console = Console()
error_console = Console(stderr=True)


@dataclass(frozen=True)
class Reproduce:
    """Run experiments and judge the paper's claims on what they measured.

    With no names it runs everything that is built, prints the ledger and writes the page.
    Examples: `ematrace reproduce`, `ematrace reproduce C09`, `ematrace reproduce trace_probe --seeds 20`.
    """

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Experiments (trace_probe, ...) or claims (C01 ... F5); nothing means all."""
    scale: Literal["cpu", "gpu"] = "cpu"
    """Where the experiments run. What is built so far runs on CPUs."""
    seeds: int | None = None
    """Model seeds for each experiment (default 1, with intervals over tokens); drawn grammars for `robustness`
    (default 4 and only the quick experiments; with a number, everything)."""
    jobs: int | None = None
    """Processes (default: one per core)."""
    out: Path = Path("results/local")
    """Folder for the result files."""
    report: Path | None = Path("report.html")
    """Where the page goes; `None` for no page."""


@dataclass(frozen=True)
class Ledger:
    """Every claim of the paper with its verdict, from the recorded results and those of this machine."""

    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False
    """For machines: a list of {id, paper, ours, interval, n_seeds, direction, figure, verdict, ...}."""
    local: Path = Path("results/local")
    """Folder with this machine's results."""
    recorded: Path | None = None
    """Folder with recorded results (default: those of the checkout)."""


@dataclass(frozen=True)
class Report:
    """Write one self-contained HTML page with verdicts, tables and plots."""

    out: Path = Path("report.html")
    """The page."""
    local: Path = Path("results/local")
    """Folder with this machine's results."""
    recorded: Path | None = None
    """Folder with recorded results (default: those of the checkout)."""


def commands(asked: str | None) -> dict[str, type]:
    return {
        "reproduce": Reproduce,
        "ledger": Ledger,
        "report": Report,
        "train": language_cli.Train,
        "eval": language_cli.Eval,
        "generate": language_cli.Generate,
        "stream": language_cli.adapting_stream() if asked == "stream" else language_cli.Stream,
        "bench": bench_cli.Bench,
    }


def main() -> None:
    """Entry point: 0 well done, 2 bad input in one line, 130 stopped by Ctrl-C."""
    choices = commands(next(iter(sys.argv[1:]), None))
    subcommands = tuple(Annotated[kind, tyro.conf.subcommand(name)] for name, kind in choices.items())
    command: object = tyro.cli(
        cast(Any, Union[subcommands]),  # noqa: UP007 - made from a table, which `|` cannot be
        prog="ematrace",
        description=sys.modules["ematrace"].__doc__,
    )
    signal.signal(signal.SIGTERM, _stop)  # like Ctrl-C: workers are ended, nothing half-written is left
    try:
        match command:
            case Reproduce():
                reproduce(command)
            case Ledger():
                show_ledger(command)
            case Report():
                write_page(command)
            case bench_cli.Bench():
                bench_cli.run(command, console, error_console)
            case _:
                language_cli.run(command, console, error_console)
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


def reproduce(command: Reproduce) -> None:
    if command.scale == "gpu":
        raise ValueError("--scale gpu: no experiment that is built so far has a GPU scale")
    if command.seeds is not None and command.seeds < 1:
        raise ValueError(f"--seeds is {command.seeds}; it must be at least 1")
    if command.jobs is not None and command.jobs < 1:
        raise ValueError(f"--jobs is {command.jobs}; it must be at least 1")
    from ematrace.experiments import runner
    from ematrace.experiments.workbench import Sizes
    from ematrace.report.progress import task_bars

    plans = runner.plan(runner.experiments_for(command.names), command.seeds, Sizes())
    command.out.mkdir(parents=True, exist_ok=True)  # now, not after minutes of work
    tasks = {task: runner.EXPECTED_SECONDS.get(task.group, 60.0) for p in plans for task in p.tasks}
    with task_bars(tasks, console) as progress:
        runner.run(plans, command.out, jobs=command.jobs, progress=progress)
    show_ledger(Ledger(local=command.out))
    if command.report is not None:
        write_page(Report(out=command.report, local=command.out))


def show_ledger(command: Ledger) -> None:
    from ematrace.ledger import Store, build_ledger

    rows = build_ledger(Store.open(recorded=command.recorded, local=command.local))
    if command.as_json:
        print(json.dumps([row.to_json() for row in rows], ensure_ascii=False, indent=1))
        return
    from ematrace.report.terminal import ledger_table

    console.print(ledger_table(rows))


def write_page(command: Report) -> None:
    from ematrace.ledger import Store
    from ematrace.report.page import write_report

    path = write_report(Store.open(recorded=command.recorded, local=command.local), command.out)
    console.print(f"page: {path}", soft_wrap=True)


if __name__ == "__main__":
    main()
