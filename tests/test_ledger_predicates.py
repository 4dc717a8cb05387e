"""Predicates on cells made by hand: every kind of interval against a closed form, scipy or a published value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from scipy import stats

from cells_support import accuracy, make_file, make_runs, make_table
from ematrace.ledger import Check, Direction, PaperFigure, check_direction, check_figure, tolerance_band
from ematrace.results import CellFile, Metric, Row, Sample, Selector

parse = Selector.parse
HIGH, LOW = Sample((0.90, 0.91, 0.92)), Sample((0.50, 0.52, 0.53))
NOISY_HIGH, NOISY_LOW = Sample((0.40, 0.60, 0.95)), Sample((0.60, 0.45, 0.55))


def compare(op: Any, left: Sample, right: Sample | float, *, together: bool = True, by: float = 0.0) -> Check:
    """`left op right (+ by)`, with both in the runs of one experiment or in two experiments."""
    if not isinstance(right, Sample):
        return check_direction(
            Direction(parse("one/left"), op, right, by=by), make_table(*make_runs("one", left=left)).select
        )
    if together:
        files, target = make_runs("one", left=left, right=right), parse("one/right")
    else:
        files, target = make_runs("one", left=left) + make_runs("two", right=right), parse("two/right")
    return check_direction(Direction(parse("one/left"), op, target, by=by), make_table(*files).select)


def divide(a: Sample, b: Sample, op: Any, right: float, *, together: bool = True) -> Check:
    files = make_runs("one", a=a, b=b) if together else make_runs("one", a=a) + make_runs("two", b=b)
    over = parse("one/b" if together else "two/b")
    return check_direction(Direction(parse("one/a"), op, right, over=over), make_table(*files).select)


def figure(ours: Sample, paper: float, kind: Any = "accuracy", *, together: bool = True, **other: Sample) -> Check:
    """`minus` or `over` may name a second sample."""
    second = {name: parse("one/b" if together else "two/b") for name in other}
    samples = dict.fromkeys("b", *other.values()) if other else {}
    files = make_runs("one", a=ours, **samples) if together else make_runs("one", a=ours) + make_runs("two", **samples)
    return check_figure(PaperFigure(parse("one/a"), paper, kind, **second), make_table(*files).select)


class TestComparison:
    @pytest.mark.parametrize("together", [True, False])
    @pytest.mark.parametrize(
        ("op", "left", "right", "holds"),
        [
            (">", HIGH, LOW, True),
            (">", LOW, HIGH, False),
            (">", NOISY_HIGH, NOISY_LOW, False),
            ("<", LOW, HIGH, True),
            ("<", HIGH, LOW, False),
            ("<", NOISY_LOW, NOISY_HIGH, False),
            ("not >", HIGH, LOW, False),
            ("not >", LOW, HIGH, True),
            ("not >", NOISY_HIGH, NOISY_LOW, True),
        ],
    )
    def test_of_two_selectors(self, op: str, left: Sample, right: Sample, holds: bool, together: bool) -> None:
        assert compare(op, left, right, together=together).holds is holds

    def test_record(self) -> None:
        check = compare("<", LOW, HIGH, together=False)
        welch = stats.ttest_ind(LOW.values, HIGH.values, equal_var=False).confidence_interval(0.95)
        assert check.predicate == "one/left < two/right"
        assert (check.left, check.right) == (pytest.approx(LOW.mean), pytest.approx(HIGH.mean))
        assert check.difference == pytest.approx(LOW.mean - HIGH.mean)
        assert check.interval == pytest.approx(tuple(welch))
        assert (check.kind, check.method, check.missing) == ("direction", "welch", ())

    def test_pairing_finds_what_welch_cannot(self) -> None:
        # Seeds differ by much more than the two sides do, but the gain is there in every seed.
        left, right = Sample((0.30, 0.50, 0.70, 0.90)), Sample((0.29, 0.485, 0.69, 0.885))
        paired, unpaired = compare(">", left, right), compare(">", left, right, together=False)
        assert (paired.holds, paired.method) == (True, "paired")
        assert (unpaired.holds, unpaired.method) == (False, "welch")
        expected = stats.ttest_rel(left.values, right.values).confidence_interval(0.95)
        assert paired.interval == pytest.approx(tuple(expected))

    def test_other_seeds_are_not_paired(self) -> None:
        files = make_runs("one", left=HIGH) + make_runs("one", [3, 4, 5], right=LOW)
        check = check_direction(Direction(parse("one/left"), ">", parse("one/right")), make_table(*files).select)
        assert check.method == "welch"

    def test_of_seeds_that_overlap_the_shared_ones_are_paired(self) -> None:
        left, right = (0.30, 0.50, 0.70, 0.90), (0.485, 0.69, 0.885, 0.10)
        files = make_runs("one", left=Sample(left)) + make_runs("one", [1, 2, 3, 4], right=Sample(right))
        check = check_direction(Direction(parse("one/left"), ">", parse("one/right")), make_table(*files).select)
        expected = stats.ttest_rel(left[1:], right[:3]).confidence_interval(0.95)
        assert (check.holds, check.method) == (True, "paired")
        assert check.interval == pytest.approx(tuple(expected))
        assert check.difference == pytest.approx(0.04 / 3)  # of the pairs, not of all seeds

    def test_two_shared_seeds_of_more_are_too_few_to_leave_the_others_out(self) -> None:
        left, right = Sample((0.30, 0.50, 0.70, 0.90)), Sample((0.69, 0.885, 0.10, 0.20))
        files = make_runs("one", left=left) + make_runs("one", [2, 3, 4, 5], right=right)
        check = check_direction(Direction(parse("one/left"), ">", parse("one/right")), make_table(*files).select)
        assert check.method == "welch"
        assert check.difference == pytest.approx(left.mean - right.mean)

    def test_pairs_without_variation_are_those_of_the_shared_seeds(self) -> None:
        left, right = (0.25, 0.5, 0.75, 9.0), (0.0, 0.25, 0.5)
        files = make_runs("one", left=Sample(left)) + make_runs("one", right=Sample(right))
        check = check_direction(Direction(parse("one/left"), ">", parse("one/right")), make_table(*files).select)
        assert (check.difference, check.method, check.holds) == (0.25, "point", True)

    def test_a_ratio_is_compared_as_a_ratio(self) -> None:
        above, below, other = (2.0, 4.0, 6.1), (1.0, 2.0, 3.0), (1.5, 1.6, 1.4)
        runs = make_runs("one", above=Sample(above), below=Sample(below), other=Sample(other))
        direction = Direction(parse("one/above"), ">", parse("one/other"), over=parse("one/below"))
        check = check_direction(direction, make_table(*runs).select)
        ratios = [a / b for a, b in zip(above, below, strict=True)]
        assert check.interval == pytest.approx(tuple(stats.ttest_rel(ratios, other).confidence_interval(0.95)))
        with pytest.raises(ValueError, match="no 'over'"):
            Direction(parse("one/above"), ">", parse("one/other"), over=parse("one/below"), paired=True)

    def test_repetitions_on_one_shared_seed_are_no_pairs(self) -> None:
        def timed(seed: int, metric: str, seconds: float) -> CellFile:
            repeated = Metric(seconds, unit="s", repetitions=(seconds - 0.1, seconds, seconds + 0.1))
            return make_file(Row({}, {metric: repeated}), experiment="one", seed=seed)

        files = [timed(seed, "left", 1.0 + 0.2 * seed) for seed in (0, 1, 2)]
        files += [timed(seed, "right", 1.0 + 0.3 * seed) for seed in (2, 3, 4)]
        check = check_direction(Direction(parse("one/left"), "<", parse("one/right")), make_table(*files).select)
        assert check.method == "welch"

    def test_single_seeds_use_newcombe(self) -> None:
        # Newcombe (1998), Table II, contrast (a): 56/70 against 48/80, method 10 gives .0524 to .3339.
        check = compare(">", accuracy(56 / 70, n=70), accuracy(48 / 80, n=80))
        assert check.method == "newcombe"
        assert check.interval == pytest.approx((0.0524, 0.3339), abs=5e-5)
        assert check.holds is True
        assert compare(">", accuracy(0.8, n=10), accuracy(0.6, n=10)).holds is False

    def test_single_seeds_rest_on_sentences_where_those_are_known(self) -> None:
        left, right = (Metric(p, "accuracy", 800, n_effective=n) for p, n in ((56 / 70, 70), (48 / 80, 80)))
        table = make_table(make_file(Row({}, {"left": left, "right": right})))
        check = check_direction(Direction(parse("one/left"), ">", parse("one/right")), table.select)
        assert (check.method, check.interval) == ("newcombe", pytest.approx((0.0524, 0.3339), abs=5e-5))

    def test_seeds_against_tokens_add_their_variances(self) -> None:
        seeds, tokens = Sample((0.70, 0.72, 0.74, 0.76)), accuracy(0.6, n=400)
        lo, hi = stats.binomtest(240, 400).proportion_ci(0.95, method="wilson")
        z = stats.norm.ppf(0.975)
        over_seeds, over_tokens = np.var(seeds.values, ddof=1) / 4, ((hi - lo) / 2 / z) ** 2
        df = 3 * ((over_seeds + over_tokens) / over_seeds) ** 2  # Welch-Satterthwaite, no loss from the tokens' part
        half = stats.t.ppf(0.975, df) * math.sqrt(over_seeds + over_tokens)
        for together in (True, False):
            check = compare(">", seeds, tokens, together=together)
            assert check.method == "mixed"
            assert check.interval == pytest.approx((0.13 - half, 0.13 + half))
            assert check.holds is True
        assert compare(">", seeds, accuracy(0.6, n=20)).holds is False

    def test_repetitions_of_a_timing_stand_in_for_seeds(self) -> None:
        """Taken in turn on one seed they are paired, in two experiments they are not; the means are the values."""
        times, others = (10.0, 12.0, 15.0), (9.0, 11.5, 13.5)
        left, right = Sample((12.0,), repetitions=times), Sample((11.5,), repetitions=others)
        paired, unpaired = compare(">", left, right), compare(">", left, right, together=False)
        assert (paired.method, unpaired.method) == ("paired", "welch")
        assert paired.interval == pytest.approx(tuple(stats.ttest_rel(times, others).confidence_interval(0.95)))
        welch = stats.ttest_ind(times, others, equal_var=False).confidence_interval(0.95)
        assert unpaired.interval == pytest.approx(tuple(welch))
        assert (paired.left, paired.right) == (12.0, 11.5)

    def test_single_value_without_tokens_is_a_point(self) -> None:
        check = compare(">", Sample((0.7,)), accuracy(0.69, n=50))
        assert (check.interval, check.method, check.holds) == (None, "point", True)
        assert compare(">", Sample((0.69,)), Sample((0.69,))).holds is False

    @pytest.mark.parametrize("together", [True, False])
    def test_no_variation_is_a_point(self, together: bool) -> None:
        check = compare(">", Sample((0.3,) * 3), Sample((0.2,) * 3), together=together)
        assert (check.interval, check.method, check.holds) == (None, "point", True)
        same = Sample((0.3, 0.3))
        assert compare(">", same, same, together=together).holds is False
        assert compare("not >", same, same, together=together).holds is True

    def test_variation_on_one_side_is_enough_for_welch(self) -> None:
        check = compare(">", Sample((1.0,) * 3), NOISY_HIGH, together=False)
        assert (check.method, check.holds) == ("welch", False)

    @pytest.mark.parametrize(
        ("sample", "op", "number", "holds"),
        [
            (Sample((0.10, 0.11, 0.12)), ">", 0.05, True),
            (Sample((0.01, 0.11, 0.21)), ">", 0.05, False),
            (Sample((0.01, 0.11, 0.21)), "not >", 0.05, True),
            (Sample((0.10, 0.11, 0.12)), "<", 0.5, True),
            (accuracy(0.10, n=1000), ">", 0.05, True),
            (accuracy(0.10, n=20), ">", 0.05, False),
            (Sample((0.051,)), ">", 0.05, True),
            (Sample((0.05, 0.05)), ">", 0.05, False),
        ],
    )
    def test_with_a_number(self, sample: Sample, op: str, number: float, holds: bool) -> None:
        assert compare(op, sample, number).holds is holds

    def test_interval_against_a_number_is_that_of_the_difference(self) -> None:
        check = compare(">", Sample((0.1, 0.2, 0.6)), 0.05)
        lo, hi = stats.ttest_1samp([0.1, 0.2, 0.6], 0.05).confidence_interval(0.95)
        assert check.interval == pytest.approx((lo - 0.05, hi - 0.05))

    @pytest.mark.parametrize(
        ("op", "by", "holds"),
        [
            ("<", 0.10, True),
            ("<", 0.03, False),
            ("<", -0.10, False),
            (">", 0.02, True),
            (">", 0.10, False),
            ("not >", 0.02, False),
            ("not >", 0.10, True),
        ],
    )
    def test_by_moves_the_right_side(self, op: str, by: float, holds: bool) -> None:
        # left - right = .05 to within .01 or so in every case
        left, right = Sample((0.35, 0.45, 0.551)), Sample((0.30, 0.40, 0.50))
        assert compare(op, left, right, by=by).holds is holds


class TestBoundAndEquality:
    @pytest.mark.parametrize(
        ("values", "op", "bound", "holds"),
        [
            ((0.10, 0.11, 0.12), "<=", 0.2, True),
            ((0.10, 0.20, 0.22), "<=", 0.2, False),
            ((0.10, 0.15, 0.19), "<=", 0.2, False),
            ((0.10, 0.11, 0.12), ">=", 0.05, True),
            ((0.02, 0.11, 0.20), ">=", 0.05, False),
            ((0.2,), "<=", 0.2, True),
            ((0.1 + 0.2,), "<=", 0.3, True),
            ((0.3001,), "<=", 0.3, False),
            ((0.2, 0.2), ">=", 0.2, True),
        ],
    )
    def test_bounds_use_the_whole_interval_of_left(
        self, values: tuple[float, ...], op: str, bound: float, holds: bool
    ) -> None:
        assert compare(op, Sample(values), bound).holds is holds
        # The bound may be a selector; its own noise plays no part.
        assert compare(op, Sample(values), accuracy(bound, n=10), together=False).holds is holds

    def test_bound_on_a_single_accuracy_uses_wilson(self) -> None:
        assert compare("<=", accuracy(0.19, n=100), 0.2).holds is False
        assert compare("<=", accuracy(0.19, n=100_000), 0.2).holds is True

    @pytest.mark.parametrize(
        ("left", "right", "together", "holds"),
        [
            ((1024.0, 1024.0), (1024.0, 1024.0), True, True),
            ((1024.0, 1024.0), (1024.0, 512.0), True, False),
            ((1.0, 2.0), (1.0, 2.0), True, True),
            ((1.0, 2.0), (2.0, 1.0), True, False),
            ((5.0,), (5.0, 5.0), False, True),
            ((5.0,), (5.0, 6.0), False, False),
            ((0.1 + 0.2,), (0.3,), True, False),
        ],
    )
    def test_equality_is_exact_in_every_seed(
        self, left: tuple[float, ...], right: tuple[float, ...], together: bool, holds: bool
    ) -> None:
        assert compare("==", Sample(left), Sample(right), together=together).holds is holds

    def test_equality_with_a_number(self) -> None:
        assert compare("==", Sample((7.0, 7.0)), 7).holds is True
        assert compare("==", Sample((7.0, 7.5)), 7).holds is False


class TestRatio:
    def test_per_seed_within_an_experiment(self) -> None:
        check = divide(Sample((0.30, 0.45, 0.61)), Sample((0.60, 0.90, 1.20)), "<", 0.52)
        ratios = [0.5, 0.5, 0.61 / 1.2]
        lo, hi = stats.ttest_1samp(ratios, 0).confidence_interval(0.95)
        assert check.left == pytest.approx(np.mean(ratios))
        assert check.interval == pytest.approx((lo - 0.52, hi - 0.52))
        assert check.holds is True

    def test_across_experiments_by_the_delta_method(self) -> None:
        a, b = Sample((0.95, 0.96, 0.97, 0.96)), Sample((0.99, 1.0, 1.0))
        check = divide(a, b, ">", 0.9, together=False)
        va, vb = np.var(a.values, ddof=1) / 4, np.var(b.values, ddof=1) / 3
        u, v = va / b.mean**2, a.mean**2 * vb / b.mean**4
        df = (u + v) ** 2 / (u**2 / 3 + v**2 / 2)
        half = stats.t.ppf(0.975, df) * math.sqrt(u + v)
        ratio = a.mean / b.mean
        assert check.left == pytest.approx(ratio)
        assert check.interval == pytest.approx((ratio - 0.9 - half, ratio - 0.9 + half))
        assert (check.method, check.holds) == ("delta", True)

    def test_delta_method_agrees_with_simulation(self) -> None:
        rng = np.random.default_rng(0)
        a, b = Sample((0.75, 0.80, 0.85, 0.80)), Sample((0.55, 0.60, 0.65))
        check = figure(a, 1.3, over=b, together=False)
        draws = rng.normal(a.mean, a.sd / 2, 200_000) / rng.normal(b.mean, b.sd / math.sqrt(3), 200_000)
        va, vb = (a.sd / a.mean) ** 2 / 4, (b.sd / b.mean) ** 2 / 3
        df = (va + vb) ** 2 / (va**2 / 3 + vb**2 / 2)
        assert check.interval is not None
        half = (check.interval[1] - check.interval[0]) / 2
        assert half == pytest.approx(stats.t.ppf(0.975, df) * draws.std(), rel=0.02)

    @pytest.mark.parametrize("together", [True, False])
    def test_division_by_zero_is_open_and_says_so(self, together: bool) -> None:
        check = divide(HIGH, Sample((0.0, 0.1, 0.2)), ">", 0.9, together=together)
        assert (check.holds, check.method, check.missing) == (None, "undefined ratio", ())

    @pytest.mark.parametrize("together", [True, False])
    @pytest.mark.parametrize("extreme", [(1e30, 1e29, 3e29), (1e-30, 1.1e-30, 3e-30), (-1e30, 1e30, 1e-30)])
    def test_whatever_a_cell_may_hold_gives_finite_intervals(self, extreme: tuple[float, ...], together: bool) -> None:
        """The bounds of `Metric` are there for this."""
        for a, b in ((extreme, (0.5, 0.6, 0.8)), ((0.5, 0.6, 0.8), extreme), (extreme, extreme[::-1])):
            left, right = Sample(a), Sample(b)
            checks = [
                divide(left, right, ">", 1.0, together=together),
                compare(">", left, right, together=together),
                figure(left, 1.0, minus=right, together=together),
            ]
            for check in checks:
                assert check.holds is not None or check.method == "undefined ratio"
                assert check.interval is None or all(map(math.isfinite, check.interval))


class TestUndecided:
    """Neither shown nor refuted: the interval of the difference, .36 to .42 of HIGH - LOW, holds the bound."""

    @pytest.mark.parametrize(
        ("op", "by", "holds", "undecided"),
        [
            *((">", 0.30, True, False), (">", 0.40, False, True), (">", 0.50, False, False)),
            *(("<", 0.30, False, False), ("<", 0.40, False, True), ("<", 0.50, True, False)),
            *(("not >", 0.30, False, False), ("not >", 0.40, True, False)),
            *(("within", 0.30, False, False), ("within", 0.40, False, True), ("within", 0.50, True, False)),
        ],
    )
    def test_a_difference(self, op: str, by: float, holds: bool, undecided: bool) -> None:
        check = compare(op, HIGH, LOW, by=by)
        assert (check.holds, check.undecided) == (holds, undecided)
        assert check.to_json()["undecided"] is undecided

    @pytest.mark.parametrize(
        ("op", "bound", "holds", "undecided"),
        [
            *(("<=", 0.80, False, False), ("<=", 0.91, False, True), ("<=", 0.99, True, False)),
            *((">=", 0.80, True, False), (">=", 0.91, False, True), (">=", 0.99, False, False)),
        ],
    )
    def test_a_bound(self, op: str, bound: float, holds: bool, undecided: bool) -> None:
        check = compare(op, HIGH, bound)
        assert (check.holds, check.undecided) == (holds, undecided)

    @pytest.mark.parametrize(("paper", "undecided"), [(0.91, False), (0.94, True), (0.88, True), (0.5, False)])
    def test_a_figure(self, paper: float, undecided: bool) -> None:
        assert figure(HIGH, paper).undecided is undecided

    @pytest.mark.parametrize(
        ("op", "right", "by", "against", "holds", "undecided"),
        [
            *(
                ("<", LOW, 0.5, 0.6, True, False),
                ("<", LOW, 0.3, 0.35, False, False),
                ("<", LOW, 0.1, 0.4, False, True),
            ),
            *(
                (">=", 0.95, 0.0, 0.8, False, True),
                (">=", 0.99, 0.0, 0.95, False, False),
                (">=", 0.8, 0.0, 0.7, True, False),
            ),
        ],
    )
    def test_between_two_bounds(
        self, op: Any, right: Sample | float, by: float, against: float, holds: bool, undecided: bool
    ) -> None:
        samples = {"left": HIGH} | ({"right": right} if isinstance(right, Sample) else {})
        other = parse("one/right") if isinstance(right, Sample) else right
        direction = Direction(parse("one/left"), op, other, by=by, against=against)
        check = check_direction(direction, make_table(*make_runs("one", **samples)).select)
        assert (check.holds, check.undecided) == (holds, undecided)

    def test_a_band_takes_the_place_of_the_tolerance(self) -> None:
        wide = PaperFigure(parse("one/a"), 0.5, "accuracy", band=(0.4, 0.95))
        assert check_figure(wide, make_table(*make_runs("one", a=HIGH)).select).holds

    def test_a_point_decides(self) -> None:
        assert not compare(">", Sample((0.5,)), Sample((0.6,))).undecided


class TestMissing:
    @pytest.mark.parametrize("right", [None, Sample((0.1, math.nan, 0.2))])
    def test_selector_without_a_value_on_every_seed_is_named_and_open(self, right: Sample | None) -> None:
        files = make_runs("one", a=HIGH) if right is None else make_runs("one", a=HIGH, b=right)
        check = check_direction(
            Direction(parse("one/a"), ">", parse("one/b{k=1}" if right is None else "one/b")), make_table(*files).select
        )
        assert (check.holds, check.missing) == (None, ("one/b{k=1}" if right is None else "one/b",))

    def test_figure_names_all_that_it_misses(self) -> None:
        wanted = PaperFigure(parse("one/a"), 0.2, "accuracy", minus=parse("one/b"))
        check = check_figure(wanted, make_table().select)
        assert (check.holds, check.missing) == (None, ("one/a", "one/b"))


class TestFigure:
    @pytest.mark.parametrize(
        ("kind", "paper", "low", "high"),
        [
            ("accuracy", 0.795, 0.765, 0.825),
            ("cross_entropy", 5.21, 5.16, 5.26),
            ("perplexity", 260, 234, 286),
            ("speed", 315, 315, math.inf),
        ],
    )
    def test_tolerances_are_the_design_s(self, kind: str, paper: float, low: float, high: float) -> None:
        assert tolerance_band(paper, kind) == pytest.approx((low, high))
        assert figure(Sample((low,)), paper, kind).holds is True
        assert figure(Sample((low - 1e-4,)), paper, kind).holds is False
        assert figure(Sample((min(high, 1e9),)), paper, kind).holds is True
        if math.isfinite(high):
            assert figure(Sample((high + 1e-4,)), paper, kind).holds is False

    def test_a_value_on_the_bound_is_inside_for_every_three_digit_figure(self) -> None:
        # In binary, about half of these bounds fall just short of the decimal they stand for.
        for paper in range(1001):
            for bound in (paper - 30, paper + 30):
                assert figure(Sample((bound / 1000,)), paper / 1000).holds is True

    def test_the_whole_interval_must_be_inside(self) -> None:
        tight, wide = Sample((0.79, 0.80, 0.81)), Sample((0.75, 0.80, 0.85))
        assert wide.mean == pytest.approx(tight.mean)
        assert (figure(tight, 0.8).holds, figure(wide, 0.8).holds) == (True, False)

    def test_speed_counts_its_lower_end(self) -> None:
        assert figure(Sample((320.0, 321.0, 322.0)), 315, "speed").holds is True
        assert figure(Sample((300.0, 321.0, 342.0)), 315, "speed").holds is False

    def test_single_accuracy_uses_wilson(self) -> None:
        assert figure(accuracy(0.8, n=20_000), 0.8).holds is True
        assert figure(accuracy(0.8, n=50), 0.8).holds is False

    def test_minus_is_paired_within_an_experiment(self) -> None:
        a, b = Sample((0.5, 0.7, 0.91)), Sample((0.3, 0.5, 0.7))
        check = figure(a, 0.2, minus=b)
        assert check.left == pytest.approx(0.61 / 3)
        assert check.interval == pytest.approx(tuple(stats.ttest_rel(a.values, b.values).confidence_interval(0.95)))
        assert check.holds is True
        across = figure(a, 0.2, minus=b, together=False)
        assert (across.method, across.holds) == ("welch", False)

    def test_over_is_per_seed(self) -> None:
        check = figure(Sample((0.48, 0.72, 0.96)), 0.96, over=Sample((0.5, 0.75, 1.0)))
        assert check.left == pytest.approx(0.96)
        assert check.holds is True

    @given(
        mean=st.floats(0.1, 0.9),
        paper=st.floats(0.1, 0.9),
        shape=st.lists(st.floats(-1, 1), min_size=2, max_size=6),
        small=st.floats(0, 0.1),
        extra=st.floats(1e-6, 0.1),
        kind=st.sampled_from(["accuracy", "cross_entropy", "perplexity", "speed"]),
    )
    def test_noise_never_turns_a_miss_into_a_hit(
        self, mean: float, paper: float, shape: list[float], small: float, extra: float, kind: str
    ) -> None:
        """With mean and shape held, widening the spread over seeds may lose the figure but never gain it.

        (Around another mean, of course, or with more seeds, a miss may become a hit.)
        """
        shape_ = np.array(shape) - np.mean(shape)

        def holds(spread: float) -> bool | None:
            return figure(Sample(tuple(mean + spread * shape_)), paper, kind).holds

        if holds(small) is False:
            assert holds(small + extra) is False

    @given(k=st.integers(0, 100), paper=st.floats(0, 1), factor=st.integers(2, 50))
    def test_fewer_tokens_never_turn_a_miss_into_a_hit(self, k: int, paper: float, factor: int) -> None:
        """For a single seed the share stays, the tokens shrink: a point outside the band stays outside."""
        low, high = tolerance_band(paper, "accuracy")
        if not low - 1e-6 <= k / 100 <= high + 1e-6:
            assert figure(accuracy(k / 100, n=100 * factor), paper).holds is False
            assert figure(accuracy(k / 100, n=100), paper).holds is False


SAME = {"sentences": {"train": 9}, "grammar": {"noun_bias": 0.8}}


class TestPairedAcrossExperiments:
    LEFT, RIGHT = Sample((0.30, 0.50, 0.70, 0.90)), Sample((0.29, 0.485, 0.69, 0.885))

    def check(self, right: Sample = RIGHT, settings: Any = SAME) -> Check:
        files = make_runs("one", left=self.LEFT, settings=SAME) + make_runs("two", right=right, settings=settings)
        direction = Direction(parse("one/left"), ">", parse("two/right"), paired=True)
        return check_direction(direction, make_table(*files).select)

    def test_same_sentences_are_compared_seed_by_seed(self) -> None:
        found = self.check()
        expected = stats.ttest_rel(self.LEFT.values, self.RIGHT.values).confidence_interval(0.95)
        assert (found.method, found.holds) == ("paired", True)
        assert found.interval == pytest.approx(tuple(expected))

    def test_only_seeds_that_both_have(self) -> None:
        found = self.check(Sample(self.RIGHT.values[:3]))
        assert found.method == "paired"
        assert found.difference == pytest.approx((0.01 + 0.015 + 0.01) / 3)

    @pytest.mark.parametrize("settings", [{"sentences": {"train": 8}, "grammar": {"noun_bias": 0.8}}, {}])
    def test_other_sentences_are_not(self, settings: Any) -> None:
        assert self.check(settings=settings).method == "welch"


class TestOverTokens:
    def check(self, left: Sample, right: Sample) -> Check:
        direction = Direction(parse("one/left"), ">", parse("one/right"), interval="tokens")
        return check_direction(direction, make_table(*make_runs("one", left=left, right=right)).select)

    def test_is_newcombe_of_one_run_with_the_seeds_beside_it(self) -> None:
        # Tokens tell the two apart, seeds do not.
        left, right = accuracy(0.40, 0.60, 0.80, n=2000), accuracy(0.60, 0.55, 0.50, n=2000)
        found = self.check(left, right)
        from ematrace.intervals import newcombe_difference_interval

        assert found.interval == newcombe_difference_interval(1200, 2000, 1100, 2000)
        assert (found.method, found.holds) == ("newcombe", True)
        assert found.beside is not None
        assert (found.beside.method, found.beside.holds, found.beside.undecided) == ("paired", False, True)
        assert found.predicate.endswith("over tokens")


def test_arms_of_other_settings_are_not_compared_seed_by_seed() -> None:
    a, b = Sample((0.50, 0.60, 0.70)), Sample((0.40, 0.51, 0.60))
    direction = Direction(parse("one/x{arm=a}"), ">", parse("one/x{arm=b}"))
    for settings, method in (({"tokens": 10}, "paired"), ({"tokens": 5}, "welch")):
        files = make_runs("one", x=a, factors={"arm": "a"}, settings={"tokens": 10})
        files += make_runs("one", x=b, factors={"arm": "b"}, settings=settings)
        assert check_direction(direction, make_table(*files).select).method == method


class TestUnless:
    """a < 0.5 or b < 0.5, each of which holds, is undecided or is refuted."""

    HOLDS, OPEN, REFUTED = Sample((0.10, 0.11, 0.12)), Sample((0.30, 0.50, 0.70)), Sample((0.90, 0.91, 0.92))

    @pytest.mark.parametrize(
        ("a", "b", "holds", "undecided"),
        [
            (HOLDS, REFUTED, True, False),
            (REFUTED, HOLDS, True, False),
            (REFUTED, OPEN, False, True),
            (OPEN, REFUTED, False, True),
            (REFUTED, REFUTED, False, False),
        ],
    )
    def test_one_is_enough(self, a: Sample, b: Sample, holds: bool, undecided: bool) -> None:
        direction = Direction(parse("one/a"), "<", 0.5, unless=Direction(parse("one/b"), "<", 0.5))
        check = check_direction(direction, make_table(*make_runs("one", a=a, b=b)).select)
        assert (check.holds, check.undecided) == (holds, undecided)
        assert check.predicate == "one/a < 0.5 or one/b < 0.5"

    @pytest.mark.parametrize(("a", "b"), [(REFUTED, OPEN), (OPEN, REFUTED), (REFUTED, REFUTED), (REFUTED, HOLDS)])
    def test_evidence_against_is_that_of_the_weaker(self, a: Sample, b: Sample) -> None:
        """It takes both to refute."""
        one, other = (Direction(parse(f"one/{name}"), "<", 0.5) for name in "ab")
        select = make_table(*make_runs("one", a=a, b=b)).select
        alone = [check_direction(direction, select).p_against for direction in (one, other)]
        assert alone[0] != alone[1] or a is b
        assert check_direction(replace(one, unless=other), select).p_against == max(alone)
        exact = Direction(parse("one/b"), "==", 0.5)  # has no p-value
        assert check_direction(replace(one, unless=exact), select).p_against is None

    def test_both_must_be_measured(self) -> None:
        direction = Direction(parse("one/a"), "<", 0.5, unless=Direction(parse("one/gone"), "<", 0.5))
        check = check_direction(direction, make_table(*make_runs("one", a=self.HOLDS)).select)
        assert (check.holds, check.missing) == (None, ("one/gone",))


class TestPValueAgainst:
    @pytest.mark.parametrize(("op", "alternative"), [("<", "greater"), (">", "less")])
    def test_is_the_one_sided_test_of_scipy(self, op: Any, alternative: Any) -> None:
        left, right = Sample((0.61, 0.66, 0.58, 0.64)), Sample((0.60, 0.61, 0.59, 0.60))
        expected = stats.ttest_1samp(np.subtract(left.values, right.values), 0.01, alternative=alternative).pvalue
        assert compare(op, left, right, by=0.01).p_against == pytest.approx(expected)

    def test_welch(self) -> None:
        expected = stats.ttest_ind(HIGH.values, LOW.values, equal_var=False, alternative="greater").pvalue
        assert compare("<", HIGH, LOW, together=False).p_against == pytest.approx(expected)

    def test_without_spread_it_is_certain(self) -> None:
        same = Sample((0.5, 0.5))
        assert [compare(op, same, 0.4).p_against for op in ("<", ">")] == [0.0, 1.0]
