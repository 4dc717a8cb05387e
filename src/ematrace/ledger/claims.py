"""The paper's claims, read from `claims.toml` and checked: a typo must not pass as an open claim."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

PARTS = ("small", "large", "extension")
COMPARISONS = (">", "<", "not >")
OPS = (*COMPARISONS, "<=", ">=", "==")
KINDS = ("accuracy", "cross_entropy", "perplexity", "speed")


class ClaimsError(ValueError):
    """A claims file that breaks the rules; the message is one line naming the claim and the field."""


@dataclass(frozen=True)
class Direction:
    """`left [/ over] op right [+ by]`, where `right` is a figure or a number."""

    left: str
    op: str
    right: str | float
    over: str | None = None
    by: float = 0.0

    @property
    def refs(self) -> tuple[str, ...]:
        right = self.right if isinstance(self.right, str) else None
        return tuple(ref for ref in (self.left, self.over, right) if ref is not None)

    @property
    def text(self) -> str:
        over = f" / {self.over}" if self.over else ""
        right = self.right if isinstance(self.right, str) else f"{self.right:g}"
        by = f" {'-' if self.by < 0 else '+'} {abs(self.by):g}" if self.by else ""
        return f"{self.left}{over} {self.op} {right}{by}"


@dataclass(frozen=True)
class PaperFigure:
    """`of [- minus | / over]` against the paper's number, within the tolerance of its kind."""

    of: str
    paper: float
    kind: str
    minus: str | None = None
    over: str | None = None

    @property
    def refs(self) -> tuple[str, ...]:
        return tuple(ref for ref in (self.of, self.minus, self.over) if ref is not None)

    @property
    def text(self) -> str:
        other = f" - {self.minus}" if self.minus else f" / {self.over}" if self.over else ""
        return f"{self.of}{other} = {self.paper:g} ({self.kind})"


@dataclass(frozen=True)
class Claim:
    """One claim of the paper. `fitted`: our unspecified settings were chosen with this figure in sight."""

    id: str
    part: str
    claim: str
    paper: str
    fitted: bool = False
    direction: tuple[Direction, ...] = ()
    figure: tuple[PaperFigure, ...] = ()
    not_testable: str | None = None

    @property
    def refs(self) -> tuple[str, ...]:
        """Every figure the predicates need, once, in order of use."""
        per_predicate = [d.refs for d in self.direction] + [f.refs for f in self.figure]
        return tuple(dict.fromkeys(ref for refs in per_predicate for ref in refs))

    @property
    def experiments(self) -> tuple[str, ...]:
        """Every experiment the predicates need, once, in order of use."""
        return tuple(dict.fromkeys(ref.partition("/")[0] for ref in self.refs))


def load_claims(path: str | Path | None = None) -> tuple[Claim, ...]:
    """All claims, C before F and each in order of number; by default those of the package."""
    if path is None:
        name = "claims.toml"
        text = resources.files("ematrace.ledger").joinpath(name).read_text(encoding="utf-8")
    else:
        name = str(path)
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ClaimsError(f"{name}: {' '.join(str(error).split())}") from error
    try:
        record = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ClaimsError(f"{name}: {' '.join(str(error).split())}") from error
    claims = [_claim(_Fields(f"{name}: {id_}", body), id_) for id_, body in record.items()]
    return tuple(sorted(claims, key=lambda c: (c.id[0], int(c.id[1:]))))


class _Fields:
    """Takes fields out of a table one by one, so that what is left over is unknown."""

    def __init__(self, where: str, table: object) -> None:
        self.where = where
        if not isinstance(table, dict):
            raise self.error("not a table")
        self.table: dict[str, Any] = dict(table)

    def error(self, problem: str) -> ClaimsError:
        return ClaimsError(f"{self.where}: {problem}")

    def text(self, key: str) -> str:
        value = self.maybe_text(key)
        if value is None:
            raise self.error(f"field '{key}' is missing")
        return value

    def maybe_text(self, key: str) -> str | None:
        value = self.table.pop(key, None)
        if value is not None and not (isinstance(value, str) and value):
            raise self.error(f"field '{key}' is not a text")
        return value

    def choice(self, key: str, choices: tuple[str, ...]) -> str:
        value = self.text(key)
        if value not in choices:
            raise self.error(f"unknown {key} '{value}'; known: {', '.join(choices)}")
        return value

    def ref(self, key: str) -> str:
        return self._check_ref(key, self.text(key))

    def maybe_ref(self, key: str) -> str | None:
        value = self.maybe_text(key)
        return None if value is None else self._check_ref(key, value)

    def _check_ref(self, key: str, value: str) -> str:
        if not re.fullmatch(r"[^/\s]+/[^/\s]+", value):
            raise self.error(f"field '{key}': '{value}' is not of the form experiment/figure")
        return value

    def number(self, key: str) -> float:
        value = self.table.pop(key, None)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(f"field '{key}' is {'missing' if value is None else 'not a number'}")
        return float(value)

    def flag(self, key: str) -> bool:
        value = self.table.pop(key, False)
        if not isinstance(value, bool):
            raise self.error(f"field '{key}' is not true or false")
        return value

    def tables(self, key: str) -> Iterator[_Fields]:
        value = self.table.pop(key, [])
        if not isinstance(value, list):
            raise self.error(f"field '{key}' is not a list")
        for i, item in enumerate(value, start=1):
            yield _Fields(f"{self.where}: {key} {i}", item)

    def done(self) -> None:
        for key in self.table:
            raise self.error(f"unknown field '{key}'")


def _claim(fields: _Fields, id_: str) -> Claim:
    if not re.fullmatch(r"[CF][0-9]+", id_):
        raise fields.error("an id is C or F and a number")
    claim = Claim(
        id=id_,
        part=fields.choice("part", PARTS),
        claim=fields.text("claim"),
        paper=fields.text("paper"),
        fitted=fields.flag("fitted"),
        direction=tuple(_direction(f) for f in fields.tables("direction")),
        figure=tuple(_figure(f) for f in fields.tables("figure")),
        not_testable=fields.maybe_text("not_testable"),
    )
    fields.done()
    return claim


def _direction(fields: _Fields) -> Direction:
    left, op, over = fields.ref("left"), fields.choice("op", OPS), fields.maybe_ref("over")
    right = fields.ref("right") if isinstance(fields.table.get("right"), str) else fields.number("right")
    by = fields.number("by") if "by" in fields.table else 0.0
    if by and op not in COMPARISONS:
        raise fields.error(f"field 'by' has no meaning with op '{op}'")
    fields.done()
    return Direction(left, op, right, over, by)


def _figure(fields: _Fields) -> PaperFigure:
    figure = PaperFigure(
        of=fields.ref("of"),
        paper=fields.number("paper"),
        kind=fields.choice("kind", KINDS),
        minus=fields.maybe_ref("minus"),
        over=fields.maybe_ref("over"),
    )
    if figure.minus and figure.over:
        raise fields.error("'minus' and 'over' exclude each other")
    fields.done()
    return figure
