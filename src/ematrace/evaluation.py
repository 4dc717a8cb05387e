"""Perplexity of a causal language model on documents: overall, by domain, by position in the document.

Every document starts from an empty state, with end-of-text as its first input, so that each of its tokens is predicted
once. A recurrent model reads a document from start to end. A model with limited context reads windows that overlap by
half; each token is scored in the window where it has the most context.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import torch.nn.functional as F

from ematrace.baselines.language import ContextFree, Uniform, Unigram
from ematrace.results import collect_provenance
from ematrace.text import Document, DocumentEncoder

RECURRENT_STEPS = 1024
"""Tokens per forward pass of a recurrent model. Its state is carried over, so the scores do not depend on it."""
DOCUMENTS_SORTED = 64
"""Documents that are read ahead to be batched by length."""


@dataclass
class Score:
    """Negative log-likelihood in nats, summed document by document."""

    documents: int = 0
    tokens: int = 0
    nats: float = 0.0
    _squares: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0], repr=False)  # Σ s², Σ s n, Σ n²

    def add(self, nats: float, tokens: int) -> None:
        """Add one document."""
        self.documents += 1
        self.tokens += tokens
        self.nats += nats
        for i, term in enumerate((nats * nats, nats * tokens, tokens * tokens)):
            self._squares[i] += term

    @property
    def cross_entropy(self) -> float:
        return self.nats / self.tokens if self.tokens else math.nan

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.cross_entropy, 700.0))

    @property
    def interval(self) -> tuple[float, float]:
        """95% interval of the cross-entropy over documents (their tokens are not independent); nan for fewer than two.

        The ratio estimator Σs/Σn of nats s and tokens n: its variance is Σ(s - mean n)² / (Σn)².
        """
        if self.documents < 2:
            return math.nan, math.nan
        mean = self.cross_entropy
        ss, sn, nn = self._squares
        spread = 1.96 * math.sqrt(max(ss - 2 * mean * sn + mean * mean * nn, 0.0)) / max(self.tokens, 1)
        return mean - spread, mean + spread

    def to_json(self) -> dict[str, Any]:
        low, high = self.interval
        return {
            "documents": self.documents,
            "tokens": self.tokens,
            "cross_entropy": self.cross_entropy,
            "interval": None if math.isnan(low) else [low, high],
            "perplexity": self.perplexity,
        }


@dataclass
class Evaluation:
    """Scores of a model, and of baselines without context on the same tokens."""

    n_bytes: int = 0
    total: Score = field(default_factory=Score)
    domains: dict[str, Score] = field(default_factory=dict)
    positions: dict[int, Score] = field(default_factory=dict)
    """By the first position of each range 0, 1, 2-3, 4-7, ..."""
    baselines: dict[str, Score] = field(default_factory=dict)

    @property
    def bits_per_byte(self) -> float:
        """Comparable between tokenizers."""
        return self.total.nats / math.log(2) / self.n_bytes if self.n_bytes else math.nan

    def add(self, document: Document, ids: np.ndarray, nats: np.ndarray, baselines: Mapping[str, ContextFree]) -> None:
        self.n_bytes += len(document.text.encode())
        self.total.add(float(nats.sum()), len(nats))
        self.domains.setdefault(document.domain, Score()).add(float(nats.sum()), len(nats))
        start = 0
        while start < len(nats):
            stop = max(2 * start, 1)
            part = nats[start:stop]
            self.positions.setdefault(start, Score()).add(float(part.sum()), len(part))
            start = stop
        for name, model in baselines.items():
            self.baselines.setdefault(name, Score()).add(model.nll(ids), len(ids))

    def to_json(self) -> dict[str, Any]:
        return {
            "bytes": self.n_bytes,
            "bits_per_byte": self.bits_per_byte,
            **self.total.to_json(),
            "domains": {name: score.to_json() for name, score in sorted(self.domains.items())},
            "positions": {str(start): score.to_json() for start, score in sorted(self.positions.items())},
            "baselines": {name: score.to_json() for name, score in self.baselines.items()},
        }


def evaluate(
    model: Any,
    tokenizer: Any,
    documents: Iterable[Document],
    *,
    context: int | None = None,
    batch_tokens: int = 4096,
    max_tokens: int | None = None,
    unigram: Unigram | None = None,
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Score documents, at most `max_tokens` tokens; `context` limits the tokens that the model sees."""
    for name, limit in (("context", context), ("max_tokens", max_tokens)):
        if limit is not None and limit < 1:
            raise ValueError(f"{name} is {limit}; it must be at least 1")
    encoder = DocumentEncoder(tokenizer)
    if encoder.vocab_size > model.config.vocab_size:
        raise ValueError(f"the tokenizer has {encoder.vocab_size} entries, the model {model.config.vocab_size}")
    baselines: dict[str, ContextFree] = {"uniform": Uniform(encoder.vocab_size)}
    if unigram is not None:
        if unigram.vocab_size != encoder.vocab_size:
            raise ValueError(f"the unigram has {unigram.vocab_size} entries, the tokenizer {encoder.vocab_size}")
        baselines = {"unigram": unigram} | baselines
    result = Evaluation()
    model.eval()
    for group in _grouped(documents, encoder, tokenizer, max_tokens):
        for batch in _batched(group, batch_tokens):
            nats = score_rows(model, [ids for _, ids in batch], encoder.eos_id, context)
            for (document, ids), row in zip(batch, nats, strict=True):
                result.add(document, ids, row, baselines)
                if progress is not None:
                    progress(len(ids))
    if not result.total.tokens:
        raise ValueError("no tokens to evaluate on")
    return result


def score_rows(model: Any, rows: Sequence[np.ndarray], eos_id: int, context: int | None = None) -> list[np.ndarray]:
    """-log p of every token of every row, given end-of-text and the tokens before it."""
    longest = max(len(row) for row in rows)
    targets = torch.full((len(rows), longest), eos_id, dtype=torch.long)  # scores after a row's end are dropped
    for i, row in enumerate(rows):
        targets[i, : len(row)] = torch.from_numpy(row)
    targets = targets.to(model.device)
    inputs = torch.cat([torch.full_like(targets[:, :1], eos_id), targets[:, :-1]], 1)
    scores = torch.cat([part.cpu() for part in _scored_parts(model, inputs, targets, context)], 1).numpy()
    return [scores[i, : len(row)] for i, row in enumerate(rows)]


@torch.no_grad()
def _scored_parts(
    model: Any, inputs: torch.Tensor, targets: torch.Tensor, context: int | None
) -> Iterator[torch.Tensor]:
    length = inputs.shape[1]
    limit = getattr(model.config, "max_position_embeddings", None)
    if getattr(model, "_is_stateful", False) and limit is None and context is None:
        state = None
        for start in range(0, length, RECURRENT_STEPS):
            part = slice(start, start + RECURRENT_STEPS)
            output = model(input_ids=inputs[:, part], past_key_values=state, use_cache=True)
            state = output.past_key_values
            yield _nats(output.logits, targets[:, part])
        return
    window = min(context or limit or RECURRENT_STEPS, limit or length, length)
    scored = 0
    while scored < length:
        start = max(0, min(scored - window // 2, length - window))
        part = slice(start, start + window)
        nats = _nats(model(input_ids=inputs[:, part], use_cache=False).logits, targets[:, part])
        yield nats[:, scored - start :]
        scored = start + window


def _nats(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    exact = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(exact.transpose(1, 2), targets, reduction="none").double()


def _grouped(
    documents: Iterable[Document], encoder: DocumentEncoder, tokenizer: Any, max_tokens: int | None
) -> Iterator[list[tuple[Document, np.ndarray]]]:
    """Documents with their tokens, a few dozen at a time; the last one is cut at `max_tokens`."""
    left = max_tokens
    group: list[Document] = []

    def encoded(group: list[Document]) -> list[tuple[Document, np.ndarray]]:
        nonlocal left
        pairs = []
        for document, ids in zip(group, encoder.encode([d.text for d in group]), strict=True):
            if left is not None and len(ids) > left:
                ids = ids[:left]
                document = replace(document, text=tokenizer.decode(ids))
            if left is not None:
                left -= len(ids)
            if len(ids):
                pairs.append((document, ids))
        return pairs

    for document in documents:
        group.append(document)
        if len(group) == DOCUMENTS_SORTED:
            yield encoded(group)
            group = []
            if left == 0:
                return
    if group:
        yield encoded(group)


def _batched(
    group: list[tuple[Document, np.ndarray]], batch_tokens: int
) -> Iterator[list[tuple[Document, np.ndarray]]]:
    """Documents of similar length together, to pad little; a long one is a batch of its own."""
    batch: list[tuple[Document, np.ndarray]] = []
    for pair in sorted(group, key=lambda pair: len(pair[1])):
        if batch and min(len(pair[1]), RECURRENT_STEPS) * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(pair)
    if batch:
        yield batch


def model_folder(path: str) -> str:
    """The model in a training run's folder; any other folder, or a name on the hub, is returned as it is."""
    inside = Path(path) / "model"
    if (inside / "config.json").is_file():
        return str(inside)
    if checkpoints := sorted((Path(path) / "checkpoints").glob("step-*")):
        raise ValueError(f"{path}: this run has no model yet; its last checkpoint is {checkpoints[-1]}")
    return path


def as_json(result: Evaluation, *, seconds: float, **settings: Any) -> dict[str, Any]:
    """For a file: settings, scores and provenance."""
    return {**settings, **result.to_json(), "provenance": msgspec.to_builtins(collect_provenance(seconds))}
