"""Progress bars over units of work that run side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class Labelled(Protocol):
    @property
    def label(self) -> str: ...


Job = TypeVar("Job", bound=Labelled)


@contextmanager
def unit_bars(expected: Mapping[Job, float], console: Console) -> Iterator[Callable[[Job, float], None]]:
    """One bar for all units, weighted by their expected seconds, and one for each that is under way."""
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=console,
    )
    with bars:
        whole = bars.add_task("[bold]all experiments", total=sum(expected.values()) or 1.0)
        shares = dict.fromkeys(expected, 0.0)
        shown: dict[Job, TaskID] = {}

        def update(unit: Job, share: float) -> None:
            shares[unit] = max(shares[unit], share)
            bars.update(whole, completed=sum(expected[u] * s for u, s in shares.items()))
            if unit not in shown:
                shown[unit] = bars.add_task(escape(unit.label), total=1.0)
            bars.update(shown[unit], completed=shares[unit], visible=shares[unit] < 1.0)

        yield update


@contextmanager
def token_counter(console: Console) -> Iterator[Callable[[int], None]]:
    """A count of tokens that runs on; how many there will be is not known beforehand."""
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.completed:,} tokens"),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=None, rate="")

        def advance(tokens: int) -> None:
            bar.advance(task, tokens)
            elapsed = bar.tasks[0].elapsed or 0.0
            bar.update(task, rate=f"{bar.tasks[0].completed / elapsed:,.0f} tokens/s" if elapsed else "")

        yield advance
