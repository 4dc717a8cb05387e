"""Slices on threads: all of them, once, and none left behind."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from ematrace.workers import split


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("n", "least", "slices"), [(10, 1, 3), (10, 4, 2), (2, 1, 2), (1, 1, 1), (0, 1, 1), (10, 99, 1)]
)
def test_slices_cover_the_range_once(n: int, least: int, slices: int) -> None:
    seen: list[tuple[int, int]] = []
    split(lambda begin, end: seen.append((begin, end)), n, least)
    assert len(seen) == slices
    assert [i for begin, end in sorted(seen) for i in range(begin, end)] == list(range(n))
    assert all(end - begin >= min(least, n) for begin, end in seen)


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_an_exception_comes_after_all_slices(bad: int) -> None:
    done = []

    def kernel(begin: int, end: int) -> None:
        if begin == bad:
            raise ArithmeticError(begin)
        time.sleep(0.05)
        done.append(begin)

    with pytest.raises(ArithmeticError, match=str(bad)):
        split(kernel, 3)
    assert sorted(done) == [i for i in range(3) if i != bad]


def test_a_slice_may_split() -> None:
    done = []
    split(lambda begin, end: split(lambda *part: done.append(part), 8), 3)
    assert sum(end - begin for begin, end in done) == 3 * 8


def test_several_threads_at_once() -> None:
    done: list[int] = []
    callers = [threading.Thread(target=split, args=(lambda begin, end: done.append(end - begin), 30)) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert sum(done) == 8 * 30


def test_after_a_fork() -> None:
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("no fork on this system")
    everybody = (os.cpu_count() or 1) + 1
    torch.set_num_threads(everybody)
    split(lambda begin, end: time.sleep(0.05), everybody)  # the parent has all of its threads
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=split, args=(lambda begin, end: queue.put(end - begin), everybody))
    child.start()
    assert sum(queue.get(timeout=20) for _ in range(everybody)) == everybody
    child.join(20)
    assert child.exitcode == 0


def test_when_the_interpreter_ends() -> None:
    code = """
import atexit, torch
from ematrace.workers import split
torch.set_num_threads(3)
split(lambda begin, end: None, 3)
atexit.register(lambda: split(lambda begin, end: print(begin, end, flush=True), 6))
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert sum(int(end) - int(begin) for begin, end in (line.split() for line in told.stdout.splitlines())) == 6
