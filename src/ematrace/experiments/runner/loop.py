"""Run units on an engine, and write each file the moment its unit is done."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ematrace.experiments.runner.units import Phase, Unit, phases_of
from ematrace.results import CellFile, write_file


@dataclass(frozen=True)
class Progress:
    unit: Unit
    share: float


@dataclass(frozen=True)
class Done:
    unit: Unit
    file: CellFile


@dataclass(frozen=True)
class Failed:
    unit: Unit
    why: str


@dataclass(frozen=True)
class Lost:
    """Its worker died; the unit is run again."""

    unit: Unit
    why: str


Event = Progress | Done | Failed | Lost
MOST_LOSSES = 3
"""A unit whose worker dies this often is taken to be the cause."""


class Engine(Protocol):
    """Where jobs run."""

    def workers(self, gpu: bool) -> int:
        """How many run at a time where the request does not say."""

    def events(self, phase: Phase) -> Generator[Event, None, None]:
        """Run the phase's jobs: at last one Done or Failed for each unit. Closing it ends whatever is under way."""


def open_engine(name: str) -> AbstractContextManager[Engine]:
    if name == "ray":
        from ematrace.experiments.runner.on_ray import RayEngine

        return RayEngine()
    from ematrace.experiments.runner.local import LocalEngine

    return LocalEngine()


def run(
    units: Sequence[Unit],
    out: Path,
    *,
    engine: str = "local",
    jobs: int | None = None,
    per_gpu: int | None = None,
    progress: Callable[[Unit, float], None] = lambda unit, share: None,
    written: Callable[[Unit, Path], None] = lambda unit, path: None,
    lost: Callable[[Unit, str], None] = lambda unit, why: None,
    failing: Callable[[Unit, str], None] = lambda unit, why: None,
) -> dict[Unit, str]:
    """Measure all units and write their files; returns why units failed, which keeps no other from finishing.

    A unit whose worker dies is run again, which `lost` is told, up to MOST_LOSSES times in all. `failing` is told of a
    failure at once: a long grid whose units all fail should be seen to.

    Stopped half-way (Ctrl-C), it ends its workers at once. The files of finished units stay, and nothing else.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> code = '''
    ... from ematrace.experiments import Experiment, factorial
    ... def measure(ctx, width):
    ...     return {"area": width**2}
    ... EXPERIMENT = Experiment("squares", "Areas of squares", grid=factorial(width=[2, 3]), measure=measure)
    ... '''
    >>> with TemporaryDirectory() as folder:
    ...     size = Path(folder, "squares.py").write_text(code)
    ...     plan = make_plan(Request((f"{folder}/squares.py",), jobs=1))
    ...     failed = run(plan.to_run, Path(folder), jobs=1, written=lambda unit, path: print(path.name))
    width-2_seed-0_cpu.json
    width-3_seed-0_cpu.json
    """
    failed: dict[Unit, str] = {}
    out.mkdir(parents=True, exist_ok=True)  # now, not after minutes of work
    with open_engine(engine) as opened:
        for phase in phases_of(units, jobs, opened.workers, per_gpu=per_gpu):
            with closing(opened.events(phase)) as events:
                for event in events:
                    match event:
                        case Done(unit, file):
                            written(unit, write_file(file, out))
                            progress(unit, 1.0)
                        case Failed(unit, why):
                            failed[unit] = why
                            failing(unit, why)
                            progress(unit, 1.0)
                        case Lost(unit, why):
                            lost(unit, why)
                        case Progress(unit, share):
                            progress(unit, share)
    return failed
