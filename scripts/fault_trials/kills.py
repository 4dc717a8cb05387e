"""SIGKILL at random moments: to training, to whoever writes a file, to `reproduce` and to its workers."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fault_trials.material import PROMPT, STEPS, config_of, new_spcn, sentences
from fault_trials.outcomes import HARMLESS, LOST, ORPHAN, RECOVERED, SILENT, TRACEBACK, Ended, Outcome
from fault_trials.reading import open_pack, run_digest
from fault_trials.sandbox import digest

KIND = "kill"
MARK = "EMATRACE_FAULT"  # an environment variable by which processes of a trial are found


class KillAfter:
    """Kills its own process a moment after a step; step 0 is the first thing that `train` does."""

    def __init__(self, step: int, seconds: float) -> None:
        self.step, self.seconds = step, seconds

    def on_start(self, total_steps: int) -> None: ...
    def on_event(self, text: str) -> None: ...
    def close(self) -> None: ...

    def on_step(self, metrics: Mapping[str, Any]) -> None:
        if metrics["step"] >= self.step:
            self.arm()

    def arm(self) -> None:
        timer = threading.Timer(self.seconds, os.kill, (os.getpid(), signal.SIGKILL))
        timer.daemon = True
        timer.start()


def in_child(work: Callable[[], object]) -> bool:
    """Run it in a fork: whether it was killed. Whatever else goes wrong there is raised here."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            Path("failed").write_text(f"{type(error).__name__}: {error}")
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise Ended(TRACEBACK, Path("failed").read_text()[:200])
    return os.WIFSIGNALED(status)


def train_undisturbed(root: Path) -> str:
    from ematrace.train import train

    train(config_of(root, "out"))
    return run_digest(Path("out"))


def train_and_kill(root: Path, expected: str, draw: random.Random) -> Outcome:
    from ematrace.train import train

    kills = 0
    for _ in range(draw.randint(1, 3)):
        killer = KillAfter(draw.randrange(STEPS + 1), draw.uniform(0, 0.1))

        def work(killer: KillAfter = killer) -> None:
            if killer.step == 0:
                killer.seconds *= 10
                killer.arm()
            train(config_of(root, "out"), display=killer)

        kills += in_child(work)
    train(config_of(root, "out"))
    if run_digest(Path("out")) != expected:
        return Outcome(SILENT, f"other weights after {kills} kills")
    steps = [json.loads(line)["step"] for line in Path("out/metrics.jsonl").read_bytes().splitlines()]
    if steps != list(range(1, STEPS + 1)):
        return Outcome(LOST, f"metrics.jsonl has steps {steps}")
    return Outcome(RECOVERED if kills else HARMLESS, f"{kills} kills")


def kill_while(work: Callable[[], Iterator[int]], draw: random.Random) -> int:
    """Run `work`, which yields after each finished write, in a fork; kill it; the number of its last finished write."""
    reading, writing = os.pipe()

    def loop() -> None:
        for n in work():
            if n == 1:
                KillAfter(0, draw.uniform(0, 0.3)).arm()
            os.write(writing, f"{n}\n".encode())

    killed = in_child(loop)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        lines = pipe.read().splitlines()
    if not killed:
        raise Ended(TRACEBACK, "ended before it was killed")
    return int(lines[-1]) if lines else 0


def save_stream(root: Path, expected: str, draw: random.Random) -> Outcome:
    """A stream that is saved after each token."""
    from ematrace.spen import SpenStream
    from ematrace.train import load_model

    model, tokenizer = load_model(root / "run" / "model")
    ids, path = tokenizer(PROMPT).input_ids, Path("state.safetensors")
    stream = SpenStream(model.eval(), decoder=None)

    def work() -> Iterator[int]:
        n = 0
        while True:
            stream.step([ids[n % len(ids)]])
            stream.save(path)
            n += 1
            yield n

    finished = kill_while(work, draw)
    seen = SpenStream(model, decoder=None).load(path).snapshot().cache.seen_tokens
    return Outcome(RECOVERED, f"{seen} tokens") if seen >= finished else Outcome(LOST, f"{seen} of {finished} tokens")


def save_spcn(root: Path, expected: str, draw: random.Random) -> Outcome:
    from ematrace.spcn import SPCN

    path = Path("model.safetensors")
    models = [new_spcn(seed).fit(sentences(5)) for seed in (0, 1)]
    features = [digest(*(part.tobytes() for part in m.transform(sentences(2)))) for m in models]

    def work() -> Iterator[int]:
        n = 0
        while True:
            models[n % 2].save(path)
            n += 1
            yield n

    finished = kill_while(work, draw)
    found = digest(*(part.tobytes() for part in SPCN.load(path).transform(sentences(2))))
    return Outcome(RECOVERED if found in features else SILENT, f"after {finished} saves")


def pack_and_kill(root: Path, expected: str, draw: random.Random) -> Outcome:
    os.environ["EMATRACE_CACHE"] = str(Path("cache").absolute())

    def work() -> None:
        KillAfter(0, draw.uniform(0, 0.05)).arm()
        open_pack(root)

    killed = in_child(work)
    return Outcome(RECOVERED if open_pack(root) == expected else SILENT, "" if killed else "ended before it was killed")


EXPERIMENT = """
import time
from ematrace.experiments import Experiment, factorial
from ematrace.results import Metric


def measure(ctx, part):
    time.sleep(0.5)
    return {"value": Metric(float(part + ctx.seed))}


EXPERIMENT = Experiment(name="slow", title="Sleeps", grid=factorial(part=[0, 1, 2]), measure=measure, seconds=1)
"""


def start_reproduce(mark: str) -> subprocess.Popen[bytes]:
    Path("slow.py").write_text(EXPERIMENT)
    command = [sys.executable, "-m", "ematrace", "reproduce", "./slow.py", "--seeds", "2", "--jobs", "2"]
    with Path("reproduce.log").open("wb") as log:
        return subprocess.Popen(
            [*command, "--report", "None"], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            env={**os.environ, MARK: mark}, start_new_session=True,
        )  # fmt: skip


def processes_of(mark: str) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                found += [int(folder.name)] if state != "Z" else []
        except OSError:  # it ended, or is somebody else's
            continue
    return found


def workers_of(mark: str, main: int) -> list[int]:
    """Processes that have started on a unit: they have imported the experiment."""
    return [
        pid for pid in processes_of(mark)
        if pid != main and b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]  # fmt: skip


def wait_for(condition: Callable[[], object], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return bool(condition())


def kill_reproduce(root: Path, expected: str, draw: random.Random) -> Outcome:
    """The main process, then a worker of the second attempt; the cells must be those of an undisturbed run."""
    first, cells = f"{os.getpid()}-main", Path("results/local/slow")
    main = start_reproduce(first)
    wait_for(lambda: any(cells.glob("*.json")), 60)
    time.sleep(draw.uniform(0, 0.8))
    main.kill()
    main.wait()
    if not wait_for(lambda: not processes_of(first), 10):
        left = processes_of(first)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        return Outcome(ORPHAN, f"{len(left)} processes 10 s after the main one was killed")
    kept = {path.name: path.read_bytes() for path in cells.glob("*.json")}
    second = f"{os.getpid()}-worker"
    main = start_reproduce(second)
    if wait_for(lambda: workers_of(second, main.pid), 60):
        time.sleep(draw.uniform(0, 4))
        for pid in workers_of(second, main.pid)[:1]:
            os.kill(pid, signal.SIGKILL)
    code = main.wait(60)
    if code != 0:
        return Outcome(LOST, f"a killed worker: exit code {code}: {Path('reproduce.log').read_text()[-200:]}")
    if len(list(cells.glob("*.json"))) != 6 or any((cells / name).read_bytes() != data for name, data in kept.items()):
        return Outcome(LOST, "cells are missing, or were measured again")
    return Outcome(RECOVERED, f"{len(kept)} cells when killed")


KILLS: dict[str, Callable[[Path, str, random.Random], Outcome]] = {
    "train": train_and_kill,
    "stream_state": save_stream,
    "spcn_save": save_spcn,
    "pack": pack_and_kill,
    "reproduce": kill_reproduce,
}
