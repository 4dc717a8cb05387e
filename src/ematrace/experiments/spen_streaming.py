"""Greedy decoding on one GPU: SPEN-130M against a GPT-2 of its size, one stream and 1,024 together (C22, F5).

Each reads the token that it puts first, again and again, in CUDA graphs on both sides, so that no Python is in the
figures; `spen_eager` is one stream through the model itself in float32, step by step from Python, as the paper's is.
Weights are bfloat16 elsewhere. GPT-2 stands at a context of 1,024 tokens and is the faster of two implementations.
Decoders are compared with the float32 model before anything is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import fmean

import torch

from ematrace.bench import Timing, time_cpu, time_gpu
from ematrace.experiments.base import Context, Experiment, factorial
from ematrace.experiments.decoding import (
    Agreement,
    EagerSpen,
    Graphed,
    GreedySpen,
    LibraryGPT2,
    LoopGPT2,
    build_gpt2,
    build_spen,
    compare_decoder,
)
from ematrace.results import Metric, Row
from ematrace.spen import SpenConfig, SpenForCausalLM
from ematrace.spen.decode import build_decoder

STEPS = {1: 64}  # of one timed call, by number of streams
STEPS_OF_MANY = 8


def measure(ctx: Context) -> list[Row]:
    settings, device = ctx.settings, torch.device(ctx.device)
    dtype = getattr(torch, settings["dtype"])
    config = SpenConfig.preset(settings["preset"], **settings["overrides"])
    spen = build_spen(config, device)
    gpt2 = build_gpt2(config, settings["context"], device, dtype, settings["heads"])
    rows: list[Row] = []
    for done, n_streams in enumerate(settings["streams"], start=1):
        check(spen, n_streams, dtype)
        contenders: dict[str, Callable[[int], None]] = {"spen": GreedySpen(spen, n_streams, dtype)}
        if n_streams == 1:
            contenders["spen_eager"] = EagerSpen(spen)
        for kind in (LoopGPT2, LibraryGPT2):
            with torch.no_grad():
                contenders[f"gpt2 {kind.__name__}"] = Graphed(kind(gpt2, n_streams, settings["context"]).step, device)
        steps = STEPS.get(n_streams, STEPS_OF_MANY) if device.type == "cuda" else 2
        calls = {name: partial(contender, steps) for name, contender in contenders.items()}
        if device.type == "cuda":
            taken = time_gpu(calls, settings["repetitions"], warmup=1)
        else:
            taken = time_cpu(calls, settings["repetitions"])
        peers = [timing for name, timing in taken.items() if name.startswith("gpt2")]
        ours = {name: timing for name, timing in taken.items() if name.startswith("spen")}
        fastest = {**ours, "gpt2": min(peers, key=lambda timing: timing.median)}
        for name, timing in fastest.items():
            speed = tokens_per_second(timing, n_streams * steps)
            rows.append(Row({"model": name, "streams": n_streams}, {"tokens_per_second": speed}))
        ctx.progress(done / len(settings["streams"]))
    return rows


def tokens_per_second(timing: Timing, tokens: int) -> Metric:
    """The mean over repetitions, in which the contenders took turns."""
    speeds = tuple(tokens / seconds for seconds in timing.seconds)
    return Metric(fmean(speeds), unit="tokens/s", better="high", repetitions=speeds)


def check(model: SpenForCausalLM, n_streams: int, dtype: torch.dtype) -> None:
    """In float32 a decoder gives the model's logits; with bfloat16 between matmuls, its perplexity."""
    n_tokens = 64 if n_streams == 1 else 8
    for weights in dict.fromkeys((torch.float32, dtype)):
        found = compare_decoder(model, build_decoder(model, n_streams, weights), n_streams, n_tokens)
        if not agrees(found, exact=weights == torch.float32):
            raise ValueError(f"decoder of {n_streams} streams, {weights}: {found}: more than rounding explains")


def agrees(found: Agreement, exact: bool) -> bool:
    return abs(found.perplexity) < 0.02 and (not exact or (found.logits < 1e-3 and found.state < 0.05))


EXPERIMENT = Experiment(
    "spen_streaming",
    "Decoding token after token on one GPU",
    grid=factorial(),
    measure=measure,
    needs="gpu",
    settings={
        "preset": "spen-130m",
        "overrides": {},
        "heads": 12,  # of GPT-2
        "streams": [1, 1024],
        "context": 1024,  # tokens in GPT-2's cache
        "dtype": "bfloat16",
        "repetitions": 9,
    },
    alone=True,
    seconds=30,
)
