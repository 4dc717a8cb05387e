"""The bench an experiment works on: one seed's sentences, networks and probes, each made once and only when asked for.

A seed changes the sentences and the weights alike, so that intervals over seeds cover both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ematrace.baselines.bigru import BiGRUSettings, BiGRUTagger
from ematrace.grammar import Grammar, Sentence, load_grammar
from ematrace.probes import GramMatrix, Readout, ReadoutBank, Scores, score_roles
from ematrace.spcn import SPCN

Floats = npt.NDArray[np.floating]
Codes = npt.NDArray[np.intp]
Measured = tuple[float, int | None]  # a value, and how many tokens it was scored on if it is an accuracy
Figures = dict[str, Measured]

LAMBDA = 0.01  # the paper's ridge penalty
FULL = "l0+traces"  # the paper's 3072-d representation


@dataclass(frozen=True)
class Sizes:
    """Sentences to learn from, to test on within grammar A, and on transfer to grammar B; epochs of the BiGRU; tokens
    that a small SPEN is trained on and positions that it is then compared at."""

    train: int = 5000
    within: int = 3000
    transfer: int = 3000
    bigru_epochs: int = 150
    spen_tokens: int = 1_000_000
    spen_positions: int = 4096


@dataclass(frozen=True)
class Probed:
    """What one probe got right on held-out A and on B."""

    within: Scores
    transfer: Scores


class Workbench:
    """Everything that experiments of one seed share."""

    def __init__(
        self,
        seed: int,
        *,
        grammars: tuple[Grammar, Grammar] | None = None,
        spcn: Mapping[str, Any] | None = None,
        sizes: Sizes | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        self.seed = seed
        self.A, self.B = grammars or (load_grammar("A"), load_grammar("B"))
        self.spcn_settings = dict(spcn or {})
        self.sizes = sizes or Sizes()
        self.progress = progress or (lambda share: None)
        self._models: dict[tuple[tuple[str, Any], ...], SPCN] = {}

    # ------------------------------------------------------------------ sentences

    @cached_property
    def train(self) -> list[Sentence]:
        return self.A.sample(self.sizes.train, seed=3 * self.seed)

    @cached_property
    def within(self) -> list[Sentence]:
        return self.A.sample(self.sizes.within, seed=3 * self.seed + 1)

    @cached_property
    def transfer(self) -> list[Sentence]:
        return self.B.sample(self.sizes.transfer, seed=3 * self.seed + 2)

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        """Function words, then the content words of A and of B: a word's code exists before it is ever read."""
        return tuple(dict.fromkeys(self.A.words + self.B.words))

    @property
    def roles(self) -> tuple[str, ...]:
        return self.A.roles

    # ------------------------------------------------------------------ networks

    def spcn(self, **changes: Any) -> SPCN:
        """A network with the paper's settings but for the changes, fitted to the training sentences."""
        key = tuple(sorted(changes.items()))
        if key not in self._models:
            settings = {"vocabulary": self.vocabulary, "random_state": self.seed, **self.spcn_settings, **changes}
            self._models[key] = SPCN(**settings).fit(words_of(self.train))
        return self._models[key]

    @cached_property
    def bigru(self) -> BiGRUTagger:
        tagger = BiGRUTagger(BiGRUSettings(epochs=self.sizes.bigru_epochs), random_state=self.seed)
        return tagger.fit(
            words_of(self.train),
            [s.roles for s in self.train],
            vocabulary=self.vocabulary,
            progress=lambda epoch, epochs, loss: self.progress(epoch / epochs),
        )

    # ------------------------------------------------------------------ probes

    @cached_property
    def token_gram(self) -> GramMatrix:
        """Statistics of the default network's L0 features against word and role together.

        Labels that depend on either are a relabelling away, and every L0 probe is a sub-solve.
        """
        return self.gram_of(self.spcn(), FULL)

    def gram_of(self, model: SPCN, representation: str) -> GramMatrix:
        """One pass over the training sentences."""
        index = {label: i for i, label in enumerate(self.token_labels)}
        gram = GramMatrix(len(model.columns(representation, representation)), self.token_labels)
        for part, features in model.iter_encode(self.train, representation):
            gram.update(features, np.array([index[label] for s in self.train[part] for label in _token_labels(s)]))
        return gram

    @cached_property
    def token_labels(self) -> tuple[str, ...]:
        """Every "word role" of the training sentences."""
        return tuple(sorted({label for s in self.train for label in _token_labels(s)}))

    def by_role_gram(self, gram: GramMatrix) -> GramMatrix:
        return gram.relabel(self.roles, {label: label.split()[1] for label in self.token_labels})

    def by_word_gram(self, gram: GramMatrix, name_of: Mapping[str, str]) -> GramMatrix:
        """Under labels that the word alone decides."""
        return gram.relabel(self.roles, {label: name_of[label.split()[0]] for label in self.token_labels})

    def probe(self, names: Sequence[str], model: SPCN | None = None, representation: str = FULL) -> dict[str, Probed]:
        """Ridge probes for roles on named parts of one representation of one network."""
        network = model or self.spcn()
        tokens = self.token_gram if model is None and representation == FULL else self.gram_of(network, representation)
        gram = self.by_role_gram(tokens)
        readouts = {name: gram.solve(LAMBDA, columns=network.columns(name, representation)) for name in names}
        return self.score(readouts, network, representation)

    def score(self, readouts: Mapping[str, Readout], model: SPCN, representation: str = FULL) -> dict[str, Probed]:
        """Test all readouts of one representation in one pass over the held-out sentences."""
        within = self.predict(readouts, model, self.within, representation)
        transfer = self.predict(readouts, model, self.transfer, representation)
        return {
            name: Probed(self.right(within[name], self.within), self.right(transfer[name], self.transfer))
            for name in readouts
        }

    def predict(
        self, readouts: Mapping[str, Readout], model: SPCN, sentences: list[Sentence], representation: str = FULL
    ) -> dict[str, Codes]:
        bank = ReadoutBank(readouts)
        parts: dict[str, list[Codes]] = {name: [] for name in readouts}
        for _, features in model.iter_encode(sentences, representation):
            for name, codes in bank.predict_codes(features).items():
                parts[name].append(codes)
        return {name: np.concatenate(codes) for name, codes in parts.items()}

    def right(self, predicted: Codes, sentences: Sequence[Sentence]) -> Scores:
        return score_roles(predicted, role_codes(sentences, self.roles), self.roles)

    def probe_features(self, features: Callable[[list[Sentence]], Floats]) -> Probed:
        """A ridge probe on features computed from the sentences alone, for controls."""
        train = features(self.train)
        gram = GramMatrix(train.shape[1], self.roles)
        gram.update(train, role_codes(self.train, self.roles))
        readout = gram.solve(LAMBDA)

        within, transfer = (readout.predict_codes(features(held_out)) for held_out in (self.within, self.transfer))
        return Probed(self.right(within, self.within), self.right(transfer, self.transfer))

    # ------------------------------------------------------------------ figures

    def accuracies(self, name: str, probed: Probed) -> Figures:
        """W, T and D of the paper's tables, and D without the relative pronoun, which is free."""
        deep = probed.within.subset(self.A.deep_roles)
        strict = probed.within.subset([r for r in self.A.deep_roles if r != "rel_pron"])
        return {
            f"{name}.within": (probed.within.accuracy, probed.within.n),
            f"{name}.transfer": (probed.transfer.accuracy, probed.transfer.n),
            f"{name}.deep": (deep.accuracy, deep.n),
            f"{name}.deep_strict": (strict.accuracy, strict.n),
        }

    def by_role(self, name: str, probed: Probed) -> Figures:
        out: Figures = {}
        for side, scores in (("within", probed.within), ("transfer", probed.transfer)):
            for role, (correct, n) in scores.per_role.items():
                if n:
                    out[f"{name}.{side}.role.{role}"] = (correct / n, n)
        return out


def words_of(sentences: Sequence[Sentence]) -> list[tuple[str, ...]]:
    return [s.words for s in sentences]


def _token_labels(sentence: Sentence) -> list[str]:
    return [f"{word} {role}" for word, role in zip(sentence.words, sentence.roles, strict=True)]


def role_codes(sentences: Sequence[Sentence], roles: Sequence[str]) -> npt.NDArray[np.int64]:
    """The roles of all tokens as numbers."""
    index = {role: i for i, role in enumerate(roles)}
    return np.array([index[role] for s in sentences for role in s.roles], np.int64)
