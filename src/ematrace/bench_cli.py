"""The command `ematrace bench`: the scripts under `benchmarks/` that fit this machine, one after the other."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from ematrace.bench import RecordFile

SECONDS_TO_END = 10.0  # that a script is given when it is told to


@dataclass(frozen=True)
class Bench:
    """Measure speed on this machine: ours and its peers in one run, against what the machine can do at best.

    Each benchmark is a script of the checkout's benchmarks/ folder, which checks its results against the reference
    before it times anything. Those that need a GPU run where there is one. A summary follows at the end, and
    `ematrace report` shows the records. Close other programs first: times are medians, but a busy machine spreads them.
    Examples: `ematrace bench --list`, `ematrace bench`, `ematrace bench streaming_cpu length_cpu`.
    """

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Benchmarks to run, as `--list` shows them; nothing means all that fit this machine."""
    quick: bool = False
    """Toy sizes, a few seconds each, to see that everything runs; their times say nothing of speed."""
    show_list: Annotated[bool, tyro.conf.arg(name="list")] = False
    """Only list the benchmarks, with what they need and what they measure."""
    out: Path | None = None
    """Folder for the records, a JSON file each (default: results/local/benchmarks; with --quick, quick under it)."""


@dataclass(frozen=True)
class Script:
    """A benchmark as its file tells of it, without being imported; `needs` is "cpu", "cuda" or not said."""

    path: Path
    needs: object
    about: str

    @property
    def name(self) -> str:
        return self.path.stem


def run(command: Bench, console: Console, error_console: Console) -> None:
    from ematrace.bench.tables import at_least_wide, summary_table

    console = at_least_wide(console)
    scripts = find_scripts(benchmarks_folder())
    if command.show_list:
        show_scripts(scripts, console)
        return
    chosen = choose(scripts, command.names, quick=command.quick, gpu=sees_gpu())
    out = command.out or Path("results", "local", "benchmarks", *(["quick"] if command.quick else []))
    out.mkdir(parents=True, exist_ok=True)  # now, not after minutes of work
    if not command.names:
        left = [f"{s.name} (needs {s.needs or 'not said'})" for s in scripts if s not in chosen]
        if left:
            error_console.print(f"left out here: {', '.join(left)}", soft_wrap=True, highlight=False)
    found: list[RecordFile] = []
    failed: dict[str, str] = {}
    for i, script in enumerate(chosen, 1):
        console.print(Text.assemble((f"[{i}/{len(chosen)}] {script.name}", "bold"), f"  {script.about}"))
        records, problem = run_script(script, command.quick, console, error_console)
        for made in records:
            write_record(made, out)
        found += records
        if problem:
            failed[script.name] = problem
            error_console.print(Text.assemble(("failed: ", "red"), f"{script.name}: {problem}"), soft_wrap=True)
    if found:
        console.print(summary_table([made.record for made in found]))
        console.print(f"records: {out}", soft_wrap=True, highlight=False)
    if failed:
        told = ", ".join(f"{name} ({problem})" for name, problem in failed.items())
        error_console.print(Text.assemble(("error: ", "red"), f"failed: {told}"), soft_wrap=True)
        raise SystemExit(1)


def benchmarks_folder() -> Path:
    from ematrace.ledger.results import checkout_root

    root = checkout_root()
    if root is None or not (root / "benchmarks").is_dir():
        raise FileNotFoundError(
            "no benchmarks here: they are scripts in the folder benchmarks/ of ematrace's source checkout, and a wheel "
            "does not bring them; in the checkout, `make bench` installs and runs them"
        )
    return root / "benchmarks"


def find_scripts(folder: Path) -> list[Script]:
    """Every benchmark of a folder, by name."""
    return [describe(path) for path in sorted(folder.glob("[!_.]*.py"))]


def describe(path: Path) -> Script:
    """What a script needs and measures: its constant NEEDS and the first line of its docstring."""
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
    """Those asked for, else those that fit this machine; a script for GPUs has toy sizes that do with a CPU."""
    if not names:
        return [s for s in scripts if s.needs == "cpu" or (s.needs == "cuda" and gpu)]
    known = {s.name: s for s in scripts}
    for name in names:
        if name not in known:
            raise ValueError(f"no benchmark {name!r}; there are {', '.join(known)}")
        if known[name].needs == "cuda" and not gpu and not quick:
            raise ValueError(f"{name} needs a CUDA GPU, and torch sees none here; --quick runs toy sizes on a CPU")
    return [known[name] for name in dict.fromkeys(names)]


def sees_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def show_scripts(scripts: Sequence[Script], console: Console) -> None:
    from ematrace.bench.tables import table_of

    fits = choose(scripts, (), quick=False, gpu=sees_gpu())
    rows = [(s.name, str(s.needs or "not said"), "yes" if s in fits else "no", s.about) for s in scripts]
    console.print(table_of(["benchmark", "needs", "runs here", "what"], rows))


def run_script(
    script: Script, quick: bool, console: Console, error_console: Console
) -> tuple[list[RecordFile], str | None]:
    """The records it ended in, and what went wrong. Its output is shown as it comes; the JSON is not for people."""
    from ematrace.bench import parse_record

    lines: list[str] = []
    arguments = [sys.executable, str(script.path), *(["--quick"] if quick else [])]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    if console.is_terminal:  # its tables go through a pipe, so it has to be told how wide they may be
        environment["COLUMNS"] = str(console.width)
    with ended_with_us(arguments, environment, error_console) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith('{"format"'):
                lines.append(line)
            else:
                console.print(Text(line.rstrip("\n")), soft_wrap=True)
        status = process.wait()
    if status:
        return [], f"exit code {status}" if status > 0 else f"ended by {signal.Signals(-status).name}"
    try:
        records = [parse_record(line, "its last line") for line in lines]
    except ValueError as error:
        return [], str(error)
    return records, None if records else "it ended without a record"


@contextmanager
def ended_with_us(
    arguments: list[str], environment: dict[str, str], error_console: Console
) -> Iterator[subprocess.Popen[str]]:
    """A script and the processes it starts, in a group of their own, none of which outlives this block.

    A script writes no file when it is run from here, so that it can be ended at any moment.
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
    with suppress(ProcessLookupError):  # it may end by itself meanwhile
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(SECONDS_TO_END)
        except BaseException:  # it takes too long, or Ctrl-C came once more
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def write_record(made: RecordFile, out: Path) -> Path:
    from ematrace.files import write_atomically

    return write_atomically(out / f"{made.record.benchmark}.json", made.to_text().encode())
