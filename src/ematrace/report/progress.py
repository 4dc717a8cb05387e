"""Progress bars over units of work that run side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column
from rich.text import Text

from ematrace.experiments.runner.plan import duration


class Labelled(Protocol):
    @property
    def label(self) -> str: ...


Job = TypeVar("Job", bound=Labelled)


SECONDS_BETWEEN_LINES = 30.0


def time_left(share: float, elapsed: float, expected: float) -> float:
    """Seconds: what was planned at first, and more and more what the speed so far says.

    >>> [round(time_left(share, 30.0, 100.0)) for share in (0.0, 0.1, 0.5, 1.0)]
    [70, 162, 30, 0]
    """
    if share <= 0.0:
        return max(0.0, expected - elapsed)
    trust = min(1.0, 4 * share)
    return trust * elapsed * (1 - share) / share + (1 - trust) * expected * (1 - share)


class _TimeLeft(ProgressColumn):
    """Of the whole; a unit has none of its own."""

    max_refresh = 0.5

    def __init__(self, expected: float) -> None:
        super().__init__()
        self.expected = expected

    def render(self, task: Task) -> Text:
        if task.id != 0 or task.finished:
            return Text()
        left = time_left(task.percentage / 100, task.elapsed or 0.0, self.expected)
        return Text(f"{duration(left)} left")


@contextmanager
def unit_bars(
    expected: Mapping[Job, float], wall: float, console: Console, error_console: Console
) -> Iterator[Callable[[Job, float], None]]:
    """One bar for all units, weighted by their expected seconds, and one for each that is under way.

    `wall` is how long they are expected to take side by side. Without a terminal, a line now and then.
    """
    if not console.is_terminal:
        yield _lines(expected, wall, error_console)
        return
    bars = Progress(
        TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis")),
        BarColumn(bar_width=20),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        _TimeLeft(wall),
        console=console,
        transient=True,
    )
    with bars:
        whole = bars.add_task("[bold]all units", total=sum(expected.values()) or 1.0)
        shares = dict.fromkeys(expected, 0.0)
        shown: dict[Job, TaskID] = {}

        def update(unit: Job, share: float) -> None:
            shares[unit] = max(shares[unit], share)
            bars.update(whole, completed=sum(expected[u] * s for u, s in shares.items()))
            if unit not in shown:
                shown[unit] = bars.add_task(escape(unit.label), total=1.0)
            bars.update(shown[unit], completed=shares[unit], visible=shares[unit] < 1.0)

        yield update


def _lines(expected: Mapping[Job, float], wall: float, error_console: Console) -> Callable[[Job, float], None]:
    shares = dict.fromkeys(expected, 0.0)
    started = last = time.monotonic()

    def update(unit: Job, share: float) -> None:
        nonlocal last
        shares[unit] = max(shares[unit], share)
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_LINES:
            last = now
            done = sum(s >= 1.0 for s in shares.values())
            whole = sum(expected[u] * s for u, s in shares.items()) / (sum(expected.values()) or 1.0)
            left = duration(time_left(whole, now - started, wall))
            error_console.print(f"{done} of {len(shares)} units done, about {left} left", highlight=False)

    return update


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
        disable=not console.is_terminal,  # in a log it would leave an empty line
    )
    with bar:
        task = bar.add_task("", total=None, rate="")

        def advance(tokens: int) -> None:
            bar.advance(task, tokens)
            elapsed = bar.tasks[0].elapsed or 0.0
            bar.update(task, rate=f"{bar.tasks[0].completed / elapsed:,.0f} tokens/s" if elapsed else "")

        yield advance
