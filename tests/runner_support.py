"""A user's own experiment in a file, for tests of discovery, plans and the runner."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ematrace.experiments.runner import Request, make_plan, run
from ematrace.results import CellFile, read_file

OWN = '''
"""Squares; every execution leaves a line."""

import os
import signal
import time
from pathlib import Path

from ematrace.experiments import Experiment, Metric, Row, factorial

LOG = Path(__file__).with_name("executions")


def expensive(seed):
    with LOG.open("a") as log:
        log.write(f"shared {seed}\\n")
    return object()


def measure(ctx, width):
    with LOG.open("a") as log:
        log.write(f"{width} {ctx.seed}\\n")
    if width == 13:
        raise ZeroDivisionError("thirteen is refused")
    if width == 99:
        os.kill(os.getpid(), signal.SIGKILL)
    ctx.share(expensive, ctx.seed)
    for part in range(4):
        ctx.progress(part / 4)
        time.sleep(ctx.settings["sleep"] / 4)
    return [
        Row({}, {"area": Metric(float(width**2 + ctx.seed)), "process": Metric(float(os.getpid()))}),
        Row({"part": "threads"}, {"count": Metric(float(os.environ["OMP_NUM_THREADS"]))}),
    ]


EXPERIMENT = Experiment(
    "NAME", "Squares", grid=factorial(width=WIDTHS), measure=measure, settings={"sleep": 0.0, "texts": {}}, OPTIONS
)
'''


def write_own(folder: Path, name: str = "squares", widths: str = "[2, 3]", options: str = "seconds=2") -> Path:
    path = folder / f"{name}.py"
    path.write_text(OWN.replace("NAME", name).replace("WIDTHS", widths).replace("OPTIONS", options))
    return path


@contextmanager
def working_in(folder: Path) -> Iterator[Path]:
    """A working directory whose modules are forgotten afterwards: other tests have others of the same names."""
    before, path, modules = Path.cwd(), list(sys.path), dict(sys.modules)
    os.chdir(folder)
    try:
        yield folder
    finally:
        os.chdir(before)
        sys.path[:] = path
        for name, module in list(sys.modules.items()):
            known = modules.get(name) is module  # as thousands are, whose attributes take a long time
            if not known and str(getattr(module, "__file__", "")).startswith(str(folder)):
                del sys.modules[name]
        sys.modules.pop("mypackage", None)  # a folder without __init__.py has no __file__


def executions(folder: Path) -> Counter[str]:
    """How often each "width seed" was measured."""
    log = folder / "executions"
    return Counter(log.read_text().splitlines()) if log.exists() else Counter()


def run_request(request: Request, **options) -> dict[str, str]:
    """Run what is not there yet: why units failed, by label."""
    plan = make_plan(request)
    failed = run(plan.to_run, request.out, engine=request.engine, jobs=request.jobs, per_gpu=request.per_gpu, **options)
    return {unit.label: why for unit, why in failed.items()}


def files_in(folder: Path) -> dict[str, CellFile]:
    """Every file below a folder, all of which must be whole result files, but for the claims beside them."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "claims.toml"]
    return {path.relative_to(folder).as_posix(): read_file(path) for path in files}
