"""Kill training with SIGKILL at random moments and resume it: `train_killer.py CONFIG FOLDER KILLS SEED`.

And ask a long run to stop, by SIGTERM and by SIGINT. A process that has everything imported forks one child per
attempt, which saves the seconds of a cold start. The last line on standard output is JSON: `killed`, a list of [digest,
kills, kills that left a half-written checkpoint], first the run that was never killed; and `stopped`, the exit status
by signal.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ematrace.train import TrainConfig, train
from train_support import digest, from_json

# What a run imports on its way, once for all children.
for name in (
    *("torch.distributed.fsdp", "torch.distributed.tensor", "transformers.models.gpt2.modeling_gpt2"),
    *("ematrace.spen", "ematrace.baselines.language", "ematrace.results", "filelock"),
):
    importlib.import_module(name)


class TellStart:
    """Writes a byte when the first step is about to begin, or when it is done."""

    def __init__(self, pipe: int, when: str = "start") -> None:
        self.pipe, self.when = pipe, when

    def on_start(self, total_steps: int) -> None:
        if self.when == "start":
            os.write(self.pipe, b"s")

    def on_step(self, metrics: Mapping[str, Any]) -> None:
        if self.when == "step" and metrics["step"] == 1:
            os.write(self.pipe, b"s")

    def on_event(self, text: str) -> None: ...
    def close(self) -> None: ...


def attempt(config: TrainConfig, disturb: Callable[[int], None] | None) -> tuple[bool, float]:
    """Train in a forked child, killed by `disturb` or not: whether it came to its end, and how long the steps took."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            train(config, display=TellStart(writing))
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    os.close(writing)
    os.read(reading, 1)
    begun = time.perf_counter()
    if disturb is not None:
        disturb(child)
    _, status = os.waitpid(child, 0)
    os.close(reading)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        sys.exit(f"training failed in {config.out}")
    return os.WIFEXITED(status), time.perf_counter() - begun


def kill_once_and_resume(config: TrainConfig, longest: float, draw: random.Random) -> tuple[int, int]:
    """Kills on the way and how many of them fell into the writing of a checkpoint."""
    kills = torn = 0

    def kill(child: int) -> None:
        time.sleep(draw.uniform(0.0, longest))
        os.kill(child, signal.SIGKILL)

    while kills < 1 + draw.randrange(2):
        done, _ = attempt(config, kill)
        if done:
            break
        kills += 1
        torn += any((config.out / "checkpoints").glob(".step-*"))
    attempt(config, None)
    return kills, torn


def exit_status_after(number: int, config: TrainConfig) -> int:
    """Of a child that is sent a signal after its first step, as the command line would end; negative if it died."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        code = 1
        try:
            code = train(config, display=TellStart(writing, "step")).exit_code
        finally:
            os._exit(code)
    os.close(writing)
    os.read(reading, 1)
    os.kill(child, number)
    _, status = os.waitpid(child, 0)
    os.close(reading)
    return os.waitstatus_to_exitcode(status)


def main() -> None:
    torch.set_num_threads(1)
    config, folder = from_json(sys.argv[1]), Path(sys.argv[2])
    train(replace(config, out=folder / "warm"))  # what a first run imports and measures, once for all children
    draw = random.Random(int(sys.argv[4]))
    whole = replace(config, out=folder / "whole", resume="auto")
    _, seconds = attempt(whole, None)
    rows = [[digest(whole.out), 0, 0]]
    kills = 0
    while kills < int(sys.argv[3]):
        run = replace(whole, out=folder / f"run-{len(rows)}")
        here, torn = kill_once_and_resume(run, 0.9 * seconds, draw)
        rows.append([digest(run.out), here, torn])
        kills += here
    long = replace(config, tokens=100_000 * 64, checkpoint_every=100_000, keep=1)
    numbers = (signal.SIGTERM, signal.SIGINT)
    stopped = {n: exit_status_after(n, replace(long, out=folder / signal.Signals(n).name)) for n in numbers}
    print(json.dumps({"killed": rows, "stopped": stopped}))


if __name__ == "__main__":
    main()
