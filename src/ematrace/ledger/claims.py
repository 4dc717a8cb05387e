"""The paper's claims, read from `claims.toml` and checked: a typo must not pass as an open claim."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from ematrace.names import did_you_mean
from ematrace.results import Factors, Selector, Table
from ematrace.results.schema import Factor, Name, one_line

COMPARISONS = (">", "<", "not >", "within")
Part = Literal["small", "large", "extension"]
Op = Literal[">", "<", "not >", "within", "<=", ">=", "=="]
Kind = Literal["accuracy", "cross_entropy", "perplexity", "speed"]
Otherwise = Literal["not testable here", "undecided"]
Interval = Literal["seeds", "tokens"]
ID = re.compile(r"[A-Za-z]+[0-9]{1,9}")


class ClaimsError(ValueError):
    """A claims file that breaks the rules; the message is one line that names the claim and the field.

    >>> parse_claims('X1 = { part = "extension", claim = "Traces help." }', "mine.toml")
    Traceback (most recent call last):
        ...
    ematrace.ledger.claims.ClaimsError: mine.toml: X1: Object missing required field `paper`
    """


@dataclass(frozen=True)
class Direction:
    """`left [/ over] op right [+ by]`, where `right` is a selector or a number; `within` allows ± by.

    >>> from ematrace.results import Selector
    >>> ema, none = Selector.parse("gap/nats{context=ema}"), Selector.parse("gap/nats{context=none}")
    >>> Direction(ema, "<", none, by=-0.1).text
    'gap/nats{context=ema} < gap/nats{context=none} - 0.1'
    """

    left: Selector
    op: Op
    right: Selector | float
    over: Selector | None = None
    by: float = 0.0
    against: float | None = None
    """Takes the place of `by` (of `right` in a bound) where it is asked whether the predicate is refuted."""
    paired: bool = False
    """Both sides have the same sentences on the same seed, also across experiments: differences seed by seed."""
    interval: Interval = "seeds"
    """`tokens`: Wilson's, over the tokens of one run with the mean accuracy."""
    unless: Direction | None = None
    """The predicate also holds where this one does."""
    group: str = ""
    """Those of one group count as refuted only if all of them are, with differences of the same sign."""
    refutes: bool = True
    """False: the claim needs it, but where it does not hold that is not enough against the claim."""

    def __post_init__(self) -> None:
        if self.interval == "tokens" and (self.op not in COMPARISONS or self.paired or self.over is not None):
            raise ValueError("'interval' is over tokens only in a comparison that is not paired and has no 'over'")
        if self.paired and not isinstance(self.right, Selector):
            raise ValueError("'paired' needs a selector on the right")
        if self.against is not None and self.op not in (">", "<", ">=", "<="):
            raise ValueError(f"'against' has no meaning with op '{self.op}'")
        if self.by and self.op not in COMPARISONS:
            raise ValueError(f"'by' has no meaning with op '{self.op}'")
        if self.op == "within" and self.by <= 0:
            raise ValueError("op 'within' needs 'by', a margin above 0")

    @property
    def selectors(self) -> tuple[Selector, ...]:
        own = tuple(s for s in (self.left, self.over, self.right) if isinstance(s, Selector))
        return own if self.unless is None else (*own, *self.unless.selectors)

    @property
    def text(self) -> str:
        over = f" / {self.over}" if self.over else ""
        right = str(self.right) if isinstance(self.right, Selector) else f"{self.right:g}"
        sign = "±" if self.op == "within" else "-" if self.by < 0 else "+"
        by = f" {sign} {abs(self.by):g}" if self.by else ""
        against = "" if self.against is None else f" (against at {self.against:g})"
        tokens = " over tokens" if self.interval == "tokens" else ""
        unless = "" if self.unless is None else f" or {self.unless.text}"
        return f"{self.left}{over} {self.op} {right}{by}{against}{tokens}{unless}"


@dataclass(frozen=True)
class PaperFigure:
    """`of [- minus | / over]` against the paper's number, within the tolerance of its kind or a `band` of its own.

    >>> from ematrace.results import Selector
    >>> figure = PaperFigure(Selector.parse("my_probe/transfer"), paper=0.79, kind="accuracy")
    >>> figure.text
    'my_probe/transfer = 0.79 (accuracy)'
    """

    of: Selector
    paper: float
    kind: Kind
    minus: Selector | None = None
    over: Selector | None = None
    band: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.minus and self.over:
            raise ValueError("'minus' and 'over' exclude each other")
        if self.band is not None and not self.band[0] <= self.paper <= self.band[1]:
            raise ValueError(f"'band': {self.paper:g} lies outside")

    @property
    def selectors(self) -> tuple[Selector, ...]:
        return tuple(s for s in (self.of, self.minus, self.over) if s is not None)

    @property
    def text(self) -> str:
        other = f" - {self.minus}" if self.minus else f" / {self.over}" if self.over else ""
        return f"{self.of}{other} = {self.paper:g} ({self.kind})"


@dataclass(frozen=True)
class Condition:
    """What must hold for a claim to be judged at all; `why` it is not, and the verdict then.

    >>> from ematrace.results import Selector
    >>> enough = Direction(Selector.parse("gap/tokens{context=ema}"), ">=", 1e9)
    >>> condition = Condition(enough, why="the models were trained on less than 1B tokens")
    >>> condition.predicate.text, condition.otherwise
    ('gap/tokens{context=ema} >= 1e+09', 'not testable here')
    """

    predicate: Direction
    why: str
    otherwise: Otherwise = "not testable here"


@dataclass(frozen=True)
class Control:
    """What simpler means reach: the figures that a claim is to be read against.

    >>> from ematrace.results import Selector
    >>> control = Control("position alone", of=(Selector.parse("position/transfer"),))
    >>> f"read against {control.what}: {control.of[0]}"
    'read against position alone: position/transfer'
    """

    what: str
    of: tuple[Selector, ...]


@dataclass(frozen=True)
class Claim:
    """One claim of the paper. `fitted`: our unspecified settings were chosen with this figure in sight.

    >>> claim = load_claims()["C09"]
    >>> claim.id, claim.part, claim.experiments
    ('C09', 'small', ('trace_probe', 'supervised'))
    >>> [str(selector) for selector in claim.selectors][:1]
    ['trace_probe/role_transfer{representation=l0+traces, role=det_agent}']
    """

    id: str
    part: Part
    claim: str
    paper: str
    fitted: bool = False
    direction: tuple[Direction, ...] = ()
    figure: tuple[PaperFigure, ...] = ()
    not_testable: str | None = None
    command: str = ""
    """What tests it; by default `ematrace reproduce ID`."""
    title: str = ""
    """A few words, for lists."""
    control: Control | None = None
    requires: tuple[Condition, ...] = ()
    seeds: int = 1
    """Fewer leave it undecided."""
    first_seed: int = 0
    """Seeds before this one do not count: they were looked at before it was settled how many it takes."""
    line: int | None = None
    """Of the paper's LaTeX text, for `quote`."""
    quote: str = ""
    """The paper's words that the predicates test."""
    note: str = ""
    """What a reader of the verdict has to know beside it."""
    written: str = ""
    """When its predicates were written: before or after which results."""
    holm: bool = False
    """Its comparisons are one family: they refute the claim only after Holm's correction."""

    @property
    def selectors(self) -> tuple[Selector, ...]:
        """Every selector of the predicates and conditions, once, in order of use."""
        directions = (*self.direction, *(condition.predicate for condition in self.requires))
        per_predicate = [d.selectors for d in directions] + [f.selectors for f in self.figure]
        return tuple(dict.fromkeys(s for selectors in per_predicate for s in selectors))

    @property
    def experiments(self) -> tuple[str, ...]:
        """Every experiment the predicates need, once, in order of use."""
        return tuple(dict.fromkeys(selector.experiment for selector in self.selectors))


class Unpublished(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From this seed on, seeds are for choosing settings: their cells are no evidence."""

    seed: Annotated[int, msgspec.Meta(ge=0)] | None = None

    @property
    def factors(self) -> Factors:
        return {} if self.seed is None else {"seed": self.seed}


@dataclass(frozen=True)
class Claims:
    """Claims in order, C before F and each by number, with the factors that their selectors leave out.

    >>> claims = load_claims()
    >>> claims.find("c9").id, "C09" in claims
    ('C09', True)
    """

    claims: tuple[Claim, ...]
    defaults: Factors = field(default_factory=dict)
    """A selector that does not name one of these factors means this value of it."""
    robustness: Factors = field(default_factory=dict)
    """The cells on which directions are tested again, seed by seed; none for no factors."""
    unpublished: Unpublished = field(default_factory=Unpublished)

    def choose(self, table: Table) -> Table:
        """The cells that are evidence: with the default factors, and on seeds that nothing was chosen on."""
        first = self.unpublished.seed
        return Table(s for s in table.at(self.defaults).cells if first is None or s.cell.seed < first)

    def __iter__(self) -> Iterator[Claim]:
        return iter(self.claims)

    def __len__(self) -> int:
        return len(self.claims)

    def __getitem__(self, id: str) -> Claim:
        return {claim.id: claim for claim in self.claims}[id]

    def __contains__(self, id: object) -> bool:
        return any(claim.id == id for claim in self.claims)

    def find(self, text: str) -> Claim:
        """A claim by its id as people type it: c9 is C09."""
        if (claim := self.get(text)) is None:
            raise ClaimsError(f"no claim {text!r}; there are {self.ids}{did_you_mean(text, (c.id for c in self))}")
        return claim

    def get(self, text: str) -> Claim | None:
        """The same, or None."""
        if not ID.fullmatch(text):
            return None
        return next((claim for claim in self.claims if _parts(claim.id) == _parts(text)), None)

    @property
    def ids(self) -> str:
        """
        >>> load_claims().ids
        'C01 to C18, C20 to C46, F1 to F5'
        """
        runs: list[list[str]] = []
        for claim in self.claims:
            letters, number = _parts(claim.id)
            if runs and _parts(runs[-1][-1]) == (letters, number - 1):
                runs[-1].append(claim.id)
            else:
                runs.append([claim.id])
        return ", ".join(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)

    def __or__(self, other: Claims) -> Claims:
        """Both, in order; an id that is in both is refused. Which cells are evidence is as in the first."""
        both = [claim.id for claim in other if claim.id in self]
        if both:
            raise ClaimsError(f"{both[0]}: this claim is there already")
        sections: dict[str, tuple[Factors, Factors]] = {
            "defaults": (self.defaults, other.defaults),
            "robustness": (self.robustness, other.robustness),
            "unpublished": (self.unpublished.factors, other.unpublished.factors),
        }
        for section, (ours, theirs) in sections.items():
            for name, value in theirs.items():
                if name not in ours or ours[name] != value:
                    raise ClaimsError(f"{section}: '{name}' would change the evidence for other claims; leave it out")
        return replace(self, claims=tuple(sorted((*self, *other), key=_order)))


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
    return Claims(tuple(sorted(claims, key=_order)), defaults, robustness, unpublished)


def _order(claim: Claim) -> tuple[str, int]:
    return _parts(claim.id)


def _parts(id: str) -> tuple[str, int]:
    letters = id.rstrip("0123456789")
    return letters.upper(), int(id[len(letters) :])


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
