"""Numbers, intervals, counts and paths as text: the same in the terminal and on the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import NamedTuple

from ematrace.ledger import Share
from ematrace.results import Interval, Provenance, Sample

MINUS = "\N{MINUS SIGN}"
TINY = 0.0005  # would be .000
MOST_PATHS = 2  # files of one folder that are named one by one


class Rows(NamedTuple):
    """A table as text: for the page, for the docs."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


def decimals_for(x: float) -> int:
    """Three up to 1, where accuracies live, and fewer the larger a number is."""
    size = abs(x)
    return 3 if size <= 1 else 2 if size < 10 else 1 if size < 100 else 0


def digits(x: float) -> int | None:
    """Decimals for a mean and its interval; None where powers of ten say more."""
    return None if 0 < abs(x) < TINY else decimals_for(x)


def number(x: float | None, decimals: int | None = None, signed: bool = False) -> str:
    """`.973`, `1.000`, `−.012`, `12.3`, `20,500`; a dash for what is not known.

    >>> number(0.9731), number(1.0), number(20500.0), number(None)
    ('.973', '1.000', '20,500', '–')
    """
    if x is None or math.isnan(x):
        return "–"
    if 0 < abs(x) < TINY and decimals is None:
        text = f"{abs(x):.1e}"
    else:
        text = f"{abs(x):,.{decimals_for(x) if decimals is None else decimals}f}"
    zero = not text.strip("0.,")
    sign = "" if zero else MINUS if x < 0 else "+" if signed else ""
    return sign + (text[1:] if text.startswith("0.") else text)


def short(x: float) -> str:
    """A place as the page has it: a tenth of a percent, or of a pixel, is less than anybody sees.

    >>> short(12.0), short(97.26), short(-0.01)
    ('12', '97.3', '0')
    """
    return f"{round(x, 1) + 0.0:g}"


def interval(ends: Interval | None, decimals: int | None = None) -> str:
    """`.970–.976`; with "to" where a minus sign would meet the dash."""
    if ends is None:
        return "–"
    if decimals is None and max(map(abs, ends)) >= TINY:
        decimals = max(map(decimals_for, ends))
    lo, hi = (number(end, decimals) for end in ends)
    return f"{lo} to {hi}" if MINUS in lo + hi else f"{lo}–{hi}"


def share(value: Share | None) -> str:
    """`17/20 (85%)`."""
    return "–" if value is None else f"{value.holds}/{value.conditions} ({value.holds / value.conditions:.0%})"


def millions(x: float, decimals: int = 1) -> str:
    """
    >>> millions(130_629_888), millions(2e6, 0)
    ('130.6M', '2M')
    """
    return f"{x / 1e6:.{decimals}f}M"


def listed(words: Sequence[str]) -> str:
    """`.94, 1.10 and .79`"""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def plural(n: int, noun: str) -> str:
    """
    >>> plural(1, "seed"), plural(20, "seed")
    ('1 seed', '20 seeds')
    """
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def over_seeds(sample: Sample) -> Interval | None:
    """The interval over seeds, or over repetitions of a timing; None where nothing varies."""
    return sample.interval if len(set(sample.draws)) > 1 else None


def p_value(p: float | None, missing: str = "–") -> str:
    return missing if p is None else "< .001" if p < 0.001 else number(p, 3)


def with_interval(sample: Sample, decimals: int = 3, signed: bool = False) -> str:
    """`.973 (.970–.976)`, the interval over seeds; the mean alone where there is none."""
    ends = over_seeds(sample)
    return number(sample.mean, decimals, signed) + (f" ({interval(ends, decimals)})" if ends else "")


def seed_count(sample: Sample) -> str:
    """`20`; `3 of 20` where some seeds have no value; `1 (9 repetitions)` for a timing."""
    known = sum(math.isfinite(v) for v in sample.values)
    count = str(known) if known == len(sample.values) else f"{known} of {len(sample.values)}"
    return f"{count} ({plural(len(sample.repetitions), 'repetition')})" if sample.repetitions else count


def fold_paths(paths: Iterable[str]) -> list[str]:
    """Files by name; many of one folder as the folder.

    >>> fold_paths(["a/1.json", "b/1.json", "b/2.json", "b/3.json"])
    ['a/1.json', 'b/ (3 files)']
    """
    folders: dict[str, list[str]] = {}
    for path in dict.fromkeys(paths):
        folders.setdefault(str(PurePath(path).parent), []).append(path)
    folded: list[str] = []
    for folder, files in folders.items():
        folded += files if len(files) <= MOST_PATHS else [f"{folder}/ ({plural(len(files), 'file')})"]
    return folded


def commit_of(run: Provenance) -> str:
    if run.commit is None:
        return "no commit"
    return f"commit {run.commit[:9]}{' with changes' if run.dirty else ''}"


def hardware_of(run: Provenance) -> str:
    cores = run.hardware.get("cores")
    shown = [run.hardware.get("gpu"), run.hardware.get("cpu"), None if cores is None else f"{cores} cores"]
    return ", ".join(str(item) for item in shown if item) or "hardware not known"
