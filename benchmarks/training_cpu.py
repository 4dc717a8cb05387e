"""Training on 2 cores: spen-tiny against gpt2-tiny, the transformer of its width and depth, on the same tokens.

A step is what `ematrace train` does in one: 16 sequences of 256 tokens (the tiny presets' own) in micro-batches of 8,
forward, backward, clip, AdamW, float32; data come from memory. Both go through the same loss, a cross-entropy that
never holds all logits. Longer sequences with as many tokens a step show what attention adds; SPEN without top-k shows
what that costs. Tokens are random: they decide about nothing that costs time.

Floor: 6 operations for each weight in a product and token, and for GPT-2 those of its attention, held against a plain
product. Models this small do not come near it: most of the time goes into operators between the products.

    python benchmarks/training_cpu.py --record results/benchmarks
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ematrace.bench import BenchmarkRecord, Row, finish, matmul_rate, ratio, time_cpu
from ematrace.train import TrainConfig
from ematrace.train.config import resolve_recipe
from ematrace.train.loss import LanguageModelLoss
from ematrace.train.metrics import flops_per_token
from ematrace.train.models import build_model
from ematrace.train.optimiser import build_optimiser

NEEDS = "cpu"
THREADS = 2
VOCABULARY = 4096
LENGTHS, QUICK_LENGTHS = (256, 1024, 4096), (32, 64)
STEPS, QUICK_STEPS = 3, 1  # in one call that is timed
REPETITIONS, QUICK_REPETITIONS = 7, 2
CONTENDERS = {"spen-tiny": (), "spen-tiny dense": ("ffn=dense",), "gpt2-tiny": ()}
TOLERANCE = 1e-4


class Training:
    """Steps of one model on fixed tokens, as `ematrace.train.loop` makes them."""

    def __init__(self, name: str, length: int, tokens_per_step: int) -> None:
        preset = name.split()[0]
        config = TrainConfig(preset=preset, data="random", out=Path())
        recipe = resolve_recipe(config)
        torch.manual_seed(0)
        self.model: Any = build_model(preset, VOCABULARY, overrides=CONTENDERS[name], length=length).train()
        self.loss = LanguageModelLoss(self.model)
        self.optimiser = build_optimiser(self.model, config, torch.device("cpu"))
        for group in self.optimiser.param_groups:
            group["lr"] = recipe.lr
        self.clip = config.clip
        sequences = max(tokens_per_step // length, 1)
        draw = torch.Generator().manual_seed(0)
        self.ids = torch.randint(VOCABULARY, (sequences, length + 1), generator=draw)
        self.micro_batch = max(recipe.micro_batch * recipe.length // length, 1)
        self.tokens = sequences * length

    def step(self) -> None:
        batches = self.ids.split(self.micro_batch)
        for ids in batches:
            loss, _ = self.loss(ids)
            (loss / len(batches)).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def check(self, name: str) -> str:
        """The loss and its gradient at the embedding against all logits at once."""
        ids = self.ids[:2]
        _, cross_entropy = self.loss(ids)
        embedding = self.model.get_input_embeddings().weight
        (grad,) = torch.autograd.grad(cross_entropy, embedding)
        logits: Tensor = self.model(ids[:, :-1], skip_logits=False).logits if self.loss.has_own_loss else (
            self.model(ids[:, :-1]).logits
        )  # fmt: skip
        expected = F.cross_entropy(logits.flatten(0, 1).double(), ids[:, 1:].flatten())
        (expected_grad,) = torch.autograd.grad(expected, embedding)
        error = abs(float(cross_entropy.detach() - expected.detach()))
        grad_error = float((grad - expected_grad).norm() / expected_grad.norm())
        line = f"{name}: cross-entropy within {error:.1e} of all logits at once, its gradient within {grad_error:.1e}"
        if not (error < TOLERANCE and grad_error < TOLERANCE):
            raise SystemExit(f"{line}: more than {TOLERANCE}")
        return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short sequences, to see that it runs")
    parser.add_argument("--record", type=Path, help="folder for the record")
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    quick: bool = arguments.quick
    lengths = QUICK_LENGTHS if quick else LENGTHS
    steps, repetitions = (QUICK_STEPS, QUICK_REPETITIONS) if quick else (STEPS, REPETITIONS)
    tokens_per_step = 16 * lengths[0]
    runs = {f"{name} T={n}": Training(name, n, tokens_per_step) for n in lengths for name in CONTENDERS}
    checks = [runs[f"{name} T={lengths[0]}"].check(name) for name in CONTENDERS]
    work: dict[str, Callable[[], object]] = {name: lambda r=run: r.run(steps) for name, run in runs.items()}  # type: ignore[misc]
    timings = time_cpu(work, repetitions)
    rows = []
    for name, timing in timings.items():
        run = runs[name]
        operations = steps * run.tokens * flops_per_token(run.model, run.ids.shape[1] - 1)
        rows.append(Row(name, timing, operations=operations, tokens=steps * run.tokens))
    ratios = {
        f"{name} against gpt2-tiny at {n}": ratio(timings[f"gpt2-tiny T={n}"], timings[f"{name} T={n}"])
        for n in lengths
        for name in CONTENDERS
        if name.startswith("spen")
    }
    finish(
        BenchmarkRecord(
            benchmark="training_cpu",
            title="Training tiny models on a CPU",
            rows=tuple(rows),
            ratios=ratios,
            ceilings={"matmul_flops_per_second": matmul_rate(torch.device("cpu"), torch.float32)},
            checks=tuple(checks),
            settings={
                **{"threads": THREADS, "vocabulary": VOCABULARY, "tokens_per_step": tokens_per_step, "steps": steps},
                **{"repetitions": repetitions, "quick": quick},
            },
            figures={f"parameters.{n}": float(runs[f"{n} T={lengths[0]}"].model.num_parameters()) for n in CONTENDERS},
        ),
        arguments.record,
    )


if __name__ == "__main__":
    main()
