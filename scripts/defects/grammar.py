"""The formal grammar."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from defects.planting import defect, skipped, with_result, wrap


@defect("grammar.reader", "test_grammar.py", "structure_shares")
def structures_equally_often(reader: Any) -> None:
    """The shares of the file are not used."""

    def even(found: Any) -> Any:
        structures, classes = found
        return tuple(replace(s, share=1 / len(structures)) for s in structures), classes

    with_result(reader, "_structures", even)


@defect("grammar.grammar", "test_grammar.py", "position_0")
def roles_off_by_one(grammar: Any) -> None:
    """A word has the role of its neighbour."""
    with_result(
        grammar.Grammar, "sample", lambda sentences: [replace(s, roles=(*s.roles[1:], s.roles[0])) for s in sentences]
    )


@defect("grammar.reader", "test_grammar.py", "errors_name")
def content_word_in_both_grammars(reader: Any) -> None:
    """A file may share content words between the sides: transfer would be no transfer."""
    skipped(reader, "_check_words")


@defect("grammar.draw", "test_grammar_drawn.py", "differ_in_all or head_final")
def one_word_order_for_all(draw: Any) -> None:
    """Every drawn grammar has the first word order."""
    with_result(draw, "word_orders", lambda orders: dict([next(iter(orders.items()))]))


@defect("grammar.draw", "test_grammar_drawn.py", "differ_in_all")
def class_sizes_are_not_drawn(draw: Any) -> None:
    """Every class but the last has its least size."""

    def least_but_last(original: Any) -> Any:
        def sizes(rng: Any, least: dict[str, int], total: int) -> dict[str, int]:
            *names, last = least
            return {**{name: least[name] for name in names}, last: total - sum(least[name] for name in names)}

        return sizes

    wrap(draw, "_draw_sizes", least_but_last)
