"""Sharing the processors with other programs: what those use, and short waits while they need it.

torch's threads (OpenMP, by GNU's libgomp on Linux) wait for one another after every operator, and wait by spinning, up
to 15 ms. On a quiet machine that is right: with threads that sleep instead, spen-tiny takes 1.35x as long. Where many
others need the processors as well, a thread spins through time slices in which the one it waits for could have run:
beside eight busy loops on two cores, short spins make it 1.45x as fast. Beside two they make no difference, and either
way a busy machine costs more than its share of the processors (`benchmarks/busy_cpu.py` measures all of this).

libgomp reads how long to spin (GOMP_SPINCOUNT, OMP_WAIT_POLICY) once, when torch is loaded, so that it cannot follow
what a machine does for an hour. But it spins shortly whenever the process has more OpenMP threads than there are
processors. So spare threads, which do nothing, are kept while others are busy, and are let go when they are not. The
number of threads that compute stays the same, and so do all results, to the bit.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

STATISTICS = Path("/proc/stat")
QUOTA = Path("/sys/fs/cgroup/cpu.max")
INTERVAL = 0.5  # seconds between two looks at the machine
BUSY = 0.3  # processors that are missing
QUIET = 0.15
MOST_TEAMS = 32  # of spare threads; few threads on many processors hardly meet other programs
CHOSEN = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # who sets these has decided
_watched = threading.Lock()


class Meter:
    """How many processors other processes have kept busy since it was made or last asked."""

    def __init__(self) -> None:
        self._last = self._read()

    @property
    def works(self) -> bool:
        """Whether the system says."""
        return self._last is not None

    def others(self) -> float | None:
        """0.0 for none, 2.0 for two of them; None where the system does not say. The host's other guests count too."""
        last, self._last = self._last, self._read()
        if last is None or self._last is None:
            return None
        busy, own, seconds = (now - before for now, before in zip(self._last, last, strict=True))
        return max(busy - own, 0.0) / max(seconds, 1e-9)

    @staticmethod
    def _read() -> tuple[float, float, float] | None:
        """Seconds that the processors were busy, that this process used them, and of the clock."""
        try:
            lines = STATISTICS.read_text(encoding="ascii").splitlines()
            ours = {f"cpu{n}" for n in os.sched_getaffinity(0)}
            ticks = 0
            for name, *numbers in (line.split() for line in lines):
                if name in ours:  # user, nice, system, idle, iowait, irq, softirq, steal
                    ticks += sum(int(numbers[i]) for i in (0, 1, 2, 5, 6, 7))
            return ticks / os.sysconf("SC_CLK_TCK"), time.process_time(), time.monotonic()
        except (OSError, ValueError, IndexError, AttributeError):  # not Linux
            return None


def processors() -> int:
    """The processors that this process may use: those it is bound to, and no more than its container has."""
    n = available_cores()
    try:
        quota, period = QUOTA.read_text(encoding="ascii").split()
        return min(n, max(1, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no container, or no limit ("max")
        return n


def available_cores() -> int:
    """Those this process is bound to, not those of the machine. Its container may give it less of their time."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


@contextmanager
def shared_processors() -> Iterator[None]:
    """Inside, torch's threads spin only shortly while other programs need the processors.

    In a container that may use few processors of many, torch would have a thread for each of the many: it gets as many
    as it may use. OMP_NUM_THREADS, OMP_WAIT_POLICY and GOMP_SPINCOUNT take precedence where they are set.
    """
    with _limited_threads():
        meter = Meter()
        chosen = any(name in os.environ for name in CHOSEN)
        if chosen or not meter.works or not _watched.acquire(blocking=False):
            yield
            return
        done = threading.Event()
        watch = threading.Thread(target=_watch, args=(meter, done), name="ematrace load", daemon=True)
        watch.start()
        try:
            yield
        finally:
            done.set()
            watch.join()
            _watched.release()


@contextmanager
def _limited_threads() -> Iterator[None]:
    n, torch = processors(), sys.modules.get("torch")
    if "OMP_NUM_THREADS" in os.environ or n >= available_cores():
        yield
    elif torch is None:
        os.environ["OMP_NUM_THREADS"] = str(n)
        try:
            yield
        finally:
            os.environ.pop("OMP_NUM_THREADS", None)
    else:
        before = torch.get_num_threads()
        torch.set_num_threads(min(before, n))
        try:
            yield
        finally:
            torch.set_num_threads(before)


def _watch(meter: Meter, done: threading.Event) -> None:
    spare: _SpareThreads | None = None
    while not done.wait(INTERVAL):
        torch: Any = sys.modules.get("torch")
        others = meter.others()
        if others is None or not hasattr(torch, "get_num_threads"):  # not imported, or not wholly
            continue
        threads, n = torch.get_num_threads(), available_cores()
        missing = others + threads - n
        if spare is None and threads > 1 and missing > BUSY:
            spare = _SpareThreads(min((n - threads) // (threads - 1) + 1, MOST_TEAMS))
        elif spare is not None and missing < QUIET:
            spare.end()
            spare = None
    if spare is not None:
        spare.end()


class _SpareThreads:
    """Threads with OpenMP threads of their own, which all sleep: each adds a team to those that libgomp counts."""

    def __init__(self, n_teams: int) -> None:
        self._done = threading.Event()
        self._threads = [
            threading.Thread(target=self._hold, name="ematrace spare", daemon=True) for _ in range(n_teams)
        ]
        for thread in self._threads:
            thread.start()

    def _hold(self) -> None:
        import torch

        torch.zeros(2**17).add_(1.0)  # large enough for torch to use all of its threads
        self._done.wait()

    def end(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()
