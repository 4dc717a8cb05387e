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
from ematrace.bench.measure import other_load
from ematrace.results import CellFile, Row, checkout_root, collect_provenance, write_file
from ematrace.results.provenance import commit_of_copy
from ematrace.results.schema import SCHEMA, encode_file
from ematrace.sharing import processors

if TYPE_CHECKING:
    import torch

# Whose versions matter to a ratio; fla-core is flash-linear-attention without its models.
PEERS = ("triton", "transformers", "flash-linear-attention", "fla-core", "reservoirpy")
RECORD = "--record"
FORCE = "--force"
MOST_LOAD = 0.25  # processors that other programs may use while something is timed
QUICK = "quick"  # the folder for runs with toy sizes, one level below where the store looks for results
_BEGUN = time.monotonic()


def parser(doc: str | None, quick: str) -> argparse.ArgumentParser:
    """The options of every benchmark; `quick` says what `--quick` does.

    >>> parser("Sums of a list.", quick="a list of ten").parse_args(["--quick"])
    Namespace(quick=True, record=None, force=False)
    """
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true", help=f"{quick}; the times say nothing")
    made.add_argument(RECORD, type=Path, metavar="DIR", help="write DIR/<benchmark>/... (with --quick, DIR/quick/...)")
    made.add_argument(FORCE, action="store_true", help="also record times taken while other programs were busy")
    try:
        commit_of_copy()  # now, not when hours of timing are to be written
    except ValueError as error:
        made.error(str(error))
    return made


def gpu_unless_quick(quick: bool) -> torch.device:
    """The GPU; with `--quick` the CPU where there is none.

    >>> gpu_unless_quick(quick=True).type in ("cpu", "cuda")
    True
    """
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
    force: bool = False,
    makes_load: bool = False,
) -> CellFile:
    """Print the tables, write the file under `to`, and print it as the last line; `scale` is where this ran.

    What was timed while other programs were busy is not written, unless by `force`; with `makes_load`, the script runs
    those programs itself, and they are not counted.

    >>> import io
    >>> import json
    >>> from contextlib import redirect_stdout
    >>> rows = [timing_row({"contender": "ours"}, Timing((0.5,)))]
    >>> with redirect_stdout(io.StringIO()) as printed:
    ...     file = finish("sums", "Sums of a list", rows, scale="cpu", checks=["both sums are equal"], quick=True)
    >>> json.loads(printed.getvalue().splitlines()[-1])["settings"]["checks"]  # the last line is the file
    ['both sums are equal']
    """
    from rich.console import Console

    from ematrace.bench.tables import at_least_wide, run_tables

    load = None if makes_load else other_load()
    about = About(title, list(checks), quick, list(notes), list(comparisons), None if load is None else round(load, 2))
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
    problem = None if force else too_busy(file)
    try:
        if to is not None and problem is None:
            console.print(f"written: {write_run(file, to)}", soft_wrap=True, markup=False, highlight=False)
    finally:  # hours of work are not lost with a full disk
        print(msgspec.json.encode(file).decode(), flush=True)
    if to is not None and problem is not None:
        raise SystemExit(f"{benchmark}: not recorded: {problem}; {FORCE} records it all the same")
    return file


def too_busy(file: CellFile) -> str | None:
    """Why a run's times say little, or None: others used the processors. Toy sizes say nothing anyway.

    >>> from ematrace.results import CellFile, collect_provenance
    >>> settings = {"title": "Sums of a list", "checks": [], "other_load": 1.5}
    >>> file = CellFile(2, "sums", "cpu", 0, {}, settings, collect_provenance(1.5), [])
    >>> too_busy(file).partition(" of ")[0]
    'other programs kept 1.5'
    """
    load = file.settings.get("other_load")
    if file.settings.get("quick") or not isinstance(load, float) or load <= MOST_LOAD:
        return None
    return load_in_words(load)


def load_in_words(load: float) -> str:
    return f"other programs kept {load:.1f} of {processors()} processors busy"


def write_run(file: CellFile, folder: Path) -> Path:
    """`<folder>/<benchmark>/<name>`; toy sizes go to `<folder>/quick/`, where no store takes them for evidence.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from ematrace.results import CellFile, collect_provenance
    >>> settings = {"title": "Sums of a list", "checks": [], "quick": True}
    >>> with TemporaryDirectory() as folder:
    ...     file = CellFile(2, "sums", "cpu", 0, {}, settings, collect_provenance(1.5), [])
    ...     write_run(file, Path(folder)).relative_to(folder).as_posix()
    'quick/sums/seed-0_cpu.json'
    """
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
    rest = iter(argument for argument in arguments[1:] if argument != FORCE)
    for argument in rest:
        if argument == RECORD:
            next(rest, None)
        elif not argument.startswith(f"{RECORD}="):
            kept.append(argument)
    return shlex.join(["python", shown.as_posix(), *kept])
