"""SPEN itself: its size (C20), what a slow trace keeps (C28), streamed against parallel (C26), and a small one trained.

The small one learns from `builtin` for a minute: logits are worth comparing once they beat what knows no context.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ematrace.experiments.base import Experiment
from ematrace.experiments.workbench import Figures, Workbench
from ematrace.spen import SpenConfig, SpenForCausalLM
from ematrace.spen.parity import parity
from ematrace.text import pack
from ematrace.traces import ema_traces
from ematrace.train import TrainConfig, TrainSummary, load_model, train
from ematrace.train.metrics import Silent

PRESET = "spen-tiny"
DATA = "builtin"
SLOW = SpenConfig().alphas[-1]


def measure(bench: Workbench) -> Figures:
    figures: Figures = {"parameters": (float(paper_parameters()), None)}
    figures |= {f"retention.{lag}": (retention(lag), None) for lag in (50, 200)}
    with TemporaryDirectory() as folder:
        summary = train_small(bench, Path(folder) / "run")
        model, tokenizer = load_model(summary.model)
    for name in ("validation_cross_entropy", "unigram_cross_entropy", "uniform_cross_entropy"):
        value = getattr(summary, name)
        figures[f"trained.{name}"] = (float("nan") if value is None else value, None)
    ids = torch.from_numpy(pack(DATA, tokenizer, split="validation").tokens(0, bench.sizes.spen_positions)).unsqueeze(0)
    compared = variants(model)
    for done, (name, variant) in enumerate(compared.items(), start=1):
        told = parity(variant, ids)
        measured = asdict(told) | {"perplexity_ratio": told.perplexity_ratio}
        figures |= {f"parity.{name}.{figure}": (value, None) for figure, value in measured.items()}
        bench.progress(0.7 + 0.3 * done / len(compared))
    return figures


def paper_parameters() -> int:
    with torch.device("meta"):
        model = SpenForCausalLM(SpenConfig.preset("spen-130m"))
    return sum(p.numel() for p in model.parameters())


def retention(lag: int) -> float:
    """What is left of an input in the slow trace `lag` steps later, as a share of what it put in."""
    impulse = torch.zeros(1, lag + 1, 1)
    impulse[0, 0] = 1.0
    traces, _ = ema_traces(impulse, [SLOW])
    return float(traces[0, 0, lag, 0] / traces[0, 0, 0, 0])


def variants(model: SpenForCausalLM) -> Mapping[str, SpenForCausalLM]:
    dense = deepcopy(model)
    dense.config.ffn = "dense"
    return {"float64": deepcopy(model).double(), "float32_dense": dense, "float32": model}


def train_small(bench: Workbench, folder: Path) -> TrainSummary:
    config = TrainConfig(
        preset=PRESET, data=DATA, out=folder, tokens=bench.sizes.spen_tokens, seed=bench.seed, device="cpu"
    )
    summary = train(config, display=_Progress(bench))
    if summary.stopped is not None:
        raise KeyboardInterrupt
    return summary


class _Progress(Silent):
    """Training is the first 70% of the experiment."""

    def __init__(self, bench: Workbench):
        self.bench, self.steps = bench, 1

    def on_start(self, total_steps: int) -> None:
        self.steps = total_steps

    def on_step(self, metrics: Mapping[str, Any]) -> None:
        self.bench.progress(0.7 * metrics["step"] / self.steps)


EXPERIMENT = Experiment(
    "spen_model",
    "SPEN: size, streaming, a small one trained",
    measure,
    group="spen",
    on_grammars=False,
    settings={"preset": PRESET, "data": DATA},
)
