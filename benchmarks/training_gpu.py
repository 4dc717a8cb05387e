"""Whole training steps of SPEN-130M on one GPU against transformers of its size: the paper's batch, bfloat16, compiled.

A step is 224 sequences of 2048 tokens in micro-batches of 56, forward and backward, clipping and AdamW; tokens are
drawn at random, since their values do not matter to time. Operations are 6 for each weight in a matrix product and
token, plus attention's own for the transformers; the ceiling is a product of 8192 x 8192 matrices. The peers, both with
this project's cross-entropy, which never holds all logits: transformers' GPT-2 (flash attention through torch), and a
plain transformer of the same size without biases and position embeddings, which is what the compiler likes best.

    python benchmarks/training_gpu.py --record results/benchmarks
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ematrace.bench import BenchmarkRecord, Row, finish, matmul_rate, ratio, time_cpu, time_gpu
from ematrace.ops import linear_cross_entropy
from ematrace.spen import SpenConfig, SpenForCausalLM
from ematrace.train.loss import LanguageModelLoss
from ematrace.train.models import build_model
from ematrace.train.optimiser import parameter_groups

NEEDS = "cuda"
SIZES: dict[str, Any] = {"vocabulary": 50257, "d": 768, "blocks": 12, "heads": 12}
SEQUENCES, MICRO, LENGTH = 224, 56, 2048
REPETITIONS = 6


class PlainTransformer(nn.Module):
    """Pre-norm transformer, tied head, GELU of 4 d units, causal attention by torch's fused kernel."""

    def __init__(self, vocabulary: int, d: int, blocks: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.embedding = nn.Embedding(vocabulary, d)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm": nn.LayerNorm(d, bias=False),
                    "qkv": nn.Linear(d, 3 * d, bias=False),
                    "out": nn.Linear(d, d, bias=False),
                    "norm_ff": nn.LayerNorm(d, bias=False),
                    "up": nn.Linear(d, 4 * d, bias=False),
                    "down": nn.Linear(4 * d, d, bias=False),
                }
            )
            for _ in range(blocks)
        )
        self.norm = nn.LayerNorm(d, bias=False)
        for p in self.parameters():
            if p.ndim == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embedding(ids[:, :-1])
        if torch.is_autocast_enabled(x.device.type):  # as in SPEN, the residual stream has autocast's dtype
            x = x.to(torch.get_autocast_dtype(x.device.type))
        for block in cast(Iterable[Mapping[str, nn.Module]], self.blocks):
            q, k, v = (
                t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in block["qkv"](block["norm"](x)).chunk(3, -1)
            )
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
            x = x + block["out"](mixed)
            x = x + block["down"](F.gelu(block["up"](block["norm_ff"](x))))
        loss = linear_cross_entropy(self.norm(x), self.embedding.weight, ids[:, 1:])
        return loss, loss


class Step:
    """A whole optimiser step of a model, on tokens that stay on the device."""

    def __init__(self, loss: nn.Module, ids: Tensor, micro: int) -> None:
        self.loss: Any = torch.compile(loss) if ids.is_cuda else loss
        self.parameters = list(loss.parameters())
        groups = parameter_groups(loss, weight_decay=0.1)
        self.optimiser = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), fused=ids.is_cuda)
        self.parts = ids.split(micro)

    def __call__(self) -> Tensor:
        self.optimiser.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.parts[0].device)
        for part in self.parts:
            with torch.autocast(part.device.type, torch.bfloat16, enabled=part.is_cuda):
                loss, cross_entropy = self.loss(part)
            (loss / len(self.parts)).backward()
            total += cross_entropy.detach()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimiser.step()
        return total / len(self.parts)


def build(name: str, sizes: dict[str, Any], length: int) -> nn.Module:
    torch.manual_seed(0)
    if name == "SPEN":
        d, k = sizes["d"], round(0.06 * 4 * sizes["d"])
        config = SpenConfig(
            vocab_size=sizes["vocabulary"], d_model=d, d_ff=4 * d, n_layers=sizes["blocks"], k=k, n_heads=sizes["heads"]
        )
        return LanguageModelLoss(SpenForCausalLM(config))
    if name == "GPT-2 of transformers":
        changes = [f"n_embd={sizes['d']}", f"n_layer={sizes['blocks']}", f"n_head={sizes['heads']}"]
        return LanguageModelLoss(build_model("gpt2-130m", sizes["vocabulary"], None, changes, length=length))
    return PlainTransformer(**sizes)


def operations_per_token(model: nn.Module, sizes: dict[str, Any], length: int, attention: bool) -> float:
    """6 for each parameter of a matrix product (the tied head once); causal attention 6 length d a block."""
    positions = sum(p.numel() for name, p in model.named_parameters() if name.endswith("wpe.weight"))
    matrices = sum(p.numel() for p in model.parameters() if p.ndim == 2) - positions
    return 6.0 * matrices + (6.0 * sizes["blocks"] * length * sizes["d"] if attention else 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="toy size, also on a CPU, to see that it runs")
    parser.add_argument("--record", type=Path, help="folder for the record")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not arguments.quick:
        raise SystemExit("training_gpu: no GPU here; --quick runs toy models on a CPU")
    sizes, (sequences, micro, length) = SIZES, (SEQUENCES, MICRO, LENGTH)
    if arguments.quick:
        sizes, (sequences, micro, length) = {"vocabulary": 61, "d": 16, "blocks": 2, "heads": 2}, (4, 2, 12)
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(sizes["vocabulary"], (sequences, length + 1), generator=draw).to(device)

    work: dict[str, Callable[[], object]] = {}
    operations, memory, checks = {}, {}, []
    for name in ("SPEN", "GPT-2 of transformers", "plain transformer"):
        loss = build(name, sizes, length).to(device).train()
        operations[name] = operations_per_token(loss, sizes, length, attention=name != "SPEN")
        step = Step(loss, ids, micro)
        if device.type == "cuda":
            held = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
        checks.append(check_descent(name, step))
        print(checks[-1], flush=True)
        if device.type == "cuda":
            memory[f"{name}: GiB beside its own weights"] = (torch.cuda.max_memory_allocated() - held) / 2**30
        work[name] = step
    timings = time_gpu(work, REPETITIONS, warmup=1) if device.type == "cuda" else time_cpu(work, 2)
    finish(
        BenchmarkRecord(
            benchmark="training_gpu",
            title="Whole training steps at 130M parameters on one GPU",
            rows=tuple(
                Row(name, timing, operations=operations[name] * ids[:, 1:].numel(), tokens=ids[:, 1:].numel())
                for name, timing in timings.items()
            ),
            ratios={f"{name} / SPEN": ratio(timings[name], timings["SPEN"]) for name in timings if name != "SPEN"},
            ceilings={} if device.type == "cpu" else {"matmul_flops_per_second": matmul_rate(device, torch.bfloat16)},
            checks=tuple(checks),
            settings={**sizes, "sequences": sequences, "micro_batch": micro, "length": length, "dtype": "bfloat16"},
            figures=memory,
        ),
        arguments.record,
    )


def check_descent(name: str, step: Step) -> str:
    """Three steps on the same tokens must bring the loss down, from where a model that knows nothing stands."""
    losses = [float(step()) for _ in range(3)]
    line = f"{name}: loss on the same tokens from {losses[0]:.3f} to {losses[-1]:.3f} in {len(losses)} steps"
    if not losses[-1] < losses[0]:
        raise SystemExit(f"{line}: it does not fall")
    return line


if __name__ == "__main__":
    main()
