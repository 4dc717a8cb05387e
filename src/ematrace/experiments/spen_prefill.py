"""Reading one sequence that is there as a whole: is SPEN less parallel than attention? (C46)

Line 280 of the paper: "sequential token processing remains inherently less parallelizable than chunked attention".
Without PGHU the traces are a scan over the sequence; with it, every token waits for the weights that the last one
changed. All read one sequence and give the logits of its last token. With PGHU only the first 128 tokens are read,
since the time per token does not depend on how many there are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from transformers import GPT2LMHeadModel

from ematrace.bench import time_cpu, time_gpu
from ematrace.experiments.base import Context, Experiment, factorial
from ematrace.experiments.decoding import build_gpt2, build_spen
from ematrace.experiments.spen_streaming import tokens_per_second
from ematrace.pghu import PGHU
from ematrace.results import Row
from ematrace.spen import SpenConfig, SpenForCausalLM, SpenStream

SEQUENTIAL_TOKENS = 128


def measure(ctx: Context) -> list[Row]:
    settings, device = ctx.settings, torch.device(ctx.device)
    dtype = getattr(torch, settings["dtype"])
    config = SpenConfig.preset(settings["preset"], **settings["overrides"])
    spen = build_spen(config, device)
    rows: list[Row] = []
    for done, length in enumerate(settings["lengths"], start=1):
        gpt2 = build_gpt2(config, length, device, dtype, settings["heads"])
        draw = torch.Generator().manual_seed(ctx.seed)
        ids = torch.randint(0, config.vocab_size, (1, length), generator=draw).to(device)
        first = ids[:, :SEQUENTIAL_TOKENS]
        contenders: dict[tuple[str, bool], tuple[int, Callable[[], object]]] = {
            ("spen", False): (length, partial(read_in_parallel, spen, ids, dtype)),
            ("spen", True): (first.shape[1], partial(read_with_pghu, spen, first)),
            ("gpt2", False): (length, partial(read_with_attention, gpt2, ids)),
        }
        calls = {f"{model} {pghu}": work for (model, pghu), (_, work) in contenders.items()}
        repetitions = settings["repetitions"]
        taken = time_gpu(calls, repetitions, warmup=2) if device.type == "cuda" else time_cpu(calls, repetitions)
        for (model, pghu), (tokens, _) in contenders.items():
            speed = tokens_per_second(taken[f"{model} {pghu}"], tokens)
            rows.append(Row({"model": model, "pghu": pghu, "tokens": length}, {"tokens_per_second": speed}))
        ctx.progress(done / len(settings["lengths"]))
    return rows


@torch.no_grad()
def read_in_parallel(model: SpenForCausalLM, ids: Tensor, dtype: torch.dtype) -> Tensor:
    with torch.autocast(ids.device.type, dtype, enabled=dtype != torch.float32):
        logits: Tensor = model(ids, use_cache=True, logits_to_keep=1).logits
    return logits


def read_with_pghu(model: SpenForCausalLM, ids: Tensor) -> Tensor:
    return SpenStream(model, pghu=PGHU()).feed(ids, keep=1)


@torch.no_grad()
def read_with_attention(model: GPT2LMHeadModel, ids: Tensor) -> Tensor:
    hidden = model.transformer(ids, use_cache=True).last_hidden_state
    logits: Tensor = model.lm_head(hidden[:, -1:])
    return logits


EXPERIMENT = Experiment(
    "spen_prefill",
    "Reading one whole sequence on one GPU",
    grid=factorial(),
    measure=measure,
    needs="gpu",
    settings={
        "preset": "spen-130m",
        "overrides": {},
        "heads": 12,  # of GPT-2
        "lengths": [2048, 16384],
        "dtype": "bfloat16",
        "repetitions": 5,
    },
    alone=True,
    seconds=60,
)
