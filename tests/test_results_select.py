"""Selecting cells by factors: which cells count, which are refused, what is paired."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from cells_support import accuracy, make_file, make_row, make_runs, make_table, store_cells
from ematrace.results import AmbiguousSelection, CellFile, Metric, ResultError, Row, Sample, Selector, Table

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,8}", fullmatch=True)
VALUES = st.text(max_size=12) | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans()
OLD, NEW = "2025-01-01T00:00:00+00:00", "2027-01-01T00:00:00+00:00"


class TestSample:
    def test_differences_are_seed_by_seed(self) -> None:
        one, other = Sample((0.5, 0.25), n=100, unit="nats"), Sample((0.25, 0.5))
        assert one - other == Sample((0.25, -0.25), unit="nats")
        assert -one == Sample((-0.5, -0.25), unit="nats")
        with pytest.raises(ValueError, match="shorter"):
            one - Sample((0.5,))

    def test_mean_and_sd_over_seeds(self) -> None:
        sample = Sample((0.1, 0.2, 0.6))
        assert sample.mean == pytest.approx(0.3)
        assert sample.sd == pytest.approx(np.std([0.1, 0.2, 0.6], ddof=1))

    def test_interval_over_seeds_is_students(self) -> None:
        expected = stats.ttest_1samp([0.1, 0.2, 0.6], 0).confidence_interval(0.95)
        assert accuracy(0.1, 0.2, 0.6, n=100).interval == pytest.approx(tuple(expected))

    def test_interval_of_one_accuracy_is_wilsons(self) -> None:
        expected = stats.binomtest(30, 100).proportion_ci(0.95, method="wilson")
        assert accuracy(0.3, n=100).interval == pytest.approx(tuple(expected))
        assert Sample((0.3,), 100, "nats").interval is None

    def test_interval_of_one_accuracy_is_over_sentences_where_they_are_known(self) -> None:
        one = Sample((0.3,), 100, "accuracy", n_effective=20)
        assert one.interval == one.over_sentences == Sample((0.3,), 20, "accuracy").interval
        assert one.over_items == Sample((0.3,), 100, "accuracy").interval
        several = Sample((0.1, 0.2, 0.6), 100, "accuracy", n_effective=20)
        assert several.interval == Sample((0.1, 0.2, 0.6)).interval

    def test_the_fewest_effective_items_count_and_only_if_all_seeds_know_them(self) -> None:
        def table(*effective: int | None) -> Table:
            files = [
                make_file(Row({}, {"w": Metric(0.5, "accuracy", 50, n_effective=m)}), seed=seed)
                for seed, m in enumerate(effective)
            ]
            return make_table(*files)

        assert table(30, 20).sample(Selector("one", "w")).n_effective == 20
        assert table(30, None).sample(Selector("one", "w")).n_effective is None

    def test_interval_of_one_timing_is_over_its_repetitions(self) -> None:
        """And of the same kind as its value: of the mean where that is the mean, of the median where that is."""
        times = (0.9, 1.0, 1.4)
        lo, hi = stats.ttest_1samp(times, 0).confidence_interval(0.95)
        of_mean, of_median = (Sample((value,), repetitions=times) for value in (1.1, 1.0))
        assert (of_mean.mean, of_median.mean, of_median.draws) == (1.1, 1.0, times)
        assert of_mean.interval == pytest.approx((lo, hi))
        assert of_median.interval is None  # three repetitions bound no median
        assert Sample((1.0,), repetitions=(*times, 0.5, 1.1, 0.8)).interval == (0.5, 1.4)
        assert Sample((1.0, 1.1), repetitions=times).draws == (1.0, 1.1)

    @pytest.mark.parametrize("sample", [Sample((0.3,)), Sample((0.3, math.nan)), Sample(())])
    def test_nothing_known_gives_no_interval(self, sample: Sample) -> None:
        assert sample.interval is None
        assert math.isnan(sample.sd)

    def test_half_a_sample_has_no_mean(self) -> None:
        assert math.isnan(Sample((0.3, math.nan)).mean)

    def test_identical_seeds_have_a_mean_without_rounding(self) -> None:
        sample = Sample((0.1,) * 3)
        assert (sample.mean, sample.sd, sample.interval) == (0.1, 0.0, (0.1, 0.1))


class TestSelector:
    @pytest.mark.parametrize(
        ("text", "where"),
        [
            ("one/x", {}),
            ("one/x{}", {}),
            ("one/x{representation=l0+traces}", {"representation": "l0+traces"}),
            ("one/x{ a = 1 ,b=2.5, c=true,d=-3e2 }", {"a": 1, "b": 2.5, "c": True, "d": -300.0}),
            ('one/x{a="1", b="true"}', {"a": "1", "b": "true"}),
            ("one/x{choice=probe without intercept}", {"choice": "probe without intercept"}),
            (r'one/x{a="b, c=\"d\" {e}", f=1}', {"a": 'b, c="d" {e}', "f": 1}),
            ("one/x{a=b=c}", {"a": "b=c"}),
            ("one/x{a=NaN, b=1e999, c=null, d=[1]}", {"a": "NaN", "b": "1e999", "c": "null", "d": "[1]"}),
        ],
    )
    def test_values_are_json_or_text(self, text: str, where: dict[str, Any]) -> None:
        selector = Selector.parse(text)
        assert selector == Selector("one", "x", where)
        assert [type(v) for v in selector.where.values()] == [type(v) for v in where.values()]

    @given(NAMES, NAMES, st.dictionaries(NAMES, VALUES, max_size=4))
    def test_text_reads_back(self, experiment: str, metric: str, where: dict[str, Any]) -> None:
        selector = Selector(experiment, metric, where)
        again = Selector.parse(str(selector))
        assert again == selector
        assert hash(again) == hash(selector)
        assert [type(v) for v in again.where.values()] == [type(v) for v in where.values()]

    @pytest.mark.parametrize(
        "text",
        [
            *("", "one", "one/", "/x", "one/x/y", "../x/y", "a b/x", "one/x{", "one/x}", "one/x{a=1}b", "one/x\n"),
            *("one/x{a}", "one/x{a=}", "one/x{=1}", "one/x{a=1,,b=2}", "one/x{a=1, a=2}", "one/x{a b=1}", "one/x{1=2}"),
            *('one/x{a="b}', 'one/x{a=b"c"}', "one/x{a={b}}", "one/x{a=b\nc}", "one/x{a=b\x1bc}", 'one/x{a="b"c}'),
        ],
    )
    def test_everything_else_is_refused_in_one_line(self, text: str) -> None:
        with pytest.raises(ValueError, match=r".") as caught:
            Selector.parse(text)
        assert repr(text) in str(caught.value)
        assert str(caught.value).isprintable()

    @given(st.text(alphabet='ab/{}=, "\\1\n', max_size=20))
    def test_any_text_is_parsed_or_refused(self, text: str) -> None:
        try:
            selector = Selector.parse(text)
        except ValueError:
            return
        assert Selector.parse(str(selector)) == selector


def chosen(files: Sequence[CellFile], selector: str = "one/x", local: Sequence[CellFile] = ()) -> tuple[float, ...]:
    selection = make_table(*files, local=local).select(selector)
    assert selection is not None
    return selection.sample.values


def run(value: float | None, seed: int = 0, **changes: Any) -> CellFile:
    return make_file(make_row({"x": value}), seed=seed, **changes)


class TestSelect:
    def test_a_value_per_seed_in_their_order(self) -> None:
        table = make_table(run(0.3, 12), run(0.1, 2), run(None, 7))
        selection = table.select("one/x")
        assert selection is not None
        assert selection.seeds == (2, 7, 12)
        assert selection.sample.values[::2] == (0.1, 0.3)
        assert math.isnan(selection.sample.values[1])
        assert [path.name for path in selection.paths] == ["seed-2_cpu.json", "seed-7_cpu.json", "seed-12_cpu.json"]
        assert (selection.scale, selection.local) == ("cpu", False)

    def test_factors_of_file_and_row_both_count(self) -> None:
        rows = (make_row({"x": 1.0}, role="a"), make_row({"x": 2.0}, role="b"))
        files = [make_file(*rows, factors={"k": k}) for k in (0.5, 1)]
        assert chosen(files, "one/x{k=0.5, role=b}") == (2.0,)
        assert chosen(files, "one/x{k=1.0, role=a}") == (1.0,)

    def test_nothing_found_is_none(self) -> None:
        table = make_table(run(1.0))
        for text in ("two/x", "one/y", "one/x{k=1}"):
            assert table.select(text) is None
            assert table.sample(text) is None

    @pytest.mark.parametrize(("value", "found"), [("1", 1), ("true", 2), ('"1"', 3), ("1.0", 1)])
    def test_one_true_and_text_are_three_values(self, value: str, found: int) -> None:
        files = [run(1.0, factors={"k": 1}), run(2.0, factors={"k": True}), run(3.0, factors={"k": "1"})]
        assert chosen(files, f"one/x{{k={value}}}") == (found,)

    @pytest.mark.parametrize(
        ("one", "other", "shown"),
        [
            ({"k": 1}, {"k": 2}, r"1 in .*k-1_seed.*, 2 in .*k-2_seed"),
            ({"k": 1}, {"k": "1"}, r"1 in .*, \"1\" in"),
            ({"k": 1}, {"k": True}, r"1 in .*, true in"),
            ({"k": 1}, {}, r"1 in .*, absent in"),
            ({}, {"k": "absent"}, r"absent in .*, absent in"),
        ],
    )
    def test_too_few_factors_are_ambiguous(self, one: dict[str, Any], other: dict[str, Any], shown: str) -> None:
        """On the same seed and on another: nothing is averaged over a factor that was not named."""
        for seed in (0, 1):
            table = make_table(run(1.0, factors=one), run(2.0, seed, factors=other))
            with pytest.raises(AmbiguousSelection, match=rf"^one/x: factor 'k' has several values \({shown}"):
                table.select("one/x")

    def test_settings_are_never_mixed(self) -> None:
        """Three seeds of one setting beat two of another; a fourth seed is not borrowed."""
        files = [run(0.1, seed) for seed in range(3)] + [run(0.9, seed, settings={"k": 7}, date=NEW) for seed in (3, 4)]
        assert chosen(files) == (0.1,) * 3
        # As many seeds: the newest.
        assert chosen(files[1:]) == (0.9, 0.9)

    def test_order_of_settings_does_not_matter(self) -> None:
        assert len(chosen([run(0.1, 0, settings={"a": 1, "b": 2}), run(0.1, 1, settings={"b": 2, "a": 1})])) == 2

    def test_of_a_seed_measured_twice_the_newest_counts(self) -> None:
        """A grid that moved a factor from the cells to the file leaves both behind."""
        old = make_file(make_row({"x": 0.1}, k=1), date=NEW)
        new = make_file(make_row({"x": 0.9}), factors={"k": 1}, date="2027-01-01T03:00:00+04:00")  # an hour earlier
        assert chosen([old, new]) == chosen([new, old]) == (0.1,)

    def test_units_are_never_mixed(self) -> None:
        files = [make_file(Row({}, {"x": Metric(0.5, unit)}), seed=seed) for seed, unit in enumerate(("s", "ms"))]
        with pytest.raises(ResultError, match=r"seed-1_cpu\.json: one/x is in 'ms', in .*seed-0_cpu\.json in 's'"):
            make_table(*files).select("one/x")

    def test_sample_has_the_fewest_items_and_repetitions_of_a_single_seed(self) -> None:
        files = [make_file(Row({}, {"x": Metric(0.5, "accuracy", n)}), seed=n) for n in (30, 20)]
        selection = make_table(*files).select("one/x")
        assert selection is not None
        assert (selection.sample.n, selection.sample.unit) == (20, "accuracy")
        timed = [make_file(Row({}, {"x": Metric(2.0, "s", repetitions=(1.0, 2.0, 3.0))}), seed=i) for i in (0, 1)]
        one, two = make_table(timed[0]).sample("one/x"), make_table(*timed).sample("one/x")
        assert one is not None
        assert two is not None
        assert (one.draws, two.draws) == ((1.0, 2.0, 3.0), (2.0, 2.0))


class TestEvidence:
    """For each experiment the cells of one origin and scale."""

    def test_most_seeds_win_wherever_they_are(self) -> None:
        three, two = [run(0.3, seed) for seed in range(3)], [run(0.2, seed) for seed in range(2)]
        assert chosen(three, local=two) == (0.3,) * 3
        assert chosen(two, local=three) == (0.3,) * 3

    def test_other_settings_are_no_evidence_beside_recorded_cells(self) -> None:
        """With as many seeds or more, a toy run is no evidence. Where nothing is recorded it is all there is."""
        toy = [run(0.1, seed, settings={"tokens": 10}) for seed in range(2)]
        assert chosen([run(0.8)], local=toy[:1]) == chosen([run(0.8)], local=toy) == (0.8,)
        assert chosen([], local=toy) == (0.1, 0.1)

    def test_a_tie_goes_to_this_machine_even_if_older(self) -> None:
        assert chosen([run(0.9, date=NEW)], local=[run(0.1, date=OLD)]) == (0.1,)

    def test_a_part_of_what_was_recorded_displaces_nothing(self) -> None:
        """One arm on as many seeds, or all arms of which one has fewer seeds; with all arms this machine's count."""
        arms = {width: [run(0.1, seed, factors={"width": width}) for seed in range(2)] for width in (1, 2)}
        own = {width: [run(0.9, seed, factors={"width": width}) for seed in range(2)] for width in (1, 2)}
        recorded = [*arms[1], *arms[2]]
        for local in (own[1], [*own[1], own[2][0]], [run(0.9, factors={"width": 3})]):
            for width in arms:
                assert chosen(recorded, f"one/x{{width={width}}}", local=local) == (0.1, 0.1)
        assert chosen(recorded, "one/x{width=2}", local=[*own[1], *own[2]]) == (0.9, 0.9)

    def test_then_the_newest_by_instant(self) -> None:
        # As text the older date sorts last: it is written in another time zone.
        older = run(0.1, date="2026-01-02T01:00:00+09:00")
        newer = run(0.9, date="2026-01-01T23:00:00+00:00", scale="gpu")
        assert chosen([older, newer]) == chosen([newer, older]) == (0.9,)

    def test_scales_and_origins_are_never_mixed(self) -> None:
        mixed = [run(0.1, 0), run(0.1, 1), run(0.9, 2, scale="gpu")]
        assert chosen(mixed, local=[run(0.5, 3)]) == (0.1, 0.1)

    def test_experiments_choose_on_their_own(self) -> None:
        table = make_table(run(0.1), run(0.2, experiment="two"), local=[run(0.9)])
        assert (table.sample("one/x"), table.sample("two/x")) == (Sample((0.9,)), Sample((0.2,)))
        assert set(table.experiments) == {"one", "two"}


class TestTable:
    def files(self) -> list[CellFile]:
        drawn = [run(0.1 * seed, seed, factors={"grammar": "drawn", "k": seed / 10}) for seed in range(3)]
        return [*drawn, run(0.5, factors={"grammar": "default"}), run(0.7, experiment="two")]

    def test_where_needs_the_factor_and_at_does_not(self) -> None:
        table = make_table(*self.files())
        assert [s.cell.experiment for s in table.at({"grammar": "default"}).cells] == ["one", "two"]
        assert [s.cell.experiment for s in table.where(grammar="default").cells] == ["one"]
        assert len(table.where(grammar="drawn").cells) == 3

    def test_values_of_a_factor_in_order_once(self) -> None:
        rows = [make_row({"x": 0.0}, lag=lag, reader=reader) for lag in (2, 0, 1) for reader in ("peel", "probe")]
        table = make_table(*(make_file(*rows, make_row({"y": 1.0}), seed=seed) for seed in (0, 1)))
        assert table.values_of("one", "lag") == (2, 0, 1)
        assert table.values_of("one", "reader", lag=0) == ("peel", "probe")
        assert table.values_of("two", "lag") == ()

    def test_by_seed_splits_the_cells_in_force(self) -> None:
        """A draw of this machine does not replace one of three that were recorded."""
        table = make_table(*self.files(), local=[run(0.9, 1, factors={"grammar": "drawn", "k": 0.1})])
        tables = table.where(grammar="drawn").by_seed()
        assert list(tables) == [0, 1, 2]
        samples = [tables[seed].sample("one/x") for seed in tables]
        assert [sample.mean for sample in samples if sample] == pytest.approx([0.0, 0.1, 0.2])

    def test_local_is_what_this_machine_measured(self) -> None:
        table = make_table(run(0.1), run(0.2, 1), local=[run(0.9)])
        assert table.local().sample("one/x") == Sample((0.9,))

    @pytest.mark.parametrize(
        ("other", "paired"),
        [
            (make_runs("one", y=Sample((1.0, 2.0))), True),
            (make_runs("one", [1, 2], y=Sample((1.0, 2.0))), False),
            (make_runs("one", y=Sample((1.0, 2.0, 3.0))), False),
            (make_runs("two", y=Sample((1.0, 2.0))), False),
        ],
    )
    def test_pairing_needs_the_same_seeds_of_one_experiment(self, other: list[CellFile], paired: bool) -> None:
        table = make_table(*make_runs("one", x=Sample((3.0, 4.0))), *other)
        left, right = table.select("one/x"), table.select(f"{other[0].experiment}/y")
        assert left is not None
        assert right is not None
        assert left.is_paired_with(right) is paired
        assert right.is_paired_with(left) is paired

    def test_a_part_of_a_selection_has_these_seeds_alone(self) -> None:
        found = make_table(*make_runs("one", [3, 4, 5], x=Sample((0.3, 0.4, 0.5)))).select("one/x")
        assert found is not None
        part = found.on({5, 3, 9})
        assert (part.seeds, part.sample.values) == ((3, 5), (0.3, 0.5))
        assert [stored.cell.seed for stored in part.cells] == [3, 5]

    def test_runs_of_different_machines_are_not_paired(self) -> None:
        left = make_table(run(0.1)).select("one/x")
        for other in (Table(store_cells([run(0.2)], local=True)), make_table(run(0.2, scale="gpu"))):
            right = other.select("one/x")
            assert left is not None
            assert right is not None
            assert not left.is_paired_with(right)

    @pytest.mark.parametrize(
        ("factors", "settings", "paired"),
        [
            ({"arm": "b"}, {"tokens": 10}, True),
            ({"arm": "b"}, {"tokens": 5}, False),
            ({"arm": "b", "budget": "flops"}, {"tokens": 5}, True),
            ({"arm": "b", "budget": "flops"}, {"tokens": 5, "length": 2}, False),
            ({"arm": "b", "k": 0.02}, {"tokens": 10, "spcn": {"k": 0.02}}, False),  # of which the other has none
        ],
    )
    def test_runs_of_other_settings_are_not_paired(
        self, factors: dict[str, Any], settings: dict[str, Any], paired: bool
    ) -> None:
        """But for what follows from a factor in which they differ."""
        one = run(0.1, factors={"arm": "a", "budget": "tokens"}, settings={"tokens": 10})
        other = run(0.2, factors={"budget": "tokens", **factors}, settings=settings)
        table = make_table(one, other)
        left, right = table.select("one/x{arm=a}"), table.select("one/x{arm=b}")
        assert left is not None
        assert right is not None
        assert left.is_paired_with(right) is right.is_paired_with(left) is paired

    def test_a_setting_inside_another_may_follow_from_a_factor(self) -> None:
        runs = [
            run(0.1, factors={"k": k}, settings={"spcn": {"k": k, "eta": eta}}) for k, eta in ((1, 5), (2, 5), (3, 6))
        ]
        a, b, c = (make_table(*runs).select(f"one/x{{k={k}}}") for k in (1, 2, 3))
        assert a is not None
        assert b is not None
        assert c is not None
        assert a.is_paired_with(b)
        assert not a.is_paired_with(c)

    def test_a_path_is_named_once(self) -> None:
        file = make_file(make_row({"x": 0.1}, k=1), make_row({"x": 0.2}, k=2))
        selection = make_table(file).select("one/x{k=2}")
        assert selection is not None
        assert selection.paths == (Path("recorded/one/seed-0_cpu.json"),)


def test_the_order_of_factors_does_not_matter() -> None:
    one, other = Selector.parse("e/m{a=1, b=x}"), Selector.parse("e/m{b=x, a=1}")
    assert one == other
    assert len({one, other}) == 1
