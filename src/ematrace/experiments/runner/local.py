"""Processes of this machine: one per core, or several that share the GPU."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections import Counter, deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import connection, resource_tracker
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

from joblib.externals.loky import process_executor  # type: ignore[import-untyped]
from joblib.externals.loky.backend.context import get_context  # type: ignore[import-untyped]

from ematrace.experiments.runner.loop import MOST_LOSSES, Done, Event, Failed, Lost, Progress
from ematrace.experiments.runner.parent import end_with_parent
from ematrace.experiments.runner.units import Job, Phase, Unit, local_workers
from ematrace.experiments.runner.worker import Failure, measure_unit
from ematrace.results import CellFile
from ematrace.sharing import available_cores

SECONDS_BETWEEN_LOOKS = 0.1
ATTEMPTS = 20  # at removing what workers left behind
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class LocalEngine:
    """Temporary files of the workers lie in one folder, which goes with the engine."""

    def __enter__(self) -> LocalEngine:
        self._scratch = TemporaryDirectory(prefix="ematrace-")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _ in range(ATTEMPTS):  # a compiler that a killed worker had started may still write there
            with suppress(OSError):
                self._scratch.cleanup()
                return
            time.sleep(SECONDS_BETWEEN_LOOKS)
        shutil.rmtree(self._scratch.name, ignore_errors=True)

    def workers(self, gpu: bool) -> int:
        return local_workers(gpu)

    def events(self, phase: Phase) -> Generator[Event, None, None]:
        waiting = deque(phase.jobs)
        losses: Counter[Unit] = Counter()
        # The processes fill the cores; a matmul on more threads would only make them wait for each other.
        workers = min(phase.workers, phase.per_gpu or phase.workers)  # they all see the same GPU
        large = phase.gpu or any(unit.scale == "gpu" for job in phase.jobs for unit in job)  # models meant for a GPU
        threads = max(1, available_cores() // min(workers, len(phase.jobs))) if large else 1
        slots = [Slot(threads, self._scratch.name) for _ in range(min(workers, len(phase.jobs)))]
        try:
            while True:
                for slot in slots:
                    if slot.future is None and waiting:
                        slot.start(waiting.popleft())
                busy = [slot for slot in slots if slot.future is not None]
                if not busy:
                    return
                connection.wait([slot.receiver for slot in busy], SECONDS_BETWEEN_LOOKS)
                for slot in busy:
                    for event in slot.collect():
                        if not isinstance(event, Lost):
                            yield event
                            continue
                        losses[event.unit] += 1
                        left = slot.take_back()
                        if losses[event.unit] == MOST_LOSSES:
                            yield Failed(left.popleft(), f"{event.why}, {MOST_LOSSES} times")
                        else:
                            yield event
                        if left:  # last, when there may be more memory for it
                            waiting.append(tuple(left))
        finally:
            with ThreadPoolExecutor(len(slots)) as closing:  # at once: ending one takes seconds while it compiles
                list(closing.map(Slot.close, slots))


class Slot:
    """A process that takes one unit after the other. Each has a pool of its own, so that one that dies takes no other
    with it."""

    def __init__(self, threads: int, scratch: str) -> None:
        self.scratch = scratch
        self.future: Future[CellFile | Failure] | None = None
        self._left: deque[Unit] = deque()
        self._unit: Unit | None = None
        self._process: Any = None
        self._environment = dict.fromkeys(THREADS, str(threads))
        self._open()

    def _open(self) -> None:
        context: Any = get_context("loky")
        self.receiver, sender = context.Pipe(duplex=False)
        self._pool = process_executor.ProcessPoolExecutor(
            1, context=context, initializer=_start_worker, initargs=(sender, os.getpid()), env=self._environment
        )

    def _reopen(self) -> None:
        self._pool.shutdown(kill_workers=True)
        self.receiver.close()
        self._open()

    def take_back(self) -> deque[Unit]:
        """The unit that was lost, and what was to follow it; the slot is free for another job."""
        assert self._unit is not None
        left, self._left = self._left, deque()
        left.appendleft(self._unit)
        return left

    def start(self, job: Job) -> None:
        self._left = deque(job)
        self._next()

    def _next(self) -> None:
        self.future = None
        if self._left:
            self._unit = self._left.popleft()
            with _without_interrupts():  # a worker inherits this: Ctrl-C is the parent's business
                try:
                    self.future = self._pool.submit(_work, self._unit, self.scratch)
                except process_executor.BrokenProcessPool:  # it died between two units
                    self._reopen()
                    self.future = self._pool.submit(_work, self._unit, self.scratch)
            self._process = next(iter(self._pool._processes.values()), self._process)

    def collect(self) -> Iterator[Event]:
        """What has happened since the last look."""
        unit, future = self._unit, self.future
        assert unit is not None
        assert future is not None
        done = future.done()  # asked first: what was sent before is there now
        while self.receiver.poll():
            yield Progress(unit, self.receiver.recv())
        if not done:
            return
        error = future.exception()
        if error is not None:  # not the unit's own error, which would have come back as a Failure
            self._reopen()
            self.future = None
            yield Lost(unit, how_it_ended(self._process.exitcode if self._process else None))
            return
        result = future.result()
        yield Failed(unit, result.why) if isinstance(result, Failure) else Done(unit, result)
        self._next()

    def close(self) -> None:
        """End the process now, whatever it does."""
        self._pool.shutdown(kill_workers=True)
        self.receiver.close()


def how_it_ended(exit_code: int | None) -> str:
    """
    >>> how_it_ended(-9), how_it_ended(3)
    ('its process was killed by SIGKILL (out of memory?)', 'its process ended with exit code 3')
    """
    if exit_code is None or exit_code >= 0:
        return f"its process ended with exit code {exit_code}"
    name = signal.Signals(-exit_code).name
    return f"its process was killed by {name}{' (out of memory?)' if name == 'SIGKILL' else ''}"


_sender: Any = None


def _start_worker(sender: Any, parent: int) -> None:
    global _sender
    end_with_parent(parent)
    _sender = sender
    # loky ends workers that grow, taking it for a leak; here it is what units of a group share.
    process_executor._USE_PSUTIL = False


def _work(unit: Unit, scratch: str) -> CellFile | Failure:
    # Under 4 KiB, so that a message is written whole or not at all, even by a process that is killed.
    return measure_unit(unit, _sender.send, scratch)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # which would unblock the signal when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
