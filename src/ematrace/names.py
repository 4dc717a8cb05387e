"""Names and name=value pairs as people type them."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from ematrace.files import parse_json


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question to end an error with, or nothing where no known name is close.

    >>> did_you_mean("trace_prob", ["trace_probe", "position"])
    '; did you mean trace_probe?'
    >>> did_you_mean("c9", ["C09", "C10"]), did_you_mean("banana", ["trace_probe"])
    ('; did you mean C09?', '')
    """
    spelt = {text.lower(): text for text in known}
    close = get_close_matches(name.lower(), spelt, n=1, cutoff=0.7)
    return f"; did you mean {spelt[close[0]]}?" if close else ""


def consecutive_runs(numbers: Iterable[int]) -> list[list[int]]:
    """
    >>> consecutive_runs([0, 1, 2, 4, 1000, 1001])
    [[0, 1, 2], [4], [1000, 1001]]
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def parse_value(text: str) -> Any:
    """A value is JSON where it is JSON, else text.

    >>> [parse_value(text) for text in ("3", "true", "[0.5, 0.1]", "dense", "NaN", '"3"')]
    [3, True, [0.5, 0.1], 'dense', 'NaN', '3']
    """
    try:
        return parse_json(text, "value", object)
    except ValueError:
        return text


def parse_assignments(texts: Iterable[str], option: str) -> dict[str, Any]:
    """name=value pairs; errors name the option that they were given to.

    >>> parse_assignments(["seed=3", "preset=spen-130m", "projected=true"], "--only")
    {'seed': 3, 'preset': 'spen-130m', 'projected': True}
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ValueError(f"{option}: '{text}' is not of the form name=value")
        if name in found:
            raise ValueError(f"{option}: '{name}' is given twice")
        found[name] = parse_value(value)
    return found
