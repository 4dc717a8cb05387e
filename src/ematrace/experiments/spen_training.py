"""SPEN-130M and a GPT-2 of its size, trained by one loop on the same tokens of the same text (C21).

The paper's batch (224 x 2048 in micro-batches of 56), bfloat16, compiled, on one GPU. Speed is the median over steps,
with the first five, in which kernels are compiled, left out; a step is all of it: data, forward, backward, clip, AdamW.
Then both are scored on texts that neither was trained on, and the streamed SPEN is compared with the parallel one.

    ematrace reproduce spen_training --scale gpu --data "train-*.jsonl.xz" \\
        --settings validation=validation.jsonl.xz texts.wikitext2=wikitext2.txt
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ematrace.baselines.language import UNIGRAM, Unigram
from ematrace.experiments.base import (
    NO_DEFAULT,
    Context,
    Experiment,
    Point,
    cross_entropy,
    factorial,
    number,
    perplexity,
)
from ematrace.experiments.language_task import metrics_lines, parity_metrics, train_model
from ematrace.results import Metric, Row
from ematrace.train import TrainConfig, TrainSummary
from ematrace.train.config import resolve_recipe

COMPILING = 5  # steps in which kernels are still being compiled
COMPARED_TOKENS = 1024
TRAINING = 0.8  # share of the time


def measure(ctx: Context, preset: str) -> list[Row]:
    with TemporaryDirectory(dir=ctx.scratch) as folder:
        config = train_config(preset, ctx.settings, data=str(ctx.data), out=Path(folder) / preset, seed=ctx.seed)
        summary = train_model(ctx, config, TRAINING)
        return [Row({}, training_metrics(summary)), *held_out_rows(ctx, summary)]


def train_config(preset: str, settings: Mapping[str, Any], **where: Any) -> TrainConfig:
    names = ("validation", "tokenizer", "tokens", "sequences", "length")
    chosen = {name: settings[name] for name in names}
    if chosen["tokenizer"] is None and where["data"] != "builtin":
        chosen["tokenizer"] = "gpt2"  # on every machine, so that cells can be compared
    # Writing half a gigabyte is not part of a step; the last step has a checkpoint in any case.
    return TrainConfig(preset=preset, checkpoint_every=10**9, **chosen, **where)


def recipe_of(point: Point, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the preset decides where the settings say nothing."""
    return asdict(resolve_recipe(train_config(str(point.factors["preset"]), settings, data="", out=Path())))


def training_metrics(summary: TrainSummary) -> dict[str, Metric]:
    lines = metrics_lines(summary.out)
    speeds = sorted(line["tokens_per_second"] for line in lines[COMPILING:] or lines)
    median = statistics.median(speeds)
    mfu = median * summary.flops_per_token / summary.matmul_flops_per_second
    entropies = {
        name: cross_entropy(value)
        for name in ("validation_cross_entropy", "unigram_cross_entropy")
        if (value := getattr(summary, name)) is not None
    }
    return {
        "tokens_per_second": number(median, unit="tokens/s", better="high"),
        "slowest_tokens_per_second": number(speeds[0], unit="tokens/s", better="high"),
        "fastest_tokens_per_second": number(speeds[-1], unit="tokens/s", better="high"),
        "mfu": number(mfu if mfu <= 1 else math.nan, unit="share"),  # above 1 the matmul rate is too low
        "matmul_tflops": number(summary.matmul_flops_per_second / 1e12, unit="TFLOP/s"),
        "peak_memory_gib": number(summary.peak_memory_bytes / 2**30, unit="GiB"),
        "parameters": number(summary.parameters, unit="parameters"),
        "steps": number(summary.steps),
        "tokens": number(summary.tokens),
        "training_seconds": number(summary.seconds, unit="s"),
        **entropies,
    }


def held_out_rows(ctx: Context, summary: TrainSummary) -> list[Row]:
    """Perplexity on other texts, in float32, and for a SPEN how streamed and parallel agree on the first of them."""
    from ematrace.evaluation import evaluate
    from ematrace.spen import SpenForCausalLM
    from ematrace.text import open_source, pack
    from ematrace.train import load_model

    model, tokenizer = load_model(summary.model)
    model.to(ctx.device)
    counts = summary.model / UNIGRAM
    unigram = Unigram.load(counts) if counts.is_file() else None
    rows, texts = [], ctx.settings["texts"]
    for done, (name, source) in enumerate(texts.items(), start=1):
        result = evaluate(model, tokenizer, open_source(source), batch_tokens=16_384, unigram=unigram)
        metrics = {
            "perplexity": perplexity(result.total.perplexity),
            "cross_entropy": cross_entropy(result.total.cross_entropy),
            "bits_per_byte": number(result.bits_per_byte, unit="bits/byte", better="low"),
        }
        if unigram is not None:
            metrics["unigram_perplexity"] = perplexity(result.baselines["unigram"].perplexity)
        rows.append(Row({"text": name}, metrics))
        ctx.progress(TRAINING + (1 - TRAINING) * done / (len(texts) + 1))
    if isinstance(model, SpenForCausalLM) and texts:
        packed = pack(next(iter(texts.values())), tokenizer)
        ids = torch.from_numpy(packed.tokens(0, min(packed.n_tokens, COMPARED_TOKENS))).unsqueeze(0)
        rows.append(Row({"read": "streamed"}, parity_metrics(model, ids.to(ctx.device))))
    return rows


EXPERIMENT = Experiment(
    "spen_training",
    "SPEN and a transformer of its size, trained on the same text",
    grid=factorial(preset=["spen-130m", "gpt2-130m"]),
    measure=measure,
    needs="gpu",
    data=NO_DEFAULT,
    settings={
        "tokens": 54_132_736,  # 118 steps
        "sequences": None,  # the preset's 224
        "length": None,  # the preset's 2048
        "tokenizer": None,  # gpt2
        "validation": None,  # held out of the training text
        "texts": {},  # name: source, to be scored afterwards
    },
    derived=recipe_of,
    alone=True,
    seconds=300,
)
