"""Claims read from `claims.toml` and checked: a typo must not pass as an open claim."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from ematrace.ledger.claims import ID, Claim, Claims, ClaimsError, Unpublished, claim_order
from ematrace.results import Selector
from ematrace.results.schema import Factor, Name, one_line


def load_claims(path: str | Path | None = None) -> Claims:
    """The claims of a file; by default those of the paper, which come with the package.

    >>> for claim in list(load_claims())[:2]:
    ...     print(claim.id, claim.claim)
    C01 The instantaneous L0 activation (1024-d) carries roles only partly: far less on transfer and on deep roles.
    C02 Traces alone (2048-d) beat the activation within grammar, on transfer and on deep roles.
    """
    if path is None:
        return _claims_of_the_paper()
    name = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ClaimsError(f"{name}: {one_line(error)}") from error
    return parse_claims(text, name)


@cache
def _claims_of_the_paper() -> Claims:
    """Read once: the file comes with the package, and parsing it takes a tenth of a second."""
    name = "claims.toml"
    return parse_claims(resources.files("ematrace.ledger").joinpath(name).read_text(encoding="utf-8"), name)


def parse_claims(text: str, source: str = "claims") -> Claims:
    """Claims from TOML text: a table for each, beside `defaults`, `robustness`, `unpublished` and the `command`
    that tests them.

    >>> claims = parse_claims('''
    ... [X1]
    ... part = "extension"
    ... claim = "Traces hold more than half of the roles."
    ... paper = "not in the paper"
    ... direction = [{ left = "my_probe/transfer", op = ">", right = 0.5 }]
    ... ''')
    >>> [direction.text for direction in claims["X1"].direction]
    ['my_probe/transfer > 0.5']
    """
    try:
        record = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # an integer of 5,000 digits is a plain ValueError
        raise ClaimsError(f"{source}: {one_line(error)}") from error
    command = record.pop("command", "")
    if not isinstance(command, str):
        raise ClaimsError(f"{source}: command: it must be text")
    defaults = _section(record, "defaults", dict[Name, Factor], source)
    robustness = _section(record, "robustness", dict[Name, Factor], source)
    unpublished = _section(record, "unpublished", Unpublished, source)
    claims = [_claim(id, body, f"{source}: {' '.join(id.split())}", command) for id, body in record.items()]
    return Claims(tuple(sorted(claims, key=claim_order)), defaults, robustness, unpublished)


def _section(record: dict[str, Any], name: str, kind: Any, source: str) -> Any:
    try:
        return msgspec.convert(record.pop(name, {}), kind)
    except msgspec.ValidationError as error:
        raise ClaimsError(f"{source}: {name}: {one_line(error)}") from error


SELECTORS = re.compile(
    r"\$\.(?:direction|requires)\[\d+\](?:\.unless)*\.(?:left|right|over)"
    r"|\$\.figure\[\d+\]\.(?:of|minus|over)|\$\.control\.of\[\d+\]"
)
"""Where a claim has them, in the words of msgspec's errors."""


def _claim(id: str, body: Any, where: str, command: str) -> Claim:
    if ID.fullmatch(id) is None:
        raise ClaimsError(f"{where}: an id is letters and a number, such as C01")
    try:
        found = _with_selectors(body)
        if isinstance(found, dict):
            for name, value in (("id", id), ("command", command)):
                if name in found:
                    raise ValueError(f"Object contains unknown field `{name}`")
                found[name] = value
        return msgspec.convert(found, Claim)
    except ValueError as error:  # also msgspec's
        raise ClaimsError(f"{where}: {one_line(error)}") from error


def _with_selectors(value: Any, at: str = "$") -> Any:
    """What the file has, with selectors for their texts."""
    if SELECTORS.fullmatch(at):
        return _selector(value, at)
    if isinstance(value, list):
        return [_with_selectors(one, f"{at}[{i}]") for i, one in enumerate(value)]
    if isinstance(value, dict):
        return {name: _with_selectors(inside, f"{at}.{name}") for name, inside in value.items()}
    return value


def _selector(value: Any, at: str) -> Selector | float:
    """A number is left as it is on the right."""
    inside, _, field = at.rpartition(".")
    try:
        found = msgspec.convert(value, float | str if field == "right" else str)
    except msgspec.ValidationError as error:
        raise ValueError(f"{error} - at `{at}`") from error
    try:
        return Selector.parse(found) if isinstance(found, str) else found
    except ValueError as error:
        raise ValueError(f"'{field}': {error} - at `{inside}`") from error
