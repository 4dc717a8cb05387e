"""Freed memory is kept inside `kept_memory` and goes back after it, as the system counts it."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ematrace import memory
from ematrace.bench import time_cpu
from ematrace.cli import app
from ematrace.experiments import Experiment, factorial
from ematrace.experiments.runner import worker
from ematrace.experiments.runner.units import Unit
from ematrace.memory import kept_memory
from ematrace.results import CellFile
from ematrace.train import TrainConfig, loop

GLIBC = memory._glibc() is not None


class Recorder:
    """Stands in for the C library; `settings` is what it was told last."""

    def __init__(self) -> None:
        self.settings: dict[int, int] = {}
        self.calls: list[Any] = []

    def mallopt(self, option: int, value: int) -> int:
        self.settings[option] = value
        self.calls.append((option, value))
        return 1

    def malloc_trim(self, pad: int) -> int:
        assert not memory._entering.locked()
        self.calls.append("trim")
        return 1

    @property
    def keeps(self) -> bool:
        return self.settings.get(memory.M_MMAP_MAX) == 0 and self.settings.get(memory.M_TRIM_THRESHOLD) == -1


@pytest.fixture
def libc(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    for name in memory.CHOSEN:
        monkeypatch.delenv(name, raising=False)
    recorder = Recorder()
    monkeypatch.setattr(memory, "_glibc", lambda: recorder)
    yield recorder
    assert not memory._inside


def test_the_outermost_gives_back(libc: Recorder) -> None:
    with kept_memory():
        assert libc.keeps
        with kept_memory():
            pass
        assert libc.keeps
        assert "trim" not in libc.calls
    assert not libc.keeps
    assert libc.calls[-1] == "trim"


def test_of_two_that_overlap_the_last_gives_back(libc: Recorder) -> None:
    """As of two threads."""
    first, second = kept_memory(), kept_memory()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert libc.keeps
    second.__exit__(None, None, None)
    assert not libc.keeps


def test_an_error_gives_back(libc: Recorder) -> None:
    with pytest.raises(KeyError), kept_memory():
        raise KeyError
    assert not libc.keeps


def test_an_interrupt_while_it_is_entered_gives_back(libc: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    set_all = memory._set

    def interrupted(libc: Any, options: dict[int, int]) -> None:
        set_all(libc, options)
        if options is memory.KEEP:
            raise KeyboardInterrupt

    monkeypatch.setattr(memory, "_set", interrupted)
    with pytest.raises(KeyboardInterrupt), kept_memory():
        pytest.fail("entered")
    assert not memory._inside
    assert not libc.keeps


def test_threads_that_enter_and_leave_at_once(libc: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is inside only when memory is kept, however slowly another sets what malloc does."""
    set_all, kept = memory._set, []

    def slowly(libc: Any, options: dict[int, int]) -> None:
        time.sleep(0.01)
        set_all(libc, options)

    def enter_and_leave() -> None:
        for _ in range(10):
            with kept_memory():
                kept.append(libc.keeps)
                time.sleep(0.002)
                kept.append(libc.keeps)

    monkeypatch.setattr(memory, "_set", slowly)
    threads = [threading.Thread(target=enter_and_leave) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kept == [True] * 60
    assert not libc.keeps


def in_a_fork(target: Callable[[], None]) -> int | None:
    """The exit code; None if it never ended."""
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("no fork on this system")
    child = multiprocessing.get_context("fork").Process(target=target)
    child.start()
    child.join(10)
    code = child.exitcode
    child.kill()
    child.join()
    return code


def enter(libc: Recorder) -> None:
    assert not libc.keeps
    with kept_memory():
        assert libc.keeps
    assert not libc.keeps


def test_a_fork_while_another_thread_enters(libc: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is left in the child who would release the lock."""
    set_all, holds, forked = memory._set, threading.Event(), threading.Event()

    def wait_for_the_fork(libc: Any, options: dict[int, int]) -> None:
        if threading.current_thread() is other:
            holds.set()
            forked.wait(30)
        set_all(libc, options)

    monkeypatch.setattr(memory, "_set", wait_for_the_fork)
    other = threading.Thread(target=lambda: enter(libc))
    other.start()
    holds.wait(30)
    code = in_a_fork(lambda: enter(libc))
    forked.set()
    other.join()
    assert code == 0


def test_a_fork_inside_begins_outside(libc: Recorder) -> None:
    block = kept_memory()

    def child() -> None:
        enter(libc)
        with kept_memory():
            block.__exit__(None, None, None)  # of the parent's, which counts no more
            assert libc.keeps
        assert not libc.keeps

    with block:
        assert in_a_fork(child) == 0
        assert libc.keeps


def test_can_be_entered_again(libc: Recorder) -> None:
    for _ in range(2):
        with kept_memory():
            assert libc.keeps
        assert not libc.keeps


@pytest.mark.parametrize("name", memory.CHOSEN)
def test_who_chose_keeps_it(libc: Recorder, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")
    with kept_memory():
        pass
    assert libc.calls == []


@pytest.mark.parametrize(
    "library", [None, SimpleNamespace(), SimpleNamespace(mallopt=lambda *_: pytest.fail("called"))]
)
def test_without_glibc_nothing_is_done(monkeypatch: pytest.MonkeyPatch, library: Any) -> None:
    """Windows has no library without a name, musl has no mallopt, Android's takes other options."""

    def load(name: None) -> Any:
        if library is None:
            raise TypeError("bad argument")
        return library

    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(memory, "_glibc", memory._glibc.__wrapped__)
    with kept_memory():
        pass


# Who is inside


def test_a_worker_keeps_memory_while_it_measures(libc: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Experiment("one", "One", factorial(), lambda ctx: {"kept": float(libc.keeps)})
    monkeypatch.setattr(worker, "find_experiment", lambda *at: found)
    unit = Unit("one", "one", ".", {}, 0, "cpu", {}, None, "", "group", 1.0, "cpu")
    file = worker.measure_unit(unit)
    assert isinstance(file, CellFile)
    assert file.cells[0].metrics["kept"].value == 1.0
    assert not libc.keeps


@pytest.mark.parametrize(("device", "kept"), [("cpu", True), ("cuda", False)])
def test_training_on_a_cpu_keeps_memory(
    libc: Recorder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, device: str, kept: bool
) -> None:
    @contextmanager
    def world(name: str) -> Iterator[Any]:
        yield SimpleNamespace(device=torch.device(device), first=True)

    monkeypatch.setattr(loop, "open_world", world)
    monkeypatch.setattr(loop, "_refuse_before_work", lambda *_: None)
    monkeypatch.setattr(loop, "_train", lambda *_: libc.keeps)
    assert loop.train(TrainConfig("text.txt", out=tmp_path / "run")) is kept  # type: ignore[comparison-overlap]
    assert not libc.keeps


def test_a_command_keeps_memory(libc: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bool] = []
    kind, _ = app.COMMANDS["ledger"]
    monkeypatch.setitem(app.COMMANDS, "ledger", (kind, lambda *_: kept.append(libc.keeps)))
    monkeypatch.setattr(app.signal, "signal", lambda *_: None)
    app.run(["ledger"])
    assert kept == [True]
    assert not libc.keeps


def test_timings_on_a_cpu_keep_memory(libc: Recorder) -> None:
    kept: list[bool] = []
    time_cpu({"one": lambda: kept.append(libc.keeps)}, repetitions=2)
    assert kept == [True] * 3
    assert not libc.keeps


CODE = """
import resource, sys
from pathlib import Path
import numpy as np
from ematrace.memory import kept_memory

MB = 2**20

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / MB

def use(megabytes, times=4):  # faults per use, after the first
    for i in range(times):
        np.full(megabytes * MB // 8, 1.0)
        if i == 0:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / (times - 1)

at_first = resident()
outside = use(128)
assert resident() < at_first + 64, "given back at once"
with kept_memory():
    inside = use(128)
    assert inside < outside / 4, f"{inside} faults inside, {outside} outside"
    assert resident() > at_first + 100, "kept"
assert resident() < at_first + 64, "given back in the end"
assert use(128) > outside / 2, "as before"
assert use(24) < outside / 8, "what is smaller than glibc's own limit is reused as before"
"""


@pytest.mark.skipif(not GLIBC, reason="glibc's malloc")
def test_pages_stay_and_go_back() -> None:
    """In a process of its own: malloc's settings are the process's, and its heap is fresh."""
    environment = {name: value for name, value in os.environ.items() if name not in memory.CHOSEN}
    subprocess.run([sys.executable, "-c", CODE], check=True, env=environment)
