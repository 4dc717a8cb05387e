"""Does the BiGRU read the word or its context? The mechanism behind the paper's account of its transfer (C43)."""

from __future__ import annotations

import numpy as np

from ematrace.baselines.shortcuts import (
    content_tokens,
    context_only_accuracy,
    intact_accuracy,
    swapped_accuracy,
    word_only_accuracy,
)
from ematrace.experiments.base import Experiment
from ematrace.experiments.workbench import Figures, Workbench
from ematrace.grammar import Grammar

SENTENCES = 1000


def measure(bench: Workbench) -> Figures:
    tagger, sentences = bench.bigru, bench.within[:SENTENCES]
    at = content_tokens(sentences, bench.A.function_words)
    scores = {
        "intact": intact_accuracy(tagger, sentences, at),
        "context_only": context_only_accuracy(tagger, sentences, at),
        "word_only": word_only_accuracy(tagger, sentences, at),
        "swapped": swapped_accuracy(tagger, sentences, at, Swap(bench.A), random_state=bench.seed),
    }
    figures: Figures = {}
    for name, score in scores.items():
        figures[f"{name}.content"] = (score.accuracy, score.n)
        for role, (correct, n) in score.by_role.items():
            if n:
                figures[f"{name}.role.{role}"] = (correct / n, n)
    return figures


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


EXPERIMENT = Experiment("shortcuts", "Word or context?", measure, group="bigru")
