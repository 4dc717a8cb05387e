"""Does the suite notice when something is broken? Plants one defect at a time and runs the tests that should fail.

The defects stand in scripts/defects/, a function for each. The tests run in a copy of the working tree, which is only
read. Exit code 1 if a defect goes unnoticed, 2 if something does not fit: what a defect breaks is gone, no test is
selected, or a selected test fails without any defect.

    python scripts/plant_defects.py              # all of them
    python scripts/plant_defects.py --only spa   # those with "spa" in their name
    python scripts/plant_defects.py --check      # only whether all that they break is there, in seconds
    python scripts/plant_defects.py --list
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from defects import DEFECTS, Defect

SCRIPTS = Path(__file__).resolve().parent
ROOT = SCRIPTS.parent
T = TypeVar("T")
CAUGHT, NOT_CAUGHT, NOT_REACHED, TIMED_OUT, MISFIT = "caught", "NOT CAUGHT", "NOT REACHED", "TIMED OUT", "MISFIT"


class MisfitError(Exception):
    """The suite without a defect, or a defect, is not what this script takes it for."""


class Outcome(NamedTuple):
    status: str
    by: str
    seconds: float


class Server:
    """A process that runs tests on request; see defects/server.py."""

    def __init__(self, copy: Path, folder: Path) -> None:
        folder.mkdir()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START, str(folder)],
            cwd=copy,
            env=_environment(copy),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, task: str, **arguments: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"task": task, "arguments": arguments}) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise MisfitError(f"the process that runs the tests ended with code {self.process.wait()}")
        found: dict[str, Any] = json.loads(answer)
        return found

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


# tests/conftest.py comes first: it sets what torch reads when it is imported.
_START = """
import sys
sys.path.insert(0, "tests")
import conftest
del sys.modules["conftest"], sys.path[0]
import pathlib
from defects import server
server.main(pathlib.Path(sys.argv[1]))
"""


def _environment(copy: Path) -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (copy / "src", copy / "scripts"))),
        "NUMBA_CACHE_DIR": str(copy.parent / "numba"),  # for the kernels that are compiled all the same
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def copy_tree(to: Path) -> Path:
    """The files that git knows, or would add: edits made meanwhile cannot mix with what is being tested."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():  # not one that is deleted but not committed
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    code = "import ematrace, sys; sys.stdout.write(ematrace.__file__)"
    imported = subprocess.run(
        [sys.executable, "-c", code], cwd=to, env=_environment(to), capture_output=True, text=True, check=True
    ).stdout
    if Path(imported).resolve().parent != (to / "src" / "ematrace").resolve():
        raise MisfitError(f"the tests would import {imported}, not the copy in {to}")
    return to


@contextmanager
def servers(count: int) -> Iterator[list[Server]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="defects-")))
        copy = copy_tree(folder / "copy")
        running = [Server(copy, folder / f"server{i}") for i in range(count)]
        for server in running:
            stack.callback(server.close)
        yield running


def in_parallel(running: Sequence[Server], tasks: Sequence[Callable[[Server], T]]) -> Iterator[T]:
    """Results in the order of the tasks; each server does one at a time."""
    free: SimpleQueue[Server] = SimpleQueue()
    for server in running:
        free.put(server)

    def on_a_free_one(task: Callable[[Server], T]) -> T:
        server = free.get()
        try:
            return task(server)
        finally:
            free.put(server)

    with ThreadPoolExecutor(len(running)) as pool:
        yield from pool.map(on_a_free_one, tasks)


def baseline(running: Sequence[Server], defects: Sequence[Defect]) -> None:
    """Without a defect every selected test passes; else nothing that follows would mean anything."""

    def of(tests: str, compiled: bool) -> Callable[[Server], str]:
        selects = dict.fromkeys(d.select for d in defects if (d.tests, d.compiled) == (tests, compiled))
        select = " or ".join(f"({s})" for s in selects)

        def check(server: Server) -> str:
            start = time.monotonic()
            found = server.ask("run", tests=tests, select=select, compiled=compiled, name=None)
            print(f"{'no defect':<11} {tests}  {time.monotonic() - start:.0f} s", flush=True)
            if found.get("timed_out"):
                return f"{tests}: no answer without any defect"
            wrong = [*found["problems"], *(f"{test} fails without any defect" for test in found["failed"])]
            return "\n".join([*wrong, found["output"][-3000:]]) if wrong else ""

        return check

    files = dict.fromkeys((d.tests, d.compiled) for d in defects)
    if wrong := [text for text in in_parallel(running, [of(*file) for file in files]) if text]:
        raise MisfitError("\n".join(wrong))


def plant(defect: Defect) -> Callable[[Server], Outcome]:
    def run(server: Server) -> Outcome:
        start = time.monotonic()
        options = {"tests": defect.tests, "select": defect.select, "compiled": defect.compiled}
        found = server.ask("run", **options, name=defect.name)
        seconds = time.monotonic() - start
        if found.get("timed_out"):
            return Outcome(TIMED_OUT, "", seconds)
        if found["problems"]:
            return Outcome(MISFIT, found["problems"][0], seconds)
        if not found["calls"]:
            return Outcome(NOT_REACHED, "", seconds)
        failed = found["failed"]
        return (
            Outcome(CAUGHT, failed[0].removeprefix("tests/"), seconds) if failed else Outcome(NOT_CAUGHT, "", seconds)
        )

    return run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="defects with this in their name")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes (default 2)")
    parser.add_argument("--check", action="store_true", help="only look whether all that they break is there")
    parser.add_argument("--list", action="store_true", help="name the defects and stop")
    options = parser.parse_args()
    defects = [d for d in DEFECTS.values() if options.only.lower() in d.name.lower()]
    if options.list or not defects:
        print("\n".join(f"{d.name}\n    {d.what}" for d in defects) or f"no defect has {options.only!r} in its name")
        return 0 if defects else 2
    start = time.monotonic()
    outcomes: list[Outcome] = []
    try:
        with servers(1 if options.check else options.jobs) as running:
            if gone := running[0].ask("check", names=[d.name for d in defects])["problems"]:
                raise MisfitError("\n".join(gone))
            if options.check:
                print(f"{len(defects)} defects have their places")
                return 0
            baseline(running, defects)
            passed = time.monotonic() - start
            print(f"all selected tests pass without a defect ({passed:.0f} s); planting {len(defects)}", flush=True)
            width = max(len(d.name) for d in defects)
            for i, outcome in enumerate(in_parallel(running, [plant(d) for d in defects])):
                outcomes.append(outcome)
                name, by = defects[i].name, outcome.by or f"{defects[i].tests} -k {defects[i].select!r}"
                print(f"{outcome.status:<11} {name:<{width}}  {outcome.seconds:3.0f} s  {by}", flush=True)
    except MisfitError as problem:
        print(problem, file=sys.stderr)
        return 2
    statuses = [outcome.status for outcome in outcomes]
    print(f"\n{statuses.count(CAUGHT)} of {len(defects)} caught in {time.monotonic() - start:.0f} s")
    return 2 if MISFIT in statuses else int(statuses.count(CAUGHT) < len(defects))


if __name__ == "__main__":
    sys.exit(main())
