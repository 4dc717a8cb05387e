"""HTML from Python calls, in which text is escaped unless it was made by these calls."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TypeAlias

VOID = {"br", "col", "hr", "meta"}


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


Child: TypeAlias = "str | Html | Iterable[Child] | None"


def join(*children: Child) -> Html:
    """All children, escaped where they are plain text; None is left out."""
    return Html("".join(_pieces(children)))


def _pieces(child: Child) -> Iterable[str]:
    if child is None:
        return
    if isinstance(child, Html):
        yield child
    elif isinstance(child, str):
        yield escape(child)
    else:
        for inner in child:
            yield from _pieces(inner)


def el(tag: str, *children: Child, **attributes: str | int | bool | None) -> Html:
    """An element; `class_` is class, `data_ref` is data-ref; True is a bare attribute, None and False are none.

    >>> el("td", "a < b", class_="num")
    '<td class="num">a &lt; b</td>'
    """
    shown = ""
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        key = name.rstrip("_").replace("_", "-")
        shown += f" {key}" if value is True else f' {key}="{escape(str(value))}"'
    return Html(f"<{tag}{shown}>") if tag in VOID else Html(f"<{tag}{shown}>{join(*children)}</{tag}>")
