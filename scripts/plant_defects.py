"""Does the suite notice when something is broken? Plants one defect at a time and runs the tests that should fail.

Works on copies of src/ and tests/ in a temporary folder; the working tree is only read. Exit code 1 if a defect goes
unnoticed, 2 if something does not fit: a text to replace that is not there exactly once, tests that fail without a
defect, a copy that is not the one imported.

    python scripts/plant_defects.py              # all of them
    python scripts/plant_defects.py --only spa   # those with "spa" in their name
    python scripts/plant_defects.py --compiled   # compile each broken kernel; else Python interprets them, see numba's
                                                 # NUMBA_DISABLE_JIT: the same source, and 12 s saved each time
    python scripts/plant_defects.py --list
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TypeVar

from defects import DEFECTS, Defect
from defects.spcn import KERNELS

ROOT = Path(__file__).resolve().parents[1]
WORKERS = 2
TIMEOUT_S = 180
PRELOADED = (
    *("numpy", "scipy.stats", "sklearn.linear_model", "numba", "safetensors.torch", "filelock"),
    *("torch", "torch.distributed.checkpoint.state_dict", "torch.distributed.fsdp", "torch.utils._python_dispatch"),
    *("tokenizers", "transformers.models.gpt2.modeling_gpt2", "transformers.generation.utils", "transformers.trainer"),
)
T = TypeVar("T")


class Misfit(Exception):
    """The defect, or the suite without one, is not what this script takes it for."""


# One process for each copy imports what the tests import from elsewhere, which takes longer than most of them do, and
# forks a child for each run. A request is a line with pytest's arguments, the answer a line with the exit code or minus
# the signal that ended the child. tests/conftest.py comes first: it sets what torch reads when it is imported.
SERVER = f"""
import importlib, json, os, signal, sys
sys.path.insert(0, "tests")
import conftest
del sys.modules["conftest"], sys.path[0]
import pytest
from hypothesis import Phase, settings
settings.register_profile("once", deadline=None, phases=(Phase.explicit, Phase.generate))
for name in {PRELOADED}:
    try:
        importlib.import_module(name)
    except ImportError:
        pass
for line in sys.stdin:
    child = os.fork()
    if not child:
        signal.alarm({TIMEOUT_S})
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        output = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(output, stream)
        code = int(pytest.main(json.loads(line)))
        sys.stdout.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Copy:
    """A private copy of what the tests need. Files are copied with their times, so that numba's cache stays valid."""

    def __init__(self, folder: Path, compiled: bool) -> None:
        self.folder, self.compiled = folder, compiled
        self.package = folder / "src" / "ematrace"
        shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy2(ROOT / "pyproject.toml", folder)
        environment = os.environ | {
            "PYTHONPATH": str(folder / "src"),
            "NUMBA_CACHE_DIR": str(folder / "numba"),
            "NUMBA_DISABLE_JIT": str(int(not compiled)),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        code = "import ematrace, sys; sys.stdout.write(ematrace.__file__)"
        imported = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
        ).stdout
        if Path(imported).resolve().parent != self.package.resolve():
            raise Misfit(f"the tests would import {imported}, not the copy in {self.package}")
        self.server = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def close(self) -> None:
        assert self.server.stdin is not None
        self.server.stdin.close()
        self.server.wait()

    def _pytest(self, arguments: list[str]) -> tuple[int, str]:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(json.dumps(arguments) + "\n")
        self.server.stdin.flush()
        answer = self.server.stdout.readline()
        if not answer:
            raise Misfit(f"the process that runs the tests ended with code {self.server.wait()}")
        return int(answer), (self.folder / "output").read_text(encoding="utf-8", errors="replace")

    def test(self, tests: str, select: str) -> list[str]:
        """The first test that fails, or none."""
        arguments = ["-x", "-rfE", "--tb=no", "-p", "no:cacheprovider", f"tests/{tests}", "-k", select]
        arguments.append("--hypothesis-profile=once")  # any example that fails is enough, it need not be the smallest
        if not self.compiled:
            arguments += ["-W", "ignore::RuntimeWarning"]  # Python's numbers warn where compiled ones go to inf
        code, output = self._pytest(arguments)
        if code == -signal.SIGALRM:
            raise TimeoutError
        failed = re.findall(r"^(?:FAILED|ERROR) tests/(\S+::.+?)(?: - |$)", output, re.MULTILINE)
        if code not in (0, 1) or (code == 1) != bool(failed):
            last = output.strip().splitlines()[-3:]
            raise Misfit(f"pytest {tests} -k {select!r} ended with code {code}: {' | '.join(last)}")
        return failed

    def plant(self, defect: Defect) -> list[str]:
        path = self.package / defect.file
        text, times = path.read_text(encoding="utf-8"), path.stat()
        if text.count(defect.old) != 1:
            raise Misfit(f"{defect.name}: {defect.old!r} stands {text.count(defect.old)} times in {defect.file}")
        try:
            path.write_text(text.replace(defect.old, defect.new), encoding="utf-8")
            return self.test(defect.tests, defect.select)
        finally:
            path.write_text(text, encoding="utf-8")
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def check_defects(defects: tuple[Defect, ...]) -> None:
    """Complain about every text that does not stand exactly once, before anything is run."""
    texts = {d.file: (ROOT / "src" / "ematrace" / d.file).read_text(encoding="utf-8") for d in defects}
    problems = [
        f"{d.name}: {d.old!r} stands {texts[d.file].count(d.old)} times in {d.file}"
        for d in defects
        if texts[d.file].count(d.old) != 1
    ]
    if problems:
        raise Misfit("\n".join(problems))


def baseline(copy: Copy, files: tuple[str, ...], defects: tuple[Defect, ...]) -> None:
    """Without a defect every selected test passes; else nothing that follows would mean anything."""
    for tests in files:
        select = " or ".join(f"({s})" for s in dict.fromkeys(d.select for d in defects if d.tests == tests))
        if failed := copy.test(tests, select):
            raise Misfit(f"{failed[0]} fails without any defect")


def run(defects: tuple[Defect, ...], folder: Path, compiled: bool) -> dict[Defect, str]:
    """For each defect the test that noticed it, or an empty string."""
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(WORKERS))
        copies: list[Copy] = []
        free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for i in range(WORKERS):
            copies.append(Copy(folder / f"copy{i}", compiled))
            stack.callback(copies[-1].close)
            free.put(copies[-1])

        def on_a_copy(task: Callable[[Copy], T]) -> Future[T]:
            def with_one() -> T:
                copy = free.get()
                try:
                    return task(copy)
                finally:
                    free.put(copy)

            return pool.submit(with_one)

        files = tuple(dict.fromkeys(d.tests for d in defects))
        if compiled:  # each copy warms its own compiled kernels
            started = [pool.submit(baseline, copy, files, defects) for copy in copies]
        else:
            started = [on_a_copy(partial(baseline, files=(tests,), defects=defects)) for tests in files]
        for warmed in started:
            warmed.result()
        print(f"all selected tests pass without a defect; planting {len(defects)}", flush=True)

        noticed: dict[Defect, str] = {}
        for kernels in (False, True):  # those in the kernels last, because they make the caches stale
            planted = {on_a_copy(partial(Copy.plant, defect=d)): d for d in defects if (d.file == KERNELS) == kernels}
            for future in as_completed(planted):
                defect = planted[future]
                try:
                    noticed[defect] = "".join(future.result()[:1])
                except TimeoutError:
                    noticed[defect] = ""
                    print(f"  {defect.name}: no answer in {TIMEOUT_S} s", flush=True)
                status = "caught" if noticed[defect] else "NOT CAUGHT"
                print(f"[{len(noticed):3}/{len(defects)}] {status:<10} {defect.name}", flush=True)
        return noticed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="defects with this in their name")
    parser.add_argument("--compiled", action="store_true", help="compile the kernels, 12 s for each defect in them")
    parser.add_argument("--list", action="store_true", help="name the defects and stop")
    options = parser.parse_args()
    defects = tuple(d for d in DEFECTS if options.only.lower() in d.name.lower())
    if options.list or not defects:
        print("\n".join(f"{d.name}  ({d.file})" for d in defects) or f"no defect has {options.only!r} in its name")
        return 0 if defects else 2
    start = time.monotonic()
    try:
        check_defects(defects)
        with tempfile.TemporaryDirectory(prefix="defects-") as folder:
            noticed = run(defects, Path(folder), options.compiled)
    except Misfit as problem:
        print(problem, file=sys.stderr)
        return 2
    width = max(len(d.name) for d in defects)
    print(f"\n{'defect':<{width}}  {'':<10}  by")
    for defect in defects:
        status = "caught" if noticed[defect] else "NOT CAUGHT"
        print(f"{defect.name:<{width}}  {status:<10}  {noticed[defect] or f'{defect.tests} -k {defect.select!r}'}")
    missed = sum(not noticed[d] for d in defects)
    print(f"\n{len(defects) - missed} of {len(defects)} caught in {time.monotonic() - start:.0f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
