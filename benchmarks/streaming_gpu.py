"""Decoding token by token on one GPU: SPEN-130M against a GPT-2 of its size, one sequence and 1,024 together.

Timed is greedy decoding in CUDA graphs on both sides, so that no Python is in the times (except in SPEN's eager step).
Weights are bfloat16 on both sides. GPT-2 stands at a context of 1,024 tokens: its static KV cache is full, and each
step writes the last place again. It runs through transformers with a StaticCache, and with the same weights in a plain
loop of fused attention without a mask, which is faster. The experiment spen_streaming times the fastest of these.

Floors: one sequence reads every weight once (of W_down only the rows of active units) and GPT-2 its cache as well; for
1,024 sequences, the operations of `ematrace.models.flops`.

    python benchmarks/streaming_gpu.py --record results
    python benchmarks/streaming_gpu.py --only 1 --variants programs=96 programs=128    settings of the kernel to try
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

# Without a GPU the kernels are interpreted. Triton reads this when it is imported, and torch may import it.
if "--quick" in sys.argv and not any(Path("/dev").glob("nvidia[0-9]*")):
    os.environ.setdefault("TRITON_INTERPRET", "1")
    # Some virtual machines announce AMX for bfloat16 matmuls and then die of an illegal instruction.
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import torch
from torch import Tensor

from ematrace.bench import (
    Case,
    Comparison,
    ceiling_row,
    copy_bandwidth,
    finish,
    gpu_unless_quick,
    label,
    matmul_rate,
    parser,
    time_cases,
)
from ematrace.experiments.decoding import Graphed, LibraryGPT2, LoopGPT2, build_gpt2, build_spen, compare_decoder
from ematrace.experiments.spen_streaming import agrees
from ematrace.models.flops import flops_per_token
from ematrace.results import Factors, Metric, Row
from ematrace.spen import SpenConfig, SpenForCausalLM, SpenStream

NEEDS = "cuda"
TOY = {"vocab_size": 500, "d_model": 32, "d_ff": 64, "n_layers": 1, "k": 8, "bos_token_id": 0, "eos_token_id": 0}
CONTEXT, QUICK_CONTEXT = 1024, 32
MANY, QUICK_MANY = 1024, 4
REPETITIONS, QUICK_REPETITIONS = 9, 3
PEERS: dict[str, Any] = {"loop": LoopGPT2, "transformers": LibraryGPT2}
STARTED = time.monotonic()


class WrongResult(Exception):
    pass


def say(text: str) -> None:
    print(f"[{time.monotonic() - STARTED:5.1f} s] {text}", flush=True)


@contextmanager
def attempt(name: str, problems: list[str]) -> Iterator[None]:
    """A failure is reported and the contender left out: the others are still worth having."""
    try:
        yield
    except Exception as error:
        first = str(error).splitlines()[0][:300] if str(error) else ""
        problems.append(f"{name} is left out: {type(error).__name__}: {first}")
        say(problems[-1])


class Streaming:
    """Both models, what their steps need, and what was found on the way."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.quick: bool = arguments.quick
        self.device = gpu_unless_quick(self.quick)
        self.context = QUICK_CONTEXT if self.quick else CONTEXT
        self.variants: list[str] = arguments.variants
        self.checks: list[str] = []
        self.notes: list[str] = []
        self.failed: list[str] = []
        config = SpenConfig.preset("spen-130m", **(TOY if self.quick else {}))
        # Weights that bfloat16 holds exactly allow an exact check; those of a trained model are as they are.
        self.exact = arguments.model is None
        if self.exact:
            self.spen = build_spen(config, self.device)
        else:
            self.spen = SpenForCausalLM.from_pretrained(arguments.model).float().eval().to(self.device)
        self.config: SpenConfig = self.spen.config
        heads = 2 if self.quick else 12
        self.gpt2 = build_gpt2(self.config, self.context, self.device, torch.bfloat16, heads)

    def spen_bytes(self, n_streams: int) -> float:
        c = self.config
        d, A = c.d_model, len(c.alphas)
        down = min(c.d_ff, c.k * n_streams) * d  # rows of units that are active in some stream
        weights = c.n_layers * ((A + 2) * d * d + c.d_ff * d + down) + c.vocab_size * d
        return 2.0 * weights + n_streams * (2 * self.state_bytes() + 4 * c.vocab_size)

    def gpt2_bytes(self, n_streams: int) -> float:
        c = self.gpt2.config
        return float(2 * (c.n_layer * 12 * c.n_embd**2 + c.vocab_size * c.n_embd) + n_streams * self.kv_bytes())

    def state_bytes(self) -> int:
        return self.config.n_layers * len(self.config.alphas) * self.config.d_model * 4

    def kv_bytes(self) -> int:
        c = self.gpt2.config
        return int(c.n_layer * 2 * self.context * c.n_embd * 2)

    def state_cells(self) -> list[Row]:
        """Memory of one sequence's state."""
        cache = {
            "state_bytes": Metric(float(self.kv_bytes()), "bytes"),
            "state_bytes_per_token": Metric(self.kv_bytes() / self.context, "bytes"),
        }
        return [
            Row({"contender": "spen"}, {"state_bytes": Metric(float(self.state_bytes()), "bytes")}),
            Row({"contender": "gpt2"}, {**cache}),
        ]

    def case(self, factors: Factors, model: Any, call: Any, n_streams: int, steps: int) -> Case:
        """A call makes `steps` steps; the cell is about one."""
        return Case(
            {**factors, "streams": n_streams},
            call,
            bytes=(self.spen_bytes if model is self.spen else self.gpt2_bytes)(n_streams),
            operations=n_streams * flops_per_token(model, self.context, backward=False),
            tokens=n_streams,
            scale=1 / steps,
        )

    def decoders(self, n_streams: int) -> list[Factors]:
        """The decoders to time; any factor but the first is an option of its engine."""
        if n_streams > 1:
            return [{"decoder": "matmuls", "split": split} for split in (1, 2)]
        found: list[Factors] = [{"decoder": "one_kernel"}, {"decoder": "matmuls", "split": 1}]
        for text in self.variants:
            options = dict(item.split("=") for item in text.split(","))
            found.append({"decoder": "one_kernel", **{name: int(value) for name, value in options.items()}})
        return found

    def build(self, factors: Factors, n_streams: int, dtype: torch.dtype = torch.bfloat16) -> Any:
        from ematrace.spen.decode.gpu import GpuDecoder

        options: Any = {name: value for name, value in factors.items() if name != "decoder"}
        path: Any = str(factors["decoder"])
        return GpuDecoder(self.spen, n_streams, dtype, path, **options)

    def check(self, name: str, decoder: Any, n_streams: int, in_float32: bool) -> None:
        n_tokens = 6 if self.quick else 64 if n_streams == 1 else 8
        found = compare_decoder(self.spen, decoder, n_streams, n_tokens)
        line = (
            f"{name}: {n_tokens} tokens x {n_streams}: logits differ by {found.logits:.1e} of their norm (median), "
            f"state by {found.state:.1e}, perplexity by {found.perplexity:+.2%}; {found.same_tokens} of "
            f"{n_tokens * n_streams} next tokens agree"
        )
        if not agrees(found, exact=self.exact and in_float32):
            raise WrongResult(f"{line}: more than rounding explains")
        self.checks.append(line)
        say(line)

    def spen_cases(self, n_streams: int, steps: int) -> list[Case]:
        with attempt("spen decoder=matmuls in float32", self.failed):
            exact = self.build({"decoder": "matmuls"}, n_streams, torch.float32)
            self.check("spen decoder=matmuls in float32", exact, n_streams, in_float32=True)
        cases = []
        required = ({"decoder": "one_kernel"}, {"decoder": "matmuls", "split": 1})
        for factors in self.decoders(n_streams):
            factors = {"contender": "spen", **factors}
            own = {name: value for name, value in factors.items() if name != "contender"}
            with attempt(label(factors), self.failed if own in required else self.notes):
                decoder = self.build(own, n_streams)
                self.check(label(factors), decoder, n_streams, in_float32=own["decoder"] == "one_kernel")
                state = decoder.new_state()
                decoder.step(torch.zeros(n_streams, dtype=torch.int64, device=self.device), state)
                decoder.read_on(steps, state)
                call = partial(decoder.read_on, steps, state)
                cases.append(self.case(factors, self.spen, call, n_streams, steps))
        return [*cases, self.eager_case(n_streams)]

    def eager_case(self, n_streams: int) -> Case:
        """The model's own step in bfloat16, launched kernel by kernel."""
        model = SpenForCausalLM(self.config).to(self.device, torch.bfloat16)
        model.load_state_dict(self.spen.state_dict())
        stream = SpenStream(model, decoder=None)
        last = [torch.zeros(n_streams, dtype=torch.int64, device=self.device)]

        def step() -> None:
            last[0] = stream.step(last[0]).argmax(-1)

        return self.case({"contender": "spen", "decoder": "eager"}, self.spen, step, n_streams, 1)

    @torch.no_grad()
    def gpt2_cases(self, n_streams: int, steps: int) -> list[Case]:
        """Those that run. With the same cache and token both must give the same logits."""
        cases: list[Case] = []
        logits: list[Tensor] = []
        for name, kind in PEERS.items():
            factors = {"contender": "gpt2", "decoder": name}
            with attempt(label(factors), self.notes):
                model = kind(self.gpt2, n_streams, self.context)
                if n_streams == 1:
                    model.fill_cache()
                    logits.append(model.step()[0].float())
                graphed = Graphed(model.step, self.device)
                graphed(1)
                if self.device.type == "cuda":
                    torch.cuda.synchronize()
                cases.append(self.case(factors, self.gpt2, partial(graphed, steps), n_streams, steps))
        if len(logits) == 2:
            difference = float((logits[0] - logits[1]).norm() / logits[1].norm())
            self.checks.append(f"GPT-2 in a plain loop and through transformers: logits differ by {difference:.1e}")
            say(self.checks[-1])
            if not difference < 0.05:
                self.failed.append(f"{self.checks[-1]}: more than rounding explains")
        return cases

    def measure(self, n_streams: int) -> list[Row]:
        steps = 2 if self.quick else 64 if n_streams == 1 else 8
        cases = [*self.spen_cases(n_streams, steps), *self.gpt2_cases(n_streams, steps)]
        say(f"{n_streams}: timing")
        repetitions = QUICK_REPETITIONS if self.quick else REPETITIONS
        return time_cases(cases, repetitions, self.device, warmup=1)


def comparisons(many: int) -> list[Comparison]:
    fastest: dict[int, Factors] = {1: {"decoder": "one_kernel"}, many: {"decoder": "matmuls", "split": 1}}
    return [
        Comparison({"contender": "gpt2", "decoder": peer}, {"contender": "spen", **ours}, where={"streams": n})
        for n, ours in fastest.items()
        for peer in PEERS
    ]


def read_arguments() -> argparse.Namespace:
    options = parser(__doc__, quick="toy sizes; without a GPU the kernels are interpreted")
    options.add_argument("--only", default="1,1024", help="numbers of sequences: 1, 1024 or both (default: 1,1024)")
    options.add_argument("--model", type=Path, help="folder of a trained SPEN (default: random weights)")
    options.add_argument(
        "--variants", nargs="*", default=[], metavar="NAME=N,...", help="settings of the kernel to try"
    )
    return options.parse_args()


def main() -> None:
    arguments = read_arguments()
    many = QUICK_MANY if arguments.quick else MANY
    numbers = sorted({1 if n == "1" else many for n in arguments.only.split(",")})
    streaming = Streaming(arguments)
    say("models built")
    cells = [cell for n_streams in numbers for cell in streaming.measure(n_streams)]
    device = streaming.device
    on_gpu = device.type == "cuda"
    cells += streaming.state_cells()
    cells.append(ceiling_row("copy", copy_bandwidth(device)))
    cells.append(ceiling_row("matmul", matmul_rate(device, torch.bfloat16 if on_gpu else torch.float32)))
    finish(
        "streaming_gpu",
        "Decoding token by token on a GPU",
        cells,
        scale="gpu" if on_gpu else "cpu",
        checks=streaming.checks,
        comparisons=comparisons(many),
        notes=streaming.notes,
        settings={"context": streaming.context, "streams": numbers, "dtype": "bfloat16"},
        quick=arguments.quick,
        to=None if streaming.failed else arguments.record,
        force=arguments.force,
    )
    if streaming.failed:
        raise SystemExit("; ".join(streaming.failed))


if __name__ == "__main__":
    main()
