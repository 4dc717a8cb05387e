"""Readers that decode a token from a vector, and the baseline that knows only what else is in the window."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ematrace.train.distributed import COMPILE_OPTIONS
from ematrace.train.loop import fast_matmul

Kind = Literal["linear", "mlp"]
ScaledPrior = tuple[Tensor, Tensor]
"""Scales [L, 1, 1] and logits [L, B, entries]."""
POSITIONS_AT_ONCE = 64  # of each window, for the baseline
ROWS_AT_ONCE = 2**16
SCALE_RATE = 10  # a step of Adam is as long as the rate, and a scale may have to go from 1 to below 0
SMALLEST_VARIANCE = 1e-14  # of a direction, over the largest: about what float32 resolves


@dataclass(frozen=True)
class Fitting:
    """How a reader is trained: AdamW, a cosine to 0, the weights of the epoch that was best on the selection part.

    The start is one of the candidates.
    """

    epochs: int
    batch: int
    hidden: int = 512
    lr: float = 3e-3
    selection: float = 1 / 8
    """Share of the samples that weights are not fitted to."""


@dataclass(frozen=True)
class Prior:
    """What the baseline says of positions."""

    logits: Tensor
    """[..., entries]"""
    topic: Tensor
    """[..., width]: what its head sees, which stands for the window's other tokens."""


PriorAt = Callable[[Tensor, Tensor], Prior]
"""From the numbers of windows and positions in them."""


@dataclass(frozen=True)
class Samples:
    """What L readers see of B samples."""

    features: Tensor
    """[L, B, F], or [1, B, F] where all see the same."""
    targets: Tensor
    """[L, B]"""
    prior: Prior | None = None
    """Of [L, B] positions, to start from."""

    def inputs(self) -> Tensor:
        """[L or 1, B, inputs]: the vectors, and the topic where there is a prior."""
        if self.prior is None:
            return self.features
        return torch.cat([self.features.expand(len(self.targets), -1, -1), self.prior.topic], -1)


class VectorReaders(nn.Module):
    """L readers with weights of their own, fitted side by side.

    logits = E b(x) + bias                         starts as the shares of the tokens
    logits = E b(x, topic) + bias + scale · prior  with a prior, starts as that

    b is a linear map or has one hidden layer, and E starts as the model's embedding. A vector, too, tells the topic,
    which the prior has counted already: a reader sees the topic and scales the prior, so that it can add what is new
    alone. With a scale of 0 it is a reader without a prior.
    """

    def __init__(
        self, n_readers: int, n_inputs: int, embedding: Tensor, counts: Tensor, kind: Kind, hidden: int, given: bool
    ) -> None:
        super().__init__()
        width = embedding.shape[1]
        self.hidden: nn.ParameterList | None = None
        if kind == "mlp":
            made = [nn.Linear(n_inputs, hidden) for _ in range(n_readers)]
            weights, biases = torch.stack([m.weight.T for m in made]), torch.stack([m.bias for m in made])
            self.hidden = nn.ParameterList([weights.detach(), biases.detach().unsqueeze(1)])
        self.last = nn.Parameter(torch.zeros(n_readers, n_inputs if self.hidden is None else hidden, width))
        of_tokens = head(embedding, counts)
        self.vectors = nn.Parameter(of_tokens.weight.detach().T.repeat(n_readers, 1, 1))
        shares = of_tokens.bias.detach().repeat(n_readers, 1, 1)
        self.bias = nn.Parameter(torch.zeros_like(shares) if given else shares)
        self.change = nn.Parameter(torch.zeros(n_readers, 1, 1)) if given else None  # of the scale
        self.to(embedding.device)

    def read(self, samples: Samples) -> Tensor:
        """b: [L, B, width]."""
        x = samples.inputs()
        if self.hidden is not None:
            weights, biases = self.hidden
            x = F.gelu(x @ weights + biases)
        return x @ self.last

    def forward(self, samples: Samples) -> Tensor:
        """Logits [L, B, entries]."""
        return logits_of(self.read(samples), self.vectors, self.bias, self._scaled(samples))

    def nats(self, samples: Samples) -> Tensor:
        """Mean cross-entropy of each reader: [L]."""
        compute = _compiled_cross_entropies() if samples.targets.is_cuda else cross_entropies
        return compute(self.read(samples), self.vectors, self.bias, self._scaled(samples), samples.targets).mean(1)

    def _scaled(self, samples: Samples) -> ScaledPrior | None:
        if self.change is None or samples.prior is None:
            return None
        return 1 + SCALE_RATE * self.change, samples.prior.logits


def logits_of(read: Tensor, vectors: Tensor, bias: Tensor, scaled: ScaledPrior | None) -> Tensor:
    logits = read @ vectors + bias
    return logits if scaled is None else logits + scaled[0] * scaled[1]


def cross_entropies(read: Tensor, vectors: Tensor, bias: Tensor, scaled: ScaledPrior | None, targets: Tensor) -> Tensor:
    """[L, B]. Nearly all that a step costs is going through these logits again and again, so a GPU has it compiled."""
    logits = logits_of(read, vectors, bias, scaled)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)


@cache
def _compiled_cross_entropies() -> Callable[..., Tensor]:
    """Only where it is used: torch.compile imports inductor, which takes a second."""
    return torch.compile(cross_entropies, dynamic=False, options={**COMPILE_OPTIONS})


class TopicReader(nn.Module):
    """The token at a position from the counts of the window's other tokens.

    Their mean embedding goes through a hidden layer, and a token that is there already has more chance.
    """

    def __init__(self, embedding: Tensor, counts: Tensor, hidden: int) -> None:
        super().__init__()
        width = embedding.shape[1]
        self.embedding = nn.Embedding.from_pretrained(embedding.clone(), freeze=False)
        last = nn.Linear(hidden, width, bias=False)
        nn.init.zeros_(last.weight)  # it starts from the shares of the tokens
        self.norm, self.body = nn.LayerNorm(width), nn.Sequential(nn.Linear(width, hidden), nn.GELU(), last)
        self.head = head(embedding, counts)
        self.present, self.often = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(()))
        self.to(embedding.device)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """ids [B, T], positions [B, P] to logits [B, P, entries]."""
        own, counts = ids.gather(1, positions), self._counts(ids)
        summed = self.embedding(ids).sum(1, keepdim=True)
        found = self._prior(own, summed, self._cached(counts).unsqueeze(1), counts.gather(1, own), ids.shape[1])
        return found.logits

    @torch.no_grad()
    def prior(self, ids: Tensor) -> PriorAt:
        """For windows [N, T], what `forward` says of any positions in any of them, fast."""
        counts = self._counts(ids)
        summed, cached = self.embedding(ids).sum(1), self._cached(counts)

        @torch.no_grad()
        def at(windows: Tensor, positions: Tensor) -> Prior:
            own = ids[windows, positions]
            return self._prior(own, summed[windows], cached[windows], counts[windows, own], ids.shape[1])

        return at

    def _prior(self, own: Tensor, summed: Tensor, cached: Tensor, of_own: Tensor, length: int) -> Prior:
        """Of windows with this sum of embeddings and these counts, without the one token `own`."""
        others = (summed - self.embedding(own)) / (length - 1)
        topic: Tensor = self.body(self.norm(others))
        logits: Tensor = self.head(topic) + cached
        without = self._cached(of_own - 1) - self._cached(of_own)
        return Prior(logits.scatter_add(-1, own.unsqueeze(-1), without.unsqueeze(-1)), topic)

    def _counts(self, ids: Tensor) -> Tensor:
        zeros = torch.zeros(len(ids), self.head.out_features, device=ids.device)
        return zeros.scatter_add_(1, ids, torch.ones_like(ids, dtype=torch.float32))

    def _cached(self, counts: Tensor) -> Tensor:
        return self.present * (counts > 0) + self.often * torch.log1p(counts)


def head(embedding: Tensor, counts: Tensor) -> nn.Linear:
    """Token vectors of scale 1; the bias alone gives the shares of the counts."""
    made = nn.Linear(embedding.shape[1], len(embedding))
    with torch.no_grad():
        made.weight.copy_(embedding / embedding.std())
        made.bias.copy_(((counts + 1) / (counts + 1).sum()).log())
    return made


def whitened(*features: Tensor) -> list[Tensor]:
    """Of [..., F], every direction with variance 1 in the first: small ones hold what is old. Computed in float64."""
    first = features[0].flatten(0, -2)
    mean = first.mean(0, dtype=torch.float64)
    covariance = torch.zeros(first.shape[1], first.shape[1], dtype=torch.float64, device=first.device)
    for part in _parts(first):
        centred = part.double() - mean
        covariance += centred.T @ centred / len(first)
    variances, directions = torch.linalg.eigh(covariance)
    whiten = directions * (variances.clamp(min=0) + SMALLEST_VARIANCE * variances[-1]).rsqrt()
    found = [torch.empty_like(x) for x in features]
    for x, white in zip(features, found, strict=True):
        for part, into in zip(_parts(x), _parts(white), strict=True):
            into.copy_((part.double() - mean) @ whiten)
    return found


def _parts(x: Tensor) -> Sequence[Tensor]:
    """Views of rows."""
    return torch.split(x.view(-1, x.shape[-1]), ROWS_AT_ONCE)


def fit(
    reader: nn.Module,
    nats: Callable[[Tensor], Tensor],
    n_samples: int,
    fitting: Fitting,
    generator: torch.Generator,
    batch: int | None = None,
) -> None:
    """Minimise `nats` [L], a function of the numbers of some of n_samples; the last ones are for selection.

    For L > 1 the first dimension of every parameter is that of the L readers, each of which keeps the weights of its
    own best epoch, or those of the start.
    """
    size, parameters = batch or fitting.batch, list(reader.parameters())
    device = parameters[0].device
    fitted = max(1, n_samples - round(fitting.selection * n_samples))
    held = torch.arange(fitted, n_samples) if fitted < n_samples else torch.arange(n_samples)
    optimiser = torch.optim.AdamW(parameters, lr=fitting.lr, weight_decay=0.01, fused=device.type == "cuda")
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, fitting.epochs * math.ceil(fitted / size))
    best, kept = torch.tensor(math.inf, device=device), [p.detach().clone() for p in parameters]

    @torch.no_grad()
    def keep_better() -> None:
        nonlocal best
        found = sum(nats(part) * len(part) for part in held.to(device).split(size)) / len(held)
        better = found < best
        best = torch.where(better, found, best)
        for p, its_best in zip(parameters, kept, strict=True):
            of_reader = better.view(-1, *(1 for _ in p.shape[1:])) if len(better) > 1 else better.squeeze()
            its_best.copy_(torch.where(of_reader, p, its_best))

    with fast_matmul(device):
        keep_better()
        for _ in range(fitting.epochs):
            for chosen in torch.randperm(fitted, generator=generator).to(device).split(size):
                optimiser.zero_grad()
                nats(chosen).sum().backward()
                optimiser.step()
                schedule.step()
            keep_better()
    with torch.no_grad():
        for p, its_best in zip(parameters, kept, strict=True):
            p.copy_(its_best)


def fit_readers(
    samples: Callable[[Tensor], Samples],
    n_samples: int,
    embedding: Tensor,
    counts: Tensor,
    kind: Kind,
    fitting: Fitting,
    generator: torch.Generator,
) -> VectorReaders:
    """Readers of `samples`, a function of the numbers of some of n_samples."""
    one = samples(torch.zeros(1, dtype=torch.long, device=embedding.device))
    n_readers, n_inputs, given = len(one.targets), one.inputs().shape[-1], one.prior is not None
    readers = VectorReaders(n_readers, n_inputs, embedding, counts, kind, fitting.hidden, given)
    fit(readers, lambda chosen: readers.nats(samples(chosen)), n_samples, fitting, generator)
    return readers


def fit_topic(
    ids: Tensor, embedding: Tensor, counts: Tensor, fitting: Fitting, generator: torch.Generator
) -> TopicReader:
    """A baseline for windows [N, T]."""
    reader = TopicReader(embedding, counts, fitting.hidden)
    several = min(POSITIONS_AT_ONCE, ids.shape[1])

    def nats(chosen: Tensor) -> Tensor:
        windows = ids[chosen]
        positions = torch.randint(0, ids.shape[1], (len(windows), several), generator=generator).to(ids.device)
        logits = reader(windows, positions)
        return F.cross_entropy(logits.flatten(0, 1), windows.gather(1, positions).flatten())[None]

    passes = math.ceil(ids.shape[1] / several)  # that see as many positions as there are
    fitting = replace(fitting, epochs=passes * fitting.epochs)
    fit(reader, nats, len(ids), fitting, generator, batch=max(1, fitting.batch // several))
    return reader
