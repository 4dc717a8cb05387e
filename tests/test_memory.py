"""Freed memory is kept inside `kept_memory` and goes back after it, as the system counts it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ematrace import memory
from ematrace.memory import kept_memory

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
    assert memory._inside == 0


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
