"""Cost against length on 2 cores: reading 256 to 131,072 tokens, and prompts in parallel against token by token (C46).

First, spen-7m reads a text of T tokens in parallel (`SpenStream.feed`, 2,048 tokens at a time) and is left with logits
for the next token and a state that goes on from there. The peer is transformers' GPT-2 of that width and depth doing
the same with its KV cache, 2,048 tokens at a time, up to 16,384 tokens: the time of its attention grows with T². It is
float32 on both sides; state and cache are in the figures.

Then the 130M models read a prompt of 2,048 tokens, in parallel and, for an eighth of it, token by token, scaled up:
SPEN through its decoder at the same cost wherever it stands, GPT-2 where its cache is still short. The paper calls
streaming inherently less parallel than attention over chunks; it is so only for tokens that are not there yet.

Floor: 2 operations for each weight and token (the head's only for the last token), for GPT-2 4 d more for each layer
and pair of tokens, held against a plain product. Token by token every weight is read for each token instead.

    python benchmarks/length_cpu.py --record results/benchmarks
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from ematrace.bench import BenchmarkRecord, Row, Timing, finish, matmul_rate, ratio, read_bandwidth, time_cpu
from ematrace.spen import SpenForCausalLM, SpenStream
from ematrace.spen.decoder_cpu import CpuDecoder
from ematrace.spen.stream import PARALLEL_STEPS
from ematrace.train.models import build_model

NEEDS = "cpu"
THREADS = 2
LENGTHS, QUICK_LENGTHS = (256, 1024, 4096, 16_384, 65_536, 131_072), (64, 256)
PEER_UP_TO, QUICK_PEER_UP_TO = 16_384, 64
PROMPT, QUICK_PROMPT = 2048, 32
REPETITIONS, QUICK_REPETITIONS = 5, 2
PROMPT_REPETITIONS = 3
SCALED = 8  # so many times the tokens that are read one by one
TOLERANCE = 1e-3


@torch.no_grad()
def gpt2_prefill(model: Any, ids: Tensor, at_once: int = PARALLEL_STEPS) -> tuple[Tensor, DynamicCache]:
    cache = DynamicCache(config=model.config)
    for part in ids.split(at_once, 1):
        logits: Tensor = model(part, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
    return logits, cache


def spen_prefill(stream: SpenStream, ids: Tensor) -> Tensor:
    stream.reset()
    return stream.feed(ids, keep=1)[:, -1]


def spen_token_by_token(stream: SpenStream, ids: Tensor) -> Tensor:
    stream.reset()
    return [stream.step(i) for i in ids[0]][-1]


def spen_operations(model: SpenForCausalLM, n_tokens: int) -> float:
    inside = model.n_matrix_parameters() - model.lm_head.weight.numel()
    return 2.0 * (n_tokens * inside + model.lm_head.weight.numel())


def gpt2_operations(model: Any, n_tokens: int) -> float:
    config = model.config
    inside = 12 * config.n_layer * config.n_embd**2
    attention = config.n_layer * 4 * config.n_embd * n_tokens**2 / 2  # half of the pairs
    return float(2 * (n_tokens * inside + model.lm_head.weight.numel()) + attention)


def check(spen: SpenForCausalLM, gpt2: Any, ids: Tensor) -> list[str]:
    """In pieces and at once, token by token and in parallel: the same logits."""
    ids = ids[:, : min(ids.shape[1], 192)]
    with torch.no_grad():
        at_once, peer_at_once = spen(ids).logits[:, -1], gpt2(ids).logits[:, -1]
    pieces = SpenStream(spen)
    for part in ids.split(50, 1):
        fed = pieces.feed(part, keep=1)[:, -1]
    errors = {
        "spen-7m in pieces": fed - at_once,
        "spen-7m token by token": spen_token_by_token(SpenStream(spen), ids) - at_once,
        "spen-7m through its decoder": spen_token_by_token(SpenStream(spen, decoder=CpuDecoder(spen)), ids) - at_once,
        "gpt2-7m in pieces": gpt2_prefill(gpt2, ids, 50)[0] - peer_at_once,
        "gpt2-7m token by token": gpt2_prefill(gpt2, ids, 1)[0] - peer_at_once,
    }
    lines = []
    for name, error in errors.items():
        lines.append(
            f"{name} against {ids.shape[1]} tokens at once: largest difference of logits {error.abs().max():.1e}"
        )
        if not float(error.abs().max()) < TOLERANCE:
            raise SystemExit(f"{lines[-1]}: more than {TOLERANCE}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short texts and small models, to see that it runs")
    parser.add_argument("--record", type=Path, help="folder for the record")
    arguments = parser.parse_args()
    quick: bool = arguments.quick
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    lengths = QUICK_LENGTHS if quick else LENGTHS
    peer_up_to, prompt_length = (QUICK_PEER_UP_TO, QUICK_PROMPT) if quick else (PEER_UP_TO, PROMPT)
    repetitions = QUICK_REPETITIONS if quick else REPETITIONS
    vocabulary = 1000 if quick else 50257
    ids = torch.randint(vocabulary, (1, lengths[-1]), generator=torch.Generator().manual_seed(0))
    spen: SpenForCausalLM = build_model("spen-7m", vocabulary).eval()
    gpt2 = build_model("gpt2-7m", vocabulary, length=max(peer_up_to, 192)).eval()
    checks = check(spen, gpt2, ids)
    figures: dict[str, float] = {}
    rows: list[Row] = []

    stream = SpenStream(spen)
    work: dict[str, Callable[[], object]] = {}
    for length in lengths:
        text = ids[:, :length]
        spen_prefill(stream, text)
        figures[f"state of spen-7m, bytes at T={length}"] = stream.state_bytes()
        work[f"spen-7m T={length}"] = lambda text=text: spen_prefill(stream, text)  # type: ignore[misc]
        if length <= peer_up_to:
            figures[f"cache of gpt2-7m, bytes at T={length}"] = cache_bytes(gpt2_prefill(gpt2, text)[1])
            work[f"gpt2-7m T={length}"] = lambda text=text: gpt2_prefill(gpt2, text)  # type: ignore[misc]
    timings = time_cpu(work, repetitions, warmup=0)  # each has run once above
    for name, timing in timings.items():
        length = int(name.rpartition("=")[2])
        operations = spen_operations(spen, length) if name.startswith("spen") else gpt2_operations(gpt2, length)
        rows.append(Row(name, timing, operations=operations, tokens=length))
    ratios = {
        f"spen-7m against gpt2-7m at T={length}": ratio(timings[f"gpt2-7m T={length}"], timings[f"spen-7m T={length}"])
        for length in lengths
        if length <= peer_up_to
    }
    first, last = (n for n in (lengths[len(lengths) // 2 - 1], lengths[-1]))
    grown = ratio(timings[f"spen-7m T={last}"], timings[f"spen-7m T={first}"])[0]
    figures[f"spen-7m: time a token at T={last} over T={first}"] = grown * first / last

    prompt_rows, prompt_ratios = read_prompts(vocabulary, ids[:, :prompt_length], quick)
    finish(
        BenchmarkRecord(
            benchmark="length_cpu",
            title="Cost against length on a CPU",
            rows=(*rows, *prompt_rows),
            ratios=ratios | prompt_ratios,
            ceilings={
                "matmul_flops_per_second": matmul_rate(torch.device("cpu"), torch.float32),
                "read_bytes_per_second": read_bandwidth(torch.device("cpu")),
            },
            checks=tuple(checks),
            settings={
                **{"threads": THREADS, "at_once": PARALLEL_STEPS, "peer_up_to": peer_up_to, "prompt": prompt_length},
                **{"repetitions": repetitions, "prompt_repetitions": PROMPT_REPETITIONS, "quick": quick},
            },
            figures=figures,
        ),
        arguments.record,
    )


def read_prompts(vocabulary: int, ids: Tensor, quick: bool) -> tuple[list[Row], dict[str, tuple[float, float, float]]]:
    """One prompt by the 130M models, in parallel and token by token."""
    size = "tiny" if quick else "130m"
    length, part = ids.shape[1], ids[:, : max(ids.shape[1] // SCALED, 1)]
    spen: SpenForCausalLM = build_model(f"spen-{size}", vocabulary).eval()
    gpt2 = build_model(f"gpt2-{size}", vocabulary, length=length).eval()
    plain = SpenStream(spen)
    decoders = {"bfloat16": CpuDecoder(spen, torch.bfloat16), "float32": CpuDecoder(spen)}
    streams = {name: SpenStream(spen, decoder=decoder) for name, decoder in decoders.items()}
    parallel, by_token = f"spen-{size} in parallel", f"spen-{size} token by token,"
    work: dict[str, Callable[[], object]] = {parallel: lambda: spen_prefill(plain, ids)}
    for name, stream in streams.items():
        work[f"{by_token} {name}"] = lambda stream=stream: spen_token_by_token(stream, part)  # type: ignore[misc]
    work[f"gpt2-{size} in parallel"] = lambda: gpt2_prefill(gpt2, ids)
    work[f"gpt2-{size} token by token"] = lambda: gpt2_prefill(gpt2, part, 1)
    spen_prefill(plain, part)  # warm up on a short text
    for stream in streams.values():
        spen_token_by_token(stream, part)
    timings = time_cpu(work, PROMPT_REPETITIONS, warmup=0)
    rows = []
    for name, timing in timings.items():
        ours, one_by_one = name.startswith("spen"), "token by token" in name
        reads, note = 0.0, ""
        if one_by_one:
            reads = decoders[name.rpartition(" ")[2]].weight_bytes if ours else 2.0 * gpt2_operations(gpt2, 1)
            timings[name] = timing = Timing(tuple(s * length / part.shape[1] for s in timing.seconds))
            note = f"{part.shape[1]} tokens, scaled up"
        operations = spen_operations(spen, length) if ours else gpt2_operations(gpt2, length)
        rows.append(
            Row(f"{name} T={length}", timing, bytes=reads * length, operations=operations, tokens=length, note=note)
        )
    ratios = {
        f"{parallel} against {other} at T={length}": ratio(timings[other], timings[parallel])
        for other in timings
        if other != parallel
    }
    return rows, ratios


def cache_bytes(cache: Any) -> int:
    return sum(int(t.nbytes) for layer in cache.layers for t in (layer.keys, layer.values))


if __name__ == "__main__":
    main()
