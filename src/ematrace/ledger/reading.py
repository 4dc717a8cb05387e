"""Claims read from `claims.toml` and checked: a typo must not pass as an open claim."""

from __future__ import annotations

import math
import tomllib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ematrace.ledger.claims import (
    ID,
    Claim,
    Claims,
    ClaimsError,
    Condition,
    Control,
    Direction,
    Interval,
    Kind,
    Op,
    Otherwise,
    PaperFigure,
    Part,
    Unpublished,
    claim_order,
)
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


class _Direction(msgspec.Struct, forbid_unknown_fields=True):
    """A direction as it stands in the file, and so for the next two."""

    left: str
    op: Op
    right: str | float
    over: str | None = None
    by: float = 0.0
    against: float | None = None
    paired: bool = False
    interval: Interval = "seeds"
    unless: _Direction | None = None
    group: str = ""
    refutes: bool = True

    def parse(self) -> Direction:
        right = _selector("right", self.right) if isinstance(self.right, str) else _finite("right", self.right)
        return Direction(
            _selector("left", self.left),
            self.op,
            right,
            over=None if self.over is None else _selector("over", self.over),
            by=_finite("by", self.by),
            against=None if self.against is None else _finite("against", self.against),
            paired=self.paired,
            interval=self.interval,
            unless=None if self.unless is None else self.unless.parse(),
            group=self.group,
            refutes=self.refutes,
        )


class _Figure(msgspec.Struct, forbid_unknown_fields=True):
    of: str
    paper: float
    kind: Kind
    minus: str | None = None
    over: str | None = None
    band: tuple[float, float] | None = None

    def parse(self) -> PaperFigure:
        minus = None if self.minus is None else _selector("minus", self.minus)
        over = None if self.over is None else _selector("over", self.over)
        return PaperFigure(_selector("of", self.of), _finite("paper", self.paper), self.kind, minus, over, self.band)


class _Condition(_Direction, forbid_unknown_fields=True, kw_only=True):
    why: str
    otherwise: Otherwise = "not testable here"

    def parse_condition(self) -> Condition:
        return Condition(self.parse(), self.why, self.otherwise)


class _Control(msgspec.Struct, forbid_unknown_fields=True):
    what: str
    of: tuple[str, ...]

    def parse(self) -> Control:
        return Control(self.what, tuple(_selector("of", text) for text in self.of))


class _Claim(msgspec.Struct, forbid_unknown_fields=True):
    part: Part
    claim: str
    paper: str
    fitted: bool = False
    direction: tuple[_Direction, ...] = ()
    figure: tuple[_Figure, ...] = ()
    not_testable: str | None = None
    title: str = ""
    control: _Control | None = None
    requires: tuple[_Condition, ...] = ()
    seeds: Annotated[int, msgspec.Meta(ge=1)] = 1
    first_seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    line: Annotated[int, msgspec.Meta(ge=1)] | None = None
    quote: str = ""
    note: str = ""
    written: str = ""
    holm: bool = False


def _selector(field: str, text: str) -> Selector:
    try:
        return Selector.parse(text)
    except ValueError as error:
        raise ValueError(f"'{field}': {error}") from error


def _finite(field: str, number: float) -> float:
    if not math.isfinite(number):
        raise ValueError(f"'{field}': {number} is not a finite number")
    return float(number)


def _claim(id: str, body: object, where: str, command: str) -> Claim:
    if ID.fullmatch(id) is None:
        raise ClaimsError(f"{where}: an id is letters and a number, such as C01")
    try:
        read = msgspec.convert(body, _Claim)
        direction = tuple(d.parse() for d in read.direction)
        figure = tuple(f.parse() for f in read.figure)
        control = None if read.control is None else read.control.parse()
        requires = tuple(c.parse_condition() for c in read.requires)
    except ValueError as error:  # also msgspec's
        raise ClaimsError(f"{where}: {one_line(error)}") from error
    return Claim(
        id,
        read.part,
        read.claim,
        read.paper,
        read.fitted,
        direction,
        figure,
        read.not_testable,
        command,
        title=read.title,
        control=control,
        requires=requires,
        seeds=read.seeds,
        first_seed=read.first_seed,
        line=read.line,
        quote=read.quote,
        note=read.note,
        written=read.written,
        holm=read.holm,
    )
