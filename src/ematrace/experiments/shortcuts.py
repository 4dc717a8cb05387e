"""Does the BiGRU read the word or its context, and does SPCN's probe? The paper's account of transfer (C43).

Metrics of the probe on activation and traces begin with `spcn_`. On words of another class there are, beside the
accuracy (the role that the context asks for):

    follows_word         the role is one that words of the new word's class have; the context never asks for those
    context_over_chance  (accuracy - chance) / (1 - chance)
    word_over_chance     the same of follows_word

Chance is a guess, by how often content words have each role in the training sentences. A class has several roles and
the context asks for one, so that the shares themselves favour the word; over chance both are 0 for the guess, and 1 for
a tagger that follows nothing but the context or nothing but the word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from ematrace.baselines.shortcuts import (
    At,
    Tagger,
    TokenScore,
    content_tokens,
    context_only_accuracy,
    intact_accuracy,
    score_tokens,
    swapped_accuracy,
    swapped_roles,
    word_only_accuracy,
)
from ematrace.experiments.base import Context, accuracy, number
from ematrace.experiments.grammar_task import FULL, GrammarTask, grammar_experiment, grammar_task
from ematrace.grammar import Grammar, Sentence
from ematrace.results import Metric, Row

SENTENCES = 1000

Replaced = list[tuple[str, str]]
"""Of each token: the word that took its place, and the role that it was given."""


ByInput = dict[tuple[str, str], dict[str, Metric]]
"""Metrics by input and role; the role "" stands for all of them."""


def measure(ctx: Context, **grammar: Any) -> list[Row]:
    task = grammar_task(ctx, **grammar)
    bigru, sentences = task.bigru(ctx.progress), task.within[:SENTENCES]
    at = content_tokens(sentences, task.A.function_words)
    hidden = {
        "context_only": context_only_accuracy(bigru, sentences, at),
        "word_only": word_only_accuracy(bigru, sentences, at),
    }
    metrics = metrics_of(bigru, task) | by_input(hidden)
    for key, of_spcn in spcn_metrics(task).items():
        metrics.setdefault(key, {}).update(of_spcn)
    return [Row({"input": name, **({"role": role} if role else {})}, found) for (name, role), found in metrics.items()]


def spcn_metrics(task: GrammarTask) -> ByInput:
    """What the BiGRU has no part in."""
    found = metrics_of(ProbeTagger(task), task)
    return {key: {f"spcn_{name}": metric for name, metric in metrics.items()} for key, metrics in found.items()}


def metrics_of(tagger: Tagger, task: GrammarTask) -> ByInput:
    sentences = task.within[:SENTENCES]
    at, roles_of = content_tokens(sentences, task.A.function_words), RolesOfClasses(task.train, task.A)
    scores, others = read_changed(tagger, task, sentences, at, roles_of)
    metrics, chances = by_input(scores), Chances(task.train, task.A, roles_of)
    metrics["other_class", ""] |= word_or_context(others, [sentences[i].roles[t] for i, t in at], chances)
    return metrics


def by_input(scores: Mapping[str, TokenScore]) -> ByInput:
    metrics: ByInput = {}
    for name, score in scores.items():
        metrics[name, ""] = {"content_accuracy": accuracy(score.accuracy, score.n)}
        for role, (correct, n) in score.by_role.items():
            metrics[name, role] = {"role_accuracy": accuracy(correct / n, n)}
    return metrics


class ProbeTagger:
    """The probe on SPCN's activation and traces, of the training sentences' roles."""

    def __init__(self, task: GrammarTask) -> None:
        self.model = task.spcn()
        self.readout = task.solve(task.by_role_gram(task.token_gram))

    def predict(self, sentences: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
        roles: list[str] = []
        for _, features in self.model.iter_encode(sentences, FULL):
            roles += self.readout.predict(features).tolist()
        ends = pairwise(accumulate((len(words) for words in sentences), initial=0))
        return [tuple(roles[start:end]) for start, end in ends]


def read_changed(
    tagger: Tagger, task: GrammarTask, sentences: Sequence[Sentence], at: At, roles_of: Mapping[str, frozenset[str]]
) -> tuple[dict[str, TokenScore], Replaced]:
    """By input, what is right of the tokens `at`; and what became of words of another class."""
    others = swapped_roles(tagger, sentences, at, OtherClass(task.A, roles_of), random_state=task.seed)
    scores = {
        "intact": intact_accuracy(tagger, sentences, at),
        "swapped": swapped_accuracy(tagger, sentences, at, Swap(task.A), random_state=task.seed),
        "novel": swapped_accuracy(tagger, sentences, at, Novel(task.A, task.B), random_state=task.seed),
        "other_class": score_tokens([role for _, role in others], sentences, at),
    }
    return scores, others


def word_or_context(others: Replaced, asked: Sequence[str], chances: Chances) -> dict[str, Metric]:
    """Whose role words of another class are given, where the context asks for `asked`."""
    n = max(len(others), 1)
    follows = sum(role in chances.roles_of_word(word) for word, role in others) / n
    right = sum(role == wanted for (_, role), wanted in zip(others, asked, strict=True)) / n
    by_word = sum(chances.share(chances.roles_of_word(word)) for word, _ in others) / n
    by_context = sum(chances.share({role}) for role in asked) / n
    return {
        "follows_word": accuracy(follows, len(others), better=None),
        "follows_word_chance": number(by_word),
        "content_chance": number(by_context),
        "word_over_chance": number((follows - by_word) / (1 - by_word)),
        "context_over_chance": number((right - by_context) / (1 - by_context)),
    }


class Chances:
    """How often content words have a role of some set in these sentences."""

    def __init__(self, sentences: Sequence[Sentence], grammar: Grammar, roles_of: Mapping[str, frozenset[str]]) -> None:
        self.class_of, self.roles_of = grammar.word_class, roles_of
        pairs = (pair for s in sentences for pair in zip(s.words, s.roles, strict=True))
        self.counts = Counter(role for word, role in pairs if self.class_of[word] in roles_of)

    def roles_of_word(self, word: str) -> frozenset[str]:
        return self.roles_of[self.class_of[word]]

    def share(self, roles: Collection[str]) -> float:
        return sum(self.counts[role] for role in roles) / self.counts.total()


class Swap:
    """Another word of the same class; for a noun one of the other half, which the grammar prefers in other roles."""

    def __init__(self, grammar: Grammar) -> None:
        self.class_of = grammar.word_class
        self.words = {name: list(words) for name, words in grammar.content_classes.items()}

    def __call__(self, word: str, role: str, rng: np.random.Generator) -> str:
        words = self.words[self.class_of[word]]
        half = len(words) // 2
        if self.class_of[word] == "noun":
            choices = words[half:] if words.index(word) < half else words[:half]
        else:
            choices = [other for other in words if other != word]
        return str(choices[rng.integers(len(choices))])


class Novel:
    """A word of the same class that the tagger never saw: of grammar B."""

    def __init__(self, seen: Grammar, unseen: Grammar) -> None:
        self.class_of, self.words = seen.word_class, unseen.content_classes

    def __call__(self, word: str, role: str, rng: np.random.Generator) -> str:
        choices = self.words[self.class_of[word]]
        return str(choices[rng.integers(len(choices))])


class RolesOfClasses(dict[str, frozenset[str]]):
    """The roles that words of each content class have in these sentences."""

    def __init__(self, sentences: Sequence[Sentence], grammar: Grammar) -> None:
        pairs = {(grammar.word_class[w], r) for s in sentences for w, r in zip(s.words, s.roles, strict=True)}
        super().__init__(
            (name, frozenset(role for of, role in pairs if of == name)) for name in grammar.content_classes
        )


class OtherClass:
    """A known word of a class that never has this role."""

    def __init__(self, grammar: Grammar, roles_of: Mapping[str, frozenset[str]]) -> None:
        self.classes, self.roles_of = grammar.content_classes, roles_of

    def __call__(self, word: str, role: str, rng: np.random.Generator) -> str:
        names = [name for name in self.classes if role not in self.roles_of[name]]
        words = self.classes[names[rng.integers(len(names))]]
        return str(words[rng.integers(len(words))])


EXPERIMENT = grammar_experiment("shortcuts", "Word or context?", measure, group="bigru", seconds=60)
