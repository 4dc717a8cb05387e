"""How a script under `benchmarks/` begins and ends: its options, its tables, its file, its line of JSON."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ematrace.bench.cells import About, Comparison
from ematrace.bench.compare import Run
from ematrace.results import CellFile, Row, checkout_root, collect_provenance, write_file
from ematrace.results.schema import SCHEMA, encode_file

if TYPE_CHECKING:
    import torch

# Whose versions matter to a ratio; fla-core is flash-linear-attention without its models.
PEERS = ("triton", "transformers", "flash-linear-attention", "fla-core", "reservoirpy")
RECORD = "--record"
QUICK = "quick"  # the folder for runs with toy sizes, one level below where the store looks for results
_BEGUN = time.monotonic()


def parser(doc: str | None, quick: str) -> argparse.ArgumentParser:
    """The options of every benchmark; `quick` says what `--quick` does."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true", help=f"{quick}; the times say nothing")
    made.add_argument(RECORD, type=Path, metavar="DIR", help="write DIR/<benchmark>/... (with --quick, DIR/quick/...)")
    return made


def gpu_unless_quick(quick: bool) -> torch.device:
    """The GPU; with `--quick` the CPU where there is none."""
    import torch

    if torch.cuda.is_available():
        return torch.device("cuda")
    if not quick:
        raise SystemExit(f"{Path(sys.argv[0]).stem}: no GPU here; --quick runs toy sizes on a CPU")
    return torch.device("cpu")


def finish(
    benchmark: str,
    title: str,
    cells: Sequence[Row],
    *,
    scale: Literal["cpu", "gpu"],
    checks: Sequence[str],
    comparisons: Sequence[Comparison] = (),
    notes: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    quick: bool = False,
    to: Path | None = None,
) -> CellFile:
    """Print the tables, write the file under `to`, and print it as the last line; `scale` is where this ran."""
    from rich.console import Console

    from ematrace.bench.tables import at_least_wide, run_tables

    about = About(title, list(checks), quick, list(notes), list(comparisons))
    file = CellFile(
        schema=SCHEMA,
        experiment=benchmark,
        scale=scale,
        seed=0,
        factors={},
        settings={**msgspec.to_builtins(about), **(settings or {})},
        provenance=collect_provenance(time.monotonic() - _BEGUN, command=command_line(sys.argv), packages=PEERS),
        cells=list(cells),
    )
    encode_file(file)  # refuses what cannot be read back, before anything is shown
    console = at_least_wide(Console())
    console.print(run_tables(Run.of_file(file, benchmark)))
    try:
        if to is not None:
            console.print(f"written: {write_run(file, to)}", soft_wrap=True, markup=False, highlight=False)
    finally:  # hours of work are not lost with a full disk
        print(msgspec.json.encode(file).decode(), flush=True)
    return file


def write_run(file: CellFile, folder: Path) -> Path:
    """`<folder>/<benchmark>/<name>`; toy sizes go to `<folder>/quick/`, where no store takes them for evidence."""
    return write_file(file, folder / QUICK if file.settings.get("quick") else folder)


def command_line(arguments: Sequence[str]) -> str:
    """The command that measures this again: the script as seen from the checkout, without where its file went.

    >>> command_line(["/somewhere/spcn.py", "--quick", "--record", "there"])
    'python benchmarks/spcn.py --quick'
    """
    script = Path(arguments[0]).resolve()
    root = checkout_root()
    shown = (
        script.relative_to(root)
        if root is not None and script.is_relative_to(root)
        else Path("benchmarks", script.name)
    )
    kept: list[str] = []
    rest = iter(arguments[1:])
    for argument in rest:
        if argument == RECORD:
            next(rest, None)
        elif not argument.startswith(f"{RECORD}="):
            kept.append(argument)
    return shlex.join(["python", shown.as_posix(), *kept])
