"""Decoding token after token on one GPU: SPEN-130M against a GPT-2 of its size, one sequence and 1,024 together.

Timed is greedy reading-on, token by token, in CUDA graphs on both sides, so that no Python is in the figures (except in
the row that says eager). Weights are bfloat16 on both sides. GPT-2 stands at a context of 1,024 tokens: its static KV
cache is full and each step writes the last place again. The peers are transformers' own GPT-2 with its StaticCache, and
the same weights in a plain loop of fused attention without a mask, which is faster.

Floors: one sequence reads every weight once (of W_down only the rows of active units) and GPT-2 its cache besides;
1,024 sequences do 2 operations for each weight and sequence.

    python benchmarks/streaming_gpu.py --record results/benchmarks --result results
    python benchmarks/streaming_gpu.py --only 1          one sequence alone; also --only 1024
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

# Without a GPU the kernels are interpreted. Triton reads this when it is imported, and torch may import it.
if "--quick" in sys.argv and not any(Path("/dev").glob("nvidia[0-9]*")):
    os.environ.setdefault("TRITON_INTERPRET", "1")
    # Some virtual machines announce AMX for bfloat16 products and then die of an illegal instruction.
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, StaticCache

from ematrace.bench.measure import Timing, copy_bandwidth, matmul_rate, time_cpu, time_gpu
from ematrace.bench.record import BenchmarkRecord, Row, finish, ratio
from ematrace.ledger import Figure, Result, collect_provenance, write_result
from ematrace.spen import SpenConfig, SpenForCausalLM, SpenStream

NEEDS = "cuda"
CHECKED_TOKENS = 64
STARTED = time.monotonic()


class WrongResult(Exception):
    pass


def say(text: str) -> None:
    print(f"[{time.monotonic() - STARTED:5.1f} s] {text}", flush=True)


class Graphed:
    """Work on memory that stays where it is, captured once and replayed; on a CPU simply called."""

    def __init__(self, work: Callable[[], object], device: torch.device) -> None:
        self._work = self._memory = work  # which the graph does not keep alive by itself
        with torch.no_grad():
            if device.type != "cuda":
                return
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    work()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                work()
            self._work = graph.replay

    @torch.no_grad()
    def __call__(self, times: int) -> None:
        for _ in range(times):
            self._work()


def draw_cache(keys: Tensor, values: Tensor) -> None:
    """The same numbers every time: what they are does not matter, but zeros would make it too easy."""
    draw = torch.Generator(keys.device).manual_seed(0)
    keys.normal_(std=0.5, generator=draw)
    values.normal_(std=0.5, generator=draw)


class PlainGPT2:
    """Greedy steps of GPT-2 at a full context: the model's weights, one fused attention a block, no mask needed."""

    def __init__(self, model: GPT2LMHeadModel, n_streams: int, context: int) -> None:
        config, weight = model.config, model.lm_head.weight
        self.model, self.heads, self.context = model, config.n_head, context
        shape = (config.n_layer, 2, n_streams, config.n_head, context, config.n_embd // config.n_head)
        self.cache = torch.empty(shape, dtype=weight.dtype, device=weight.device)
        self.ids = torch.zeros(n_streams, dtype=torch.int64, device=weight.device)
        # A head whose width is a multiple of 64 keeps the product on the fast path.
        self.head = F.pad(weight.detach(), (0, 0, 0, -len(weight) % 64))

        self.fill_cache()

    def fill_cache(self) -> None:
        self.ids.zero_()
        for keys, values in self.cache:
            draw_cache(keys, values)

    def step(self) -> Tensor:
        transformer = self.model.transformer
        x = transformer.wte(self.ids) + transformer.wpe.weight[self.context - 1]
        for block, (keys, values) in zip(transformer.h, self.cache, strict=True):
            q, k, v = (
                part.unflatten(-1, (self.heads, -1)) for part in block.attn.c_attn(block.ln_1(x)).chunk(3, dim=-1)
            )
            keys[:, :, -1], values[:, :, -1] = k, v
            mixed = F.scaled_dot_product_attention(q.unsqueeze(2), keys, values)
            x = x + block.attn.c_proj(mixed.flatten(1))
            x = x + block.mlp(block.ln_2(x))
        logits: Tensor = (transformer.ln_f(x) @ self.head.T)[:, : self.model.config.vocab_size]
        torch.argmax(logits, -1, out=self.ids)
        return logits


class LibraryGPT2:
    """The same through transformers' forward and StaticCache."""

    def __init__(self, model: GPT2LMHeadModel, n_streams: int, context: int) -> None:
        device = model.device
        self.model, self.last = model, context - 1
        self.cache = StaticCache(config=model.config, max_cache_len=context)
        self.ids = torch.zeros(n_streams, 1, dtype=torch.int64, device=device)
        self.position = torch.full((1, 1), self.last, dtype=torch.int64, device=device)
        self.mask = torch.ones(n_streams, 1, 1, context, dtype=torch.bool, device=device)
        self._hold_position()
        self.step()  # which lays out the cache
        self.fill_cache()

    def fill_cache(self) -> None:
        self.ids.zero_()
        for layer in self.cache.layers:
            draw_cache(layer.keys, layer.values)

    def _hold_position(self) -> None:
        for layer in self.cache.layers:  # newer versions count in the cache, older ones go by cache_position
            counted = getattr(layer, "cumulative_length", None)
            if isinstance(counted, Tensor):
                counted.fill_(self.last)

    def step(self) -> Tensor:
        output = self.model(
            self.ids, past_key_values=self.cache, use_cache=True, attention_mask=self.mask,
            position_ids=self.position, cache_position=self.position[0],
        )  # fmt: skip
        self._hold_position()
        logits: Tensor = output.logits[:, -1]
        self.ids.copy_(logits.argmax(-1, keepdim=True))
        return logits


@contextmanager
def attempt(name: str, notes: list[str]) -> Iterator[None]:
    """What fails is reported and left out: the rest is still worth having."""
    try:
        yield
    except Exception as error:
        told = str(error).splitlines()[0][:300] if str(error) else ""
        notes.append(f"{name} is left out: {type(error).__name__}: {told}")
        say(notes[-1])


class Bench:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.quick: bool = arguments.quick
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.context = 32 if self.quick else 1024
        self.only = {int(n) for n in arguments.only.split(",")}
        self.variants: list[str] = arguments.variants
        self.many = 4 if self.quick else 1024
        self.repetitions = 3 if self.quick else 9
        self.rows: list[Row] = []
        self.checks: list[str] = []
        self.failed: list[str] = []
        self.notes: list[str] = []
        self.ratios: dict[str, tuple[float, float, float]] = {}
        self.figures: dict[str, float] = {}
        toy = {
            "vocab_size": 500,
            "d_model": 32,
            "d_ff": 64,
            "n_layers": 1,
            "k": 8,
            "bos_token_id": 0,
            "eos_token_id": 0,
        }
        config = SpenConfig.preset("spen-130m", **(toy if self.quick else {}))
        torch.manual_seed(0)
        if arguments.model is not None:
            self.spen = SpenForCausalLM.from_pretrained(arguments.model).float().eval().to(self.device)
        else:
            self.spen = SpenForCausalLM(config).eval().to(self.device)
        self.config: SpenConfig = self.spen.config
        self.exact = arguments.model is None
        with torch.no_grad():  # the decoder's weights are to be the reference's, bit by bit
            for parameter in self.spen.parameters():
                if parameter.ndim == 2:
                    parameter.copy_(parameter.bfloat16())
            for block in self.spen.model.layers if self.exact else ():  # W_e W_pred as well: whole numbers below 256
                for weight in (block.W_e.weight, block.predictor.W_pred.weight):
                    weight.copy_(weight.sign() / 64)
        gpt2 = GPT2Config(
            n_embd=self.config.d_model, n_layer=self.config.n_layers, n_head=2 if self.quick else 12,
            vocab_size=self.config.vocab_size, n_positions=self.context,
            bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        self.gpt2 = GPT2LMHeadModel(gpt2).eval().to(self.device, torch.bfloat16)

    # What a step must at least read and compute.
    def spen_bytes(self, n_streams: int) -> float:
        c = self.config
        d, A = c.d_model, len(c.alphas)
        down = min(c.d_ff, c.k * n_streams) * d  # rows of units that are active in some stream
        weights = c.n_layers * ((A + 2) * d * d + c.d_ff * d + down) + c.vocab_size * d
        return 2.0 * weights + n_streams * (2 * self.state_bytes() + 4 * c.vocab_size)

    def spen_operations(self, n_streams: int) -> float:
        c = self.config
        d, A = c.d_model, len(c.alphas)
        return 2.0 * n_streams * (c.n_layers * ((A + 2) * d * d + 2 * c.d_ff * d) + c.vocab_size * d)

    def gpt2_bytes(self, n_streams: int) -> float:
        c = self.gpt2.config
        return float(2 * (c.n_layer * 12 * c.n_embd**2 + c.vocab_size * c.n_embd) + n_streams * self.kv_bytes())

    def gpt2_operations(self, n_streams: int) -> float:
        c = self.gpt2.config
        attention = c.n_layer * 2 * self.context * c.n_embd
        return float(2 * n_streams * (c.n_layer * 12 * c.n_embd**2 + c.vocab_size * c.n_embd + attention))

    def state_bytes(self) -> int:
        return self.config.n_layers * len(self.config.alphas) * self.config.d_model * 4

    def kv_bytes(self) -> int:
        c = self.gpt2.config
        return int(c.n_layer * 2 * self.context * c.n_embd * 2)

    def decoder(self, n_streams: int, path: Any, options: dict[str, int], dtype: torch.dtype = torch.bfloat16) -> Any:
        from ematrace.spen.decoder_gpu import GpuDecoder

        return GpuDecoder(self.spen, n_streams, dtype, path, **options)

    @torch.no_grad()
    def check(self, name: str, decoder: Any, n_streams: int) -> None:
        """Same tokens through decoder and float32 model: logits, state, perplexity, and the token put first.

        In a random SPEN a rounding error that exchanges two units of nearly equal value grows to half of the logits in
        twelve blocks, so with bfloat16 between the products only the perplexity can be held to anything.
        """
        n_tokens = 6 if self.quick else CHECKED_TOKENS if n_streams == 1 else 8
        draw = torch.Generator().manual_seed(1)
        ids = torch.randint(0, self.config.vocab_size, (n_tokens + 1, n_streams), generator=draw).to(self.device)
        stream, state = SpenStream(self.spen), decoder.new_state()
        same, errors, nats = 0, [], torch.zeros(2, dtype=torch.float64)
        for now, then in itertools.pairwise(ids):
            expected, got = stream.step(now).float(), decoder.step(now, state)
            same += int((expected.argmax(-1) == got.argmax(-1)).sum())
            errors.append((got - expected).norm(dim=1) / expected.norm(dim=1))
            nats += torch.stack([F.cross_entropy(logits, then).double() for logits in (expected, got)]).cpu()
        expected_state = torch.stack([block.traces for block in stream.cache.blocks if block.traces is not None])
        error = float(torch.cat(errors).median())
        of_state = float((state - expected_state).norm() / expected_state.norm())
        change = float(((nats[1] - nats[0]) / n_tokens).exp() - 1)
        found = (
            f"{name}: {n_tokens} tokens x {n_streams}: logits differ by {error:.1e} of their norm (median), state by "
            f"{of_state:.1e}, perplexity by {change:+.2%}; {same} of {n_tokens * n_streams} next tokens agree"
        )
        exact = self.exact and ("one_kernel" in name or "float32" in name)
        right = abs(change) < 0.02 and (not exact or (error < 1e-3 and of_state < 0.05))
        if not right:
            raise WrongResult(f"{found}: more than rounding explains")
        self.checks.append(found)
        say(found)

    def time(self, work: dict[str, tuple[Callable[[], object], int]]) -> dict[str, Timing]:
        """Seconds per step of each contender, whose call makes the given number of steps."""
        calls = {name: call for name, (call, _) in work.items()}
        if self.device.type == "cuda":
            taken = time_gpu(calls, self.repetitions, warmup=1)
        else:
            taken = time_cpu(calls, self.repetitions)
        return {name: Timing(tuple(s / work[name][1] for s in timing.seconds)) for name, timing in taken.items()}

    @torch.no_grad()
    def gpt2_peers(self, n_streams: int) -> dict[str, Graphed]:
        """Those that run. With the same cache and token both must give the same logits."""
        peers, logits = {}, {}
        for name, kind in (("GPT-2 plain loop", PlainGPT2), ("GPT-2 transformers", LibraryGPT2)):
            with attempt(name, self.notes):
                model = kind(self.gpt2, n_streams, self.context)
                if n_streams == 1:
                    model.fill_cache()
                    logits[name] = model.step()[0].float()
                peers[name] = Graphed(model.step, self.device)
                peers[name](1)
                if self.device.type == "cuda":
                    torch.cuda.synchronize()
                say(f"{n_streams}: {name} is ready")
        if len(logits) == 2:
            plain, library = logits.values()
            difference = float((plain - library).norm() / library.norm())
            self.checks.append(f"GPT-2 in a plain loop and through transformers: logits differ by {difference:.1e}")
            say(self.checks[-1])
            if not difference < 0.05:
                self.failed.append(f"{self.checks[-1]}: more than rounding explains")
        return peers

    def run(self, n_streams: int) -> None:
        one = n_streams == 1
        steps = 2 if self.quick else 64 if one else 8
        work: dict[str, tuple[Callable[[], object], int]] = {}
        paths = ("one_kernel", "products") if one else ("products",)
        variants: dict[str, tuple[str, dict[str, int]]] = {f"SPEN {path}": (path, {}) for path in paths}
        if not one:
            variants["SPEN products, sums split in 2"] = ("products", {"split": 2})
        for text in self.variants if one else ():
            options = {name: int(value) for name, value in (item.split("=") for item in text.split(","))}
            variants[f"SPEN one_kernel, {text}"] = ("one_kernel", options)
        with attempt("SPEN products in float32", self.failed):
            exact = self.decoder(n_streams, "products", {}, torch.float32)
            self.check("SPEN products in float32", exact, n_streams)
        for name, (path, options) in variants.items():
            with attempt(name, self.notes if options else self.failed):
                decoder = self.decoder(n_streams, path, options)
                self.check(name, decoder, n_streams)
                state = decoder.new_state()
                decoder.step(torch.zeros(n_streams, dtype=torch.int64, device=self.device), state)
                decoder.read_on(steps, state)
                work[name] = (partial(decoder.read_on, steps, state), steps)
        eager = SpenStream(SpenForCausalLM(self.config).to(self.device, torch.bfloat16))
        eager.model.load_state_dict(self.spen.state_dict())
        last = [torch.zeros(n_streams, dtype=torch.int64, device=self.device)]

        def eager_step() -> None:
            last[0] = eager.step(last[0]).argmax(-1)

        work["SPEN eager"] = (eager_step, 1)
        for name, graphed in self.gpt2_peers(n_streams).items():
            work[name] = (partial(graphed, steps), steps)
        say(f"{n_streams}: timing")
        taken = self.time(work)
        for name, timing in taken.items():
            spen = name.startswith("SPEN")
            self.rows.append(
                Row(
                    f"{name}, {n_streams}",
                    timing,
                    bytes=self.spen_bytes(n_streams) if spen else self.gpt2_bytes(n_streams),
                    operations=self.spen_operations(n_streams) if spen else self.gpt2_operations(n_streams),
                    tokens=n_streams,
                )
            )
            say(
                f"{name}, {n_streams}: {n_streams / timing.median:,.0f} tokens/s ({timing.median * 1e6:,.1f} us a step)"
            )
        best = min((name for name in variants if name in taken), key=lambda name: taken[name].median, default=None)
        for name in taken:
            if name.startswith("GPT-2") and best is not None:
                self.ratios[f"SPEN against {name}, {n_streams}"] = ratio(taken[name], taken[best])

    def record(self) -> BenchmarkRecord:
        self.figures["spen.state_bytes"] = self.state_bytes()
        self.figures["gpt2.kv_bytes_at_context"] = self.kv_bytes()
        self.figures["gpt2.kv_bytes_per_token"] = self.kv_bytes() / self.context
        dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        ceilings = {
            "copy_bytes_per_second": copy_bandwidth(self.device),
            "matmul_flops_per_second": matmul_rate(self.device, dtype),
        }
        return BenchmarkRecord(
            benchmark="streaming_gpu",
            title="Decoding token after token on a GPU",
            rows=tuple(self.rows),
            ratios=self.ratios,
            ceilings=ceilings,
            checks=(*self.checks, *self.notes),
            settings={"context": self.context, "streams": sorted(self.only), "dtype": "bfloat16", "quick": self.quick},
            figures=self.figures,
        )


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="toy sizes; without a GPU the kernels are interpreted")
    parser.add_argument("--only", default="1,1024", help="numbers of sequences: 1, 1024 or both (default: 1,1024)")
    parser.add_argument("--model", type=Path, help="folder of a trained SPEN (default: random weights)")
    parser.add_argument("--variants", nargs="*", default=[], metavar="NAME=N,...", help="settings of the kernel to try")
    parser.add_argument("--record", type=Path, help="folder for the record")
    parser.add_argument(
        "--result", type=Path, help="folder for spen_streaming.json, what the ledger judges C22, C46 and F5 by"
    )
    return parser.parse_args()


def ledger_result(rows: Sequence[Row], settings: Mapping[str, Any], many: int) -> Result:
    """Tokens a second of SPEN and of the faster GPT-2; the repetitions, in which they took turns, stand for seeds."""
    by_name = {row.name: row for row in rows}
    chosen = {"spen.1": by_name["SPEN one_kernel, 1"], f"spen.{many}": by_name[f"SPEN products, {many}"]}
    for n in (1, many):
        peers = [row for name, row in by_name.items() if name.startswith("GPT-2") and name.endswith(f", {n}")]
        chosen[f"gpt2.{n}"] = min(peers, key=lambda row: row.timing.median)
    count = min(len(row.timing.seconds) for row in chosen.values())
    return Result(
        experiment="spen_streaming",
        title="Decoding token after token on one GPU",
        claims=("C22", "C46", "F5"),
        scale="gpu",
        command="python benchmarks/streaming_gpu.py --result results",
        settings={**settings, "rows": {name: row.name for name, row in chosen.items()}},
        seeds=tuple(range(count)),
        figures={
            f"{name}.tokens_per_second": Figure(tuple(row.tokens / s for s in row.timing.seconds[:count]))
            for name, row in chosen.items()
        },
        provenance=collect_provenance(time.monotonic() - STARTED),
    )


def main() -> None:
    arguments = read_arguments()
    if not torch.cuda.is_available() and not arguments.quick:
        raise SystemExit("streaming_gpu: no GPU here; --quick runs toy sizes without one")
    bench = Bench(arguments)
    if arguments.result is not None and len(bench.only) < 2:
        raise SystemExit("streaming_gpu: --result needs one sequence and many; leave --only out")
    say("models built")
    for n_streams in sorted(bench.only):
        bench.run(n_streams if n_streams == 1 else bench.many)
    record = bench.record()
    if arguments.result is not None and not bench.failed:
        print(write_result(ledger_result(record.rows, record.settings, bench.many), arguments.result))
    finish(record, None if bench.failed else arguments.record)
    if bench.failed:
        raise SystemExit("; ".join(bench.failed))


if __name__ == "__main__":
    main()
