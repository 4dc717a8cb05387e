"""Tokens per second of training steps on one GPU: kernel by kernel, compiled, as one CUDA graph, in several processes.

The steps are those of `ematrace train` (`Run`, `Gradients`, `PlainStep`, `GraphedStep`, batches read ahead, a line of
metrics per step); the ids are synthetic. All variants of a model start from the same weights and see the same ids, so
their losses can be compared. The last line is JSON. About three minutes on an H200.

    python scripts/gpu/train_small.py [--out FILE] [--profile] [--sizes small,130m] [--processes 1,2,4,6]
    python scripts/gpu/train_small.py --device cpu --quick
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ematrace.bench.measure import matmul_rate
from ematrace.models.flops import flops_per_token
from ematrace.train.batches import Ids, PackedBatches
from ematrace.train.config import TrainConfig, resolve_recipe
from ematrace.train.distributed import World, choose_device, distribute
from ematrace.train.loop import fast_matmul
from ematrace.train.loss import LanguageModelLoss
from ematrace.train.metrics import MetricsFile, PeakMemory
from ematrace.train.models import build_model
from ematrace.train.optimiser import parameter_groups
from ematrace.train.run import Run
from ematrace.train.step import Gradients, GraphedStep, PlainStep, Step

ENDLESS = 10**9


@dataclass(frozen=True)
class Size:
    """A model, its batch, and how many steps show its speed."""

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
    "small": Size("spen-7m", ("n_layers=4",), 8192, 64, 512, 64, 300, 50, ALL),
    "130m": Size("spen-130m", (), 50257, 224, 2048, 56, 8, 2, ((True, False), (True, True))),
}
QUICK = ("d_model=16", "d_ff=32", "k=4", "n_heads=2")
QUICK_SIZES = {
    "small": Size("spen-tiny", QUICK, 61, 4, 16, 4, 12, 3, ((False, False), (False, True))),
    "130m": Size("spen-tiny", QUICK, 61, 8, 16, 2, 6, 2, ((False, False), (False, True))),
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


def measure(bench: Bench, *, graphed: bool) -> dict[str, Any]:
    """Losses of all steps, and tokens per second of those after the first `warm`."""
    size, run = bench.size, bench.run()
    if bench.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    prepared = time.perf_counter()
    step = bench.step(run, graphed=graphed)
    lines, memory = MetricsFile(bench.out / "metrics.jsonl", after_step=0), PeakMemory(bench.device)
    losses: list[float] = []
    begun = seconds = 0.0
    for update in run.updates(step):
        losses.append(update.loss)
        lines.write({**asdict(update), "memory_bytes": memory.bytes(), "seconds": run.seconds})
        if update.step == size.warm:
            begun = time.perf_counter()
        if update.step == size.warm + size.steps:
            seconds = time.perf_counter() - begun
            break
    lines.close()
    return {
        "tokens_per_second": size.steps * size.tokens_per_step / seconds,
        "ms_per_step": 1000 * seconds / size.steps,
        "peak_gib": memory.bytes() / 2**30,
        "seconds_to_first_clock": begun - prepared,
        "losses": losses,
    }


def name_of(compiled: bool, graphed: bool) -> str:
    return {(False, False): "plain", (False, True): "graphed", (True, False): "compiled"}.get(
        (compiled, graphed), "compiled_graphed"
    )


def measure_size(size: Size, device: torch.device, out: Path, note: Any) -> dict[str, Any]:
    result: dict[str, Any] = {}
    losses: dict[str, list[float]] = {}
    for compiled in sorted({compiled for compiled, _ in size.variants}):
        torch._dynamo.reset()
        bench = Bench(size, device, compiled=compiled, out=out)
        for graphed in (g for c, g in size.variants if c == compiled):
            name = name_of(compiled, graphed)
            found = measure(bench, graphed=graphed)
            losses[name] = found.pop("losses")
            result[name] = found
            note(f"  {name}: {found['tokens_per_second'] / 1e6:.3f}M tokens/s, {found['ms_per_step']:.3f} ms a step")
        result["flops_per_token"] = flops_per_token(bench.model, size.length)
        del bench
        if device.type == "cuda":
            torch.cuda.empty_cache()
    compared = 50
    for graphed, plain in (("graphed", "plain"), ("compiled_graphed", "compiled")):
        if graphed in losses and plain in losses:
            pairs = list(zip(losses[graphed], losses[plain], strict=True))[:compared]
            result[f"largest_loss_difference.{graphed}"] = max(abs(a - b) for a, b in pairs)
            result[f"steps_compared.{graphed}"] = len(pairs)
            result[f"first_and_last_loss.{graphed}"] = [losses[graphed][0], losses[graphed][-1]]
    return result


def profile(size: Size, device: torch.device, out: Path) -> str:
    """Kernels of the compiled, graphed step by their share of GPU time."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as recorded

    torch._dynamo.reset()
    bench = Bench(size, device, compiled=device.type == "cuda", out=out)
    run = bench.run()
    updates = run.updates(bench.step(run, graphed=True))
    for _ in range(20):
        next(updates)
    with recorded(activities=[ProfilerActivity.CUDA if device.type == "cuda" else ProfilerActivity.CPU]) as trace:
        for _ in range(10):
            next(updates)
        if device.type == "cuda":
            torch.cuda.synchronize()
    updates.close()
    key = "self_cuda_time_total" if device.type == "cuda" else "self_cpu_time_total"
    return str(trace.key_averages().table(sort_by=key, row_limit=40, max_name_column_width=90))


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


def measure_processes(counts: Sequence[int], seconds: float, arguments: Sequence[str], note: Any) -> dict[str, float]:
    """Tokens per second of n processes together on one GPU."""
    total: dict[str, float] = {}
    with workers(max(counts), arguments) as started:
        for process in started:
            answer(process)
        for n in counts:
            for process in started[:n]:
                assert process.stdin is not None
                process.stdin.write(f"{seconds}\n")
                process.stdin.flush()
            done = [json.loads(answer(process)) for process in started[:n]]
            total[str(n)] = sum(tokens / elapsed for tokens, elapsed in done)
            note(f"  {n} processes: {total[str(n)] / 1e6:.3f}M tokens/s")
    return total


def parse(sizes: Mapping[str, Size]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--quick", action="store_true", help="toy sizes, also on a CPU, to see that it runs")
    parser.add_argument("--sizes", default=",".join(sizes))
    parser.add_argument("--processes", default=None, help="counts of processes that share the GPU; empty for none")
    parser.add_argument("--profile", action="store_true", help="also print the kernels of the small model's step")
    parser.add_argument("--out", type=Path, help="file for the result")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse(SIZES)
    sizes = QUICK_SIZES if arguments.quick else SIZES
    device = choose_device(arguments.device)
    if device.type == "cpu" and not arguments.quick:
        raise SystemExit("train_small: no GPU here; --device cpu --quick runs toy models")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    begun = time.perf_counter()

    def note(text: str) -> None:
        print(f"{text} [{time.perf_counter() - begun:.0f} s]", flush=True)

    with tempfile.TemporaryDirectory() as folder, fast_matmul(device):
        out = Path(folder)
        if arguments.worker:
            worker(sizes["small"], device, out)
            return
        result: dict[str, Any] = {"script": "train_small", "torch": torch.__version__, "quick": arguments.quick}
        result["device"] = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        if device.type == "cuda":
            result["matmul_flops_per_second"] = matmul_rate(device, torch.bfloat16)
        for name in arguments.sizes.split(","):
            note(name)
            result[name] = measure_size(sizes[name], device, out, note)
        counts = arguments.processes if arguments.processes is not None else ("1,2" if arguments.quick else "1,2,4,6")
        if counts:
            passed = ["--device", str(device), *(["--quick"] if arguments.quick else [])]
            seconds = 0.3 if arguments.quick else 4.0
            chosen = [int(n) for n in counts.split(",")]
            result["processes"] = measure_processes(chosen, seconds, passed, note)
        if arguments.profile:
            print(profile(replace(sizes["small"], warm=20), device, out))
    result["seconds"] = time.perf_counter() - begun
    text = json.dumps(result)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
