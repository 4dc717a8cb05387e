"""The supervised bidirectional GRU tagger (C07): what full labels reach on the grammar.

The paper gives 256 hidden units, bidirectional, Adam at 1e-3, a cosine schedule over 150 epochs, gradient clip 1,
dropout .1. It leaves open the embedding's width or whether there is one, the batch size, where dropout is applied
(here: to the states, before the readout) and the embedding of words unseen in training (here: the argument `unseen`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, Self, get_args

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ematrace.baselines.fast_gru import gru_states
from ematrace.baselines.tokens import Ints, Tokens, tokenize

__all__ = ["BiGRUSettings", "BiGRUTagger"]

Unseen = Literal["untrained", "zero", "mean", "unk"]
Show = Literal["context", "word"]
Progress = Callable[[int, int, float], None]
Sentences = Sequence[Sequence[str]]

_PREDICT_BATCH = 512


@dataclass(frozen=True)
class BiGRUSettings:
    """The paper's, and what it leaves open.

    >>> BiGRUSettings(epochs=20).hidden
    256
    """

    hidden: int = 256
    """units per direction"""
    embedding: int = 64
    """width of the word embedding; not given by the paper"""
    one_hot: bool = False
    """words are one-hot, as SPCN has them, in place of an embedding"""
    word_dropout: float = 0.0
    """share of training words, drawn anew in every batch, that are replaced by one for unknown words"""
    epochs: int = 150
    lr: float = 1e-3
    """Adam's, at the start of the cosine"""
    clip: float = 1.0
    """maximum norm of the whole gradient"""
    dropout: float = 0.1
    """on the states that the readout sees, in training only"""
    batch_size: int = 128
    """sentences of equal length per step, at most; not given by the paper"""
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name in ("hidden", "embedding", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if self.epochs < 0:
            raise ValueError(f"epochs must not be negative, got {self.epochs}")
        for name in ("lr", "clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("dropout", "word_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must lie in [0, 1), got {getattr(self, name)}")


class EpochRecord(NamedTuple):
    loss: float
    """mean cross-entropy per token, in nats, dropout on"""
    lr: float
    grad_norm: float
    """largest norm before clipping"""


class Network(Protocol):
    """What a tagger trains."""

    embedding: nn.Embedding
    readout: nn.Linear

    def states(self, ids_TB: Tensor, embedding_VE: Tensor) -> Tensor: ...
    def parameters(self) -> Iterator[nn.Parameter]: ...
    def to(self, device: str) -> Self: ...


class BiGRUNetwork(nn.Module):
    """word -> embedding -> bidirectional GRU -> dropout -> linear readout of roles."""

    def __init__(self, n_words: int, n_roles: int, settings: BiGRUSettings) -> None:
        super().__init__()
        if settings.one_hot:
            self.embedding = nn.Embedding.from_pretrained(torch.eye(n_words), freeze=True)
        else:
            self.embedding = nn.Embedding(n_words, settings.embedding)
        self.gru = nn.GRU(self.embedding.embedding_dim, settings.hidden, bidirectional=True)
        self.readout = nn.Linear(2 * settings.hidden, n_roles)

    def states(self, ids_TB: Tensor, embedding_VE: Tensor) -> Tensor:
        """[T, B, 2 hidden], forward half first. cuDNN computes in TF32: its states differ from the CPU's by 1e-3."""
        if ids_TB.device.type == "cpu":
            return gru_states(ids_TB, embedding_VE, self.gru)
        states: Tensor = self.gru(F.embedding(ids_TB, embedding_VE))[0]
        return states


def dropout_mask(shape: torch.Size, p: float, generator: torch.Generator) -> Tensor:
    """0 with probability p (to 1/65536), else 1 / (1 - p).

    Sixteen random bits per unit: three times faster than `bernoulli_`, which would take a tenth of training.
    """
    words = torch.empty(math.ceil(shape.numel() / 4), dtype=torch.int64, device=generator.device)
    bits = words.random_(-(2**63), None, generator=generator).view(torch.int16)[: shape.numel()].view(shape)
    return (bits >= round(p * 2**16) - 2**15).float().mul_(1 / (1 - p))


class BiGRUTagger:
    """Tags each word with its role. Deterministic on the CPU, given `random_state`.

    After `fit`: `network_`, `vocabulary_`, `roles_`, `seen_` (bool per word of the vocabulary: was it in the training
    sentences), `history_` (one `EpochRecord` per epoch).

    >>> from ematrace.grammar import load_grammar
    >>> grammar = load_grammar("A")
    >>> sentences = grammar.sample(40, seed=0)
    >>> words, roles = [s.words for s in sentences], [s.roles for s in sentences]
    >>> settings = BiGRUSettings(hidden=16, embedding=16, epochs=10, lr=0.05)
    >>> tagger = BiGRUTagger(settings).fit(words, roles, grammar.words)
    >>> tagger.predict([["the", "cat", "sleeps"]])
    [('det_agent', 'noun_agent', 'verb_intrans')]
    """

    def __init__(self, settings: BiGRUSettings | None = None, random_state: int = 0) -> None:
        self.settings = settings or BiGRUSettings()
        self.random_state = random_state

    @classmethod
    def untrained(
        cls,
        vocabulary: Sequence[str],
        roles: Sequence[str],
        settings: BiGRUSettings | None = None,
        random_state: int = 0,
    ) -> Self:
        """The network as `fit` initialises it: a control for probes of its states."""
        tagger = cls(settings, random_state)
        tagger._initialise(vocabulary, roles)
        return tagger

    def fit(
        self,
        words: Sentences,
        roles: Sentences,
        vocabulary: Sequence[str],
        progress: Progress | None = None,
    ) -> Self:
        """Train on sentences and their roles; `progress(epoch, epochs, loss)` is called after each epoch, from 1.

        `vocabulary` lists every word the network may ever see, including words that are not in `words`.
        """
        if len(words) != len(roles):
            raise ValueError(f"{len(words)} sentences, but roles for {len(roles)}")
        for i, (w, r) in enumerate(zip(words, roles, strict=True)):
            if len(w) != len(r):
                raise ValueError(f"sentence {i} has {len(w)} words and {len(r)} roles")
        tokens = tokenize(words, vocabulary)
        if len(tokens.ids) == 0:
            raise ValueError("no words to train on")
        role_names = sorted({role for sentence in roles for role in sentence})
        self._initialise(vocabulary, role_names)
        self.seen_[tokens.ids] = True
        self._train(tokens, tokenize(roles, role_names).ids, progress)
        return self

    def predict(self, sentences: Sentences, unseen: Unseen = "untrained") -> list[tuple[str, ...]]:
        """Roles of every word.

        `unseen`: the embedding of words unseen in training: their row as initialised, zeros, the mean of the rows of
        seen words, or the row of the unknown word, which only word dropout trains.
        """
        tokens = tokenize(sentences, self.vocabulary_)
        roles = self._predict(tokens, None, unseen)
        ends = np.cumsum(tokens.lengths)
        return [tuple(roles[end - n : end]) for end, n in zip(ends, tokens.lengths, strict=True)]

    def predict_with_masks(
        self,
        sentences: Sentences,
        at: Sequence[tuple[int, int]],
        show: Show,
    ) -> list[str]:
        """The role of each token (sentence, position) in `at`, each predicted from its own masked copy of the sentence.

        `show="context"` masks the word itself, `show="word"` every other word; a masked word's embedding is zero.
        """
        if show not in get_args(Show):
            raise ValueError(f"show must be one of {', '.join(get_args(Show))}, got {show!r}")
        tokens = tokenize(sentences, self.vocabulary_)
        sentence, position = np.array(at, dtype=np.int64).reshape(-1, 2).T
        inside = (sentence >= 0) & (sentence < len(sentences)) & (position >= 0)
        if not inside.all() or not (position < tokens.lengths[sentence]).all():
            raise ValueError("a token in `at` lies outside the sentences")
        lengths = tokens.lengths[sentence]
        copies = Tokens(np.zeros(int(lengths.sum()), dtype=np.int64), lengths)
        source = np.repeat(tokens.starts[sentence], lengths) + copies.positions
        own = np.zeros(len(source), dtype=np.bool_)
        own[copies.starts + position] = True
        copies = Tokens(tokens.ids[source], lengths)
        roles = self._predict(copies, own if show == "context" else ~own)
        return list(roles[own])

    def hidden_states(self, sentences: Sentences) -> NDArray[np.float32]:
        """[n_tokens, 2 hidden] states of all tokens, forward half first; [n_tokens, width] of a transformer."""
        tokens = tokenize(sentences, self.vocabulary_)
        out = np.empty((len(tokens.ids), self.network_.readout.in_features), dtype=np.float32)
        for rows, states in self._states(tokens):
            out[rows] = states.cpu().numpy()
        return out

    def _seeds(self) -> list[int]:
        """Independent streams for initialisation, order, dropout and dropout of words."""
        return [int(seed) for seed in np.random.SeedSequence(self.random_state).generate_state(4)]

    def _network(self, n_words: int, n_roles: int) -> Network:
        return BiGRUNetwork(n_words, n_roles, self.settings)

    def _initialise(self, vocabulary: Sequence[str], roles: Sequence[str]) -> None:
        self.vocabulary_ = tuple(vocabulary)
        self.roles_ = tuple(roles)
        self.seen_: NDArray[np.bool_] = np.zeros(len(self.vocabulary_), dtype=np.bool_)
        self.history_: list[EpochRecord] = []
        with torch.random.fork_rng(devices=[]):  # torch's layers can only be initialised from the global generator
            torch.manual_seed(self._seeds()[0])
            unknown = 1 if self.settings.word_dropout else 0
            network = self._network(len(self.vocabulary_) + unknown, len(self.roles_))
        self.network_ = network.to(self.settings.device)

    def _train(self, tokens: Tokens, targets: Ints, progress: Progress | None) -> None:
        s, network = self.settings, self.network_
        _, order_seed, dropout_seed, word_seed = self._seeds()
        order = torch.Generator().manual_seed(order_seed)
        dropout = torch.Generator(s.device).manual_seed(dropout_seed)
        word_dropout = torch.Generator(s.device).manual_seed(word_seed)
        groups = [
            (torch.from_numpy(tokens.ids[rows]).to(s.device), torch.from_numpy(targets[rows]).to(s.device))
            for rows in tokens.by_length()
        ]
        parameters = [p for p in network.parameters() if p.requires_grad]
        # No weight decay: a word unseen in training has gradient 0 and keeps its initial row bit for bit.
        optimizer = torch.optim.Adam(parameters, lr=s.lr, fused=True)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(s.epochs, 1))
        for epoch in range(s.epochs):
            loss_sum = torch.zeros((), device=s.device)
            norms: list[Tensor] = []
            for group, columns in _minibatches([ids.shape[1] for ids, _ in groups], s.batch_size, order):
                ids_TB, roles_TB = (x[:, columns.to(s.device)] for x in groups[group])
                if s.word_dropout:
                    lost = torch.rand(ids_TB.shape, generator=word_dropout, device=s.device) < s.word_dropout
                    ids_TB = ids_TB.masked_fill(lost, len(self.vocabulary_))
                states = network.states(ids_TB, network.embedding.weight)
                if s.dropout:
                    states = states * dropout_mask(states.shape, s.dropout, dropout)
                loss = F.cross_entropy(network.readout(states).flatten(0, 1), roles_TB.flatten())
                optimizer.zero_grad()
                loss.backward()
                norms.append(nn.utils.clip_grad_norm_(parameters, s.clip))
                optimizer.step()
                loss_sum += loss.detach() * ids_TB.numel()
            lr = float(optimizer.param_groups[0]["lr"])
            schedule.step()
            record = EpochRecord(loss_sum.item() / len(tokens.ids), lr, torch.stack(norms).max().item())
            self.history_.append(record)
            if progress is not None:
                progress(epoch + 1, s.epochs, record.loss)

    def _embedding(self, unseen: Unseen) -> Tensor:
        """[V + 1 or 2, E]: the rows of all words, that of unknown words if there is one, and zeros for masked words."""
        if unseen not in get_args(Unseen):
            raise ValueError(f"unseen must be one of {', '.join(get_args(Unseen))}, got {unseen!r}")
        rows = self.network_.embedding.weight.detach().clone()
        words = rows[: len(self.vocabulary_)]  # a view
        new = torch.from_numpy(~self.seen_).to(rows.device)
        if unseen == "zero":
            words[new] = 0.0
        elif unseen == "mean":
            if not self.seen_.any():
                raise ValueError('unseen="mean" needs a trained network: no word has been seen')
            words[new] = words[~new].mean(0)
        elif unseen == "unk":
            if not self.settings.word_dropout:
                raise ValueError('unseen="unk" needs a network that was trained with word_dropout above 0')
            words[new] = rows[len(self.vocabulary_)]
        return torch.cat([rows, rows.new_zeros(1, rows.shape[1])])

    @torch.no_grad()
    def _states(
        self, tokens: Tokens, masked: NDArray[np.bool_] | None = None, unseen: Unseen = "untrained"
    ) -> Iterator[tuple[Ints, Tensor]]:
        """Batches of sentences of equal length: (token indices [T, B], their states [T, B, 2 hidden])."""
        embedding = self._embedding(unseen)
        ids = tokens.ids if masked is None else np.where(masked, len(embedding) - 1, tokens.ids)
        for group in tokens.by_length():
            for start in range(0, group.shape[1], _PREDICT_BATCH):
                rows = group[:, start : start + _PREDICT_BATCH]
                yield rows, self.network_.states(torch.from_numpy(ids[rows]).to(embedding.device), embedding)

    @torch.no_grad()
    def _predict(
        self, tokens: Tokens, masked: NDArray[np.bool_] | None, unseen: Unseen = "untrained"
    ) -> NDArray[np.object_]:
        best = np.empty(len(tokens.ids), dtype=np.int64)
        for rows, states in self._states(tokens, masked, unseen):
            best[rows] = self.network_.readout(states).argmax(-1).cpu().numpy()
        return np.array(self.roles_, dtype=np.object_)[best]


def _minibatches(sizes: Sequence[int], batch_size: int, order: torch.Generator) -> list[tuple[int, Tensor]]:
    """One epoch: every group shuffled and cut into near-equal parts, and the parts in random order.

    A batch holds sentences of one length only, so nothing is padded or packed.
    """
    batches = [
        (group, part)
        for group, size in enumerate(sizes)
        for part in torch.randperm(size, generator=order).tensor_split(math.ceil(size / batch_size))
    ]
    return [batches[i] for i in torch.randperm(len(batches), generator=order).tolist()]
