"""The formal grammar as data (`default.toml`), its checks, its sampler, and random grammars."""

from ematrace.grammar.grammar import Grammar, Sentence, position_shares
from ematrace.grammar.sources import GrammarError, draw_grammar_pair, load_grammar

__all__ = ["Grammar", "GrammarError", "Sentence", "draw_grammar_pair", "load_grammar", "position_shares"]
