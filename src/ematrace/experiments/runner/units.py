"""A unit of work, and how units are put together: into jobs for one process, into shards, into phases."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ematrace.experiments.base import Device, Scale
from ematrace.results import Factors
from ematrace.results.schema import file_name
from ematrace.sharing import available_cores


@dataclass(frozen=True, eq=False)
class Unit:
    """One point of an experiment's grid on one seed: one file to be. Plain data, for workers on any machine.

    >>> unit = make_plan(Request(("position",), seeds=2)).units[1]
    >>> unit.label, unit.file_name
    ('position, grammar=half_passives, seed 1', 'grammar-half_passives_seed-1_cpu.json')
    >>> unit.command
    'ematrace reproduce position --seeds 2 --only seed=1 --fresh'
    """

    experiment: str
    reference: str
    """How a worker finds the experiment: its name, or the user's file or module, seen from `folder`."""
    folder: str
    factors: Factors
    seed: int
    scale: Scale
    settings: Mapping[str, Any]
    data: str | None
    command: str
    """Runs this unit again."""
    group: str
    """Units of one group run in one process, one after the other."""
    seconds: float
    """Expected."""
    device: Device
    alone: bool = False

    @property
    def file_name(self) -> str:
        return file_name(self.factors, self.seed, self.scale)

    @property
    def label(self) -> str:
        """For people."""
        factors = [f"{name}={value}" for name, value in self.factors.items()]
        return ", ".join([self.experiment, *factors, f"seed {self.seed}"])


Job: TypeAlias = tuple[Unit, ...]
"""Units for one process, in their order."""


@dataclass(frozen=True)
class Phase:
    """Jobs that run side by side."""

    jobs: tuple[Job, ...]
    gpu: bool
    workers: int
    """At most this many at a time."""
    per_gpu: int | None = None
    """At most this many on one GPU, where that is said."""


def jobs_of(units: Sequence[Unit]) -> tuple[Job, ...]:
    """A job for each group, in order of first appearance."""
    groups: dict[str, list[Unit]] = {}
    for unit in units:
        groups.setdefault(unit.group, []).append(unit)
    return tuple(tuple(group) for group in groups.values())


def shard_of(units: Sequence[Unit], index: int, count: int) -> tuple[Unit, ...]:
    """Every count-th job: units that share a network stay on one machine."""
    return tuple(unit for job in jobs_of(units)[index::count] for unit in job)


def local_workers(gpu: bool) -> int:
    """How many processes suit this machine."""
    return 1 if gpu else available_cores()


def phases_of(
    units: Sequence[Unit],
    workers: int | None,
    default: Callable[[bool], int] = local_workers,
    *,
    per_gpu: int | None = None,
) -> list[Phase]:
    """What runs on cores; then what shares the GPU; then, one at a time, what measures speed.

    Seeds in their order, so that whoever stops has complete ones. Of a seed, the longest jobs first, so that processes
    end together; a single process keeps the order of the grid, where the points that say most come first.
    """
    found = []
    for gpu, alone in ((False, False), (True, False), (False, True), (True, True)):
        part = [unit for unit in units if (unit.device == "cuda") == gpu and unit.alone == alone]
        if part:
            share = (1 if alone else per_gpu) if gpu else None
            most = 1 if alone else workers or default(gpu) * (share or 1)
            jobs = jobs_of(part)
            found.append(Phase(jobs if most == 1 else _longest_first(jobs), gpu, most, share))
    return found


def _longest_first(jobs: Sequence[Job]) -> tuple[Job, ...]:
    """Within a seed; seeds by their first appearance."""
    seeds = list(dict.fromkeys(job[0].seed for job in jobs))
    return tuple(sorted(jobs, key=lambda job: (seeds.index(job[0].seed), -sum(unit.seconds for unit in job))))


def expected_seconds(phases: Sequence[Phase]) -> float:
    """How long they take when a free process always takes the longest job that is left."""
    total = 0.0
    for phase in phases:
        ends = [0.0] * min(phase.workers, len(phase.jobs))
        for job in phase.jobs:
            heapq.heappush(ends, heapq.heappop(ends) + sum(unit.seconds for unit in job))
        total += max(ends)
    return total
