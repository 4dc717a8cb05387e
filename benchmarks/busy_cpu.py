"""Training spen-tiny on a quiet machine and beside other programs, by how torch's threads wait for one another.

Each way of waiting is a process of its own, since libgomp reads its settings once: `spinning` is its default, `asleep`
is OMP_WAIT_POLICY=passive, `shared` is what `ematrace train` does (`ematrace.sharing`): spinning, but only shortly
while other programs are busy. They train in turn, the same steps as in training_cpu.py, with nothing beside them,
beside as many busy loops as there are processors, and beside four times as many. All end with the same weights, to the
bit.

Floor: what fair shares leave of the speed on a quiet machine, a half beside as many busy loops as it has threads, and a
fifth beside four times as many.

    python benchmarks/busy_cpu.py --record results
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import torch

from ematrace.bench import Case, Comparison, finish, parser, time_cases
from ematrace.results import Row
from ematrace.sharing import CHOSEN, processors, shared_processors

NEEDS = "cpu"
LENGTH, QUICK_LENGTH = 256, 16
TOKENS_PER_STEP, QUICK_TOKENS_PER_STEP = 4096, 64
STEPS, QUICK_STEPS = 2, 1  # in one call that is timed
REPETITIONS, QUICK_REPETITIONS = 5, 2
SETTLE, QUICK_SETTLE = 1.2, 0.0  # seconds before each call: `shared` looks twice a second at what others do
SPINNING = {"GOMP_SPINCOUNT": "300000"}  # libgomp's default, said aloud, so that nothing shortens it
WAITING = {"spinning": SPINNING, "asleep": {"OMP_WAIT_POLICY": "passive"}, "shared": {}}
WORKER = "--worker"


class Worker:
    """A process that trains when it is asked to."""

    def __init__(self, waiting: str, quick: bool) -> None:
        environment = {name: value for name, value in os.environ.items() if name not in CHOSEN} | WAITING[waiting]
        command = [sys.executable, __file__, WORKER, *(["--quick"] if quick else [])]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.read()

    def read(self) -> str:
        assert self.process.stdout is not None
        answer = self.process.stdout.readline().strip()
        if not answer:
            raise SystemExit("busy_cpu: a worker ended early")
        return answer

    def ask(self, steps: int) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return self.read()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def work(quick: bool) -> None:
    """In a worker: as many steps as each line asks for; the answer is a digest of the weights."""
    from training_cpu import Training

    torch.set_num_threads(processors())
    length, tokens = (QUICK_LENGTH, QUICK_TOKENS_PER_STEP) if quick else (LENGTH, TOKENS_PER_STEP)
    training = Training({"contender": "spen", "ffn": "topk"}, length, tokens)
    chosen = any(name in os.environ for name in CHOSEN)
    with nullcontext() if chosen else shared_processors():
        training.step()
        print("ready", flush=True)
        for line in sys.stdin:
            training.run(int(line))
            weights = b"".join(p.detach().numpy().tobytes() for p in training.model.parameters())
            print(hashlib.sha256(weights).hexdigest(), flush=True)


@contextmanager
def busy_loops(n: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def measure(workers: dict[str, Worker], load: int, quick: bool) -> list[Row]:
    steps, repetitions = (QUICK_STEPS, QUICK_REPETITIONS) if quick else (STEPS, REPETITIONS)
    tokens = steps * (QUICK_TOKENS_PER_STEP if quick else TOKENS_PER_STEP)
    settle = partial(time.sleep, QUICK_SETTLE if quick else SETTLE)
    cases = [
        Case(
            {"contender": "spen", "waiting": name, "load": load},
            partial(worker.ask, steps),
            tokens=tokens,
            prepare=settle,
        )
        for name, worker in workers.items()
    ]
    with busy_loops(load):
        return time_cases(cases, repetitions)


def main() -> None:
    options = parser(__doc__, quick="tiny batches")
    options.add_argument(WORKER, action="store_true", help="train steps as standard input asks for them")
    arguments = options.parse_args()
    quick: bool = arguments.quick
    if arguments.worker:
        work(quick)
        return
    loads = (0, processors(), 4 * processors())
    workers = {name: Worker(name, quick) for name in WAITING}
    try:
        cells = [row for load in loads for row in measure(workers, load, quick)]
        digests = {worker.ask(1) for worker in workers.values()}
    finally:
        for worker in workers.values():
            worker.end()
    if len(digests) > 1:
        raise SystemExit("busy_cpu: the ways of waiting end with different weights")
    finish(
        "busy_cpu",
        "Training spen-tiny beside other programs",
        cells,
        scale="cpu",
        checks=["the weights at the end are the same to the bit, however threads wait"],
        comparisons=[
            *(Comparison({"waiting": other}, {"waiting": "shared"}) for other in ("spinning", "asleep")),
            *(Comparison({"load": load}, {"load": 0}) for load in loads[1:]),
        ],
        settings={"threads": processors(), "steps": STEPS, "repetitions": REPETITIONS, "settle_seconds": SETTLE},
        quick=quick,
        to=arguments.record,
        force=arguments.force,
        makes_load=True,
    )


if __name__ == "__main__":
    main()
