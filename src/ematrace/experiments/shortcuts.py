"""Does the BiGRU read the word or its context? The mechanism behind the paper's account of its transfer (C43)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ematrace.baselines.shortcuts import (
    content_tokens,
    context_only_accuracy,
    intact_accuracy,
    score_tokens,
    swapped_accuracy,
    swapped_roles,
    word_only_accuracy,
)
from ematrace.experiments.base import Context, accuracy
from ematrace.experiments.grammar_task import grammar_experiment, grammar_task
from ematrace.grammar import Grammar, Sentence
from ematrace.results import Row

SENTENCES = 1000


def measure(ctx: Context, **grammar: Any) -> list[Row]:
    task = grammar_task(ctx, **grammar)
    tagger, sentences = task.bigru(ctx.progress), task.within[:SENTENCES]
    at = content_tokens(sentences, task.A.function_words)
    roles_of = RolesOfClasses(task.train, task.A)
    others = swapped_roles(tagger, sentences, at, OtherClass(task.A, roles_of), random_state=task.seed)
    scores = {
        "intact": intact_accuracy(tagger, sentences, at),
        "context_only": context_only_accuracy(tagger, sentences, at),
        "word_only": word_only_accuracy(tagger, sentences, at),
        "swapped": swapped_accuracy(tagger, sentences, at, Swap(task.A), random_state=task.seed),
        "novel": swapped_accuracy(tagger, sentences, at, Novel(task.A, task.B), random_state=task.seed),
        "other_class": score_tokens([role for _, role in others], sentences, at),
    }
    # Of words of another class: how often the role is one of the word's, not the one that its context asks for.
    follows = sum(role in roles_of[task.A.word_class[word]] for word, role in others)
    beside = {"other_class": {"follows_word": accuracy(follows / max(len(at), 1), len(at), better=None)}}
    rows = []
    for name, score in scores.items():
        metrics = {"content_accuracy": accuracy(score.accuracy, score.n), **beside.get(name, {})}
        rows.append(Row({"input": name}, metrics))
        for role, (correct, n) in score.by_role.items():
            if n:
                rows.append(Row({"input": name, "role": role}, {"role_accuracy": accuracy(correct / n, n)}))
    return rows


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


EXPERIMENT = grammar_experiment("shortcuts", "Word or context?", measure, group="bigru", seconds=25)
