"""Which token stood k steps back, decoded from what a trained language model holds (C28, C29, C44).

`representation`, and whether it is one vector or a sequence:

    slow      one vector   the slow trace of the first block at t
    traces    one vector   its three traces at t
    state     one vector   the three traces of all blocks at t: all that the model keeps of the past
    hidden    one vector   the residual stream at t, after block `after_block`
    sequence  sequence     the slow traces of the first block at t-k and at t-k-1
    keys      sequence     attention's keys and values of the first block at t-k

`number_format` is that of the vectors as they are read; they were computed in float32. Readers are trained on the
training text and scored on the validation text. The gain is in nats, over a baseline that sees the counts of the
window's other tokens: it knows the topic, but not what stands where. `given` says what a reader sees: `nothing` but the
vector, or also the `topic`, that is what this baseline says, from which it starts, so that the gain is what the vector
adds to it. Readers and baseline are fitted to other parts of the training text, so that the baseline is as good where
readers learn how far to trust it as where they are scored. Beside them is what linear-Gaussian inputs would allow
(`ematrace.experiments.trace_information`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import least_squares
from torch import Tensor

from ematrace.analysis.gap_design import ATTENTION, EMA, SPEN, Arm
from ematrace.experiments.base import Context, Device, Experiment, Point, accuracy, cross_entropy, number
from ematrace.experiments.gap_task import (
    SCORED_AT_ONCE,
    SETTINGS,
    arm_points,
    budget_of,
    seconds_of,
    trained,
)
from ematrace.experiments.gap_text import text_of_training, text_to_score
from ematrace.experiments.recall import Ids
from ematrace.experiments.token_readers import Fitting, Kind, PriorAt, Samples, fit_readers, fit_topic, whitened
from ematrace.experiments.trace_information import pair_information, vector_information
from ematrace.mixers.ema import ALPHAS
from ematrace.results import Metric, Row
from ematrace.results.schema import Factor
from ematrace.traces import ema_traces

FORMATS: Mapping[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ROUNDED = ("slow", "traces", "sequence")  # also read in bfloat16
READERS: Mapping[str, Mapping[str, int]] = {  # windows that readers are fitted to and scored on, and how
    "toy": {
        **{"blocks": 64, "windows": 64, "topic_windows": 64, "scored_windows": 32},
        **{"epochs": 1, "batch": 512, "hidden": 32},
    },
    "2m": {
        **{"blocks": 64, "windows": 2048, "topic_windows": 8192, "scored_windows": 512},
        **{"epochs": 5, "batch": 4096, "hidden": 512},
    },
}
READER_SECONDS: Mapping[str, float] = {"cuda": 150, "cpu": 1e5}  # on a core, by operations
OF_READERS = 5  # one of so many blocks
DECAY_LAGS = (1, 2, 4, 8, 16, 32, 64)  # of C44
SHAPES = (0.1, 4.0)  # bounds
TRAINING = 0.3  # share of the time
AT_ONCE = 64  # windows

Floats = npt.NDArray[np.floating]
Held = Mapping[tuple[str, int], Tensor]
"""By representation and block (0 where it has none): vectors [N, T, F]."""


@dataclass(frozen=True)
class Scores:
    """Of every target of one lag: its nats, and whether it was the first guess. `baseline` is [windows, targets]."""

    nats: Tensor
    right: Tensor

    def metrics(self, baseline: Tensor | None = None) -> dict[str, Metric]:
        share, n = float(self.right.double().mean()), self.nats.numel()
        found = {"accuracy": accuracy(share, n), "nats": cross_entropy(float(self.nats.mean()))}
        if baseline is not None:
            gains = (baseline - self.nats.view_as(baseline)).mean(1)  # of windows, whose targets are not independent
            found["gain_nats"] = number(float(gains.mean()), unit="nats", better="high")
            found["gain_noise"] = number(float(gains.std()) / math.sqrt(len(gains)), unit="nats")
        return found


def grid(scale: str, seeds: int) -> Iterable[Point]:
    """Claims are about SPEN, the others are for comparison. Without a GPU toys, which show that it runs."""
    if scale != "gpu":
        yield from arm_points((EMA, ATTENTION), "toy", 0)
        return
    for arm, of_arm in ((SPEN, seeds), (EMA, 1), (ATTENTION, 1)):
        for seed in range(of_arm):
            yield from arm_points((arm,), "2m", seed)


def budget(point: Point, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    reader = {**READERS[str(point.factors["size"])], **(settings["reader"] or {})}
    return {**budget_of(point, settings), "reader": reader}


def measure(ctx: Context, *, size: str, lr: float, **factors: Any) -> list[Row]:
    settings = ctx.settings
    with trained(ctx, Arm(**factors), size, lr) as (model, run):
        ctx.progress(TRAINING)
    text, length = text_of_training(ctx, run.tokenizer), settings["length"]
    of_topic, of_readers = (
        text.windows(chosen, length) for chosen in choose_windows(text.n_windows(length), settings["reader"], ctx.seed)
    )
    scored = text_to_score(ctx, settings["validation"], run.tokenizer).every_second().windows
    most = min(len(scored), settings["reader"]["scored_windows"])
    if most < 2:
        raise ValueError(f"settings: windows: a gain has its noise from 2 scored windows or more, not {most}")
    scored = scored[np.linspace(0, len(scored) - 1, most).round().astype(int)]
    counts = torch.from_numpy(text.counts()).to(model.device)
    return Decoding(ctx, model, counts, of_topic, of_readers, scored).rows()


def choose_windows(n: int, reader: Mapping[str, int], seed: int) -> tuple[Ids, Ids]:
    """Numbers of windows for the baseline and for the readers, of a text with n of them.

    They are drawn from blocks of the text of their own, so that they share documents at the borders of blocks alone.
    In order, so that this is also true of the last ones, on which epochs are chosen.
    """
    rng = np.random.default_rng(seed)
    of_readers = np.arange(n) * reader["blocks"] // n % OF_READERS == 0
    found = []
    for name, allowed in (("topic_windows", ~of_readers), ("windows", of_readers)):
        available = np.flatnonzero(allowed)
        if not 1 <= reader[name] <= len(available):
            raise ValueError(
                f"settings: reader: {name}: {reader[name]}, and its blocks of the text have {len(available)}"
            )
        found.append(np.sort(rng.choice(available, reader[name], replace=False)))
    return found[0], found[1]


class Decoding:
    """Reads windows [N, T+1] with a trained model, and decodes tokens from what it holds.

    of_topic, of_readers   windows of the training text that the baseline and the readers are fitted to; the last ones
                           are for choosing the epoch
    scored                 windows of the validation text
    Positions t are those of the second half of a window, so that all lags have the same.
    """

    def __init__(self, ctx: Context, model: Any, counts: Tensor, of_topic: Ids, of_readers: Ids, scored: Ids) -> None:
        reader = ctx.settings["reader"]
        self.ctx, self.counts = ctx, counts  # of the tokens in the training text
        self.fitting = Fitting(**{name: reader[name] for name in ("epochs", "batch", "hidden")})
        self.embedding = model.get_input_embeddings().weight.detach()
        self.generator = torch.Generator().manual_seed(ctx.seed)
        first, *self.ids = (torch.from_numpy(w[:, :-1]).to(model.device) for w in (of_topic, of_readers, scored))
        baseline = fit_topic(first, self.embedding, counts, self.fitting, self.generator)
        self.priors = [baseline.prior(each) for each in self.ids]
        self.topic = score_topic(self.priors[1], self.ids[1])
        self.held = [hold(model, each) for each in self.ids]
        self.lags = [2**i for i in range(int(math.log2(self.ids[0].shape[1] // 2)) + 1)]

    def rows(self) -> list[Row]:
        rows = list(baseline_rows(self.topic, self.ids[1], self.lags, self.counts))
        todo = [
            (name, number_format, given, kind)
            for name in self.held[0]
            for number_format in (FORMATS if name[0] in ROUNDED else ["float32"])
            for given in ("nothing", "topic")
            for kind in get_args(Kind)
            if given == "nothing" or (number_format == "float32" and kept_as(name[0]) != "sequence")
        ]
        for done, point in enumerate(todo, start=1):
            rows += self.read(*point)
            self.ctx.progress(TRAINING + (1 - TRAINING) * done / len(todo))
        return rows + list(gaussian_rows(self.held[0], self.lags, self.embedding.shape[1]))

    def read(self, name: tuple[str, int], number_format: str, given: str, kind: Kind) -> list[Row]:
        """All lags, each by a reader of its own."""
        representation, block = name
        of: dict[str, Factor] = {"representation": representation, "kept": kept_as(representation)}
        of |= {"number_format": number_format, "given": given, "reader": kind}
        of |= {"after_block": block} if block else {}
        vectors = whitened(*(each[name].to(FORMATS[number_format]).float() for each in self.held))
        fitted, scored = (
            partial(samples_of, *each, self.lags, at_target=kept_as(representation) == "sequence")
            for each in zip(vectors, self.ids, self.priors if given == "topic" else (None, None), strict=True)
        )
        n_fitted, n_scored = (second_half(each).numel() for each in self.ids)
        readers = fit_readers(fitted, n_fitted, self.embedding, self.counts, kind, self.fitting, self.generator)
        parts = torch.arange(n_scored, device=self.embedding.device).split(SCORED_AT_ONCE // len(self.lags))
        with torch.no_grad():
            found = [scores(readers(samples), samples.targets) for samples in map(scored, parts)]
        nats, right = torch.cat([s.nats for s in found], 1), torch.cat([s.right for s in found], 1)
        rows = [
            Row({**of, "lag": lag}, Scores(*of_lag).metrics(at_lag(self.topic.nats, lag)))
            for lag, *of_lag in zip(self.lags, nats, right, strict=True)
        ]
        return [*rows, Row(of, decay(dict(zip(self.lags, (row.metrics for row in rows), strict=True))))]


def samples_of(
    vectors: Tensor, ids: Tensor, prior: PriorAt | None, lags: Sequence[int], chosen: Tensor, at_target: bool
) -> Samples:
    """Of windows [N, T], the tokens `lags` before steps of the second half, which have numbers: those `chosen`.

    vectors [N, T/2, F] are those of these steps; with `at_target` [N, T, F], of which a reader has that at its target.
    """
    length, half = ids.shape[1], ids.shape[1] // 2
    windows, step = chosen // half, chosen % half
    targets = length - half + step - torch.tensor(lags, device=ids.device)[:, None]
    features = vectors[windows, targets] if at_target else vectors[windows, step].unsqueeze(0)
    return Samples(features, ids[windows, targets], None if prior is None else prior(windows.unsqueeze(0), targets))


def kept_as(representation: str) -> str:
    return "sequence" if representation in ("sequence", "keys") else "one vector"


def second_half(values: Tensor) -> Tensor:
    return at_lag(values, 0)


def at_lag(values: Tensor, lag: int) -> Tensor:
    """Of [N, T, ...], the steps `lag` before those of the second half."""
    half = values.shape[1] // 2
    return values[:, values.shape[1] - half - lag : values.shape[1] - lag]


def scores(logits: Tensor, targets: Tensor) -> Scores:
    """Of [..., entries]."""
    nats = logits.logsumexp(-1) - logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return Scores(nats, logits.argmax(-1) == targets)


@torch.no_grad()
def hold(model: Any, ids: Tensor) -> Held:
    """What a model has at each step of windows [N, T]; of one vector, at those of the second half."""
    held: dict[tuple[str, int], Tensor] = {}
    for start in range(0, len(ids), AT_ONCE):
        for name, values in _hold(model, ids[start : start + AT_ONCE]).items():
            part = values if kept_as(name[0]) == "sequence" else second_half(values)
            if name not in held:
                held[name] = part.new_empty(len(ids), *part.shape[1:])
            held[name][start : start + AT_ONCE] = part
    return held


def _hold(model: Any, ids: Tensor) -> dict[tuple[str, int], Tensor]:
    *entering, _ = streams = model.model(ids, output_hidden_states=True, use_cache=False).hidden_states
    blocks, width = model.model.layers, streams[0].shape[-1]
    read = [block.mixer_norm(x) for block, x in zip(blocks, entering, strict=True)]  # what each mixer sees
    held: dict[tuple[str, int], Tensor] = {}
    if hasattr(blocks[0].mixer, "traces"):
        traces = [ema_traces(x, ALPHAS)[0].permute(1, 2, 0, 3).flatten(2) for x in read]  # fast, medium, slow
        slow = traces[0][..., -width:]
        before = torch.nn.functional.pad(slow, (0, 0, 1, 0))[:, :-1]
        held |= {("slow", 0): slow, ("traces", 0): traces[0], ("state", 0): torch.cat(traces, -1)}
        held["sequence", 0] = torch.cat([slow, before], -1)
    else:
        held["keys", 0] = blocks[0].mixer.W_qkv(read[0])[..., width:]
    for block in sorted({len(blocks) // 2, len(blocks)}):
        held["hidden", block] = streams[block]  # the last one after the final norm
    return held


def score_topic(prior: PriorAt, ids: Tensor) -> Scores:
    """What the baseline says of every position of windows [N, T]."""
    positions = torch.arange(ids.shape[1], device=ids.device)[None]
    parts = torch.arange(len(ids), device=ids.device).split(max(1, SCORED_AT_ONCE // ids.shape[1]))
    found = [scores(prior(windows[:, None], positions).logits, ids[windows]) for windows in parts]
    return Scores(torch.cat([s.nats for s in found]), torch.cat([s.right for s in found]))


def baseline_rows(topic: Scores, ids: Tensor, lags: Iterable[int], counts: Tensor) -> Iterator[Row]:
    log_shares = ((counts + 1) / (counts + 1).sum()).log()
    for lag in lags:
        of_lag = Scores(at_lag(topic.nats, lag), at_lag(topic.right, lag))
        targets = at_lag(ids, lag)
        unigram = Scores(-log_shares[targets], targets == counts.argmax())
        yield Row({"reader": "topic", "lag": lag}, of_lag.metrics())
        yield Row({"reader": "unigram", "lag": lag}, unigram.metrics())


def decay(metrics: Mapping[int, Mapping[str, Metric]]) -> dict[str, Metric]:
    """A · exp(-(lag / scale)^shape) fitted to the gains at all of DECAY_LAGS, those without a gain among them.

    decay_shape     1 for an exponential, below for a stretched one, near 0 for a power law
    decay_r2        of the exponential, that is with shape 1
    decay_per_step  its rate
    decay_lags      lags with a gain of more than two standard errors
    """
    if not metrics.keys() >= set(DECAY_LAGS):
        return {name: Metric(None) for name in ("decay_shape", "decay_r2", "decay_per_step", "decay_lags")}
    lags = np.array(DECAY_LAGS, dtype=float)
    gains, noise = (np.array([metrics[lag][name].value for lag in DECAY_LAGS]) for name in ("gain_nats", "gain_noise"))
    *_, shape = fit_decay(lags, gains, SHAPES)[0]
    (_, log_scale, _), left = fit_decay(lags, gains, (1.0, 1.0))
    whole = ((gains - gains.mean()) ** 2).sum()
    return {
        "decay_shape": number(shape),
        "decay_r2": number(max(0.0, 1 - left / whole) if whole > 0 else 0.0),
        "decay_per_step": number(math.exp(-log_scale), unit="1/token"),
        "decay_lags": number(float((gains > 2 * noise).sum())),
    }


def fit_decay(lags: Floats, gains: Floats, shapes: tuple[float, float]) -> tuple[Floats, float]:
    """Least squares in nats, not in their logarithm, which small and negative gains would rule. Parameters are A, the
    log of the scale, and the shape; then the sum of squares that is left."""

    def left(p: Floats) -> Floats:
        return np.asarray(p[0] * np.exp(-((lags / math.exp(p[1])) ** p[2])) - gains)

    low, high = shapes
    bounds = ([0.0, math.log(0.01), low - 1e-9], [math.inf, math.log(1e4), high + 1e-9])
    starts = product([max(gains.max(), 1e-3)], np.log([2.0, 8.0, 32.0, 128.0]), np.clip([0.3, 1.0, 2.0], low, high))
    best = min((least_squares(left, start, bounds=bounds) for start in starts), key=lambda found: found.cost)
    return best.x, 2 * best.cost


def gaussian_rows(held: Held, lags: Iterable[int], channels: int) -> Iterator[Row]:
    """What independent Gaussian inputs would allow, for as many channels."""
    rates = {"slow": ALPHAS[-1:], "traces": ALPHAS, "sequence": ALPHAS[-1:]}
    for name in [name for name, _ in held if name in rates]:
        for number_format in FORMATS:
            for lag in lags:
                if name == "sequence":
                    nats = pair_information(ALPHAS[-1], number_format)
                else:
                    nats = vector_information(rates[name], lag, number_format)
                of = {"representation": name, "kept": kept_as(name), "number_format": number_format}
                metrics = {
                    "nats_per_channel": number(nats, unit="nats"),
                    "nats_all": number(channels * nats, unit="nats"),
                }
                yield Row({**of, "reader": "gaussian", "lag": lag}, metrics)


def seconds_with_readers(point: Point, settings: Mapping[str, Any], device: Device, sharing: int) -> float:
    """Fitting the readers takes longer than training what they read."""
    return seconds_of(point, settings, device, sharing) + sharing * READER_SECONDS[device]


EXPERIMENT = Experiment(
    "trace_decoding",
    "What traces keep of tokens, in trained language models",
    grid=grid,
    measure=measure,
    needs="any",
    data="builtin",
    seeds=3,
    settings={**SETTINGS, "reader": None},  # that of the size
    derived=budget,
    seconds=20,
    seconds_of=seconds_with_readers,
)
