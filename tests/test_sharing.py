"""What other programs use is counted, and torch's threads spin shortly while that matters."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ematrace import sharing

pytestmark = pytest.mark.skipif(not Path("/proc/stat").exists(), reason="looks at /proc")


@pytest.fixture(autouse=True)
def _nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*sharing.CHOSEN, "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


def test_idle_time_waiting_and_own_work_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([(100.0, 7.0, 50.0), (106.0, 9.0, 52.0), (106.0, 9.5, 53.0)])
    monkeypatch.setattr(sharing.Meter, "_read", staticmethod(lambda: next(readings)))
    meter = sharing.Meter()
    assert meter.others() == 2.0  # 6 s of processors in 2 s, 2 of them ours
    assert meter.others() == 0.0  # never below


def test_only_processors_that_we_may_use_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "stat"
    lines = ["cpu 9 9", "cpu0 1 2 4 8 16 32 64 128 9 9", "cpu1 100 0 0 0 0 0 0 0", "cpu10 500 0 0 0 0 0 0 0", "intr 7"]
    path.write_text("\n".join(lines))
    monkeypatch.setattr(sharing, "STATISTICS", path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    reading = sharing.Meter._read()
    assert reading is not None
    assert reading[0] * os.sysconf("SC_CLK_TCK") == pytest.approx(1 + 2 + 4 + 32 + 64 + 128 + 100)


def test_where_the_system_does_not_say_nothing_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "STATISTICS", tmp_path / "none")
    assert sharing.Meter().others() is None
    with sharing.shared_processors():
        pass


@pytest.mark.parametrize(
    ("limit", "expected"), [("max 100000", 4), ("150000 100000", 2), ("10000 100000", 1), ("900000 100000", 4), ("", 4)]
)
def test_a_container_may_use_fewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, expected: int) -> None:
    (tmp_path / "cpu.max").write_text(limit)
    monkeypatch.setattr(sharing, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert sharing.processors() == expected


def names() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def wait_for(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


@pytest.fixture
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "INTERVAL", 0.02)
    monkeypatch.setattr(sharing, "available_cores", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)


@pytest.mark.usefixtures("_quick_looks")
def test_a_spare_team_is_kept_while_others_are_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    load = 0.0
    monkeypatch.setattr(sharing.Meter, "others", lambda self: load)
    with sharing.shared_processors():
        assert "ematrace load" in names()
        load = 2.0
        assert wait_for(lambda: "ematrace spare" in names())
        with sharing.shared_processors():  # inside of another it leaves the watching to that
            pass
        assert "ematrace load" in names()
        load = 0.2  # between the limits nothing changes
        time.sleep(0.1)
        assert "ematrace spare" in names()
        load = 0.0
        assert wait_for(lambda: "ematrace spare" not in names())
        load = 2.0
        assert wait_for(lambda: "ematrace spare" in names())
    assert not names() & {"ematrace load", "ematrace spare"}


@pytest.mark.usefixtures("_quick_looks")
@pytest.mark.parametrize(("threads", "bound", "teams"), [(2, 2, 1), (8, 16, 2), (4, 5, 1), (2, 6, 5), (1, 2, 0)])
def test_as_many_teams_as_exceed_the_processors(
    monkeypatch: pytest.MonkeyPatch, threads: int, bound: int, teams: int
) -> None:
    """libgomp counts `threads` for the first team and one less for each other; it must find more than processors."""
    made: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(sharing, "available_cores", lambda: bound)
    monkeypatch.setattr(sharing.Meter, "others", lambda self: float(bound))
    monkeypatch.setattr(sharing, "_SpareThreads", lambda n: made.append(n) or SimpleNamespace(end=lambda: None))
    with sharing.shared_processors():
        assert wait_for(lambda: bool(made)) if teams else not time.sleep(0.1)
    assert made == ([teams] if teams else [])
    if teams:
        assert threads + teams * (threads - 1) > bound >= threads + (teams - 1) * (threads - 1)


@pytest.mark.usefixtures("_quick_looks")
@pytest.mark.parametrize("name", sharing.CHOSEN)
def test_who_chose_a_way_of_waiting_keeps_it(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")
    with sharing.shared_processors():
        assert "ematrace load" not in names()


def test_a_busy_loop_beside_us_is_seen() -> None:
    """Of a real machine, whatever else it does: at least what the loop uses of it."""
    loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        meter = sharing.Meter()
        end = time.monotonic() + 10
        while time.monotonic() < end:
            time.sleep(0.2)
            if (meter.others() or 0.0) > 0.3:
                return
    finally:
        loop.kill()
        loop.wait()
    pytest.fail("not seen")
