"""The formal grammar as data (`default.toml`), its sampler, and random grammars."""

from ematrace.grammar.draw import draw_full_grammar_pair
from ematrace.grammar.grammar import Grammar, Sentence, position_shares
from ematrace.grammar.parse import parses
from ematrace.grammar.premise import half_passives
from ematrace.grammar.reader import GrammarError, load_grammar

__all__ = [
    "Grammar",
    "GrammarError",
    "Sentence",
    "draw_full_grammar_pair",
    "half_passives",
    "load_grammar",
    "parses",
    "position_shares",
]
