"""What an experiment is: a name, a title and a function from a workbench to figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ematrace.experiments.workbench import Figures, Workbench


@dataclass(frozen=True)
class Experiment:
    """One table or figure.

    Experiments of one `group` and seed share a workbench in one process; other groups run beside it. `seeds` is the
    default: one, whose intervals are over tokens. More are a matter of minutes, and the recorded runs have them.
    """

    name: str
    title: str
    measure: Callable[[Workbench], Figures]
    group: str = "spcn"
    seeds: int = 1
    by_name_only: bool = False  # bears on no claim: runs when it is asked for
    on_grammars: bool = True  # says something about grammars, so that drawn ones can test it
    settings: Mapping[str, Any] | None = None  # what it is run with, where that is not the workbench's
