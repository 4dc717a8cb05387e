"""Decoding one sequence token after token on 2 cores: SPEN-130M against a GPT-2 of its size with its KV cache.

Timed is greedy reading-on from a context that was read before, at 128, 1,024 and 8,192 tokens. SPEN goes through its
CPU decoder with float32 and with bfloat16 weights, and, for comparison, through the model's own step. The peer is
transformers' GPT-2 in float32 (n_positions raised) with its default, growing cache and with a static one of exactly
the room that is needed. In bfloat16 torch has GPT-2 at a twentieth of that speed on a CPU whose AMX cannot be used, so
it is not timed here. Weights are random: they decide about nothing that costs time, since top-k keeps exactly k.

Floor: each weight is read once a token. SPEN 416 MB in float32 and 208 MB in bfloat16, with 184 of 3,072 rows of each
W_down, whatever the context; GPT-2 494 MB and 73.7 KB more for each token of the context. That is held against the
bandwidth of reading a large tensor, measured in the same run. 2 operations a weight.

    python benchmarks/streaming_cpu.py --record results/benchmarks
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, GPT2LMHeadModel, StaticCache

from ematrace.bench import BenchmarkRecord, Row, finish, ratio, read_bandwidth, time_cpu
from ematrace.spen import SpenForCausalLM, SpenStream
from ematrace.spen.decoder_cpu import CpuDecoder
from ematrace.train.models import build_model

NEEDS = "cpu"
THREADS = 2
CONTEXTS, QUICK_CONTEXTS = (128, 1024, 8192), (8, 32)
TOKENS, QUICK_TOKENS = 24, 4  # in one call that is timed
REPETITIONS, QUICK_REPETITIONS = 7, 2
PREFILL = 1024  # tokens of GPT-2's context that are read at once


class GPT2Stream:
    """transformers' GPT-2 behind a context, to which it returns after each reading."""

    def __init__(self, model: Any, cache: DynamicCache | StaticCache, read: DynamicCache, ids: Tensor) -> None:
        """`read` holds keys and values of a longer text: those of its first tokens are what reading them would give."""
        self.model, self.cache, self.context = model, cache, ids.shape[1] - 1
        self.last = ids[:, -1:]
        for i, layer in enumerate(read.layers):
            cache.update(*(t[:, :, : self.context].clone() for t in (layer.keys, layer.values)), i)

    @torch.no_grad()
    def read_on(self, n_tokens: int) -> Tensor:
        ids = self.last
        for _ in range(n_tokens):
            logits: Tensor = self.model(ids, past_key_values=self.cache, use_cache=True).logits[:, -1]
            ids = logits.argmax(-1, keepdim=True)
        if isinstance(self.cache, StaticCache):
            for layer in self.cache.layers:
                layer.cumulative_length.fill_(self.context)
        else:
            self.cache.crop(-n_tokens)
        return logits

    def cache_bytes(self) -> int:
        return sum(int(t.nbytes) for layer in self.cache.layers for t in (layer.keys, layer.values))


class SpenBehind:
    """A SPEN stream behind a context, to which it returns after each reading."""

    def __init__(self, stream: SpenStream, state: Any, ids: Tensor) -> None:
        self.stream, self.state, self.last = stream, state, ids[:, -1]

    def read_on(self, n_tokens: int) -> Tensor:
        self.stream.restore(self.state)
        ids = self.last
        for _ in range(n_tokens):
            logits = self.stream.step(ids)
            ids = logits.argmax(-1)
        return logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny models, to see that it runs")
    parser.add_argument("--record", type=Path, help="folder for the record")
    arguments = parser.parse_args()
    quick: bool = arguments.quick
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    contexts, tokens = (QUICK_CONTEXTS, QUICK_TOKENS) if quick else (CONTEXTS, TOKENS)
    repetitions = QUICK_REPETITIONS if quick else REPETITIONS
    size, vocabulary = ("tiny", 1000) if quick else ("130m", 50257)
    spen: SpenForCausalLM = build_model(f"spen-{size}", vocabulary).eval()
    gpt2: GPT2LMHeadModel = build_model(f"gpt2-{size}", vocabulary, length=max(contexts) + tokens).eval()
    ids = torch.randint(vocabulary, (1, max(contexts)), generator=torch.Generator().manual_seed(0))

    decoders = {str(dtype).removeprefix("torch."): CpuDecoder(spen, dtype) for dtype in (torch.float32, torch.bfloat16)}
    checks = [check_decoder(spen, decoders["float32"], ids), check_bfloat16(spen, ids)]

    work: dict[str, Callable[[], object]] = {}
    floors: dict[str, tuple[float, float]] = {}  # bytes and operations of a token
    figures: dict[str, float] = {}
    streams = {f"SPEN {name}": SpenStream(spen, decoder=decoder) for name, decoder in decoders.items()}
    streams["SPEN float32, the model's own step"] = SpenStream(spen)
    dense = {"bytes": gpt2_weights(gpt2) * 4.0, "operations": gpt2_weights(gpt2) * 2.0}
    read = gpt2_reads(gpt2, ids)
    reader, seen = SpenStream(spen), 0
    for context in contexts:
        prompt = ids[:, :context]
        caches = {
            "GPT-2 default cache": DynamicCache(config=gpt2.config),
            "GPT-2 static cache": StaticCache(config=gpt2.config, max_cache_len=context + tokens),
        }
        peers = {name: GPT2Stream(gpt2, cache, read, prompt) for name, cache in caches.items()}
        checks.append(check_peers(gpt2, peers, prompt if context == contexts[0] else None, tokens))
        reader.feed(ids[:, seen : context - 1], keep=1)
        seen, state = context - 1, reader.snapshot()
        for name, stream in streams.items():
            work[f"{name} context={context}"] = bound(SpenBehind(stream, state, prompt), tokens)
            reads = decoders["bfloat16" if "bfloat16" in name else "float32"].weight_bytes
            width = 2 if "bfloat16" in name else 4
            floors[f"{name} context={context}"] = (reads + 2.0 * reader.state_bytes(), 2.0 * reads / width)
        for name, peer in peers.items():
            work[f"{name} context={context}"] = bound(peer, tokens)
            cache = peer.cache_bytes()
            floors[f"{name} context={context}"] = (dense["bytes"] + cache, dense["operations"] + cache / 2)
            figures[f"{name}, MB at context {context}"] = cache / 1e6
        figures[f"SPEN state, MB at context {context}"] = reader.state_bytes() / 1e6

    timings = time_cpu(work, repetitions)
    ratios = {}
    for context in contexts:
        for name in decoders:
            for theirs in ("GPT-2 default cache", "GPT-2 static cache"):
                ratios[f"SPEN {name} against {theirs} at {context}"] = ratio(
                    timings[f"{theirs} context={context}"], timings[f"SPEN {name} context={context}"]
                )
    for name in decoders:
        first, last = (timings[f"SPEN {name} context={context}"] for context in (contexts[0], contexts[-1]))
        figures[f"SPEN {name}: time at {contexts[-1]} over time at {contexts[0]}"] = ratio(last, first)[0]
    rows = [
        Row(name, timing, bytes=floors[name][0] * tokens, operations=floors[name][1] * tokens, tokens=tokens)
        for name, timing in timings.items()
    ]
    finish(
        BenchmarkRecord(
            benchmark="streaming_cpu",
            title="Decoding one sequence token after token on a CPU",
            rows=tuple(rows),
            ratios=ratios,
            ceilings={"read_bytes_per_second": read_bandwidth(torch.device("cpu"))},
            checks=tuple(checks),
            settings={"threads": THREADS, "tokens": tokens, "repetitions": repetitions, "size": size, "quick": quick},
            figures=figures,
        ),
        arguments.record,
    )


@torch.no_grad()
def gpt2_reads(model: Any, ids: Tensor) -> DynamicCache:
    cache = DynamicCache(config=model.config)
    for part in ids.split(PREFILL, 1):
        model(part, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return cache


def bound(stream: GPT2Stream | SpenBehind, tokens: int) -> Callable[[], object]:
    return lambda: stream.read_on(tokens)


def gpt2_weights(model: Any) -> int:
    """Weights that a token reads: all matrices and the tied head, but one row of each embedding."""
    return sum(int(p.numel()) for p in [*model.transformer.h.parameters(), model.lm_head.weight])


@torch.no_grad()
def check_decoder(model: SpenForCausalLM, decoder: CpuDecoder, ids: Tensor, what: str = "float32 decoder") -> str:
    """Against the model's own step. A difference of rounding can exchange units that nearly tie, now and then."""
    ids = ids[:, :32]
    own, ours = SpenStream(model), SpenStream(model, decoder=decoder)
    expected, told = (torch.cat([stream.step(i) for i in ids[0]]).double() for stream in (own, ours))
    difference = (told - expected).abs().amax(-1)
    nats = [-logits[:-1].log_softmax(-1).gather(-1, ids[0, 1:, None]).mean() for logits in (expected, told)]
    change = abs(float((nats[1] - nats[0]).expm1()))
    close = float((difference < 1e-3).double().mean())
    line = (
        f"{what} against the model's own step, {len(difference)} tokens: median of the largest difference of logits "
        f"{float(difference.median()):.1e}, {close:.0%} of tokens within 1e-3, perplexity within {change:.1e}"
    )
    if close < 0.8 or change > 1e-3:
        raise SystemExit(f"{line}: not the same")
    return line


@torch.no_grad()
def check_bfloat16(model: SpenForCausalLM, ids: Tensor) -> str:
    """On a model whose weights bfloat16 holds exactly, W_pred = 0 among them, the decoder has nothing to round."""
    exact = SpenForCausalLM(model.config).eval()
    for name, parameter in exact.named_parameters():
        parameter.copy_(0 * parameter if "W_pred" in name else dict(model.named_parameters())[name].bfloat16())
    return check_decoder(exact, CpuDecoder(exact, torch.bfloat16), ids, "bfloat16 decoder")


def check_peers(model: Any, peers: dict[str, GPT2Stream], prompt: Tensor | None, tokens: int) -> str:
    """Both caches, twice from the same context, end in the same logits; for a prompt that is given, in those of GPT-2
    without any cache."""
    logits = [peer.read_on(tokens) for peer in peers.values() for _ in range(2)]
    difference = max(float((other - logits[0]).abs().max()) for other in logits[1:])
    context = next(iter(peers.values())).context + 1
    line = f"GPT-2 with both caches at context {context}: largest difference of logits {difference:.1e}"
    if prompt is not None:
        with torch.no_grad():
            alone = model(prompt).logits[:, -1]
        first = max(float((peer.read_on(1) - alone).abs().max()) for peer in peers.values())
        line += f", {first:.1e} to those without a cache"
        difference = max(difference, first)
    if not difference < 1e-3:
        raise SystemExit(f"{line}: not the same")
    return line


if __name__ == "__main__":
    main()
