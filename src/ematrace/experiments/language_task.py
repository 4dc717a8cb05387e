"""What experiments on language models share: training with progress, and streamed against parallel as metrics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from ematrace.experiments.base import Context, number, perplexity
from ematrace.results import Metric
from ematrace.spen import SpenForCausalLM
from ematrace.spen.parity import parity
from ematrace.train import TrainConfig, TrainSummary, train
from ematrace.train.metrics import Silent


def train_model(ctx: Context, config: TrainConfig, share: float) -> TrainSummary:
    """Train to the end; it is this `share` of the experiment."""
    summary = train(config, display=_Progress(ctx, share))
    if summary.stopped is not None:
        raise RuntimeError(f"training was stopped by {summary.stopped} at step {summary.step}")
    return summary


def metrics_lines(out: Path) -> list[dict[str, Any]]:
    """What the run in this folder recorded at each step."""
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


class _Progress(Silent):
    def __init__(self, ctx: Context, share: float) -> None:
        self.ctx, self.share, self.steps = ctx, share, 1

    def on_start(self, total_steps: int) -> None:
        self.steps = total_steps

    def on_step(self, metrics: Mapping[str, Any]) -> None:
        self.ctx.progress(self.share * metrics["step"] / self.steps)


def parity_metrics(model: SpenForCausalLM, ids: Tensor) -> dict[str, Metric]:
    """A SPEN that reads ids [1, T] token by token against the same in parallel."""
    found = parity(model, ids)
    values = {**asdict(found), "perplexity_ratio": found.perplexity_ratio}
    perplexities = ("perplexity_parallel", "perplexity_streamed")
    return {name: perplexity(value) if name in perplexities else number(value) for name, value in values.items()}
