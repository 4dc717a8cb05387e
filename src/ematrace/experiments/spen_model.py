"""SPEN itself: its size (C20), what a slow trace keeps (C28), streamed against parallel (C26), and a small one trained.

The small one learns from `builtin` for a minute: logits are worth comparing once they beat what knows no context.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from ematrace.experiments.base import Context, Experiment, cross_entropy, factorial, number
from ematrace.experiments.language_task import parity_metrics, train_model
from ematrace.results import Row
from ematrace.spen import SpenConfig, SpenForCausalLM
from ematrace.text import open_source, pack
from ematrace.text.held_out import held_out_split
from ematrace.traces import ema_traces
from ematrace.train import TrainConfig, load_model

SLOW = SpenConfig().alphas[-1]
LAGS = (50, 200)
TRAINING = 0.7  # share of the time


def measure(ctx: Context) -> list[Row]:
    rows = [Row({"model": "spen-130m"}, {"parameters": number(paper_parameters(), unit="parameters")})]
    rows += [Row({"lag": lag}, {"retention": number(retention(lag))}) for lag in LAGS]
    preset, data = ctx.settings["preset"], str(ctx.data)
    with TemporaryDirectory(dir=ctx.scratch) as folder:
        out, tokens = Path(folder) / "run", ctx.settings["tokens"]
        config = TrainConfig(preset=preset, data=data, out=out, tokens=tokens, seed=ctx.seed, device=ctx.device)
        summary = train_model(ctx, config, TRAINING)
        model, tokenizer = load_model(summary.model)
        source = open_source(data)
        split = held_out_split(summary.model, source)
    names = ("validation_cross_entropy", "unigram_cross_entropy", "uniform_cross_entropy")
    entropies = {name: cross_entropy(getattr(summary, name)) for name in names}
    rows.append(Row({"model": preset}, entropies))
    ids = torch.from_numpy(pack(source, tokenizer, split=split).tokens(0, ctx.settings["positions"])).unsqueeze(0)
    compared = variants(model)
    for done, ((precision, ffn), variant) in enumerate(compared.items(), start=1):
        rows.append(Row({"precision": precision, "ffn": ffn}, parity_metrics(variant, ids)))
        ctx.progress(TRAINING + (1 - TRAINING) * done / len(compared))
    return rows


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


def variants(model: SpenForCausalLM) -> Mapping[tuple[str, str], SpenForCausalLM]:
    """By precision and feed-forward layer."""
    config = deepcopy(model.config)
    config.ffn = "dense"
    dense = SpenForCausalLM(config)
    dense.load_state_dict(model.state_dict())
    return {("float64", "topk"): deepcopy(model).double(), ("float32", "dense"): dense, ("float32", "topk"): model}


EXPERIMENT = Experiment(
    "spen_model",
    "SPEN: size, streaming, a small one trained",
    grid=factorial(),
    measure=measure,
    data="builtin",
    settings={"preset": "spen-tiny", "tokens": 1_000_000, "positions": 4096},
    seconds=85,
)
