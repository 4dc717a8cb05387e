"""Training on 2 cores: spen-tiny against gpt2-tiny, the transformer of its width and depth, on the same tokens.

A step is what `ematrace train` does in one: 16 sequences of 256 tokens (the tiny presets' own) in micro-batches of 8,
forward, backward, clip, AdamW, float32; data come from memory. Both go through the same loss, a cross-entropy that
never holds all logits. Longer sequences with as many tokens a step show what attention adds; SPEN with a dense
feed-forward layer shows what top-k costs. Tokens are random: their values do not matter to time.

Floor: the operations of `ematrace.models.flops`, against the rate of a plain matmul. Models this small do not come near
it: most of the time goes into operators between the matmuls.

    python benchmarks/training_cpu.py --record results
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ematrace.bench import Case, Comparison, ceiling_row, finish, label, matmul_rate, parser, time_cases
from ematrace.models.flops import flops_per_token
from ematrace.results import Factors, Metric
from ematrace.train import TrainConfig
from ematrace.train.config import resolve_recipe
from ematrace.train.loss import LanguageModelLoss
from ematrace.train.models import build_model
from ematrace.train.optimiser import build_optimiser

NEEDS = "cpu"
THREADS = 2
VOCABULARY = 4096
LENGTHS, QUICK_LENGTHS = (256, 1024, 4096), (32, 64)
STEPS, QUICK_STEPS = 3, 1  # in one call that is timed
REPETITIONS, QUICK_REPETITIONS = 7, 2
CONTENDERS: tuple[Factors, ...] = (
    {"contender": "spen", "ffn": "topk"},
    {"contender": "spen", "ffn": "dense"},
    {"contender": "gpt2"},
)
TOLERANCE = 1e-4


class Training:
    """Steps of one model on fixed tokens, as `ematrace.train.loop` makes them."""

    def __init__(self, contender: Factors, length: int, tokens_per_step: int) -> None:
        preset = f"{contender['contender']}-tiny"
        overrides = [f"ffn={contender['ffn']}"] if "ffn" in contender else []
        config = TrainConfig(preset=preset, data="random", out=Path())
        recipe = resolve_recipe(config)
        torch.manual_seed(0)
        self.factors = {**contender, "tokens": length}
        self.model: Any = build_model(preset, VOCABULARY, overrides=overrides, length=length).train()
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
        self.operations = self.tokens * flops_per_token(self.model, length)

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

    def case(self, steps: int) -> Case:
        return Case(
            self.factors,
            partial(self.run, steps),
            operations=steps * self.operations,
            tokens=steps * self.tokens,
            others={"parameters": Metric(float(self.model.num_parameters()))},
        )

    def check(self) -> str:
        """The loss and its gradient at the embedding against all logits at once."""
        ids = self.ids[:2]
        _, cross_entropy = self.loss(ids)
        embedding = self.model.get_input_embeddings().weight
        (grad,) = torch.autograd.grad(cross_entropy, embedding)
        logits: Tensor = self.model(ids[:, :-1]).logits
        expected = F.cross_entropy(logits.flatten(0, 1).double(), ids[:, 1:].flatten())
        (expected_grad,) = torch.autograd.grad(expected, embedding)
        error = abs(float(cross_entropy.detach() - expected.detach()))
        grad_error = float((grad - expected_grad).norm() / expected_grad.norm())
        line = (
            f"{label(self.factors)}: cross-entropy within {error:.1e} of all logits at once, its gradient within "
            f"{grad_error:.1e}"
        )
        if not (error < TOLERANCE and grad_error < TOLERANCE):
            raise SystemExit(f"{line}: more than {TOLERANCE}")
        return line


def main() -> None:
    arguments = parser(__doc__, quick="short sequences").parse_args()
    torch.set_num_threads(THREADS)
    quick: bool = arguments.quick
    lengths = QUICK_LENGTHS if quick else LENGTHS
    steps, repetitions = (QUICK_STEPS, QUICK_REPETITIONS) if quick else (STEPS, REPETITIONS)
    tokens_per_step = 16 * lengths[0]
    runs = [Training(contender, n, tokens_per_step) for n in lengths for contender in CONTENDERS]
    checks = [run.check() for run in runs[: len(CONTENDERS)]]
    cells = time_cases([run.case(steps) for run in runs], repetitions)
    finish(
        "training_cpu",
        "Training tiny models on a CPU",
        [*cells, ceiling_row("matmul", matmul_rate(torch.device("cpu"), torch.float32))],
        scale="cpu",
        checks=checks,
        comparisons=[Comparison({"contender": "gpt2"}, {"contender": "spen", "ffn": ffn}) for ffn in ("topk", "dense")],
        settings={
            **{"threads": THREADS, "vocabulary": VOCABULARY, "tokens_per_step": tokens_per_step, "steps": steps},
            "repetitions": repetitions,
        },
        quick=quick,
        to=arguments.record,
        force=arguments.force,
    )


if __name__ == "__main__":
    main()
