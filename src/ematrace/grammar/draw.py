"""Grammars of which all is drawn that the paper does not state.

It states six structures, 20 roles, 147 words and two sides with disjoint content words and shared syntax. Drawn are the
word order, the templates of each structure and their weights, the order of the noun phrase, the shares of structures,
the sizes of all word classes and the words.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ematrace.grammar.grammar import Grammar, non_negative_int
from ematrace.grammar.reader import grammars_from, load_grammar

WORD_ORDERS = Path(__file__).with_name("word_orders.toml")
WORDS = 147  # of both sides together
FUNCTION_WORDS = (5, 7, 9, 11)  # odd, so that both sides have equally many content words
_LEAST_NOUNS, _LEAST_WORDS = 8, 2  # of a content class: a word can be exchanged for another one
_LEAST_WEIGHT = 0.1  # of a template within its structure
_MIN_SHARE = 0.03  # of every structure
_DRAW_KEY = 2  # makes the draw independent of samples with the same seed
_SYLLABLES = tuple("".join(letters) for letters in product("bdfgklmnprstvz", "aeiou"))


@cache
def word_orders() -> dict[str, dict[str, Any]]:
    """By name, the orders of the noun phrase and the templates of each structure."""
    return tomllib.loads(WORD_ORDERS.read_text(encoding="utf-8"))


def draw_full_grammar_pair(seed: int) -> tuple[Grammar, Grammar]:
    """Sides A and B of a drawn grammar, which `.settings` describes.

    Word orders take turns with the seed. Half of the sentences are passive when 3 divides it.

    >>> A, B = draw_full_grammar_pair(seed=1)
    >>> A.word_order, B.word_order
    ('head_final', 'head_final')
    >>> A.sample(1, seed=0)[0].roles
    ('adj_agent', 'det_agent', 'noun_agent', 'det_patient', 'noun_patient', 'adverb', 'verb')
    """
    seed = non_negative_int(seed, "seed")
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_DRAW_KEY,)))
    orders = word_orders()
    name = list(orders)[seed % len(orders)]
    noun_phrases, templates = orders[name]["NP"], {k: v for k, v in orders[name].items() if k != "NP"}
    shares = _draw_shares(rng, list(templates), seed)
    noun_bias, adjective_rate = _draw_rates(rng)
    default = load_grammar("A")
    function, sides = _draw_words(rng, default)
    file = {
        "roles": list(default.roles),
        "deep_roles": list(default.deep_roles),
        "sampling": {
            "adjective_rate": adjective_rate,
            "noun_bias": noun_bias,
            "biased_class": default.biased_class,
            "first_half_roles": list(default.first_half_roles),
        },
        "function": function,
        "phrases": {"NP": noun_phrases[int(rng.integers(len(noun_phrases)))]},
        "structures": {
            structure: {"share": shares[structure], "variants": _draw_variants(rng, variants)}
            for structure, variants in templates.items()
        },
        "sides": sides,
    }
    grammars = grammars_from(file, f"{WORD_ORDERS.name}, seed {seed}")
    A, B = (replace(grammars[side], drawn_seed=seed, word_order=name) for side in "AB")
    return A, B


def _draw_variants(rng: np.random.Generator, variants: dict[str, list[str]]) -> dict[str, dict[str, Any]]:
    """Each template with probability 1/2, at least one, with weights from a flat Dirichlet above a floor."""
    names = np.array(list(variants))
    kept = names[rng.random(len(names)) < 0.5]
    if not len(kept):
        kept = rng.choice(names, 1)
    weights = _LEAST_WEIGHT + (1 - _LEAST_WEIGHT * len(kept)) * rng.dirichlet(np.ones(len(kept)))
    return {str(n): {"weight": float(w), "slots": variants[n]} for n, w in zip(kept, weights, strict=True)}


def _draw_shares(rng: np.random.Generator, names: Sequence[str], seed: int) -> dict[str, float]:
    """Shares of structures: a flat Dirichlet above a floor; the passive has exactly .5 when 3 divides the seed."""
    fixed = {"passive": 0.5} if seed % 3 == 0 else {}
    free = [name for name in names if name not in fixed]
    spread = 1 - sum(fixed.values()) - _MIN_SHARE * len(free)
    drawn = _MIN_SHARE + spread * rng.dirichlet(np.ones(len(free)))
    return dict(zip(free, drawn.tolist(), strict=True)) | fixed


def _draw_rates(rng: np.random.Generator) -> tuple[float, float]:
    """noun_bias ~ U[.5, 1] and adjective_rate ~ U[.1, .6]."""
    return float(rng.uniform(0.5, 1)), float(rng.uniform(0.1, 0.6))


def _draw_words(
    rng: np.random.Generator, default: Grammar
) -> tuple[dict[str, list[str]], dict[str, dict[str, list[str]]]]:
    """Words for the classes of default.toml: those that both sides share, and those of each side."""
    n_function = int(rng.choice(FUNCTION_WORDS))
    function_sizes = _draw_sizes(rng, dict.fromkeys(default.function_classes, 1), n_function)
    least = dict.fromkeys(default.content_classes, _LEAST_WORDS) | {default.biased_class: _LEAST_NOUNS}
    content_sizes = _draw_sizes(rng, least, (WORDS - n_function) // 2)
    syllables = rng.choice(len(_SYLLABLES) ** 2, WORDS, replace=False)
    words = iter("".join(_SYLLABLES[i] for i in divmod(int(number), len(_SYLLABLES))) for number in syllables)

    def take(sizes: dict[str, int]) -> dict[str, list[str]]:
        return {name: [next(words) for _ in range(size)] for name, size in sizes.items()}

    return take(function_sizes), {side: take(content_sizes) for side in "AB"}


def _draw_sizes(rng: np.random.Generator, least: dict[str, int], total: int) -> dict[str, int]:
    """Sizes with this sum, each at least so large; the rest falls to classes with shares from a flat Dirichlet."""
    rest = rng.multinomial(total - sum(least.values()), rng.dirichlet(np.ones(len(least))))
    return {name: size + int(more) for (name, size), more in zip(least.items(), rest, strict=True)}
