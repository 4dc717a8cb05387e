"""The formal grammar."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from defects.planting import defect, skipped, with_result


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
