"""Claims as data: the paper's sentence, what has to hold for it, and which cells are evidence."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Annotated, Literal

import msgspec

from ematrace.names import consecutive_runs, did_you_mean
from ematrace.results import Factors, Selector, Table

COMPARISONS = (">", "<", "not >", "within")
Part = Literal["small", "large", "extension"]
Op = Literal[">", "<", "not >", "within", "<=", ">=", "=="]
Kind = Literal["accuracy", "cross_entropy", "perplexity", "speed"]
Otherwise = Literal["not testable here", "undecided"]
Interval = Literal["seeds", "tokens"]
ID = re.compile(r"[A-Za-z]+[0-9]{1,9}")


class ClaimsError(ValueError):
    """A claims file that breaks the rules; the message is one line that names the claim and the field.

    >>> from ematrace.ledger import parse_claims
    >>> parse_claims('X1 = { part = "extension", claim = "Traces help." }', "mine.toml")
    Traceback (most recent call last):
        ...
    ematrace.ledger.claims.ClaimsError: mine.toml: X1: Object missing required field `paper`
    """


class Direction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
        for name in ("right", "by", "against"):
            _refuse_infinity(name, getattr(self, name))
        if self.interval == "tokens" and (self.op not in COMPARISONS or self.paired or self.over is not None):
            raise ValueError("'interval' is over tokens only in a comparison that is not paired and has no 'over'")
        if self.paired and (not isinstance(self.right, Selector) or self.over is not None):
            raise ValueError("'paired' needs a selector on the right and no 'over'")
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


class PaperFigure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
        _refuse_infinity("paper", self.paper)
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


class Condition(Direction, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A direction that must hold for a claim to be judged at all; `why` it is not, and the verdict then.

    >>> from ematrace.results import Selector
    >>> tokens = Selector.parse("gap/tokens{context=ema}")
    >>> condition = Condition(tokens, ">=", 1e9, why="the models were trained on less than 1B tokens")
    >>> condition.text, condition.otherwise
    ('gap/tokens{context=ema} >= 1e+09', 'not testable here')
    """

    why: str
    otherwise: Otherwise = "not testable here"


class Control(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What simpler means reach: the figures that a claim is to be read against.

    >>> from ematrace.results import Selector
    >>> control = Control("position alone", of=(Selector.parse("position/transfer"),))
    >>> f"read against {control.what}: {control.of[0]}"
    'read against position alone: position/transfer'
    """

    what: str
    of: tuple[Selector, ...]


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One claim of the paper. `fitted`: our unspecified settings were chosen with this figure in sight.

    >>> from ematrace.ledger import load_claims
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
    seeds: Annotated[int, msgspec.Meta(ge=1)] = 1
    """Fewer leave it undecided."""
    first_seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Seeds before this one do not count: they were looked at before it was settled how many it takes."""
    line: Annotated[int, msgspec.Meta(ge=1)] | None = None
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
        directions = (*self.direction, *self.requires)
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

    >>> from ematrace.ledger import load_claims
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
        >>> from ematrace.ledger import load_claims
        >>> load_claims().ids
        'C01 to C18, C20 to C46, F1 to F5'
        """
        runs: list[list[str]] = []
        for _, of_letters in groupby(self.claims, lambda claim: _parts(claim.id)[0]):
            ids = {_parts(claim.id)[1]: claim.id for claim in of_letters}
            runs += [[ids[number] for number in run] for run in consecutive_runs(ids)]
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
        return replace(self, claims=tuple(sorted((*self, *other), key=claim_order)))


def _refuse_infinity(field: str, number: object) -> None:
    if isinstance(number, float) and not math.isfinite(number):
        raise ValueError(f"'{field}': {number} is not a finite number")


def claim_order(claim: Claim) -> tuple[str, int]:
    return _parts(claim.id)


def _parts(id: str) -> tuple[str, int]:
    letters = id.rstrip("0123456789")
    return letters.upper(), int(id[len(letters) :])
