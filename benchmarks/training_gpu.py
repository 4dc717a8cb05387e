"""Whole training steps of SPEN-130M on one GPU against transformers of its size: the paper's batch, bfloat16, compiled.

A step is 224 sequences of 2048 tokens in micro-batches of 56, forward and backward, clipping and AdamW; tokens are
random, since their values do not matter to time. The floor is the operations of `ematrace.models.flops` against the
rate of an 8192 x 8192 matmul. The peers, both with this project's cross-entropy, which never holds all logits:
transformers' GPT-2 (flash attention through torch), and a plain transformer of the same size without biases and
position embeddings, which compiles best.

    python benchmarks/training_gpu.py --record results
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ematrace.bench import Case, Comparison, ceiling_row, finish, gpu_unless_quick, matmul_rate, parser, time_cases
from ematrace.models.flops import flops_per_token
from ematrace.ops import linear_cross_entropy
from ematrace.results import Metric
from ematrace.spen import SpenConfig, SpenForCausalLM
from ematrace.train.loss import LanguageModelLoss
from ematrace.train.models import build_model
from ematrace.train.optimiser import parameter_groups

NEEDS = "cuda"
SIZES: dict[str, Any] = {"vocabulary": 50257, "d": 768, "blocks": 12, "heads": 12}
SEQUENCES, MICRO, LENGTH = 224, 56, 2048
QUICK_SIZES: dict[str, Any] = {"vocabulary": 61, "d": 16, "blocks": 2, "heads": 2}
QUICK_SEQUENCES, QUICK_MICRO, QUICK_LENGTH = 4, 2, 12
REPETITIONS, QUICK_REPETITIONS = 6, 2
CONTENDERS = ("spen", "gpt2", "transformer")


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

    def flops(self, seq_len: int) -> float:
        """As `ematrace.models.flops` counts: matmuls with weights and the head, Q K^T and its matmul with V."""
        d, blocks = self.embedding.embedding_dim, len(self.blocks)
        weights = self.embedding.weight.numel() + 12 * blocks * d * d
        return 2.0 * weights + 4.0 * blocks * seq_len * d


class Step:
    """A whole optimizer step, on tokens that stay on the device."""

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
    if name == "spen":
        d, k = sizes["d"], round(0.06 * 4 * sizes["d"])
        config = SpenConfig(
            vocab_size=sizes["vocabulary"], d_model=d, d_ff=4 * d, n_layers=sizes["blocks"], k=k, n_heads=sizes["heads"]
        )
        return LanguageModelLoss(SpenForCausalLM(config))
    if name == "gpt2":
        changes = [f"n_embd={sizes['d']}", f"n_layer={sizes['blocks']}", f"n_head={sizes['heads']}"]
        return LanguageModelLoss(build_model("gpt2-130m", sizes["vocabulary"], None, changes, length=length))
    return PlainTransformer(**sizes)


def prepared(name: str, loss: nn.Module, ids: Tensor, micro: int) -> tuple[Case, str]:
    """A contender whose first steps, in which it is compiled, have brought its loss down."""
    step = Step(loss, ids, micro)
    tokens = ids[:, 1:].numel()
    others = {}
    if ids.is_cuda:
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    line = check_descent(name, step)
    print(line, flush=True)
    if ids.is_cuda:
        used = (torch.cuda.max_memory_allocated() - held) / 2**30
        others["memory_beyond_weights"] = Metric(used, "GiB", better="low")
    operations = tokens * flops_per_token(loss, ids.shape[1] - 1)
    return Case({"contender": name}, step, operations=operations, tokens=tokens, others=others), line


def check_descent(name: str, step: Step) -> str:
    """Three steps on the same tokens must lower the loss of a model that knows nothing."""
    losses = [float(step()) for _ in range(3)]
    line = f"{name}: loss on the same tokens from {losses[0]:.3f} to {losses[-1]:.3f} in {len(losses)} steps"
    if not losses[-1] < losses[0]:
        raise SystemExit(f"{line}: it does not fall")
    return line


def main() -> None:
    arguments = parser(__doc__, quick="toy models, also on a CPU").parse_args()
    device = gpu_unless_quick(arguments.quick)
    on_gpu = device.type == "cuda"
    sizes, sequences, micro, length = SIZES, SEQUENCES, MICRO, LENGTH
    if arguments.quick:
        sizes, sequences, micro, length = QUICK_SIZES, QUICK_SEQUENCES, QUICK_MICRO, QUICK_LENGTH
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(sizes["vocabulary"], (sequences, length + 1), generator=draw).to(device)
    made = [prepared(name, build(name, sizes, length).to(device).train(), ids, micro) for name in CONTENDERS]
    cases, checks = zip(*made, strict=True)
    cells = time_cases(cases, REPETITIONS if on_gpu else QUICK_REPETITIONS, device, warmup=1)
    if on_gpu:
        cells.append(ceiling_row("matmul", matmul_rate(device, torch.bfloat16)))
    finish(
        "training_gpu",
        "Whole training steps at 130M parameters on one GPU",
        cells,
        scale="gpu" if on_gpu else "cpu",
        checks=checks,
        comparisons=[Comparison({"contender": name}, {"contender": "spen"}) for name in CONTENDERS if name != "spen"],
        settings={**sizes, "sequences": sequences, "micro_batch": micro, "length": length, "dtype": "bfloat16"},
        quick=arguments.quick,
        to=arguments.record,
        force=arguments.force,
    )


if __name__ == "__main__":
    main()
