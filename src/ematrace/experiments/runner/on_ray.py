"""Ray as the engine: the machines of a cluster, or this one.

A job is one streaming task, so that each unit's file comes back when it is done. When a machine dies, the units of its
jobs that were not done yet start again elsewhere; the others do not.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Generator, Iterator
from types import TracebackType
from typing import Any

from ematrace.experiments.runner.loop import MOST_LOSSES, Done, Event, Failed, Lost
from ematrace.experiments.runner.units import Phase, Unit
from ematrace.experiments.runner.worker import Failure, measure_unit
from ematrace.results import CellFile

SECONDS_BETWEEN_LOOKS = 0.5
UNLIMITED = 10**6


def load_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ValueError("--engine ray: Ray is not installed; pip install 'ematrace[ray]'") from None
    return ray


def connect() -> Any:
    """To the cluster of RAY_ADDRESS; without one, to a new one on this machine, open to no other."""
    ray = load_ray()
    if not ray.is_initialized():
        quiet = {"log_to_driver": False, "logging_level": "error"}
        if os.environ.get("RAY_ADDRESS"):
            ray.init(**quiet)
        else:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            ray.init(address="local", include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
    return ray


def cluster_gpus() -> float:
    return float(connect().cluster_resources().get("GPU", 0))


class RayEngine:
    """Paths (results, text, a user's own experiment) must mean the same on every machine of the cluster."""

    def __enter__(self) -> RayEngine:
        self._connected = load_ray().is_initialized()
        self._ray = connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._connected:
            self._ray.shutdown()  # which also ends the tasks of this run

    def workers(self, gpu: bool) -> int:
        """Ray places what it has room for; a cluster may grow."""
        return UNLIMITED

    def events(self, phase: Phase) -> Generator[Event, None, None]:
        ray = self._ray
        share = {"num_gpus": 1 / (phase.per_gpu or 1)} if phase.gpu else {}
        task = ray.remote(_work).options(num_returns="streaming", max_retries=0, num_cpus=1, **share)
        waiting = deque(deque(job) for job in phase.jobs)
        running: dict[Any, deque[Unit]] = {}
        losses: Counter[Unit] = Counter()
        try:
            while waiting or running:
                while waiting and len(running) < phase.workers:
                    left = waiting.popleft()
                    running[task.remote(tuple(left))] = left
                ready, _ = ray.wait(list(running), num_returns=1, timeout=SECONDS_BETWEEN_LOOKS)
                for stream in ready:
                    left = running[stream]
                    try:
                        result = ray.get(next(stream))
                    except StopIteration:
                        del running[stream]
                        assert not left
                        continue
                    except ray.exceptions.RayError as error:  # the machine, the process or what it sent is lost
                        del running[stream]
                        if not left:  # it died after its last result
                            continue
                        losses[left[0]] += 1
                        if losses[left[0]] >= MOST_LOSSES or isinstance(error, ray.exceptions.RayTaskError):
                            yield Failed(left.popleft(), f"its worker died: {' '.join(str(error).split())[:300]}")
                        else:
                            yield Lost(left[0], "its worker died")
                        if left:
                            waiting.append(left)
                        continue
                    unit = left.popleft()
                    yield Failed(unit, result.why) if isinstance(result, Failure) else Done(unit, result)
        finally:
            for stream in running:
                ray.cancel(stream, force=True)


def _work(units: tuple[Unit, ...]) -> Iterator[CellFile | Failure]:
    for unit in units:
        yield measure_unit(unit)
