"""Trials as forks of a process that has imported everything, each with a limit on time and memory."""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fault_trials.outcomes import HANG, MEMORY, REFUSED, TRACEBACK, UNCLEAR, Ended, Outcome

SECONDS = 60.0
MEMORY_BYTES = 800 * 2**20  # above what the process had when it was forked
PAGE = resource.getpagesize()


@dataclass(frozen=True)
class Trial:
    """One fault: `run` makes it in an empty folder and says how it ended. It runs in a fork, in that folder."""

    kind: str
    target: str
    index: int
    run: Callable[[], Outcome]
    seconds: float = SECONDS

    @property
    def id(self) -> str:
        return f"{self.kind}/{self.target}:{self.index}"


@dataclass
class _Child:
    trial: Trial
    folder: Path
    pid: int
    pipe: int
    deadline: float
    answer: bytes = b""


def run_trials(trials: Iterable[Trial], scratch: Path, jobs: int) -> Iterator[tuple[Trial, Outcome]]:
    """Each trial with its outcome, as they end, `jobs` at a time."""
    waiting, running = iter(trials), dict[int, _Child]()
    at_fork = _memory(os.getpid())
    try:
        while True:
            while len(running) < jobs and (trial := next(waiting, None)) is not None:
                child = _fork(trial, scratch / f"{trial.kind}-{trial.target}-{trial.index}")
                running[child.pipe] = child
            if not running:
                return
            ready, _, _ = select.select(list(running), [], [], 0.05)
            for child in [*running.values()]:
                outcome = _look(child, child.pipe in ready, at_fork)
                if outcome is not None:
                    del running[child.pipe]
                    _close(child)
                    yield child.trial, outcome
    finally:
        for child in running.values():
            os.killpg(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)
            _close(child)


def _look(child: _Child, ready: bool, at_fork: _Memory) -> Outcome | None:
    if ready:
        part = os.read(child.pipe, 65536)
        child.answer += part
        if part:
            return None
        _, status, usage = os.wait4(child.pid, 0)
        return _read(child.answer, status, usage.ru_maxrss * 1024 - at_fork.resident)
    over = HANG if time.monotonic() > child.deadline else ""
    if _memory(child.pid).own - at_fork.own > MEMORY_BYTES:
        over = MEMORY
    if not over:
        return None
    os.killpg(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)
    return Outcome(over, f"stopped after {child.trial.seconds:.0f} s" if over == HANG else "")


def _read(answer: bytes, status: int, grown: int) -> Outcome:
    if not answer:
        return Outcome(TRACEBACK, f"died of signal {status & 127}" if status & 127 else f"exit status {status >> 8}")
    if grown > MEMORY_BYTES:
        return Outcome(MEMORY, f"{grown / 2**20:.0f} MiB")
    return Outcome(**json.loads(answer))


def _fork(trial: Trial, folder: Path) -> _Child:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        os.setsid()
        os.chdir(folder)
        _child(trial, writing)
    os.close(writing)
    return _Child(trial, folder, pid, reading, time.monotonic() + trial.seconds)


def _child(trial: Trial, writing: int) -> None:
    """Never returns."""
    try:
        os.dup2(os.open("log", os.O_WRONLY | os.O_CREAT), 1)
        os.dup2(1, 2)
        try:
            outcome = trial.run()
        except Ended as ended:
            outcome = ended.outcome
        except BaseException as error:
            outcome = unexpected(error)
        os.write(writing, json.dumps(vars(outcome)).encode())
    finally:
        os._exit(0)


def unexpected(error: BaseException) -> Outcome:
    frames = traceback.extract_tb(error.__traceback__)
    last = next((f for f in reversed(frames) if "ematrace" in f.filename), frames[-1])
    text = " ".join(str(error).split())[:160]
    return Outcome(TRACEBACK, f"{type(error).__name__}: {text} ({Path(last.filename).name}:{last.lineno})")


def refusal(message: str, names: Iterable[str]) -> Outcome:
    """A refusal is one line that names one of the files, or of the folders that end in `/`."""
    text = message.strip()
    clear = "\n" not in text and any(_mentions(text, name) for name in names)
    return Outcome(REFUSED if clear else UNCLEAR, text[:200])


def _mentions(text: str, name: str) -> bool:
    """As whole parts of a path: `a.json` is in `x/a.json: broken`, not in `aa.json` or `a.json.part`."""
    end = "" if name.endswith("/") else r"(?![\w-]|\.\w)"
    return re.search(rf"(?<![\w.-]){re.escape(name)}{end}", text) is not None


def _close(child: _Child) -> None:
    os.close(child.pipe)
    shutil.rmtree(child.folder, ignore_errors=True)


@dataclass(frozen=True)
class _Memory:
    """Bytes in memory; `own` without the pages of files, of which a fork has fewer than its parent at first."""

    resident: int
    own: int


def _memory(pid: int) -> _Memory:
    try:
        _, resident, shared = map(int, Path(f"/proc/{pid}/statm").read_text().split()[:3])
    except (OSError, ValueError):
        return _Memory(0, 0)
    return _Memory(resident * PAGE, (resident - shared) * PAGE)


def digest(*parts: bytes | str) -> str:
    sha = hashlib.sha256()
    for part in parts:
        sha.update((part.encode() if isinstance(part, str) else part) + b"\0")
    return sha.hexdigest()
