"""SPEN-130M and a GPT-2-size transformer, trained by one loop on the same tokens of the same text (C21).

The paper's batch (224 x 2048 in micro-batches of 56), bfloat16, compiled, on one GPU. Speed is the median over steps,
with the first five, in which kernels are compiled, left out; a step is all of it: data, forward, backward, clip, AdamW.
Then both are scored on text that neither was trained on, and the streamed SPEN is compared with the parallel one. Each
has a result file of its own, spen_training.json and gpt2_training.json, so that one can be run again without the other.

    python benchmarks/spen_training.py --data "train-*.jsonl.xz" --validation validation.jsonl.xz --record results
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ematrace.baselines.language import Unigram
from ematrace.evaluation import evaluate
from ematrace.ledger import Figure, Result, collect_provenance, write_result
from ematrace.spen import SpenForCausalLM
from ematrace.spen.parity import parity
from ematrace.text import open_source, pack
from ematrace.train import TrainConfig, TrainSummary, load_model, train
from ematrace.train.metrics import Silent
from ematrace.train.run import UNIGRAM

COMPILING = 5  # steps in which kernels are still being compiled
PAPER_TOKENS_PER_SECOND = 165_000


class Lines(Silent):
    """A line of text now and then: the output is read from a log."""

    def on_start(self, total_steps: int) -> None:
        print(f"{total_steps} steps", flush=True)

    def on_step(self, metrics: Mapping[str, Any]) -> None:
        if metrics["step"] % 20 == 0 or "validation_cross_entropy" in metrics:
            shown = ("step", "cross_entropy", "validation_cross_entropy", "tokens_per_second", "mfu", "grad_norm")
            print({name: metrics[name] for name in shown if name in metrics}, flush=True)

    def on_event(self, text: str) -> None:
        print(text, flush=True)


def train_one(preset: str, arguments: argparse.Namespace) -> TrainSummary:
    return train(
        TrainConfig(
            preset=preset,
            data=arguments.data,
            validation=arguments.validation,
            out=arguments.folder / preset,
            tokenizer=arguments.tokenizer,
            tokens=arguments.tokens,
            sequences=arguments.sequences,
            length=arguments.length,
            seed=arguments.seed,
            checkpoint_every=10**9,  # writing half a gigabyte is not part of a step; the last step has one
        ),
        display=Lines(),
    )


def training_figures(summary: TrainSummary) -> dict[str, float]:
    lines = [json.loads(line) for line in (summary.out / "metrics.jsonl").read_text().splitlines()]
    speeds = sorted(line["tokens_per_second"] for line in lines[COMPILING:] or lines)
    median = statistics.median(speeds)
    figures = {
        "tokens_per_second": median,
        "tokens_per_second.slowest": speeds[0],
        "tokens_per_second.fastest": speeds[-1],
        "mfu": median * summary.flops_per_token / summary.matmul_flops_per_second,
        "matmul_tflops": summary.matmul_flops_per_second / 1e12,
        "peak_memory_gib": summary.peak_memory_bytes / 2**30,
        "parameters": summary.parameters,
        "steps": summary.steps,
        "tokens": summary.tokens,
        "seconds": summary.seconds,
        "validation_cross_entropy": summary.validation_cross_entropy,
        "unigram_cross_entropy": summary.unigram_cross_entropy,
    }
    return {name: float(value) for name, value in figures.items() if value is not None}


def held_out_figures(summary: TrainSummary, sources: Mapping[str, str], device: torch.device) -> dict[str, float]:
    """Perplexity on other text, in float32, and for a SPEN how streamed and parallel agree on it."""
    model, tokenizer = load_model(summary.model)
    model.to(device)
    unigram = Unigram.load(summary.model / UNIGRAM)
    figures = {}
    for name, spec in sources.items():
        result = evaluate(model, tokenizer, open_source(spec), batch_tokens=16_384, unigram=unigram)
        figures[f"{name}.perplexity"] = result.total.perplexity
        figures[f"{name}.cross_entropy"] = result.total.cross_entropy
        figures[f"{name}.unigram_perplexity"] = result.baselines["unigram"].perplexity
        figures[f"{name}.bits_per_byte"] = result.bits_per_byte
    if isinstance(model, SpenForCausalLM) and sources:
        packed = pack(next(iter(sources.values())), tokenizer)
        n_tokens = min(packed.n_tokens, 1024)
        ids = torch.from_numpy(packed.tokens(0, n_tokens)).unsqueeze(0).to(device)
        told = parity(model, ids)
        figures |= {f"parity.{name}": value for name, value in vars(told).items()}
        figures["parity.perplexity_ratio"] = told.perplexity_ratio
    return figures


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="training text")
    parser.add_argument("--validation", help="validation text (default: held out of the training text)")
    parser.add_argument("--tokenizer", help="gpt2, a folder or a file (default: gpt2)")
    parser.add_argument("--tokens", type=int, default=54_132_736, help="tokens to train on (default: 118 steps)")
    parser.add_argument("--sequences", type=int, help="sequences a step (default: the preset's 224)")
    parser.add_argument("--length", type=int, help="tokens a sequence (default: the preset's 2048)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--presets", nargs="+", default=["spen-130m", "gpt2-130m"])
    parser.add_argument("--evaluate", nargs="*", default=[], metavar="NAME=SOURCE", help="text to score afterwards")
    parser.add_argument("--folder", type=Path, default=Path("runs"), help="where the runs go")
    parser.add_argument("--record", type=Path, help="folder for the result file")
    arguments = parser.parse_args()
    families = [preset.split("-")[0] for preset in arguments.presets]
    if len(set(families)) < len(families):
        parser.error("argument --presets: one of each family, since a family has one result file")
    return arguments


def main() -> None:
    arguments = read_arguments()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sources = dict(item.split("=", 1) for item in arguments.evaluate)
    told: dict[str, float] = {}
    for preset in arguments.presets:
        started = time.monotonic()
        summary = train_one(preset, arguments)
        if summary.stopped is not None:  # its figures would be of another run than the one that was asked for
            raise SystemExit(130)
        figures: dict[str, float] = {}
        for measure in (training_figures, partial(held_out_figures, sources=sources, device=device)):
            measured = measure(summary)
            figures |= {f"{preset}.{name}": value for name, value in measured.items()}
            print(preset, json.dumps(measured), flush=True)
            if arguments.record is not None:  # at once: what is next may run out of time
                result = result_of(preset, summary, figures, arguments.seed, device, time.monotonic() - started)
                print(write_result(result, arguments.record), flush=True)
        told |= figures
    print(json.dumps({"benchmark": "spen_training", "paper": PAPER_TOKENS_PER_SECOND, **told}))


def result_of(
    preset: str,
    summary: TrainSummary,
    figures: Mapping[str, float],
    seed: int,
    device: torch.device,
    seconds: float,
) -> Result:
    family = preset.split("-")[0]
    texts = {name: summary.settings[name] and Path(summary.settings[name]).name for name in ("data", "validation")}
    return Result(
        experiment=f"{family}_training",
        title=f"{preset} trained on real text",
        claims=("C21",) if family == "spen" else (),
        scale="gpu" if device.type == "cuda" else "cpu",
        command=f"python benchmarks/spen_training.py --data SHARDS --validation FILE --presets {preset}",
        settings={preset: {**summary.settings, **texts, "out": None}},
        seeds=(seed,),
        figures={name: Figure((value,)) for name, value in figures.items()},
        provenance=collect_provenance(seconds),
    )


if __name__ == "__main__":
    main()
