"""What a section of the page is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ematrace.report.data import ReportData
from ematrace.report.parts import Content
from ematrace.results import Selector


def no_claim(_: Selector) -> bool:
    return False


@dataclass(frozen=True)
class Section:
    """What a part of the page asks, the experiments it is made from, how it shows them, and which claims it bears on:
    those with a predicate about such a selector.

    >>> [section.id for section in SECTIONS if "trace_probe" in section.experiments]
    ['representations', 'roles', 'spread']
    """

    id: str
    title: str
    lede: str
    experiments: tuple[str, ...]
    build: Callable[[ReportData], Sequence[Content | None]]
    about: Callable[[Selector], bool] = no_claim


def about(*experiments: str, metrics: Sequence[str] = ()) -> Callable[[Selector], bool]:
    """Selectors of these experiments, and of these metrics if any are given."""

    def matches(selector: Selector) -> bool:
        return selector.experiment in experiments and (not metrics or selector.metric in metrics)

    return matches
