"""The formal-grammar task: roles of words in sentences of grammar A, and on transfer to grammar B.

A `GrammarTask` is one seed's sentences, networks and probes, each made once and only when asked for. A seed changes the
sentences and the weights alike, so that intervals over seeds cover both. Results of one seed with the same settings
`sentences` and `grammar` have the same sentences, whatever the experiment: models are compared seed by seed.

The grammar is "half_passives": position 0 is det_agent or det_patient half and half, as the paper says (line 187).
"quarter_passives" has the share that fits the paper's tables best; `networks` shows both. Either was chosen
knowing these tables, so agreement on it proves little. Every experiment therefore also runs on grammars of which all is
drawn that the paper does not state: word order, templates, class sizes, words and shares (every third with half
passives). k is the same in all of them; `k_by_grammar` crosses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ematrace.baselines.bigru import BiGRUSettings, BiGRUTagger
from ematrace.experiments.base import Context, Experiment, Measured, Point, accuracy, factorial
from ematrace.grammar import (
    Grammar,
    Sentence,
    draw_full_grammar_pair,
    half_passives,
    load_grammar,
)
from ematrace.probes import GramMatrix, Readout, ReadoutBank, Scores, score_roles
from ematrace.results import Metric, Row
from ematrace.spcn import SPCN

Floats = npt.NDArray[np.floating]
Codes = npt.NDArray[np.intp]

FULL = "l0+traces"  # the paper's 3072-d representation
GRAMMAR = "half_passives"  # that every experiment runs on
DRAWN = "fully_drawn"
KS = (0.02, 0.04, 0.08, 0.16)  # that `k_by_grammar` crosses with grammars
DRAWS = 12  # a full run: every word order twice without and once with half passives
QUICK_DRAWS = 4  # every word order once
NOT_SETTINGS = ("vocabulary", "random_state", "n_jobs", "representation")


@dataclass(frozen=True)
class Sizes:
    """Sentences to learn from, to test on within grammar A, and on transfer to grammar B; epochs of the BiGRU."""

    train: int = 5000
    within: int = 3000
    transfer: int = 3000
    bigru_epochs: int = 150


SETTINGS: Mapping[str, Any] = {
    "sentences": asdict(Sizes()),
    "spcn": {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in SPCN().get_params().items()
        if name not in NOT_SETTINGS
    },
    "ridge_lambda": 0.01,  # the paper's
}


def drawn_grid(scale: str, draws: int) -> Iterable[Point]:
    """Grammars that nobody chose: the seed is the number of the draw."""
    return [Point({"grammar": DRAWN}, number) for number in range(draws)]


def follow_from(point: Point, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """A description of the grammar, and k where it is a factor."""
    name = str(point.factors["grammar"])
    description = {"grammar": _description(name, point.seed if name == DRAWN else 0)}
    return {**description, "spcn": {"k": point.factors["k"]}} if "k" in point.factors else description


@cache
def _description(name: str, seed: int) -> Mapping[str, Any]:
    return grammar_pair(name, seed)[0].settings


def grammar_pair(name: str, seed: int = 0) -> tuple[Grammar, Grammar]:
    """Sides A and B of the grammar of this name; a drawn one depends on the seed."""
    if name == DRAWN:
        return draw_full_grammar_pair(seed)
    A, B = load_grammar("A"), load_grammar("B")
    if name == "half_passives":
        return half_passives(A), half_passives(B)
    if name != "quarter_passives":
        names = ("half_passives", "quarter_passives", DRAWN)
        raise ValueError(f"grammar is {name!r}; choose from {', '.join(map(repr, names))}")
    return A, B


def grammar_experiment(
    name: str, title: str, measure: Callable[..., Measured], *, group: str = "spcn", **options: Any
) -> Experiment:
    """On GRAMMAR, and on drawn ones where `robustness` is asked for."""
    return Experiment(
        name,
        title,
        grid=factorial(grammar=(GRAMMAR,)),
        measure=measure,
        group=group,
        settings=SETTINGS,
        derived=follow_from,
        **{"robustness": drawn_grid, **options},
    )


def grammar_task(ctx: Context, grammar: str = GRAMMAR, k: float | None = None) -> GrammarTask:
    """The task of this seed, which experiments of one group share."""
    spcn = {name: tuple(v) if isinstance(v, list) else v for name, v in ctx.settings["spcn"].items()}
    if k is not None:
        spcn["k"] = k
    sizes = Sizes(**ctx.settings["sentences"])
    probe = {"ridge_lambda": ctx.settings["ridge_lambda"], "fit_intercept": ctx.settings.get("fit_intercept", True)}
    return ctx.share(_make, ctx.seed, grammar, tuple(spcn.items()), sizes, tuple(probe.items()))


def _make(
    seed: int, grammar: str, spcn: tuple[tuple[str, Any], ...], sizes: Sizes, probe: tuple[tuple[str, Any], ...]
) -> GrammarTask:
    return GrammarTask(seed, grammar_pair(grammar, seed), spcn=dict(spcn), sizes=sizes, **dict(probe))


@dataclass(frozen=True)
class Probed:
    """What one probe got right on held-out A and on B."""

    within: Scores
    transfer: Scores


class GrammarTask:
    """Everything that experiments of one seed share."""

    def __init__(
        self,
        seed: int,
        grammars: tuple[Grammar, Grammar] | None = None,
        *,
        spcn: Mapping[str, Any] | None = None,
        sizes: Sizes | None = None,
        ridge_lambda: float = 0.01,
        fit_intercept: bool = True,
    ) -> None:
        self.seed = seed
        self.A, self.B = grammars or grammar_pair(GRAMMAR)
        self.spcn_settings = dict(spcn or {})
        self.sizes = sizes or Sizes()
        self.ridge_lambda, self.fit_intercept = ridge_lambda, fit_intercept
        self._networks: dict[tuple[tuple[str, Any], ...], SPCN] = {}
        self._bigru: BiGRUTagger | None = None

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
    def novel(self) -> npt.NDArray[np.bool_]:
        """[within] whether a test sentence of grammar A is none of the training sentences; on B every one is."""
        known = {s.words for s in self.train}
        return np.array([s.words not in known for s in self.within], np.bool_)

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        """Function words, then the content words of A and of B: a word's code exists before it is ever read."""
        return tuple(dict.fromkeys(self.A.words + self.B.words))

    @property
    def roles(self) -> tuple[str, ...]:
        return self.A.roles

    def spcn(self, **changes: Any) -> SPCN:
        """A network with this task's settings but for the changes, fitted to the training sentences."""
        key = tuple(sorted(changes.items()))
        if key not in self._networks:
            settings = {"vocabulary": self.vocabulary, "random_state": self.seed, **self.spcn_settings, **changes}
            self._networks[key] = SPCN(**settings).fit(words_of(self.train))
        return self._networks[key]

    def bigru(self, progress: Callable[[float], None] = lambda share: None) -> BiGRUTagger:
        """A tagger trained on the roles of the training sentences; only the first call trains it."""
        if self._bigru is None:
            tagger = BiGRUTagger(BiGRUSettings(epochs=self.sizes.bigru_epochs), random_state=self.seed)
            self._bigru = tagger.fit(
                words_of(self.train),
                [s.roles for s in self.train],
                vocabulary=self.vocabulary,
                progress=lambda epoch, epochs, loss: progress(epoch / epochs),
            )
        return self._bigru

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
        readouts = {name: self.solve(gram, network.columns(name, representation)) for name in names}
        return self.score(readouts, network, representation)

    def solve(self, gram: GramMatrix, columns: Codes | None = None, projection: Floats | None = None) -> Readout:
        """The probe of these features, as the task's settings have it."""
        return gram.solve(self.ridge_lambda, columns, projection, self.fit_intercept)

    def score(self, readouts: Mapping[str, Readout], model: SPCN, representation: str = FULL) -> dict[str, Probed]:
        """Test all readouts of one representation in one pass over the held-out sentences."""
        within = self.predict(readouts, model, self.within, representation)
        transfer = self.predict(readouts, model, self.transfer, representation)
        return {name: self.judge(within[name], transfer[name]) for name in readouts}

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
        true = role_codes(sentences, self.roles)
        return score_roles(predicted, true, self.roles, lengths=[len(s.words) for s in sentences])

    def judge(self, within: Codes, transfer: Codes) -> Probed:
        """What is right of predictions on held-out A and on B."""
        return Probed(self.right(within, self.within), self.right(transfer, self.transfer))

    def probe_features(self, features: Callable[[list[Sentence]], Floats]) -> Probed:
        """A ridge probe on features computed from the sentences alone, for controls."""
        train = features(self.train)
        gram = GramMatrix(train.shape[1], self.roles)
        gram.update(train, role_codes(self.train, self.roles))
        readout = self.solve(gram)

        within, transfer = (readout.predict_codes(features(held_out)) for held_out in (self.within, self.transfer))
        return self.judge(within, transfer)

    def accuracies(self, probed: Probed) -> dict[str, Metric]:
        """W, T and D of the paper's tables; D without the relative pronoun, which is free; W and D of test sentences
        that are not among the training sentences."""
        deep = probed.within.subset(self.A.deep_roles)
        strict = probed.within.subset([r for r in self.A.deep_roles if r != "rel_pron"])
        scores = {"within": probed.within, "transfer": probed.transfer, "deep": deep, "deep_strict": strict}
        if probed.within.by_sentence is not None:
            scores |= {
                "within_novel": probed.within.of_sentences(self.novel),
                "deep_novel": deep.of_sentences(self.novel),
            }
        return {name: accuracy(s.accuracy, s.n, n_effective=s.n_effective) for name, s in scores.items()}

    def by_role(self, probed: Probed, factors: Mapping[str, str]) -> list[Row]:
        """A row for each role that occurs, with `role` beside the other factors."""
        metrics: dict[str, dict[str, Metric]] = {}
        for side, scores in (("within", probed.within), ("transfer", probed.transfer)):
            for role, (correct, n) in scores.per_role.items():
                if n:
                    effective = scores.n_effective_per_role.get(role)
                    metrics.setdefault(role, {})[f"role_{side}"] = accuracy(correct / n, n, n_effective=effective)
        return [Row({**factors, "role": role}, found) for role, found in metrics.items()]


def words_of(sentences: Sequence[Sentence]) -> list[tuple[str, ...]]:
    return [s.words for s in sentences]


def _token_labels(sentence: Sentence) -> list[str]:
    return [f"{word} {role}" for word, role in zip(sentence.words, sentence.roles, strict=True)]


def role_codes(sentences: Sequence[Sentence], roles: Sequence[str]) -> npt.NDArray[np.int64]:
    """The roles of all tokens as numbers."""
    index = {role: i for i, role in enumerate(roles)}
    return np.array([index[role] for s in sentences for role in s.roles], np.int64)
