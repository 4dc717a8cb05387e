"""The command `ematrace bench`: the scripts under `benchmarks/` that fit this machine, one after the other."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console
from rich.text import Text

from ematrace.names import did_you_mean

if TYPE_CHECKING:
    from ematrace.results import CellFile

LOOK = 1.0  # second for which the load of the machine is measured
GRACE_PERIOD = 10.0  # seconds between SIGTERM and SIGKILL


@dataclass(frozen=True)
class Bench:
    """Measure speed on this machine, against peers in the same run and against the machine's measured ceilings.

    Each benchmark is a script in the checkout's benchmarks/ folder. It checks its results against the reference before
    it times anything. Those that need a GPU run where there is one. A summary follows at the end, and `ematrace report`
    shows the results. Close other programs first: nothing is recorded that was timed while others were busy.
    Examples: `ematrace bench --list`, `ematrace bench`, `ematrace bench streaming_cpu length_cpu`.
    """

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Benchmarks to run, as `--list` shows them (default: all that fit this machine)."""
    quick: bool = False
    """Toy sizes, a few seconds each, to see that everything runs; the times say nothing."""
    show_list: Annotated[bool, tyro.conf.arg(name="list")] = False
    """Only list the benchmarks, with what they need and what they measure."""
    force: bool = False
    """Also measure and record while other programs keep the processors busy."""
    out: Path = Path("results/local")
    """Folder for the results, DIR/<benchmark>/...; with --quick they go to DIR/quick/..., and never count."""


@dataclass(frozen=True)
class Script:
    """A benchmark, read from its file without importing it."""

    path: Path
    needs: object
    """"cpu", "cuda", or None where the script names neither."""
    about: str

    @property
    def name(self) -> str:
        return self.path.stem


def run(command: Bench, console: Console, error_console: Console) -> None:
    from ematrace.bench import Run, too_busy, write_run
    from ematrace.bench.tables import at_least_wide, summary

    console = at_least_wide(console)
    scripts = find_scripts(benchmarks_folder())
    if command.show_list:
        show_scripts(scripts, console)
        return
    chosen = choose(scripts, command.names, quick=command.quick, gpu=sees_gpu())
    refuse_if_busy(command)
    command.out.mkdir(parents=True, exist_ok=True)  # now, not after minutes of work
    if not command.names:
        left = [f"{s.name} (needs {s.needs or 'unknown'})" for s in scripts if s not in chosen]
        if left:
            error_console.print(f"not run here: {', '.join(left)}", soft_wrap=True, highlight=False)
    found: list[Run] = []
    failed: dict[str, str] = {}
    for i, script in enumerate(chosen, 1):
        console.print(Text.assemble((f"[{i}/{len(chosen)}] {script.name}", "bold"), f"  {script.about}"))
        files, problem = run_script(script, command.quick, console, error_console)
        for file in files:
            busy = None if command.force else too_busy(file)
            if busy:
                problem = f"not recorded: {busy}; --force records it all the same"
            else:
                found.append(Run.of_file(file, write_run(file, command.out)))
        if problem:
            failed[script.name] = problem
            error_console.print(Text.assemble(("failed: ", "red"), f"{script.name}: {problem}"), soft_wrap=True)
    if len(found) > 1:  # one benchmark has said it all
        console.print(summary(found))
    if found:
        console.print(f"results: {found[-1].path.parents[1]}", soft_wrap=True, highlight=False)
    if failed:
        problems = ", ".join(f"{name} ({problem})" for name, problem in failed.items())
        error_console.print(Text.assemble(("error: ", "red"), f"failed: {problems}"), soft_wrap=True)
        raise SystemExit(1)


def refuse_if_busy(command: Bench) -> None:
    """Now, not after minutes of work. Toy sizes may run at any time: their times say nothing."""
    from ematrace.bench.script import MOST_LOAD, load_in_words
    from ematrace.sharing import Meter

    if command.quick or command.force:
        return
    meter = Meter()
    time.sleep(LOOK)
    load = meter.others()
    if load is not None and load > MOST_LOAD:
        raise ValueError(f"{load_in_words(load)}: times would say little; --force measures and records all the same")


def benchmarks_folder() -> Path:
    from ematrace import results

    root = results.checkout_root()
    if root is None or not (root / "benchmarks").is_dir():
        raise FileNotFoundError(
            "no benchmarks here: they are scripts in the folder benchmarks/ of ematrace's source checkout, and a wheel "
            "does not contain them; in the checkout, `make bench` installs and runs them"
        )
    return root / "benchmarks"


def find_scripts(folder: Path) -> list[Script]:
    """Every benchmark of a folder, by name."""
    return [describe(path) for path in sorted(folder.glob("[!_.]*.py"))]


def describe(path: Path) -> Script:
    """What a script needs (its constant NEEDS) and measures (the first line of its docstring)."""
    try:
        module = ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from None
    needs = None
    for statement in module.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            if any(isinstance(target, ast.Name) and target.id == "NEEDS" for target in targets):
                needs = statement.value.value if isinstance(statement.value, ast.Constant) else ""
                if needs not in ("cpu", "cuda"):
                    raise ValueError(f'{path}, line {statement.lineno}: NEEDS must be "cpu" or "cuda"')
    first = (ast.get_docstring(module) or "").partition("\n")[0]
    return Script(path, needs, first.rstrip(".:"))


def choose(scripts: Sequence[Script], names: Sequence[str], *, quick: bool, gpu: bool) -> list[Script]:
    """The scripts named, else those that fit this machine; with `--quick` a CPU is enough for all."""
    if not names:
        return [s for s in scripts if s.needs == "cpu" or (s.needs == "cuda" and gpu)]
    known = {s.name: s for s in scripts}
    for name in names:
        if name not in known:
            raise ValueError(f"no benchmark {name!r}; there are {', '.join(known)}{did_you_mean(name, known)}")
        if known[name].needs == "cuda" and not gpu and not quick:
            raise ValueError(f"{name} needs a CUDA GPU, and torch sees none here; --quick runs toy sizes on a CPU")
    return [known[name] for name in dict.fromkeys(names)]


def sees_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def show_scripts(scripts: Sequence[Script], console: Console) -> None:
    from ematrace.bench.tables import table_of

    fits = choose(scripts, (), quick=False, gpu=sees_gpu())
    rows = [(s.name, str(s.needs or "unknown"), "yes" if s in fits else "no", s.about) for s in scripts]
    console.print(table_of(["benchmark", "needs", "runs here", "what"], rows))


def run_script(
    script: Script, quick: bool, console: Console, error_console: Console
) -> tuple[list[CellFile], str | None]:
    """The results it printed, and what went wrong. Its output is shown as it comes, without the lines of JSON."""
    from ematrace.bench import Run
    from ematrace.results.schema import decode_file

    lines: list[str] = []
    arguments = [sys.executable, str(script.path), *(["--quick"] if quick else [])]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    if console.is_terminal:  # its output goes through a pipe, so it cannot see the terminal's width
        environment["COLUMNS"] = str(console.width)
    with ended_with_us(arguments, environment, error_console) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith('{"schema"'):
                lines.append(line)
            else:
                console.print(Text(line.rstrip("\n")), soft_wrap=True)
        status = process.wait()
    if status:
        return [], f"exit code {status}" if status > 0 else f"ended by {signal.Signals(-status).name}"
    try:
        files = [decode_file(line.encode(), "its last line") for line in lines]
        for file in files:
            Run.of_file(file, "its last line").check()
    except ValueError as error:
        return [], str(error)
    return files, None if files else "it ended without a result"


@contextmanager
def ended_with_us(
    arguments: list[str], environment: dict[str, str], error_console: Console
) -> Iterator[subprocess.Popen[str]]:
    """A script and the processes it starts, in a process group that does not outlive this block.

    A script that is run from here writes no file, so it can be ended at any moment.
    """
    process = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, env=environment, text=True, encoding="utf-8", errors="replace",
        start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            _end_group(process)
            error_console.show_cursor()  # its progress bar may have hidden it
        if process.stdout is not None:
            process.stdout.close()


def _end_group(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):  # it may have ended by itself
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(GRACE_PERIOD)
        except BaseException:  # the grace period is over, or Ctrl-C came again
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
