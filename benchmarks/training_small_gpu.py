"""Training steps of a small model on one GPU: kernel by kernel, compiled, as one CUDA graph, in several processes.

The steps are those of `ematrace train` (`Run`, `Gradients`, `PlainStep`, `GraphedStep`, batches read ahead, a line of
metrics per step); the ids are synthetic. All variants of a model start from the same weights and see the same ids, so
their losses can be compared. About two and a half minutes on an H200.

    python benchmarks/training_small_gpu.py --record results
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ematrace.bench import Comparison, Timing, ceiling_row, finish, gpu_unless_quick, matmul_rate, parser, timing_row
from ematrace.models.flops import flops_per_token
from ematrace.results import Factors, Metric, Row
from ematrace.results.schema import Factor
from ematrace.train.batches import Ids, PackedBatches
from ematrace.train.config import TrainConfig, resolve_recipe
from ematrace.train.distributed import World, distribute
from ematrace.train.loop import fast_matmul
from ematrace.train.loss import LanguageModelLoss
from ematrace.train.metrics import MetricsFile, PeakMemory
from ematrace.train.models import build_model
from ematrace.train.optimiser import parameter_groups
from ematrace.train.run import Run
from ematrace.train.step import Gradients, GraphedStep, PlainStep, Step

NEEDS = "cuda"
ENDLESS = 10**9
BLOCKS = 6
"""Repetitions: the steps on the clock in equal blocks."""
COMPARED = 50
"""Steps whose losses are compared."""
PROCESSES, QUICK_PROCESSES = (1, 2, 4, 6), (1, 2)


@dataclass(frozen=True)
class Size:
    """A model, its batch, and how many steps show its speed."""

    size: str
    preset: str
    overrides: tuple[str, ...]
    vocab_size: int
    sequences: int
    length: int
    micro_batch: int
    steps: int
    warm: int
    """Steps before the clock starts."""
    variants: tuple[tuple[bool, bool], ...]
    """(compiled, graphed)."""

    @property
    def tokens_per_step(self) -> int:
        return self.sequences * self.length


ALL = ((False, False), (False, True), (True, False), (True, True))
SIZES = {
    "small": Size("2m", "spen-7m", ("n_layers=4",), 8192, 64, 512, 64, 300, 50, ALL),
    "130m": Size("130m", "spen-130m", (), 50257, 224, 2048, 56, 12, 2, ((True, False), (True, True))),
}
QUICK = ("d_model=16", "d_ff=32", "k=4", "n_heads=2")
QUICK_SIZES = {
    "small": Size("2m", "spen-tiny", QUICK, 61, 4, 16, 4, 12, 3, ((False, False), (False, True))),
    "130m": Size("130m", "spen-tiny", QUICK, 61, 8, 16, 2, 6, 2, ((False, False), (False, True))),
}


class Walk:
    """Tokens in memory: a random walk over the vocabulary, so that there is something to learn."""

    def __init__(self, vocab_size: int, n_tokens: int) -> None:
        steps = np.random.default_rng(0).integers(1, 8, n_tokens)
        self.ids = (np.cumsum(steps) % vocab_size).astype(np.uint16)
        self.n_tokens, self.vocab_size, self.eos_id, self.fingerprint = n_tokens, vocab_size, 0, "walk"

    def n_windows(self, length: int) -> int:
        return (self.n_tokens - 1) // length

    def window(self, i: int, length: int) -> Ids:
        return self.ids[i * length : i * length + length + 1].astype(np.int64)

    def document_starts(self, i: int, length: int) -> Any:
        return []

    def counts(self) -> Ids:
        return np.bincount(self.ids, minlength=self.vocab_size)


class Bench:
    """One model with its first weights, from which every variant starts."""

    def __init__(self, size: Size, device: torch.device, *, compiled: bool, out: Path) -> None:
        self.size, self.device, self.out = size, device, out
        self.world = World(0, 1, device)
        torch.manual_seed(0)
        self.model = build_model(size.preset, size.vocab_size, 0, size.overrides, length=size.length).to(device)
        self.first = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        self.loss = LanguageModelLoss(self.model).train()
        self.bfloat16 = device.type == "cuda"
        self.wrapped = distribute(self.loss, self.world, "ddp", bfloat16=self.bfloat16, compiled=compiled)
        self.walk = Walk(size.vocab_size, 200 * size.tokens_per_step + 1)

    def run(self) -> Run:
        """A fresh run: first weights, empty optimiser, batches from the start."""
        self.model.load_state_dict(self.first)
        torch.manual_seed(1)
        size = self.size
        shape = {"sequences": size.sequences, "length": size.length, "micro_batch": size.micro_batch}
        config = TrainConfig(
            preset=size.preset,
            data="walk",
            out=self.out,
            tokens=10_000 * size.tokens_per_step,  # the schedule's; no variant comes near its end
            warmup=20,
            checkpoint_every=ENDLESS,
            validate_every=ENDLESS,
            **shape,  # type: ignore[arg-type]
        )
        groups = parameter_groups(self.model, config.weight_decay)
        optimiser = torch.optim.AdamW(groups, lr=0.0, betas=config.betas, eps=1e-8, fused=True)
        return Run(
            config=config,
            recipe=resolve_recipe(config),
            record={},
            world=self.world,
            model=self.model,
            loss=self.loss,
            gradients=Gradients(self.wrapped, self.model, optimiser, config.clip, self.bfloat16, self.world),
            batches=PackedBatches(self.walk, **shape, seed=0, reset=False),
            validation=self.walk,
            tokenizer=None,
            fingerprints={},
        )

    def step(self, run: Run, *, graphed: bool) -> Step:
        if not graphed:
            return PlainStep(run.gradients)
        shape = (self.size.sequences // self.size.micro_batch, self.size.micro_batch, self.size.length + 1)
        return GraphedStep(run.gradients, shape, None if self.device.type == "cuda" else lambda work: work)


def measure(bench: Bench, *, graphed: bool) -> tuple[Timing, list[float], float]:
    """Seconds of each block of steps after the first `warm`, losses of all steps, and GiB at the peak."""
    size, run = bench.size, bench.run()
    if bench.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    step = bench.step(run, graphed=graphed)
    lines, memory = MetricsFile(bench.out / "metrics.jsonl", after_step=0), PeakMemory(bench.device)
    losses: list[float] = []
    clock: list[float] = []
    for update in run.updates(step):
        losses.append(update.loss)
        lines.write({**asdict(update), "memory_bytes": memory.bytes(), "seconds": run.seconds})
        if update.step >= size.warm and (update.step - size.warm) % (size.steps // BLOCKS) == 0:
            clock.append(time.perf_counter())
        if len(clock) > BLOCKS:
            break
    lines.close()
    return Timing(tuple(np.diff(clock))), losses, memory.bytes() / 2**30


def measure_size(size: Size, device: torch.device, out: Path) -> tuple[list[Row], list[str]]:
    """A cell for each variant, one for the distance of each graphed curve from the plain one, and what it says."""
    cells: list[Row] = []
    checks: list[str] = []
    losses: dict[tuple[bool, bool], list[float]] = {}
    for compiled in sorted({compiled for compiled, _ in size.variants}):
        torch._dynamo.reset()
        bench = Bench(size, device, compiled=compiled, out=out)
        tokens = size.steps // BLOCKS * size.tokens_per_step
        operations = flops_per_token(bench.model, size.length) * tokens
        for graphed in (g for c, g in size.variants if c == compiled):
            timing, losses[compiled, graphed], memory = measure(bench, graphed=graphed)
            factors: Factors = {"contender": "spen", "size": size.size, "compiled": compiled, "graphed": graphed}
            peak = Metric(memory, "GiB", better="low")
            cells.append(timing_row(factors, timing, operations=operations, tokens=tokens, peak_memory=peak))
            print(f"{factors}: {tokens / timing.median / 1e6:.3f}M tokens/s", flush=True)
        del bench
        if device.type == "cuda":
            torch.cuda.empty_cache()
        if {(compiled, False), (compiled, True)} <= losses.keys():
            curves = zip(losses[compiled, False][:COMPARED], losses[compiled, True][:COMPARED], strict=True)
            largest = max(abs(a - b) for a, b in curves)
            pair: dict[str, Factor] = {"pair": "steps", "size": size.size, "compiled": compiled}
            cells.append(Row(pair, {"largest_difference": Metric(largest, "nats", better="low")}))
            compared = min(COMPARED, len(losses[compiled, True]))
            how = "compiled" if compiled else "not compiled"
            checks.append(
                f"{size.size}, {how}: losses graphed and plain at most {largest:.1e} nats apart in {compared} steps"
            )
    return cells, checks


def worker(size: Size, device: torch.device, out: Path) -> None:
    """Trains for as many seconds as each line on standard input says, and answers with tokens and seconds."""
    bench = Bench(size, device, compiled=device.type == "cuda", out=out)
    run = bench.run()
    updates = run.updates(bench.step(run, graphed=True))
    for _ in range(size.warm):
        next(updates)
    print("ready", flush=True)
    for line in sys.stdin:
        begun, steps = time.perf_counter(), 0
        while time.perf_counter() - begun < float(line):
            next(updates)
            steps += 1
        print(json.dumps([steps * size.tokens_per_step, time.perf_counter() - begun]), flush=True)
    updates.close()


@contextmanager
def workers(n: int, arguments: Sequence[str]) -> Iterator[list[subprocess.Popen[str]]]:
    # What they compile is in the cache already: no pools of compilers.
    env = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--worker", *arguments]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) for _ in range(n)
    ]
    try:
        yield started
    finally:
        for process in started:
            if process.stdin is not None:
                process.stdin.close()
        for process in started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"a worker ended with exit code {process.wait()}")
    return line


def measure_processes(counts: Sequence[int], seconds: float, arguments: Sequence[str]) -> list[Row]:
    """Tokens per second of n processes together on one GPU."""
    cells: list[Row] = []
    with workers(max(counts), arguments) as started:
        for process in started:
            answer(process)
        for n in counts:
            for process in started[:n]:
                assert process.stdin is not None
                process.stdin.write(f"{seconds}\n")
                process.stdin.flush()
            done = [json.loads(answer(process)) for process in started[:n]]
            together = sum(tokens / elapsed for tokens, elapsed in done)
            cells.append(Row({"cores": n}, {"tokens_per_second": Metric(together, "tokens/s", better="high")}))
            print(f"{n} processes: {together / 1e6:.3f}M tokens/s", flush=True)
    return cells


def main() -> None:
    options = parser(__doc__, quick="toy models, also on a CPU")
    options.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = options.parse_args()
    sizes = QUICK_SIZES if arguments.quick else SIZES
    device = gpu_unless_quick(arguments.quick)
    cells: list[Row] = []
    checks: list[str] = []
    with tempfile.TemporaryDirectory() as folder, fast_matmul(device):
        if arguments.worker:
            worker(sizes["small"], device, Path(folder))
            return
        if device.type == "cuda":
            cells.append(ceiling_row("matmul", matmul_rate(device, torch.bfloat16)))
        for size in sizes.values():
            found, said = measure_size(size, device, Path(folder))
            cells += found
            checks += said
        counts, seconds = (QUICK_PROCESSES, 0.3) if arguments.quick else (PROCESSES, 4.0)
        cells += measure_processes(counts, seconds, ["--quick"] if arguments.quick else [])
    small = sizes["small"]
    finish(
        "training_small_gpu",
        "Training steps of a small model, and of SPEN-130M, as one CUDA graph",
        cells,
        scale="gpu" if device.type == "cuda" else "cpu",
        checks=checks,
        comparisons=[Comparison(over={"graphed": False}, under={"graphed": True}, where={"contender": "spen"})],
        notes=["Variants follow one another: only their blocks of steps are repetitions."],
        settings={"preset": small.preset, "overrides": list(small.overrides), "vocabulary": small.vocab_size}
        | {"sequences": small.sequences, "length": small.length},
        quick=arguments.quick,
        to=arguments.record,
        force=arguments.force,
    )


if __name__ == "__main__":
    main()
