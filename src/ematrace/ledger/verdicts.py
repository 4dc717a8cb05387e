"""From cells to one row per claim: what we found, and whether it is what the paper says."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, get_args

from ematrace.files import show_path
from ematrace.intervals import holm_adjusted
from ematrace.ledger.claims import Claim, Claims, Direction
from ematrace.ledger.predicates import Check, Lookup, check_direction, check_figure, compare_points
from ematrace.ledger.reading import load_claims
from ematrace.results import AmbiguousSelection, Interval, Selection, Selector, Table, common_seeds
from ematrace.results.sample import CONFIDENCE

Verdict = Literal[
    "reproduced",
    "direction only",
    "not reproduced",
    "undecided",
    "not testable here",
    "open",
    "answered: yes",
    "answered: no",
    "answered: mixed",
]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
REPRODUCED: Final = "reproduced"
DIRECTION_ONLY: Final = "direction only"
NOT_REPRODUCED: Final = "not reproduced"
UNDECIDED: Final = "undecided"
NOT_TESTABLE: Final = "not testable here"
OPEN: Final = "open"
ANSWERED_YES: Final = "answered: yes"
ANSWERED_NO: Final = "answered: no"
ANSWERED_MIXED: Final = "answered: mixed"
ONE_SIDED = (1 - CONFIDENCE) / 2


@dataclass(frozen=True)
class Share:
    """In how many drawn conditions something holds, at point estimates.

    >>> Share(holds=3, conditions=4).to_json()
    {'holds': 3, 'conditions': 4, 'share': 0.75}
    """

    holds: int
    conditions: int

    def to_json(self) -> dict[str, Any]:
        return {"holds": self.holds, "conditions": self.conditions, "share": self.holds / self.conditions}


@dataclass(frozen=True)
class Robustness:
    """The share of conditions in which all direction predicates of a claim hold, and that of each.

    >>> robustness = Robustness(Share(3, 4), each=(("gap/nats < 4", Share(3, 4)),), evidence=())
    >>> robustness.to_json()["share"]
    0.75
    """

    all: Share
    each: tuple[tuple[str, Share], ...]
    evidence: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        checks = [{"predicate": text, **share.to_json()} for text, share in self.each]
        return {**self.all.to_json(), "checks": checks, "evidence": list(self.evidence)}


@dataclass(frozen=True)
class Finding:
    """A claim judged on one choice of cells.

    `ours` and `interval` are keyed by the selector's text. `direction` and `figure` say whether all predicates of a
    kind hold; None if there are none, or one is open. `why` says what an open verdict waits for, why a claim is not
    testable here, or what leaves it undecided beside its intervals.

    >>> from ematrace.results import Table
    >>> finding = judge(load_claims()["C09"], Table([]))  # nothing was measured
    >>> finding.verdict, finding.ours
    ('open', {})
    >>> finding.checks[0].missing[0]
    'trace_probe/role_transfer{representation=l0+traces, role=det_agent}'
    """

    ours: dict[str, float]
    interval: dict[str, Interval | None]
    n_seeds: int | None
    direction: bool | None
    figure: bool | None
    verdict: Verdict
    scale: str | None
    evidence: tuple[str, ...]
    why: str | None
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class LedgerRow(Finding):
    """One line of the ledger: the finding on the best results there are, and what it is to be read against.

    `local` is the finding on this machine's results alone, None if there are none for this claim.

    >>> from ematrace.results import Table
    >>> row = build_ledger(Table([]))[0]
    >>> row.id, row.verdict, row.command
    ('C01', 'open', 'ematrace reproduce C01')
    """

    id: str
    paper: str
    command: str
    claim: str
    fitted: bool
    robustness: Robustness | None
    local: Finding | None

    def to_json(self) -> dict[str, Any]:
        """The row as `ematrace ledger --json` gives it."""
        finding = _finding_json(self)
        checks, why = finding.pop("checks"), finding.pop("why")
        local = None if self.local is None else _finding_json(self.local)
        return {
            "id": self.id,
            "paper": self.paper,
            **finding,
            "command": self.command,
            "claim": self.claim,
            "fitted": self.fitted,
            "why": why,
            "robustness": None if self.robustness is None else self.robustness.to_json(),
            "local": local,
            "checks": checks,
        }


def _finding_json(finding: Finding) -> dict[str, Any]:
    record = {field.name: getattr(finding, field.name) for field in fields(Finding)}
    record["interval"] = {ref: None if i is None else list(i) for ref, i in finding.interval.items()}
    record["evidence"] = list(finding.evidence)
    record["checks"] = [check.to_json() for check in finding.checks]
    return record


def build_ledger(table: Table, claims: Claims | None = None) -> list[LedgerRow]:
    """A row for every claim, in the claims' order, whatever cells there are.

    >>> from ematrace.results import Table
    >>> rows = build_ledger(Table([]))  # nothing was measured
    >>> [(row.id, row.verdict) for row in rows[:2]]
    [('C01', 'open'), ('C02', 'open')]
    """
    claims = load_claims() if claims is None else claims
    chosen = claims.choose(table)
    own = chosen.local()
    drawn = table.where(**claims.robustness) if claims.robustness else Table(())
    draws = list(drawn.by_seed().values())
    rows = []
    for claim in claims:
        finding = judge(claim, chosen)
        rows.append(
            LedgerRow(
                **{field.name: getattr(finding, field.name) for field in fields(Finding)},
                id=claim.id,
                paper=claim.paper,
                command=claim.command or _command(claim, chosen),
                claim=claim.claim,
                fitted=claim.fitted,
                robustness=measure_robustness(claim, draws),
                local=judge(claim, own) if any(name in own.experiments for name in claim.experiments) else None,
            )
        )
    return rows


def _command(claim: Claim, table: Table) -> str:
    """With the options that the recorded runs of its experiments needed: without them it would only say so."""
    runs = [cells[0].cell for name in claim.experiments if (cells := table.evidence.get(name))]
    gpu = " --scale gpu" if any(run.scale == "gpu" for run in runs) else ""
    text = " --data SOURCE" if any("--data" in run.provenance.command for run in runs) else ""
    return f"ematrace reproduce {claim.id}{gpu}{text}"


def judge(claim: Claim, table: Table) -> Finding:
    """Evaluate all predicates of a claim on the cells in force; the worst decides.

    >>> from pathlib import Path
    >>> from ematrace.results import CellFile, Metric, Row, Selector, StoredCell, Table, collect_provenance
    >>> row = Row({}, {"transfer": Metric(0.71, unit="accuracy", n=500)})
    >>> file = CellFile(2, "my_probe", "cpu", 0, {}, {}, collect_provenance(1.5), [row])
    >>> table = Table(StoredCell(cell, Path("mine.json"), local=True) for cell in file.unpack())
    >>> direction = Direction(Selector.parse("my_probe/transfer"), ">", 0.5)
    >>> finding = judge(Claim("X1", "extension", "Traces hold roles.", "-", direction=(direction,)), table)
    >>> finding.verdict, finding.ours
    ('answered: yes', {'my_probe/transfer': 0.71})
    """
    if claim.first_seed:
        table = Table(stored for stored in table.cells if stored.cell.seed >= claim.first_seed)
    selected, ambiguous = _select(claim.selectors, table)
    lookup: Lookup = selected.get
    directions = tuple(check_direction(d, lookup) for d in claim.direction)
    if claim.holm:
        directions = corrected(directions)
    alone, directions = directions, refuted_together(claim.direction, directions)
    figures = tuple(check_figure(f, lookup) for f in claim.figure)
    conditions = tuple(check_direction(required, lookup) for required in claim.requires)

    found = {str(s): selection for s, selection in selected.items() if selection and selection.sample.known}
    seeds = [len(selection.seeds) for selection in found.values()]
    n_seeds = min([*seeds, *_paired_seeds(claim, directions + figures, selected)], default=None)
    verdict, why = decide(claim, directions, figures, conditions, n_seeds)
    if verdict == OPEN and ambiguous:
        why = ambiguous[0]
    cannot = sum(after.undecided and not before.undecided for before, after in zip(alone, directions, strict=True))
    if verdict == UNDECIDED and why is None and cannot:
        why = f"{cannot} of {len(directions)} comparisons do not hold, but cannot refute it by themselves"
    scales = {selection.scale for selection in found.values()}
    return Finding(
        ours={text: selection.sample.mean for text, selection in found.items()},
        interval={text: selection.sample.interval for text, selection in found.items()},
        n_seeds=n_seeds,
        direction=_all_hold(directions),
        figure=_all_hold(figures),
        verdict=verdict,
        scale=None if not scales else scales.pop() if len(scales) == 1 else "mixed",
        evidence=_paths(list(found.values())),
        why=why,
        checks=directions + figures,
    )


def _paired_seeds(
    claim: Claim, checks: Sequence[Check], selected: Mapping[Selector, Selection | None]
) -> Iterator[int]:
    """How many seeds each paired comparison rests on."""
    sides = [(d.left, d.right) for d in claim.direction] + [(f.of, f.minus) for f in claim.figure]
    for (left, right), check in zip(sides, checks, strict=True):
        pair = [selected.get(side) for side in (left, right) if isinstance(side, Selector)]
        if check.method == "paired" and len(pair) == 2:
            yield len(common_seeds(selection.seeds for selection in pair if selection is not None))


def _select(selectors: Sequence[Selector], table: Table) -> tuple[dict[Selector, Selection | None], tuple[str, ...]]:
    """What the selectors find, and what is wrong with those that find cells of several kinds.

    These count as missing: such as an arm at two learning rates leaves its claims open, and only those.
    """
    found: dict[Selector, Selection | None] = {}
    problems = []
    for selector in selectors:
        try:
            found[selector] = table.select(selector)
        except AmbiguousSelection as error:
            found[selector] = None
            problems.append(str(error))
    return found, tuple(problems)


def corrected(checks: Sequence[Check]) -> tuple[Check, ...]:
    """What refutes only as long as the other comparisons of its family are not counted is undecided (Holm 1979)."""
    tested = [i for i, check in enumerate(checks) if check.p_against is not None]
    if not tested:
        return tuple(checks)
    adjusted = dict(zip(tested, holm_adjusted([checks[i].p_against or 0.0 for i in tested]), strict=True))
    return tuple(
        replace(check, undecided=True) if check.holds is False and adjusted.get(i, 0.0) >= ONE_SIDED else check
        for i, check in enumerate(checks)
    )


def _paths(selections: Sequence[Selection]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(show_path(path) for selection in selections for path in selection.paths))


def decide(
    claim: Claim,
    directions: Sequence[Check],
    figures: Sequence[Check],
    conditions: Sequence[Check] = (),
    n_seeds: int | None = None,
) -> tuple[Verdict, str | None]:
    """The verdict, and why where it is not the evidence that speaks. `conditions` are those that the claim requires."""
    if claim.not_testable is not None:
        return NOT_TESTABLE, claim.not_testable
    checks = [*directions, *figures]
    if not checks:
        return OPEN, "no predicates yet"
    missing = list(dict.fromkeys(ref for check in (*conditions, *checks) for ref in check.missing))
    if missing:
        return OPEN, f"no result for {', '.join(missing)}"
    undefined = [check.predicate for check in (*conditions, *checks) if check.holds is None]
    if undefined:
        return OPEN, f"division by zero in {', '.join(undefined)}"
    for required, condition in zip(claim.requires, conditions, strict=True):
        if not condition.holds:
            return required.otherwise, required.why
    if n_seeds is not None and n_seeds < claim.seeds:
        return UNDECIDED, f"{'one seed' if n_seeds == 1 else f'{n_seeds} seeds'}, and it takes {claim.seeds}"
    return (_answer(checks) if claim.part == "extension" else _judge_checks(directions, figures)), None


def refuted_together(directions: Sequence[Direction], checks: Sequence[Check]) -> tuple[Check, ...]:
    """The checks, with those undecided that are refuted alone where their group would have to be as a whole.

    So are those that never refute.
    """
    sides: dict[str, set[float | None]] = defaultdict(set)
    for direction, check in zip(directions, checks, strict=True):
        refuted = check.holds is False and not check.undecided
        sides[direction.group].add(math.copysign(1.0, check.difference or 0.0) if refuted else None)
    alone = {group for group, found in sides.items() if group and found not in ({1.0}, {-1.0})}
    return tuple(
        replace(check, undecided=True)
        if check.holds is False and (direction.group in alone or not direction.refutes)
        else check
        for direction, check in zip(directions, checks, strict=True)
    )


def _answer(checks: Sequence[Check]) -> Verdict:
    if any(check.undecided for check in checks):
        return UNDECIDED
    held = [bool(check.holds) for check in checks]
    return ANSWERED_YES if all(held) else ANSWERED_MIXED if any(held) else ANSWERED_NO


def _judge_checks(directions: Sequence[Check], figures: Sequence[Check]) -> Verdict:
    """The worst decides; what is refuted is worse than what is undecided."""
    deciding = directions or figures
    if any(not check.holds and not check.undecided for check in deciding):
        return NOT_REPRODUCED
    if any(check.undecided for check in deciding):
        return UNDECIDED
    # A figure that is missed or undecided leaves the direction, where there is one.
    return REPRODUCED if all(check.holds for check in figures) else DIRECTION_ONLY


def _all_hold(checks: Sequence[Check]) -> bool | None:
    """None for no checks, or while one of them is open."""
    if not checks or any(check.holds is None for check in checks):
        return None
    return all(check.holds for check in checks)


def measure_robustness(claim: Claim, draws: Sequence[Table]) -> Robustness | None:
    """How often the claim's directions hold over the drawn conditions; None if a selector finds nothing in any.

    A condition in which a metric has no value (a role that its grammar never draws) does not count for the
    predicates that need it, nor for the claim. So for one in which a selector is ambiguous.
    """
    if not draws or not claim.direction:
        return None
    columns = [_over_draws(direction, draws) for direction in claim.direction]
    complete = [column for column, _ in columns if column is not None]
    if len(complete) < len(columns):
        return None
    together = [None if None in row else all(row) for row in zip(*complete, strict=True)]
    shares = [_share(outcomes) for outcomes in (together, *complete)]
    if any(share.conditions == 0 for share in shares):
        return None
    each = tuple((d.text, share) for d, share in zip(claim.direction, shares[1:], strict=True))
    return Robustness(shares[0], each, _paths([selection for _, found in columns for selection in found]))


def _share(outcomes: Sequence[bool | None]) -> Share:
    return Share(holds=sum(o is True for o in outcomes), conditions=sum(o is not None for o in outcomes))


def _over_draws(direction: Direction, draws: Sequence[Table]) -> tuple[list[bool | None] | None, list[Selection]]:
    """Whether the predicate holds at point estimates, draw by draw, and what it was read from."""
    outcomes: list[bool | None] = []
    used: list[Selection] = []
    for table in draws:
        found, _ = _select(direction.selectors, table)
        selections = {selector: selection for selector, selection in found.items() if selection is not None}
        if len(selections) < len(found):
            outcomes.append(None)
            continue
        used += selections.values()
        outcomes.append(holds_at_points(direction, {s: found.sample.mean for s, found in selections.items()}))
    return (outcomes if used else None), used


def holds_at_points(direction: Direction, means: Mapping[Selector, float]) -> bool | None:
    """Whether the predicate holds of bare numbers; None where one is not known or a ratio is not defined.

    >>> direction = load_claims()["C15"].direction[0]  # L1 reads roles worse than L0
    >>> holds_at_points(direction, dict(zip(direction.selectors, (0.91, 0.98))))
    True
    """

    def value(side: Selector | float) -> float:
        return means[side] if isinstance(side, Selector) else side

    left, right = value(direction.left), value(direction.right)
    over = 1.0 if direction.over is None else value(direction.over)
    if over == 0.0 or not all(map(math.isfinite, (left, over, right))):
        return None
    holds = compare_points(direction.op, left / over, right, direction.by)
    if direction.unless is None:
        return holds
    other = holds_at_points(direction.unless, means)
    return None if other is None else holds or other
