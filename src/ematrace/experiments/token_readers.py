"""Readers that decode a token from a vector, and the baseline that knows only what else is in the window."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Kind = Literal["linear", "mlp"]
Prior = Callable[[Tensor], Tensor | None]
POSITIONS_AT_ONCE = 64  # of each window, for the baseline
ROWS_AT_ONCE = 2**16
SMALLEST_VARIANCE = 1e-14  # of a direction, over the largest: about what float32 resolves


@dataclass(frozen=True)
class Fitting:
    """How a reader is trained: AdamW, a cosine to 0, the weights of the epoch that was best on the selection part."""

    epochs: int
    batch: int
    hidden: int = 512
    lr: float = 3e-3
    selection: float = 1 / 8
    """Share of the samples that weights are not fitted to."""


class VectorReader(nn.Module):
    """logits = E b(x) + prior: b is a linear map or has one hidden layer, and E starts as the model's embedding.

    The prior starts as the shares of the tokens and is fitted, too; or it is given, for each vector another.
    """

    def __init__(self, n_features: int, embedding: Tensor, counts: Tensor, kind: Kind, hidden: int) -> None:
        super().__init__()
        self.body = body(n_features, embedding.shape[1], kind, hidden)
        self.head = head(embedding, counts)
        self.to(embedding.device)

    def forward(self, x: Tensor, prior: Tensor | None = None) -> Tensor:
        read = self.body(x)
        return self.head(read) if prior is None else F.linear(read, self.head.weight) + prior


class TopicReader(nn.Module):
    """The token at a position from the counts of the window's other tokens.

    Their mean embedding goes through a hidden layer, and a token that is there already has more chance.
    """

    def __init__(self, embedding: Tensor, counts: Tensor, hidden: int) -> None:
        super().__init__()
        width = embedding.shape[1]
        self.embedding = nn.Embedding.from_pretrained(embedding.clone(), freeze=False)
        self.norm, self.body = nn.LayerNorm(width), body(width, width, "mlp", hidden)
        self.head = head(embedding, counts)
        self.present, self.often = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(()))
        self.to(embedding.device)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """ids [B, T], positions [B, P] to logits [B, P, entries]."""
        own = ids.gather(1, positions)
        embedded = self.embedding(ids)
        others = (embedded.sum(1, keepdim=True) - self.embedding(own)) / (ids.shape[1] - 1)
        logits: Tensor = self.head(self.body(self.norm(others)))
        counts = torch.zeros(len(ids), logits.shape[-1], device=ids.device).scatter_add_(
            1, ids, torch.ones_like(ids, dtype=torch.float32)
        )
        logits = logits + self._cached(counts).unsqueeze(1)
        of_own = counts.gather(1, own)
        without = self._cached(of_own - 1) - self._cached(of_own)
        return logits.scatter_add(2, own.unsqueeze(-1), without.unsqueeze(-1))

    def _cached(self, counts: Tensor) -> Tensor:
        return self.present * (counts > 0) + self.often * torch.log1p(counts)


def body(features: int, width: int, kind: Kind, hidden: int) -> nn.Module:
    """Its last layer starts at 0, so that a reader starts from the shares of the tokens."""
    last = nn.Linear(features if kind == "linear" else hidden, width, bias=False)
    nn.init.zeros_(last.weight)
    return last if kind == "linear" else nn.Sequential(nn.Linear(features, hidden), nn.GELU(), last)


def head(embedding: Tensor, counts: Tensor) -> nn.Linear:
    """Token vectors of scale 1; the bias alone gives the shares of the counts."""
    made = nn.Linear(embedding.shape[1], len(embedding))
    with torch.no_grad():
        made.weight.copy_(embedding / embedding.std())
        made.bias.copy_(((counts + 1) / (counts + 1).sum()).log())
    return made


def whitened(*features: Tensor) -> list[Tensor]:
    """Every direction with variance 1 in the first tensor [N, F]: small ones hold what is old. Computed in float64."""
    first = features[0]
    mean = first.mean(0, dtype=torch.float64)
    covariance = torch.zeros(first.shape[1], first.shape[1], dtype=torch.float64, device=first.device)
    for part in first.split(ROWS_AT_ONCE):
        centred = part.double() - mean
        covariance += centred.T @ centred / len(first)
    variances, directions = torch.linalg.eigh(covariance)
    whiten = directions * (variances.clamp(min=0) + SMALLEST_VARIANCE * variances[-1]).rsqrt()
    return [torch.cat([((part.double() - mean) @ whiten).float() for part in x.split(ROWS_AT_ONCE)]) for x in features]


def fit(
    reader: nn.Module,
    loss: Callable[[Tensor], Tensor],
    n_samples: int,
    fitting: Fitting,
    generator: torch.Generator,
    batch: int | None = None,
) -> None:
    """Minimise `loss`, a function of the numbers of some of n_samples; the last ones are for selection."""
    size = batch or fitting.batch
    fitted = max(1, n_samples - round(fitting.selection * n_samples))
    held = torch.arange(fitted, n_samples) if fitted < n_samples else torch.arange(n_samples)
    optimiser = torch.optim.AdamW(reader.parameters(), lr=fitting.lr, weight_decay=0.01)
    steps = fitting.epochs * math.ceil(fitted / size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    best, kept = math.inf, copy.deepcopy(reader.state_dict())
    for _ in range(fitting.epochs):
        for chosen in torch.randperm(fitted, generator=generator).split(size):
            optimiser.zero_grad()
            loss(chosen).backward()
            optimiser.step()
            schedule.step()
        with torch.no_grad():
            nats = sum(float(loss(part)) * len(part) for part in held.split(size)) / len(held)
        if nats < best:
            best, kept = nats, copy.deepcopy(reader.state_dict())
    reader.load_state_dict(kept)


def fit_vectors(
    features: Tensor,
    targets: Tensor,
    embedding: Tensor,
    counts: Tensor,
    kind: Kind,
    fitting: Fitting,
    generator: torch.Generator,
    prior: Prior = lambda chosen: None,
) -> VectorReader:
    """A reader of features [N, F] with targets [N]; `prior` gives the log-probabilities that some start from."""
    reader = VectorReader(features.shape[1], embedding, counts, kind, fitting.hidden)

    def loss(chosen: Tensor) -> Tensor:
        at = chosen.to(features.device)
        return F.cross_entropy(reader(features[at], prior(at)), targets[at])

    fit(reader, loss, len(targets), fitting, generator)
    return reader


def fit_topic(
    ids: Tensor, embedding: Tensor, counts: Tensor, fitting: Fitting, generator: torch.Generator
) -> TopicReader:
    """A baseline for windows [N, T]."""
    reader = TopicReader(embedding, counts, fitting.hidden)
    several = min(POSITIONS_AT_ONCE, ids.shape[1])

    def loss(chosen: Tensor) -> Tensor:
        windows = ids[chosen.to(ids.device)]
        positions = torch.randint(0, ids.shape[1], (len(windows), several), generator=generator).to(ids.device)
        logits = reader(windows, positions)
        return F.cross_entropy(logits.flatten(0, 1), windows.gather(1, positions).flatten())

    passes = math.ceil(ids.shape[1] / several)  # that see as many positions as there are
    fitting = replace(fitting, epochs=passes * fitting.epochs)
    fit(reader, loss, len(ids), fitting, generator, batch=max(1, fitting.batch // several))
    return reader
