"""Predicates and verdicts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from msgspec import structs

from defects.planting import constant, defect, with_arguments, with_result, wrap


@defect("ledger.predicates", "test_ledger_predicates.py", "TestFigure")
def figure_judged_by_its_mean(predicates: Any) -> None:
    """A mean inside the tolerance is enough, however wide its interval."""

    def without_interval(original: Any) -> Any:
        def check(figure: Any, lookup: Any) -> Any:
            found = original(figure, lookup)
            if found.left is None:
                return found
            low, high = predicates.tolerance_band(figure.paper, figure.kind)
            return replace(found, holds=low - 1e-9 <= found.left <= high + 1e-9)

        return check

    wrap(predicates, "check_figure", without_interval)


@defect("ledger.predicates", "test_ledger_predicates.py", "TestComparison")
def direction_judged_by_the_wrong_end(predicates: Any) -> None:
    """A difference is above 0 when the upper end of its interval is."""
    with_result(
        predicates, "_difference", lambda found: replace(found, interval=found.interval and found.interval[::-1])
    )


@defect("ledger.predicates", "test_ledger_predicates.py", "tolerances_are")
def tolerance_doubled(predicates: Any) -> None:
    """Twice the tolerance of the design."""
    constant(predicates, "ABSOLUTE_TOLERANCE", lambda widths: {kind: 2 * width for kind, width in widths.items()})


@defect("ledger.verdicts", "test_ledger_verdicts.py", "every_verdict")
def best_predicate_decides(verdicts: Any) -> None:
    """One direction that holds makes up for those that do not."""

    def lenient(directions: Any) -> Any:
        held = any(check.holds for check in directions)
        return [replace(check, holds=True) if held and check.holds is False else check for check in directions]

    with_arguments(verdicts, "decide", directions=lenient)


@defect("ledger.verdicts", "test_gap_claims.py", "one_difference or answered_at_130m")
def what_is_needed_also_refutes(verdicts: Any) -> None:
    """A block that ran at one width alone counts against a claim."""

    def refuting(original: Any) -> Any:
        return lambda directions, checks: original([structs.replace(d, refutes=True) for d in directions], checks)

    wrap(verdicts, "refuted_together", refuting)


@defect("ledger.verdicts", "test_ledger_verdicts.py", "pairs_count")
def seeds_of_pairs_are_not_counted(verdicts: Any) -> None:
    """A claim has as many seeds as its arms, however few of them both have."""
    wrap(verdicts, "_paired_seeds", lambda original: lambda *given: ())


@defect("ledger.predicates", "test_ledger_predicates.py", "shared")
def two_shared_seeds_are_enough(predicates: Any) -> None:
    """Arms are paired on any two seeds that both have, and the others are left out."""
    constant(predicates, "LEAST_SHARED", lambda least: 2)
