"""Does the BiGRU read the word or its context? The mechanism behind the paper's account of its transfer (C43)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ematrace.baselines.shortcuts import (
    content_tokens,
    context_only_accuracy,
    intact_accuracy,
    swapped_accuracy,
    word_only_accuracy,
)
from ematrace.experiments.base import Context, accuracy
from ematrace.experiments.grammar_task import grammar_experiment, grammar_task
from ematrace.grammar import Grammar
from ematrace.results import Row

SENTENCES = 1000


def measure(ctx: Context, **grammar: Any) -> list[Row]:
    task = grammar_task(ctx, **grammar)
    tagger, sentences = task.bigru(ctx.progress), task.within[:SENTENCES]
    at = content_tokens(sentences, task.A.function_words)
    scores = {
        "intact": intact_accuracy(tagger, sentences, at),
        "context_only": context_only_accuracy(tagger, sentences, at),
        "word_only": word_only_accuracy(tagger, sentences, at),
        "swapped": swapped_accuracy(tagger, sentences, at, Swap(task.A), random_state=task.seed),
    }
    rows = []
    for name, score in scores.items():
        rows.append(Row({"input": name}, {"content_accuracy": accuracy(score.accuracy, score.n)}))
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


EXPERIMENT = grammar_experiment("shortcuts", "Word or context?", measure, group="bigru", seconds=25)
