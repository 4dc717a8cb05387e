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

__all__ = ["Difference", "Evaluation", "Score", "difference", "evaluate"]

RECURRENT_STEPS = 1024
"""Tokens of a row per forward pass: a recurrent model carries its state over, and windows of others go together."""
BLOCK = 128
"""Tokens in a unit of the interval where documents are too few for one."""
LEAST_DOCUMENTS = 5
DOCUMENTS_SORTED = 64
"""Documents that are read ahead to be batched by length."""


@dataclass
class Score:
    """Negative log-likelihood in nats, summed document by document.

    >>> score = Score()
    >>> score.add(nats=300.0, tokens=100)
    >>> score.add(nats=500.0, tokens=100)
    >>> score.cross_entropy, round(score.perplexity, 1), score.interval_over
    (4.0, 54.6, '2 documents')
    """

    documents: int = 0
    tokens: int = 0
    nats: float = 0.0
    _squares: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0], repr=False)  # Σ s², Σ s n, Σ n²
    blocks: Score | None = field(default=None, repr=False)
    """The same tokens in blocks of `BLOCK`, for an interval where there are few documents."""

    def add(self, nats: float, tokens: int) -> None:
        """Add one document."""
        self.documents += 1
        self.tokens += tokens
        self.nats += nats
        for i, term in enumerate((nats * nats, nats * tokens, tokens * tokens)):
            self._squares[i] += term

    def add_tokens(self, nats: np.ndarray) -> None:
        """Add one document by the nats of its tokens."""
        self.add(float(nats.sum()), len(nats))
        self.blocks = self.blocks or Score()
        for start in range(0, len(nats), BLOCK):
            part = nats[start : start + BLOCK]
            self.blocks.add(float(part.sum()), len(part))

    @property
    def cross_entropy(self) -> float:
        return self.nats / self.tokens if self.tokens else math.nan

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.cross_entropy, 700.0))

    @property
    def interval(self) -> tuple[float, float]:
        """95% interval of the cross-entropy over documents (their tokens are not independent), over blocks where there
        are few documents; nan for fewer than two.
        """
        if self.documents < LEAST_DOCUMENTS and self.blocks is not None:
            return self.blocks.interval
        return ratio_interval(self.documents, self.nats, self.tokens, *self._squares)

    @property
    def interval_over(self) -> str:
        """What the interval is over, in words."""
        if self.documents < LEAST_DOCUMENTS and self.blocks is not None:
            return f"{self.blocks.documents:,} blocks of {BLOCK} tokens"
        return f"{self.documents:,} documents"

    def to_json(self) -> dict[str, Any]:
        low, high = self.interval
        return {
            "documents": self.documents,
            "tokens": self.tokens,
            "cross_entropy": self.cross_entropy,
            "interval": None if math.isnan(low) else [low, high],
            "perplexity": self.perplexity,
        }


def ratio_interval(n: int, s: float, m: float, ss: float, sm: float, mm: float) -> tuple[float, float]:
    """95% interval of Σs/Σm over n units of different size, from their sums and sums of products; nan for n < 2.

    The ratio estimator: its variance is n/(n-1) Σ(s - mean m)² / (Σm)², and t has n - 1 degrees of freedom.
    """
    from scipy.special import stdtrit  # scipy.stats takes a second to import

    if n < 2 or not m:
        return math.nan, math.nan
    mean = s / m
    spread = math.sqrt(max(ss - 2 * mean * sm + mean * mean * mm, 0.0) * n / (n - 1)) / m
    spread *= float(stdtrit(n - 1, 0.975))
    return mean - spread, mean + spread


@dataclass(frozen=True)
class ScoredDocument:
    """What a comparison with another model needs of a document."""

    n_bytes: int
    tokens: int
    blocks: np.ndarray
    """Nats of each `BLOCK` tokens."""


@dataclass
class Evaluation:
    """Scores of a model, and of baselines without context on the same tokens.

    >>> import numpy as np
    >>> from ematrace.text import Document
    >>> result = Evaluation()
    >>> result.add(Document("the cat", "1", "tales"), ids=np.array([5, 6]), nats=np.array([3.0, 1.0]), baselines={})
    >>> result.total.cross_entropy, list(result.domains), round(result.bits_per_byte, 3)
    (2.0, ['tales'], 0.824)
    """

    tokenizer: str = ""
    """Its fingerprint: only models of one tokenizer can be compared token by token."""
    n_bytes: int = 0
    total: Score = field(default_factory=Score)
    domains: dict[str, Score] = field(default_factory=dict)
    positions: dict[int, Score] = field(default_factory=dict)
    """By the first position of each range 0, 1, 2-3, 4-7, ..."""
    baselines: dict[str, Score] = field(default_factory=dict)
    scored: dict[int, ScoredDocument] = field(default_factory=dict, repr=False)
    """By the document's number in the text."""

    @property
    def bits_per_byte(self) -> float:
        """Comparable between tokenizers."""
        return self.total.nats / math.log(2) / self.n_bytes if self.n_bytes else math.nan

    def add(
        self,
        document: Document,
        ids: np.ndarray,
        nats: np.ndarray,
        baselines: Mapping[str, ContextFree],
        number: int | None = None,
    ) -> None:
        n_bytes = len(document.text.encode())
        self.n_bytes += n_bytes
        self.total.add_tokens(nats)
        blocks = np.add.reduceat(nats, np.arange(0, len(nats), BLOCK))
        self.scored[len(self.scored) if number is None else number] = ScoredDocument(n_bytes, len(nats), blocks)
        self.domains.setdefault(document.domain, Score()).add(float(nats.sum()), len(nats))
        start = 0
        while start < len(nats):
            stop = max(2 * start, 1)
            part = nats[start:stop]
            self.positions.setdefault(start, Score()).add(float(part.sum()), len(part))
            start = stop
        for name, model in baselines.items():
            self.baselines.setdefault(name, Score()).add_tokens(-model.log_probs[ids])

    def to_json(self) -> dict[str, Any]:
        return {
            "bytes": self.n_bytes,
            "bits_per_byte": self.bits_per_byte,
            **self.total.to_json(),
            "domains": {name: score.to_json() for name, score in sorted(self.domains.items())},
            "positions": {str(start): score.to_json() for start, score in sorted(self.positions.items())},
            "baselines": {name: score.to_json() for name, score in self.baselines.items()},
        }


@dataclass(frozen=True)
class Difference:
    """A model's score minus another's on the same text, paired; negative where it is better.

    >>> Difference(-0.5, (-0.6, -0.4), "nats per token", over="5 documents").to_json()["mean"]
    -0.5
    """

    mean: float
    interval: tuple[float, float]
    unit: str
    over: str

    def to_json(self) -> dict[str, Any]:
        low, high = self.interval
        interval = None if math.isnan(low) else [low, high]
        return {"mean": self.mean, "interval": interval, "unit": self.unit, "over": self.over}


def difference(ours: Evaluation, theirs: Evaluation) -> Difference:
    """In nats per token, or in bits per byte where the tokenizers differ; over documents, or over blocks of a few.

    >>> import numpy as np
    >>> from ematrace.text import Document
    >>> def scored(nats):
    ...     result = Evaluation()
    ...     for n in range(5):
    ...         result.add(Document("the cat", str(n), "tales"), np.array([5, 6]), np.array([nats, n]), baselines={})
    ...     return result
    >>> found = difference(scored(nats=2.0), scored(nats=3.0))
    >>> found.mean, found.unit, found.over
    (-0.5, 'nats per token', '5 documents')
    """
    if {n: d.n_bytes for n, d in ours.scored.items()} != {n: d.n_bytes for n, d in theirs.scored.items()}:
        raise ValueError("the models were not evaluated on the same documents")
    pairs = [(ours.scored[number], theirs.scored[number]) for number in sorted(ours.scored)]
    same_tokens = ours.tokenizer == theirs.tokenizer
    if same_tokens and len(pairs) < LEAST_DOCUMENTS:
        s = np.concatenate([a.blocks - b.blocks for a, b in pairs])
        m = np.concatenate([np.diff([*range(0, a.tokens, BLOCK), a.tokens]) for a, _ in pairs])
        over = f"{len(s):,} blocks of {BLOCK} tokens"
    else:
        s = np.array([a.blocks.sum() - b.blocks.sum() for a, b in pairs])
        m = np.array([a.tokens if same_tokens else a.n_bytes * math.log(2) for a, _ in pairs])
        over = f"{len(pairs):,} documents"
    sums = [float(value) for value in (s.sum(), m.sum(), s @ s, s @ m, m @ m)]
    interval = ratio_interval(len(s), *sums)
    return Difference(sums[0] / sums[1], interval, "nats per token" if same_tokens else "bits per byte", over)


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
    """Score documents, at most `max_tokens` tokens; `context` limits the tokens that the model sees.

    >>> from ematrace.text import Document, train_bpe
    >>> from ematrace.train import build_model
    >>> tokenizer = train_bpe(["the cat sees the dog"], vocab_size=280)
    >>> model = build_model("spen-tiny", len(tokenizer))  # not trained
    >>> result = evaluate(model, tokenizer, [Document("the cat sees the dog", "1", "tales")])
    >>> result.total.tokens, abs(result.total.cross_entropy - result.baselines["uniform"].cross_entropy) < 0.5
    (6, True)
    """
    for name, limit in (("context", context), ("max_tokens", max_tokens)):
        if limit is not None and limit < 1:
            raise ValueError(f"{name} is {limit}; it must be at least 1")
    encoder = DocumentEncoder(tokenizer)
    if encoder.vocab_size > model.config.vocab_size:
        raise ValueError(f"the tokenizer has {encoder.vocab_size} entries, the model {model.config.vocab_size}")
    baselines: dict[str, ContextFree] = {"uniform": Uniform(encoder.vocab_size)}
    if unigram is not None:
        if unigram.vocab_size != encoder.vocab_size:
            counts = f"the unigram has {unigram.vocab_size} entries, the tokenizer {encoder.vocab_size}"
            raise ValueError(f"{counts}: unigram.safetensors or tokenizer.json is damaged, or of another model")
        baselines = {"unigram": unigram} | baselines
    result = Evaluation(encoder.fingerprint)
    model.eval()
    for group in _grouped(documents, encoder, tokenizer, max_tokens):
        for batch in _batched(group, batch_tokens):
            nats = score_rows(model, [ids for _, ids, _ in batch], encoder.eos_id, context)
            for (document, ids, number), row in zip(batch, nats, strict=True):
                result.add(document, ids, row, baselines, number)
                if progress is not None:
                    progress(len(ids))
    if not result.total.tokens:
        raise ValueError("no tokens to evaluate on")
    return result


def score_rows(
    model: Any, rows: Sequence[np.ndarray], eos_id: int, context: int | None = None, steps: int | None = None
) -> list[np.ndarray]:
    """-log p of every token of every row, given end-of-text and the tokens before it.

    `steps` of each row go through the model at a time, or one window where that is longer; RECURRENT_STEPS by default.
    """
    longest = max(len(row) for row in rows)
    targets = torch.full((len(rows), longest), eos_id, dtype=torch.long)  # scores after a row's end are dropped
    for i, row in enumerate(rows):
        targets[i, : len(row)] = torch.from_numpy(row)
    targets = targets.to(model.device)
    inputs = torch.cat([torch.full_like(targets[:, :1], eos_id), targets[:, :-1]], 1)
    parts = _scored_parts(model, inputs, targets, context, RECURRENT_STEPS if steps is None else steps)
    scores = torch.cat(list(parts), 1).cpu().double().numpy()  # at the end: a GPU would wait for each copy
    return [scores[i, : len(row)] for i, row in enumerate(rows)]


@torch.no_grad()
def _scored_parts(
    model: Any, inputs: torch.Tensor, targets: torch.Tensor, context: int | None, steps: int
) -> Iterator[torch.Tensor]:
    length = inputs.shape[1]
    limit = getattr(model.config, "max_position_embeddings", None)
    if getattr(model, "_is_stateful", False) and limit is None and context is None:
        state = None
        for start in range(0, length, steps):
            part = slice(start, start + steps)
            output = model(input_ids=inputs[:, part], past_key_values=state, use_cache=True)
            state = output.past_key_values
            yield target_nats(output.logits, targets[:, part])
        return
    window = min(context or limit or RECURRENT_STEPS, limit or length, length)
    starts = [*range(0, length - window, window - window // 2), length - window]
    at_once = max(1, steps // window)
    scored = 0
    for i in range(0, len(starts), at_once):
        group = starts[i : i + at_once]
        read, wanted = (torch.cat([ids[:, s : s + window] for s in group]) for ids in (inputs, targets))
        nats = target_nats(model(input_ids=read, use_cache=False).logits, wanted)
        for start, part in zip(group, nats.split(len(inputs)), strict=True):
            yield part[:, scored - start :]
            scored = start + window


def target_nats(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """-log softmax(logits)[target], in float32 at least: logits [..., V], targets [...].

    >>> target_nats(torch.zeros(1, 2, 4), torch.tensor([[3, 0]]))  # ln 4
    tensor([[1.3863, 1.3863]])
    """
    exact = logits if logits.dtype == torch.float64 else logits.float()
    # Rows of classes: over another dimension than the last, a GPU's softmax has one block of threads for 1,024 tokens.
    return F.cross_entropy(exact.flatten(0, -2), targets.flatten(), reduction="none").view(targets.shape)


Encoded = tuple[Document, np.ndarray, int]
"""A document, its tokens, and its number in the text."""


def first_tokens(documents: Iterable[Document], tokenizer: Any, max_tokens: int) -> list[Document]:
    """The documents that hold the first `max_tokens` tokens, the last one cut: the same text for several tokenizers."""
    groups = _grouped(documents, DocumentEncoder(tokenizer), tokenizer, max_tokens)
    return [document for group in groups for document, _, _ in group]


def _grouped(
    documents: Iterable[Document], encoder: DocumentEncoder, tokenizer: Any, max_tokens: int | None
) -> Iterator[list[Encoded]]:
    """Documents with their tokens, a few dozen at a time; the last one is cut at `max_tokens`."""
    left = max_tokens
    group: list[tuple[int, Document]] = []

    def encoded(group: list[tuple[int, Document]]) -> list[Encoded]:
        nonlocal left
        found = []
        for (number, document), ids in zip(group, encoder.encode([d.text for _, d in group]), strict=True):
            if left is not None and len(ids) > left:
                ids = ids[:left]
                document = replace(document, text=tokenizer.decode(ids))
            if left is not None:
                left -= len(ids)
            if len(ids):
                found.append((document, ids, number))
        return found

    for pair in enumerate(documents):
        group.append(pair)
        if len(group) == DOCUMENTS_SORTED:
            yield encoded(group)
            group = []
            if left == 0:
                return
    if group:
        yield encoded(group)


def _batched(group: list[Encoded], batch_tokens: int) -> Iterator[list[Encoded]]:
    """Documents of similar length together, to pad little; a long one is a batch of its own."""
    batch: list[Encoded] = []
    for one in sorted(group, key=lambda one: len(one[1])):
        if batch and min(len(one[1]), RECURRENT_STEPS) * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(one)
    if batch:
        yield batch


def model_folder(path: str) -> str:
    """The model in a training run's folder; any other folder, or a name on the hub, is returned as it is."""
    inside = Path(path) / "model"
    if (inside / "config.json").is_file():
        return str(inside)
    if checkpoints := sorted((Path(path) / "checkpoints").glob("step-*[0-9]")):
        raise ValueError(f"{path}: this run has no model yet; its last checkpoint is {checkpoints[-1]}")
    return path


def as_json(result: Evaluation, *, seconds: float, **settings: Any) -> dict[str, Any]:
    """For a file: settings, scores and provenance."""
    return {**settings, **result.to_json(), "provenance": msgspec.to_builtins(collect_provenance(seconds))}


def comparison_json(results: Mapping[str, Evaluation], *, seconds: float, **settings: Any) -> dict[str, Any]:
    """For a file: settings, the scores of every model, and what each of the others has more or less than the first."""
    first, *others = results
    return {
        **settings,
        "models": [{"model": name, **result.to_json()} for name, result in results.items()],
        "differences": [
            {"model": name, "minus": first, **difference(results[name], results[first]).to_json()} for name in others
        ],
        "provenance": msgspec.to_builtins(collect_provenance(seconds)),
    }
