"""The decisive arms of the gap at the paper's size: 130M parameters, GPT-2's vocabulary, 2,048 tokens of context.

Steps of 65,536 tokens. `budget` says what SPEN and a transformer have in common: the tokens, or the FLOPs that SPEN
takes for them, for which the transformer's cosine ends earlier. Perplexities are with the state reset, where every
window of 2,048 tokens starts with nothing before it, and with the state carried through the whole text, in order. A
transformer has no state to carry: it reads windows that overlap by half and is scored where it sees at least a half.

    ematrace reproduce gap_130m --scale gpu --data "train-*.jsonl.xz" --only seed=0 budget=tokens \\
        --settings validation=validation.jsonl.xz texts.wikitext2=wiki.valid.raw.xz texts.c4=c4_sample.jsonl.xz
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ematrace.analysis.gap_design import ATTENTION, DECISIVE, GPT2, SPEN, Arm
from ematrace.baselines.language import UNIGRAM, Unigram
from ematrace.evaluation import score_rows
from ematrace.experiments.base import Context, Experiment, Point, cross_entropy, number, perplexity
from ematrace.experiments.gap_task import (
    CURVE,
    SCORED_AT_ONCE,
    SETTINGS,
    arm_points,
    budget_of,
    build_arm,
    matched_width,
    score,
    scored_rows,
    seconds_of,
    trained,
    training_curve,
)
from ematrace.experiments.gap_text import ScoredText, text_to_score
from ematrace.experiments.language_task import metrics_lines
from ematrace.experiments.spen_training import training_metrics
from ematrace.models.flops import BACKWARD, flops_per_token
from ematrace.results import Metric, Row
from ematrace.text import load_tokenizer
from ematrace.train import TrainSummary

GPT2_SMALL = replace(GPT2, width="fixed")  # with its own d_ff of 3072, and 4% fewer parameters
TRANSFORMERS = (GPT2, ATTENTION, GPT2_SMALL)
END_OF_PASS = 0.1  # share of a pass's steps


def grid(scale: str, seeds: int) -> Iterable[Point]:
    """Arms whose rate was chosen; without a GPU toys, which show that it runs."""
    if scale != "gpu":
        yield from arm_points((SPEN,), "toy", 0, budget="tokens")
        yield from arm_points((GPT2,), "toy", 0, budget="flops")
        return
    for seed in range(seeds):
        for budget, arms in (("tokens", DECISIVE), ("flops", TRANSFORMERS), ("tokens", (GPT2_SMALL,))):
            yield from arm_points(arms, "130m", seed, budget=budget)


def budget_in_tokens(point: Point, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """At equal FLOPs, the tokens for which an arm takes what SPEN takes for all of them."""
    found = {**settings, **budget_of(point, settings)}
    if point.factors["budget"] == "flops":
        factors: dict[str, Any] = {name: point.factors[name] for name in asdict(SPEN)}
        arm = Arm(**factors)
        size, entries, length = str(point.factors["size"]), found["vocab_size"], found["length"]
        share = flops_of(SPEN, size, entries, length) / flops_of(arm, size, entries, length)
        found["tokens"] = int(share * found["tokens"])
    return {name: value for name, value in found.items() if value != settings.get(name)}


@cache
def flops_of(arm: Arm, size: str, vocab_size: int, length: int) -> float:
    """Of training, per token, without the half of attention's square that its mask leaves out."""
    with torch.device("meta"):
        model = build_arm(arm, size, matched_width(arm, size, vocab_size, length), vocab_size, length)
    masked = 0.0
    if arm.context == "attention":
        masked = (1 + BACKWARD) * 2.0 * length * model.config.hidden_size * model.config.num_hidden_layers
    return flops_per_token(model, length) - masked


def measure(ctx: Context, *, size: str, budget: str, lr: float, **factors: Any) -> list[Row]:
    arm, settings = Arm(**factors), ctx.settings
    with trained(ctx, arm, size, lr, validate_every=CURVE) as (model, run):
        of_run = training_metrics(run.summary)
        rows = [*curve(run.summary, settings), *pass_rows(run.summary, settings)]
    tokenizer = load_tokenizer(run.tokenizer)
    entries = len(tokenizer)
    of_run["mflop_per_token"] = number(flops_of(arm, size, entries, settings["length"]) / 1e6, unit="MFLOP")
    of_run["d_ff"] = number(run.d_ff)
    scored = scored_rows(ctx, run.tokenizer, partial(score, model))
    reset = {row.factors["text"]: row.metrics for row in scored if row.factors.get("slice") == "all"}
    context = None if arm.context in ("ema", "ema_error", "none") else settings["length"]
    for name, source in {"validation": settings["validation"], **settings["texts"]}.items():
        nats = carried(model, text_to_score(ctx, source, run.tokenizer), tokenizer.eos_token_id, context)
        part = nats[1::2] if name == "validation" else nats  # the half that figures are of
        rows += state_rows(name, {"reset": reset[name]["nats"], "carried": mean_of(part)})
        rows.append(Row({"text": name}, {"unigram_perplexity": perplexity_of(reset[name]["unigram_nats"])}))
    of_run["uniform_perplexity"] = perplexity(entries)
    return [Row({}, of_run | scored[0].metrics), *rows, *scored[1:]]


def curve(summary: TrainSummary, settings: Mapping[str, Any]) -> Iterator[Row]:
    """The training curve, with the held-out loss at the same steps (in bfloat16, on some windows)."""
    held_out = {line["step"]: line.get("validation_cross_entropy") for line in metrics_lines(summary.out)}
    for row in training_curve(summary, settings["sequences"] * settings["length"]):
        metrics = dict(row.metrics)
        if (nats := held_out[row.factors["step"]]) is not None:
            metrics["held_out_nats"] = cross_entropy(nats)
        yield Row(row.factors, metrics)


def pass_rows(summary: TrainSummary, settings: Mapping[str, Any]) -> Iterator[Row]:
    """Training loss on tokens that are seen for the first time, the second, ...: of all steps, and of the last tenth.

    A step that lies in two passes is left out.
    """
    train_tokens = int(Unigram.load(summary.model / UNIGRAM).counts.sum())
    per_pass = (train_tokens - 1) // settings["length"] / settings["sequences"]  # in steps
    by_pass: dict[int, list[float]] = {}
    for line in metrics_lines(summary.out):
        first, last = (math.floor(at / per_pass) for at in (line["step"] - 1, line["step"] - 1e-9))
        if first == last:
            by_pass.setdefault(first + 1, []).append(line["cross_entropy"])
    for number_of_pass, nats in by_pass.items():
        end = nats[-max(1, round(END_OF_PASS * len(nats))) :]
        yield Row({"pass": number_of_pass}, {"pass_nats": mean_of(nats), "pass_end_nats": mean_of(end)})


def carried(model: Any, text: ScoredText, eos_id: int, context: int | None) -> NDArray[np.float64]:
    """Nats of the windows' targets when the text is read from its beginning to its end."""
    n, length = text.windows.shape[0], text.windows.shape[1] - 1
    if not np.array_equal(text.windows[:-1, -1], text.windows[1:, 0]):
        raise ValueError("settings: windows: a state is carried through the whole text, which has more windows")
    ids = np.concatenate([text.windows[0, :1], text.windows[:, 1:].ravel()])
    return score_rows(model, [ids], eos_id, context, SCORED_AT_ONCE)[0][1:].reshape(n, length)


def state_rows(text: str, nats: Mapping[str, Metric]) -> Iterator[Row]:
    for state, value in nats.items():
        yield Row({"text": text, "state": state}, {"cross_entropy": value, "perplexity": perplexity_of(value)})


def mean_of(nats: Sequence[float] | NDArray[np.float64]) -> Metric:
    """Refuses what is not finite: such a model has no figures."""
    return Metric(float(np.mean(nats)), unit="nats", n=np.size(nats), better="low")


def perplexity_of(nats: Metric) -> Metric:
    """Unknown where the cross-entropy is."""
    return perplexity(math.nan if nats.value is None else math.exp(nats.value), nats.n)


EXPERIMENT = Experiment(
    "gap_130m",
    "The gap's decisive arms at 130M parameters",
    grid=grid,
    measure=measure,
    needs="any",
    data="builtin",
    settings={**SETTINGS, "windows": 100_000},  # all: a state is carried through a whole text
    derived=budget_in_tokens,
    alone=True,
    seconds=6,
    seconds_of=seconds_of,
)
