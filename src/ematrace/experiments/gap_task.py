"""One arm of the gap between SPEN and a transformer: built with as many parameters as SPEN, trained, and scored.

docs/analysis-plan.md says which arms there are and why. All arms of a seed see the same windows in the same order and
are scored on the same targets with the same left context.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ematrace.analysis.gap_design import SIZES, SPEN, Arm
from ematrace.analysis.rates import SELECTION
from ematrace.baselines.language import UNIGRAM, Unigram
from ematrace.evaluation import target_nats
from ematrace.experiments.base import Context, Device, Experiment, Grid, Point, cross_entropy, number
from ematrace.experiments.chosen_rates import rate_at
from ematrace.experiments.gap_text import GPT2_ENTRIES, ScoredText, text_to_score, tokenizer_folder
from ematrace.experiments.hooks import Hook, hooked
from ematrace.experiments.language_task import metrics_lines, train_model
from ematrace.experiments.recall import (
    RARE,
    ZOOLOGY_TOKENS,
    Ids,
    distance_to_last,
    in_own_document,
    recall_rows,
    stretch_rows,
)
from ematrace.models.block import Block
from ematrace.results import Metric, Row
from ematrace.results.schema import Factor
from ematrace.text import load_tokenizer
from ematrace.train import TrainConfig, TrainSummary, load_model
from ematrace.train.models import build_model
from ematrace.train.run import NonFiniteLoss

A = TypeVar("A", bound=Arm)

_BUDGET = {
    **{"tokens": 3584 * 64 * 512, "sequences": 64, "length": 512, "warmup": 200},
    **{"vocab_size": 8192, "windows": 2048},
}
_TOY = {"tokens": 128 * 16 * 128, "sequences": 16, "length": 128, "warmup": 10, "vocab_size": 1024, "windows": 128}
BUDGETS: Mapping[str, Mapping[str, int]] = {
    "toy": _TOY,
    "small": {**_TOY, "tokens": 800 * 16 * 128, "warmup": 50},  # 7 tokens per parameter
    "ablation": {**_BUDGET, "tokens": 500 * 64 * 512, "warmup": 50},  # the paper's 500 steps
    "2m": _BUDGET,  # 61 tokens per parameter, as the paper's
    "7m": _BUDGET,  # 16 per parameter
    "30m": _BUDGET,  # 3.7 per parameter
    "130m": {
        **{"tokens": 1600 * 32 * 2048, "sequences": 32, "length": 2048, "warmup": 200},  # .8 per parameter
        **{"vocab_size": GPT2_ENTRIES, "windows": 512},
    },
}
SETTINGS: Mapping[str, Any] = {
    **dict.fromkeys(BUDGETS["2m"]),  # None: that of the size; windows are those scored of each text, at most
    "validation": None,  # held out of the training text
    "texts": {},  # name: source, to be scored as well
}
TRAINING = 0.9  # share of the time
# Of one process that has the device to itself. Measured at 2m on both (docs/performance.md, docs/log.md); the others
# are estimates, from runs that shared an H200 or from operations.
TOKENS_PER_SECOND: Mapping[str, Mapping[str, float]] = {
    "cuda": {"ablation": 14e6, "2m": 11e6, "7m": 4e6, "30m": 1.4e6, "130m": 4e5},
    "cpu": {"ablation": 16e3, "2m": 13e3, "7m": 3e3, "30m": 700, "130m": 150},
}
SECONDS_BESIDE: Mapping[str, float] = {"cuda": 50, "cpu": 20}  # compiling, reading the text, scoring
CURVE = 128  # steps per point of the training curve
SCORED_AT_ONCE = 16_384  # tokens


def budget_of(point: Point, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the size decides where the settings say nothing; what they say, as whole numbers."""
    found = {}
    for name, value in BUDGETS[str(point.factors["size"])].items():
        said = value if settings.get(name) is None else settings[name]
        if isinstance(said, bool) or not isinstance(said, int | float) or said != int(said) or said < 0:
            raise ValueError(f"--settings: {name} is a whole number, not {said!r}")
        found[name] = int(said)
    return found


def steps_of(settings: Mapping[str, Any]) -> int:
    """Of the training."""
    steps: int = settings["tokens"] // (settings["sequences"] * settings["length"])
    return steps


def seconds_of(point: Point, settings: Mapping[str, Any], device: Device, sharing: int) -> float:
    """Expected for training and scoring one arm, on a device that as many processes share."""
    size = str(point.factors["size"])
    of, tokens = SIZES[size], int(settings["tokens"])
    units = int(point.factors.get("units", of["d_ff"]))
    vocabulary = BUDGETS[size]["vocab_size"]
    larger = _weights(of, units, settings["vocab_size"]) / _weights(of, of["d_ff"], vocabulary)
    return SECONDS_BESIDE[device] + larger * sharing * tokens / TOKENS_PER_SECOND[device][size]


ARM_FIELDS: Mapping[str, Any] = {
    "needs": "any",
    "data": "builtin",
    "settings": SETTINGS,
    "derived": budget_of,
    "seconds": 6,
    "seconds_of": seconds_of,
}
"""Of an `Experiment` that trains arms and scores them."""


def _weights(of: Mapping[str, int], units: int, vocabulary: int) -> int:
    """About; operations go with them."""
    width = of["d_model"]
    return vocabulary * width + of["n_layers"] * (5 * width**2 + 2 * width * units)


Look = Callable[[Any, ScoredText], list[Row]]


def arm_experiment(
    name: str,
    title: str,
    grid: Grid,
    arm: type[Arm] = Arm,
    *,
    beside: Collection[str] = (),
    sweep: bool = False,
    look: Look = lambda model, text: [],
    **options: Any,
) -> Experiment:
    """An experiment that trains arms of this class and scores them; with `sweep`, for learning rates.

    `beside` are factors that only settings follow from, `options` fields of `Experiment`, in place of ARM_FIELDS.
    """

    def measure(ctx: Context, *, size: str, lr: float, **factors: Any) -> list[Row]:
        chosen = arm(**{name: value for name, value in factors.items() if name not in beside})
        return measure_rate(ctx, chosen, size, lr) if sweep else measure_arm(ctx, chosen, size, lr, look)

    return Experiment(name, title, grid=grid, measure=measure, **{**ARM_FIELDS, **options})


def arm_points(
    arms: Iterable[A], size: str, seed: int, rate: Callable[[A, str], float | None] = rate_at, **more: Factor
) -> Iterator[Point]:
    """The arms whose rate was chosen, at that rate; with `more` factors."""
    for arm in arms:
        if (lr := rate(arm, size)) is not None:
            yield Point({**asdict(arm), "size": size, **more, "lr": lr}, seed)


def measure_arm(
    ctx: Context, arm: Arm, size: str, lr: float, look: Look = lambda model, text: [], by_stretch: bool = True
) -> list[Row]:
    """Train one model and score it; `look` may add rows about the trained model, given the validation text."""
    with trained(ctx, arm, size, lr) as (model, run):
        rows = training_curve(run.summary, ctx.settings["sequences"] * ctx.settings["length"])
    parameters = sum(p.numel() for p in model.parameters())
    of_model = {"parameters": number(parameters), "d_ff": number(run.d_ff)}
    of_model["tokens_per_parameter"] = number(ctx.settings["tokens"] / parameters)
    scored = scored_rows(ctx, run.tokenizer, partial(score, model), partial(look, model), by_stretch)
    return [Row({}, of_model | scored[0].metrics), *rows, *scored[1:]]


def measure_rate(ctx: Context, arm: Arm, size: str, lr: float) -> list[Row]:
    """For a sweep: a rate at which training breaks down is a result, too."""
    try:
        return measure_arm(ctx, arm, size, lr, by_stretch=False)
    except NonFiniteLoss:
        return [Row({}, {SELECTION: cross_entropy(math.nan)})]


def scored_rows(
    ctx: Context,
    tokenizer: Path,
    score: Callable[[Ids], tuple[NDArray[np.float64], torch.Tensor | None]],
    look: Callable[[ScoredText], list[Row]] = lambda text: [],
    by_stretch: bool = True,
) -> list[Row]:
    """Nats of every text by slice; the first row is of the half of the validation text that rates are chosen on.

    `by_stretch` adds those of stretches of each text: more than half of all rows, which a sweep does without.
    `score` takes windows [N, T+1] and returns the nats of their targets and, for top-k, the use of the units.
    """
    of_model: dict[str, Metric] = {}
    rows: list[Row] = []
    end_of_text = load_tokenizer(tokenizer).eos_token_id
    for name, source in {"validation": ctx.settings["validation"], **ctx.settings["texts"]}.items():
        text = text_to_score(ctx, source, tokenizer)
        nats, usage = score(text.windows)
        if name == "validation":  # rates are chosen on one half of it and figures are those of the other
            of_model[SELECTION] = cross_entropy(float(nats[::2].mean()))
            nats, text = nats[1::2], text.every_second()
            of_model |= usage_metrics(usage) if usage is not None else {}
            rows += look(text)
        bounds = {"rare": RARE, "rare_here": round(RARE * ctx.settings["tokens"] / ZOOLOGY_TOKENS)}
        own_document = in_own_document(text.windows, text.distance, end_of_text)
        context_seen = distance_to_last(text.windows[:, :-1]) > 0
        others = {"unigram_nats": text.unigram}
        found = recall_rows(nats, text.distance, text.count, context_seen, own_document, bounds, others)
        found += stretch_rows(nats, text.distance) if by_stretch else []
        rows += [Row({"text": name, **row.factors}, row.metrics) for row in found]
    return [Row({}, of_model), *rows]


@dataclass(frozen=True)
class TrainedArm:
    summary: TrainSummary
    tokenizer: Path
    d_ff: int


@contextmanager
def trained(ctx: Context, arm: Arm, size: str, lr: float, **changes: Any) -> Iterator[tuple[Any, TrainedArm]]:
    """An arm after its training, ready to be scored, and its run, whose folder is there within the context."""
    with TemporaryDirectory(dir=ctx.scratch) as folder:
        run = train_arm(ctx, arm, size, lr, Path(folder) / "run", **changes)
        model, _ = load_model(run.summary.model)
        yield model.to(torch.device(ctx.device)).eval(), run


def train_arm(ctx: Context, arm: Arm, size: str, lr: float, out: Path, **changes: Any) -> TrainedArm:
    """`changes` are fields of `TrainConfig`."""
    settings = ctx.settings
    tokenizer = tokenizer_folder(str(ctx.data), settings["vocab_size"])
    d_ff = matched_width(arm, size, len(load_tokenizer(tokenizer)), settings["length"])
    config = TrainConfig(
        preset=arm.preset(),
        overrides=tuple(f"{name}={json.dumps(value)}" for name, value in arm.overrides(size, d_ff).items()),
        data=str(ctx.data),
        out=out,
        tokenizer=str(tokenizer),
        lr=lr,
        final_lr=lr / 10,
        seed=ctx.seed,
        device=ctx.device,
        precision="bfloat16" if ctx.scale == "gpu" else None,  # also where cores stand in for the GPU
        micro_batch=settings["sequences"],
        checkpoint_every=10**9,
        validate_every=10**9,
        **{name: settings[name] for name in ("validation", "tokens", "sequences", "length", "warmup")},
    )
    return TrainedArm(train_model(ctx, replace(config, **changes), TRAINING), tokenizer, d_ff)


@cache
def matched_width(arm: Arm, size: str, vocab_size: int, length: int) -> int:
    """d_ff, a multiple of 8, that gives an arm as many parameters as SPEN has at this size."""
    if (own := arm.own_width(size)) is not None:
        return own
    wanted = _parameters(SPEN, size, SIZES[size]["d_ff"], vocab_size, length)
    few, more = (_parameters(arm, size, d_ff, vocab_size, length) for d_ff in (8, 16))
    return 8 * round(1 + (wanted - few) / (more - few))


def _parameters(arm: Arm, size: str, d_ff: int, vocab_size: int, length: int) -> int:
    with torch.device("meta"):
        model = build_arm(arm, size, d_ff, vocab_size, length)
    return sum(p.numel() for p in model.parameters())


def build_arm(arm: Arm, size: str, d_ff: int, vocab_size: int, length: int) -> Any:
    """A fresh model."""
    overrides = [f"{name}={json.dumps(value)}" for name, value in arm.overrides(size, d_ff).items()]
    return build_model(arm.preset(), vocab_size, 0, overrides, length=length)


@torch.no_grad()
def score(model: Any, windows: Ids) -> tuple[NDArray[np.float64], torch.Tensor | None]:
    """Nats of every target [N, T], in float32; and how often each unit [blocks, d_ff] was on, where top-k chooses."""
    at_once = max(1, SCORED_AT_ONCE // windows.shape[1])
    nats = []
    with count_units(model) as usage:
        for ids in torch.from_numpy(windows).to(model.device).split(at_once):
            logits = model(input_ids=ids[:, :-1], use_cache=False).logits
            nats.append(target_nats(logits, ids[:, 1:]))
    # Copied once: a GPU would wait for each copy.
    return torch.cat(nats).cpu().double().numpy(), torch.stack(usage) if usage else None


@contextmanager
def count_units(model: Any) -> Iterator[list[torch.Tensor]]:
    """Counts, one tensor for each block with a top-k layer, of the tokens that each unit was kept for."""
    blocks = [m for m in model.modules() if isinstance(m, Block) and m.config.ffn == "topk"]
    counts = [torch.zeros(block.config.d_ff, dtype=torch.long, device=model.device) for block in blocks]

    def add_to(count: torch.Tensor) -> Hook:
        def add(_: nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
            count.add_((inputs[0] != 0).flatten(0, -2).sum(0))

        return add

    with hooked((block.ffn.W_down, add_to(count)) for block, count in zip(blocks, counts, strict=True)):
        yield counts


def usage_metrics(usage: torch.Tensor) -> dict[str, Metric]:
    """Of [blocks, d_ff] counts: share of units never on, and the entropy of their use as a share of the largest."""
    share = usage.double() / usage.sum(1, keepdim=True)
    entropy = -torch.special.xlogy(share, share).sum(1) / np.log(usage.shape[1])
    return {"dead_units": number(float((usage == 0).double().mean())), "usage_entropy": number(float(entropy.mean()))}


def training_curve(summary: TrainSummary, tokens_per_step: int) -> list[Row]:
    """Mean cross-entropy of the training text over each CURVE steps, and which pass over the text they are of."""
    lines = metrics_lines(summary.out)
    per_pass = Unigram.load(summary.model / UNIGRAM).counts.sum() / tokens_per_step
    rows = []
    for at in range(0, len(lines), CURVE):
        part = lines[at : at + CURVE]
        nats = sum(line["cross_entropy"] for line in part) / len(part)
        passes = {"passes": number((at + len(part)) / per_pass), "train_nats": cross_entropy(nats)}
        rows.append(Row({"step": part[-1]["step"]}, passes))
    return rows
