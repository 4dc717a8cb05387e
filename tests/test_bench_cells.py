"""Cells of benchmarks: what a ratio and a share are, which cells are compared, and what is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from bench_support import CEILINGS, OURS, PROVENANCE, THEIRS, Clock, made_up_cells, made_up_file, timed
from ematrace.bench import (
    Case,
    Comparison,
    Run,
    Timing,
    ceiling_row,
    measure,
    ratio,
    runs_of,
    share,
    time_cases,
    timing_row,
)
from ematrace.bench.script import parser
from ematrace.results import (
    AmbiguousSelection,
    Metric,
    ResultError,
    Row,
    StoredCell,
    Table,
)
from ematrace.results.schema import decode_file, encode_file


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """In place of the one that `time_cpu` reads."""
    made = Clock()
    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=made, monotonic=made))
    return made


def table_of(cells: Sequence[Row] | None = None, **about: Any) -> Table:
    return Run.of_file(made_up_file(cells, **about)).table


class TestRatio:
    def test_is_taken_within_repetitions(self) -> None:
        """A moment that slows both down ten times leaves each ratio, but not the ratio of the medians, as it was."""
        table = table_of([timed("theirs", 2.0, 20.0, 30.0), timed("ours", 1.0, 10.0, 1.0)])
        assert ratio(table, "made_up", over=THEIRS, under=OURS) == (2.0, 2.0, 30.0)

    def test_cells_are_found_by_factors(self) -> None:
        cells = [
            timed({"contender": who, "pass": way, "tokens": n}, seconds * n)
            for (who, way), seconds in {
                ("ours", "forward"): 1.0,
                ("theirs", "forward"): 3.0,
                ("ours", "backward"): 2.0,
                ("theirs", "backward"): 14.0,
            }.items()
            for n in (1, 2)
        ]
        table = table_of(cells)
        sides: dict[str, Any] = {"over": THEIRS, "under": OURS}
        assert ratio(table, "made_up", **sides, where={"pass": "forward", "tokens": 2}) == (3.0, 3.0, 3.0)
        assert ratio(table, "made_up", **sides, where={"pass": "backward", "tokens": 1}) == (7.0, 7.0, 7.0)
        with pytest.raises(AmbiguousSelection, match="'tokens'"):
            ratio(table, "made_up", **sides, where={"pass": "forward"})

    def test_none_where_a_cell_is_missing(self) -> None:
        assert ratio(table_of([timed("ours", 1.0)]), "made_up", over=THEIRS, under=OURS) is None
        assert ratio(table_of(), "another", over=THEIRS, under=OURS) is None

    @pytest.mark.parametrize("per", ["tokens", "bytes"])
    def test_of_the_time_of_one_token_or_byte(self, per: Any) -> None:
        cells = [timed("theirs", 6.0, 9.0, **{per: 3}), timed("ours", 4.0, 2.0, **{per: 8})]
        # 2 and 3 seconds against 1/2 and 1/4
        assert ratio(table_of(cells), "made_up", over=THEIRS, under=OURS, per=per) == (8.0, 4.0, 12.0)

    def test_of_two_runs_is_refused(self) -> None:
        with pytest.raises(ValueError, match="2 and 1 repetitions"):
            ratio(table_of([timed("theirs", 1.0, 2.0), timed("ours", 1.0)]), "made_up", over=THEIRS, under=OURS)
        (theirs,), (ours,) = (made_up_file([timed(who, 1.0)]).unpack() for who in ("theirs", "ours"))
        stored = [StoredCell(theirs, Path("a.json"), False), StoredCell(ours, Path("b.json"), False)]
        with pytest.raises(ValueError, match="not of one run"):
            ratio(Table(stored), "made_up", over=THEIRS, under=OURS)

    @pytest.mark.parametrize("seconds", [(), (0.0,), (-1.0,)])
    def test_what_is_no_time_is_refused(self, seconds: tuple[float, ...]) -> None:
        broken = Row(OURS, {"seconds": Metric(0.0, "s", repetitions=seconds)})
        with pytest.raises(ValueError, match=r"made_up/seconds\{contender=ours\}: seconds: "):
            ratio(table_of([timed("theirs", 1.0), broken]), "made_up", over=THEIRS, under=OURS)

    def test_a_value_other_than_the_median_is_refused(self) -> None:
        broken = Row(OURS, {"seconds": Metric(1.0, "s", repetitions=(1.0, 2.0, 3.0))})
        with pytest.raises(ValueError, match="not the median"):
            ratio(table_of([timed("theirs", 1.0), broken]), "made_up", over=THEIRS, under=OURS)


class TestComparisons:
    def test_every_pair_whose_other_factors_are_equal(self) -> None:
        cells = [
            timed({"contender": "ours", "tokens": 1}, 1.0),
            timed({"contender": "ours", "tokens": 2}, 2.0),
            timed({"contender": "theirs", "tokens": 1}, 3.0),
            timed({"contender": "theirs", "tokens": 2, "cache": "static"}, 8.0),
            timed({"contender": "theirs", "tokens": 4}, 5.0),
        ]
        one, static = Comparison(THEIRS, OURS), Comparison({**THEIRS, "cache": "static"}, OURS)
        run = Run.of_file(made_up_file(cells, comparisons=[one, static]))
        assert run.ratios == {
            "theirs / ours, tokens=1": (3.0, 3.0, 3.0),
            "theirs cache=static / ours, tokens=2": (4.0, 4.0, 4.0),
        }

    def test_where_and_per(self) -> None:
        cells = [timed({**side, "tokens": n}, 2.0 * n, tokens=n) for side in (OURS, THEIRS) for n in (1, 8)]
        flat = Comparison({"tokens": 8}, {"tokens": 1}, where=OURS, per="tokens")
        run = Run.of_file(made_up_file(cells, comparisons=[flat]))
        assert run.ratios == {"tokens=8 / tokens=1, ours, per token": (1.0, 1.0, 1.0)}

    def test_a_contender_that_did_not_run_is_left_out(self) -> None:
        assert Run.of_file(made_up_file([timed("ours", 1.0)])).ratios == {}


class TestShares:
    def test_are_what_the_work_needs_over_time_and_ceiling(self) -> None:
        run = Run.of_file(made_up_file([timed("a", 0.5, bytes=3e9, operations=1e11), *CEILINGS]))
        assert run.shares(run.timed[0]) == {"copy": 3e9 / 0.5 / 8e9, "matmul": 1e11 / 0.5 / 1e12}
        assert run.share_of_ceiling(run.timed[0]) == ("copy", 0.75)

    def test_use_the_median(self) -> None:
        assert share(table_of(), "made_up", "copy", OURS) == 8e6 / 0.002 / 8e9

    def test_bytes_are_held_against_reads_where_those_were_measured(self) -> None:
        cells = [timed("a", 0.002, bytes=8e6), ceiling_row("copy", 1e9), ceiling_row("read", 16e9)]
        run = Run.of_file(made_up_file(cells))
        assert run.share_of_ceiling(run.timed[0]) == ("read", 0.25)

    def test_none_without_a_ceiling_or_an_amount(self) -> None:
        ours, theirs, *_ = made_up_cells()
        bare = Run.of_file(made_up_file([ours, theirs]))
        assert [bare.share_of_ceiling(row) for row in bare.timed] == [None, None]
        assert share(table_of([timed("a", 1.0), *CEILINGS]), "made_up", "copy", {"contender": "a"}) is None
        assert share(table_of(), "made_up", "matmul", OURS) is None


class TestCells:
    def test_a_timing(self) -> None:
        row = timing_row({"contender": "a", "tokens": 4}, Timing((3.0, 1.0)), bytes=5, state_bytes=Metric(7.0, "bytes"))
        assert row.factors == {"contender": "a", "tokens": 4}
        assert row.metrics == {
            "seconds": Metric(2.0, "s", better="low", repetitions=(3.0, 1.0)),
            "bytes": Metric(5.0, "bytes"),
            "state_bytes": Metric(7.0, "bytes"),
        }

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
    @pytest.mark.parametrize("amount", ["bytes", "operations", "tokens"])
    def test_what_is_no_amount_is_refused(self, bad: float, amount: str) -> None:
        with pytest.raises(ValueError, match=f"{amount}: "):
            timing_row(OURS, Timing((1.0,)), **{amount: bad})  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="ceiling copy"):
            ceiling_row("copy", bad)

    def test_cases_are_timed_in_turn_with_what_prepares_them(self, clock: Clock) -> None:
        order: list[str] = []

        def prepare() -> None:
            order.append("prepare b")
            clock.now += 100.0

        def call(name: str, seconds: float) -> Callable[[], None]:
            def work() -> None:
                order.append(name)
                clock.now += seconds

            return work

        cases = [
            Case({"contender": "a"}, call("a", 8.0), tokens=3, scale=1 / 4),
            Case({"contender": "b"}, call("b", 0.5), prepare=prepare, others={"x": Metric(1.0)}),
        ]
        rows = time_cases(cases, repetitions=2)
        assert order == ["a", "prepare b", "b"] * 3
        assert rows == [timed("a", 2.0, 2.0, tokens=3), timed("b", 0.5, 0.5, x=Metric(1.0))]

    def test_two_cases_with_the_same_factors_are_refused(self) -> None:
        with pytest.raises(ValueError, match="same factors"):
            time_cases([Case(OURS, lambda: None), Case(OURS, lambda: None)], repetitions=1)


BROKEN: dict[str, tuple[str, Callable[[dict[str, Any]], object]]] = {
    "no title": ("settings: .*`title`", lambda f: f["settings"].pop("title")),
    "checks": (r"settings: .*\$\.checks", lambda f: f["settings"].update(checks="all right")),
    "comparison": (r"settings: .*comparisons", lambda f: f["settings"].update(comparisons=[{"over": {}, "under": 3}])),
    "stored ratio": (r"settings: .*comparisons", lambda f: f["settings"]["comparisons"][0].update(ratio=4.0)),
    "no repetition": ("seconds: no repetition", lambda f: f["cells"][0]["metrics"]["seconds"].pop("repetitions")),
    "negative time": ("seconds: ", lambda f: f["cells"][0]["metrics"]["seconds"].update(repetitions=[-1.0])),
    "another median": ("not the median", lambda f: f["cells"][0]["metrics"]["seconds"].update(value=1.0)),
    "no value": ("not the median", lambda f: f["cells"][0]["metrics"]["seconds"].update(value=None)),
    "negative bytes": ("bytes: not an amount", lambda f: f["cells"][0]["metrics"]["bytes"].update(value=-1.0)),
    "no tokens": ("tokens: not an amount", lambda f: f["cells"][0]["metrics"]["tokens"].update(value=None)),
    "ceiling of 0": ("ceiling copy", lambda f: f["cells"][2]["metrics"]["bytes_per_second"].update(value=0.0)),
    "fewer repetitions": (
        "3 and 1 repetitions",
        lambda f: f["cells"][0]["metrics"]["seconds"].update(value=1.0, repetitions=[1.0]),
    ),
}


class TestRun:
    @pytest.mark.parametrize("name", BROKEN)
    def test_a_broken_file_is_refused_in_one_line_that_names_it(self, name: str) -> None:
        pattern, spoil = BROKEN[name]
        content = json.loads(encode_file(made_up_file()))
        spoil(content)
        with pytest.raises(ResultError, match=f"broken.json: .*{pattern}") as caught:
            Run.of_file(decode_file(json.dumps(content).encode()), "broken.json").check()
        assert "\n" not in str(caught.value)

    def test_runs_of_a_table(self) -> None:
        """By name, recorded ones first, the newest first; experiments are left alone."""
        old = msgspec.structs.replace(PROVENANCE, date="2025-12-31T23:00:00-09:00")
        stored = [
            StoredCell(cell, Path(path), local)
            for path, local, file in [
                ("b.json", True, made_up_file(benchmark="b")),
                ("x.json", False, made_up_file(benchmark="a", provenance=old)),
                ("c.json", False, made_up_file(benchmark="a")),
                ("d.json", True, made_up_file(benchmark="a")),
            ]
            for cell in file.unpack()
        ]
        experiment = msgspec.structs.replace(made_up_file(), experiment="controls", settings={"sentences": 5})
        stored += [StoredCell(cell, Path("e.json"), False) for cell in experiment.unpack()]
        assert [run.path.name for run in runs_of(Table(stored))] == ["c.json", "x.json", "d.json", "b.json"]

    def test_figures_are_what_else_a_cell_has(self) -> None:
        cells = [*made_up_cells(), Row({"part": "spa"}, {"share_of_time": Metric(0.15), "missing": Metric(None)})]
        assert Run.of_file(made_up_file(cells)).figures == {
            "state bytes: ours": 9216.0,
            "share of time: part=spa": 0.15,
            "missing: part=spa": None,
        }


def test_a_commit_that_no_result_may_carry_ends_a_benchmark_before_it_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EMATRACE_COMMIT", "HEAD")
    with pytest.raises(SystemExit) as ended:
        parser("Sums of a list.", quick="a list of ten")
    assert ended.value.code == 2
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .endswith("error: EMATRACE_COMMIT is 'HEAD'; it must be a commit, 7 to 40 of the digits 0-9 and a-f")
    )
