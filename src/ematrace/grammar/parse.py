"""Which roles a grammar admits for the words of a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ematrace.grammar.grammar import Grammar, Slot


def parses(grammar: Grammar, words: Sequence[str]) -> set[tuple[str, ...]]:
    """The roles of the words in every template that could have made them; one element where that is unambiguous.

    >>> from ematrace.grammar import load_grammar
    >>> parses(load_grammar("A"), ["the", "dog", "is", "chased", "by", "the", "cat"])
    {('det_patient', 'noun_patient', 'aux', 'verb_pass', 'prep_by', 'det_agent', 'noun_agent')}
    >>> parses(load_grammar("A"), ["dog", "the"])
    set()
    """
    classes = grammar.function_classes | grammar.content_classes
    members = {name: frozenset(of_class) for name, of_class in classes.items()}

    def fit(slots: tuple[Slot, ...], rest: Sequence[str]) -> Iterator[tuple[str, ...]]:
        if not slots:
            if not rest:
                yield ()
            return
        if rest and rest[0] in members[slots[0].word_class]:
            yield from ((slots[0].role, *roles) for roles in fit(slots[1:], rest[1:]))
        if slots[0].optional:
            yield from fit(slots[1:], rest)

    variants = (variant for structure in grammar.structures for variant in structure.variants)
    return {roles for variant in variants for roles in fit(variant.slots, words)}
