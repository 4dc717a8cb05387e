"""What a section of the page is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ematrace.report.markup import Html
from ematrace.report.plots import Plot
from ematrace.report.sources import Sources

Panels = tuple[Plot, ...]
Part = Html | Plot | Panels | None


@dataclass(frozen=True)
class Section:
    """What a part of the page asks, the figures whose claims it bears on (a pattern), the experiments it is made from,
    and how it shows them."""

    id: str
    title: str
    lede: str
    about: str
    experiments: tuple[str, ...]
    build: Callable[[Sources], Sequence[Part]]
