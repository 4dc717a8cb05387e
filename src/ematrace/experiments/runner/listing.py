"""The units of a plan as lines for people."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from textwrap import wrap

from ematrace.experiments.runner.units import Unit
from ematrace.names import consecutive_runs
from ematrace.results import Factors
from ematrace.results.schema import Factor

MOST_ROWS = 20  # in a terminal: a screenful
HEADINGS = ("state", "experiment", "seeds", "factors that differ")


def unit_lines(units: Sequence[Unit], there: Collection[Unit], width: int | None = None) -> list[str]:
    """A row for the units that differ in their seed alone, those to run first, with the factors that vary.

    `width` is a terminal's. For one, the list is cut, and what most rows of an experiment have is said once where they
    would be too long. None is for no terminal: every row, in one line each.

    >>> from ematrace.experiments.runner import Request, make_plan
    >>> units = make_plan(Request(("spen_training",), seeds=2)).units
    >>> print(*unit_lines(units, there=units[:1]), sep="\\n")
    state   experiment     seeds  factors that differ
    to run  spen_training  0-1    preset=gpt2-130m
    to run  spen_training  1      preset=spen-130m
    there   spen_training  0      preset=spen-130m
    """
    if not units:
        return []
    rows = _rows(units, there)
    starts = [
        ("there" if row[0] in there else "to run", row[0].experiment, ranges(u.seed for u in row)) for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(HEADINGS[:3], *starts, strict=True)]
    indent = sum(size + 2 for size in widths)
    shown = len(rows) if width is None else MOST_ROWS
    usual, texts = _factors(rows, None if width is None else width - indent)
    lines = []
    for name in dict.fromkeys(row[0].experiment for row in rows[:shown]):
        if name in usual:
            lines += wrapped(f"{name}, where a row says nothing else: {usual[name]}", width, 2)
    heading = HEADINGS[3] if any(texts) else ""
    for start, text in list(zip([HEADINGS[:3], *starts], [heading, *texts], strict=True))[: shown + 1]:
        line = "".join(f"{word:{size}}  " for word, size in zip(start, widths, strict=True))
        lines += wrapped(line + text, width, indent)
    if left := sum(map(len, rows[shown:])):
        lines.append(f"{left} more unit{'' if left == 1 else 's'}: `| less` at the end shows all, --only a part")
    return lines


def _rows(units: Sequence[Unit], there: Collection[Unit]) -> list[list[Unit]]:
    alike: dict[tuple[bool, str, str], list[Unit]] = {}
    for unit in sorted(units, key=lambda unit: unit in there):
        alike.setdefault((unit in there, unit.experiment, json.dumps(unit.factors)), []).append(unit)
    return list(alike.values())


def _factors(rows: Sequence[Sequence[Unit]], room: int | None) -> tuple[dict[str, str], list[str]]:
    """What most rows of an experiment have, where theirs take more than the room; and the factors of each row."""
    usual, texts = {}, [""] * len(rows)
    for name in dict.fromkeys(row[0].experiment for row in rows):
        own = {i: row[0].factors for i, row in enumerate(rows) if row[0].experiment == name}
        names = _varying(own.values())
        found = {i: {n: factors[n] for n in names if n in factors} for i, factors in own.items()}
        long = room is not None and any(len(assigned(factors)) > room for factors in found.values())
        if long and (common := _most_common(found.values())):
            found = {i: {n: v for n, v in factors.items() if common.get(n) != v} for i, factors in found.items()}
            usual[name] = assigned(common)
        for i, factors in found.items():
            texts[i] = assigned(factors)
    return usual, texts


def _varying(points: Collection[Factors]) -> list[str]:
    names = dict.fromkeys(name for factors in points for name in factors)
    return [name for name in names if len({json.dumps(factors.get(name)) for factors in points}) > 1]


def _most_common(points: Collection[Factors]) -> dict[str, Factor]:
    """Of each factor that all have."""
    names = [name for name in next(iter(points)) if all(name in factors for factors in points)]
    return {name: Counter(factors[name] for factors in points).most_common(1)[0][0] for name in names}


def assigned(factors: Factors) -> str:
    """As `--only` takes them.

    >>> assigned({"context": "ema", "lr": 0.004, "projected": True, "text": "of two words"})
    "context=ema lr=0.004 projected=true 'text=of two words'"
    """
    return shlex.join(
        f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in factors.items()
    )


def ranges(numbers: Iterable[int]) -> str:
    """
    >>> ranges([0, 1, 2, 4, 1000, 1001])
    '0-2,4,1000-1001'
    """
    runs = consecutive_runs(sorted(numbers))
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def wrapped(text: str, width: int | None, indent: int) -> list[str]:
    """Lines of a terminal, the later ones indented; a single one where there is no terminal."""
    if width is None:
        return [text.rstrip()]
    indented = " " * indent
    return wrap(text, width, subsequent_indent=indented, break_long_words=False, break_on_hyphens=False)
