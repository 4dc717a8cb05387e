"""Random grammars with the templates and words of the default one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ematrace.grammar.grammar import Grammar, Structure, non_negative_int
from ematrace.grammar.reader import load_grammar

_MIN_SHARE = 0.03  # of every structure
_DRAW_KEY = 1  # makes the draw of a grammar independent of samples with the same seed


def draw_grammar_pair(seed: int) -> tuple[Grammar, Grammar]:
    """Sides A and B of the default lexicon with the same random syntax, recorded in `.settings`.

    Shares are a flat Dirichlet above a floor of .03; the passive has exactly .5 when 3 divides the seed.
    noun_bias ~ U[.5, 1], adjective_rate ~ U[.1, .6], weight of object relatives ~ U[.05, .95].

    >>> A, B = draw_grammar_pair(seed=1)
    >>> load_grammar("A").adjective_rate, round(A.adjective_rate, 2), round(B.adjective_rate, 2)
    (0.3, 0.28, 0.28)
    >>> set(A.content_words) & set(B.content_words)
    set()
    """
    seed = non_negative_int(seed, "seed")
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_DRAW_KEY,)))
    A, B = load_grammar("A"), load_grammar("B")
    shares = drawn_shares(rng, [structure.name for structure in A.structures], seed)
    noun_bias, adjective_rate = drawn_rates(rng)
    object_weight = float(rng.uniform(0.05, 0.95))
    weights = {("relative", "object"): object_weight, ("relative", "subject"): 1 - object_weight}

    def redraw(grammar: Grammar) -> Grammar:
        structures = tuple(
            Structure(
                s.name,
                shares[s.name],
                tuple(replace(v, weight=weights.get((s.name, v.name), v.weight)) for v in s.variants),
            )
            for s in grammar.structures
        )
        return replace(
            grammar,
            structures=structures,
            noun_bias=noun_bias,
            adjective_rate=adjective_rate,
            drawn_seed=seed,
        )

    return redraw(A), redraw(B)


def drawn_shares(rng: np.random.Generator, names: Sequence[str], seed: int) -> dict[str, float]:
    """Shares of structures: a flat Dirichlet above a floor; the passive has exactly .5 when 3 divides the seed."""
    fixed = {"passive": 0.5} if seed % 3 == 0 else {}
    free = [name for name in names if name not in fixed]
    spread = 1 - sum(fixed.values()) - _MIN_SHARE * len(free)
    drawn = _MIN_SHARE + spread * rng.dirichlet(np.ones(len(free)))
    return dict(zip(free, drawn.tolist(), strict=True)) | fixed


def drawn_rates(rng: np.random.Generator) -> tuple[float, float]:
    """noun_bias ~ U[.5, 1] and adjective_rate ~ U[.1, .6]."""
    return float(rng.uniform(0.5, 1)), float(rng.uniform(0.1, 0.6))
