"""Does a tagger read the word or its context? (C43: the BiGRU "fails because it learns word-to-role shortcuts")

Each score is over chosen tokens, one at a time: intact, with the word masked, with everything but the word masked, and
with the word swapped for another, all others intact. A masked word has a zero embedding, which the network never saw in
training; only the BiGRU takes that test. A word of the same class takes the place of the old one in any shortcut from
words to roles, so a swap inside the class cannot show one; a word that was never seen, or one of another class, can.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ematrace.baselines.bigru import BiGRUTagger

At = Sequence[tuple[int, int]]
Swap = Callable[[str, str, np.random.Generator], str]


class Tagged(Protocol):
    @property
    def words(self) -> Sequence[str]: ...
    @property
    def roles(self) -> Sequence[str]: ...


class Tagger(Protocol):
    def predict(self, sentences: Sequence[Sequence[str]]) -> Sequence[Sequence[str]]: ...


@dataclass(frozen=True)
class TokenScore:
    correct: int
    n: int
    by_role: dict[str, tuple[int, int]]
    """role -> (correct, n)"""

    @property
    def accuracy(self) -> float:
        return self.correct / self.n if self.n else float("nan")


def content_tokens(sentences: Sequence[Tagged], function_words: Collection[str]) -> list[tuple[int, int]]:
    """(sentence, position) of every word that is not a function word."""
    function = frozenset(function_words)
    return [
        (i, t) for i, sentence in enumerate(sentences) for t, word in enumerate(sentence.words) if word not in function
    ]


def intact_accuracy(tagger: Tagger, sentences: Sequence[Tagged], at: At) -> TokenScore:
    """Nothing changed: what the others are compared with."""
    roles = tagger.predict([s.words for s in sentences])
    return score_tokens([roles[i][t] for i, t in at], sentences, at)


def context_only_accuracy(tagger: BiGRUTagger, sentences: Sequence[Tagged], at: At) -> TokenScore:
    """The word itself is masked."""
    return score_tokens(tagger.predict_with_masks([s.words for s in sentences], at, "context"), sentences, at)


def word_only_accuracy(tagger: BiGRUTagger, sentences: Sequence[Tagged], at: At) -> TokenScore:
    """Everything but the word is masked; its position and the sentence's length still show."""
    return score_tokens(tagger.predict_with_masks([s.words for s in sentences], at, "word"), sentences, at)


def swapped_accuracy(
    tagger: Tagger,
    sentences: Sequence[Tagged],
    at: At,
    swap: Swap,
    random_state: int = 0,
) -> TokenScore:
    """Each word in turn is replaced by `swap(word, role, rng)`; the correct role stays that of the original word."""
    return score_tokens([role for _, role in swapped_roles(tagger, sentences, at, swap, random_state)], sentences, at)


def swapped_roles(
    tagger: Tagger, sentences: Sequence[Tagged], at: At, swap: Swap, random_state: int = 0
) -> list[tuple[str, str]]:
    """Each word in turn is replaced, the others stay: the new word, and the role that it is given."""
    rng = np.random.default_rng(random_state)
    copies: list[tuple[str, ...]] = []
    for i, t in at:
        words = tuple(sentences[i].words)
        copies.append((*words[:t], swap(words[t], sentences[i].roles[t], rng), *words[t + 1 :]))
    roles = tagger.predict(copies)
    return [(copies[k][t], roles[k][t]) for k, (_, t) in enumerate(at)]


def score_tokens(predicted: Sequence[str], sentences: Sequence[Tagged], at: At) -> TokenScore:
    """Roles given to the tokens `at`, against those that they have."""
    truth = [sentences[i].roles[t] for i, t in at]
    n = Counter(truth)
    correct = Counter(role for role, guess in zip(truth, predicted, strict=True) if role == guess)
    return TokenScore(correct.total(), n.total(), {role: (correct[role], n[role]) for role in sorted(n)})
