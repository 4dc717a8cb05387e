"""The page's section on speed, from cells made by hand: it shows their numbers, and without any it is empty."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from markupsafe import escape

from bench_support import CEILINGS, OURS, PROVENANCE, THEIRS, made_up_file, timed
from cells_support import recorded_cells
from ematrace.bench import Comparison
from ematrace.report.charts import MOST_TICKS, LineChart, RowChart
from ematrace.report.speed import speed_parts
from ematrace.results import CellFile, Metric, ResultError, Store, StoredCell, Table, write_file
from ematrace.results.schema import decode_file, encode_file
from report_support import bars_of, charts_in, value_at

RATIOS = "Time over time, within repetitions"
LENGTHS, CONTEXTS = "Time against length", "Tokens per second against context"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "recorded", tmp_path / "local")


def recorded(store: Store, *files: CellFile) -> None:
    assert store.recorded is not None
    for file in files:
        write_file(file, store.recorded)


def local(store: Store, *files: CellFile) -> None:
    for file in files:
        write_file(file, store.local)


def section_of(store: Store) -> str:
    return "".join(escape(part) for part in speed_parts(Table(store.load())))


def charts_of(store: Store) -> dict[str, Any]:
    return charts_in(speed_parts(Table(store.load())))


def range_of(chart: RowChart, row: int) -> list[float]:
    """The numbers between which the whisker of a row goes."""
    [lane] = chart.rows[row].lanes
    return [value_at(chart.axis, x) for x in lane.ends or ()]


def text_of(markup: str) -> str:
    """As a reader sees it, with a bar between cells."""
    return " ".join(re.sub(r"<[^>]*>", " ", re.sub(r"</t[dh]>", " | ", markup)).split())


def places_in(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to everything inside some JSON."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*at, key)
        yield from places_in(inner, (*at, key))


class TestSection:
    def test_is_empty_without_benchmarks(self, store: Store) -> None:
        assert section_of(store) == ""
        experiment = msgspec.structs.replace(made_up_file(), experiment="controls", settings={"sentences": 5})
        recorded(store, experiment)
        assert section_of(store) == ""

    def test_has_every_number_of_a_run(self, store: Store) -> None:
        recorded(store, made_up_file(notes=["with compilation"]))
        section = section_of(store)
        assert 'id="speed-made_up"' in section
        text = text_of(section)
        # 2 ms (1 to 4) for 100 tokens and 8 MB against a copy of 8 GB/s; 1 GFLOP in 5 ms against 1 TFLOP/s
        assert "ours | 2.00 ms | 1.00–4.00 ms | 50,000 | 50% of copy |" in text
        assert "theirs | 5.00 ms | 4.00–16.0 ms | – | 20% of matmul |" in text
        assert "theirs / ours 4.00x (2.50–4.00)" in text
        assert "state bytes: ours | 9,216 |" in text
        assert "with compilation" in text

    def test_says_where_a_run_comes_from_and_how_to_repeat_it(self, store: Store) -> None:
        recorded(store, made_up_file())
        text = text_of(section_of(store))
        assert (
            "Recorded: Testia 1, Testium 9, 2 cores; python 3.11.7, torch 2.13.0; commit 012345678; 2026-01-02" in text
        )
        assert "Again: python benchmarks/made_up.py" in text
        for part in ("forward: largest difference 3e-7", "copy: 8.00 GB/s", "matmul: 1.00 TFLOP/s", "float32"):
            assert part in text
        assert "triton" not in text  # not installed there

    def test_a_run_of_this_machine_alone_is_shown_as_such(self, store: Store) -> None:
        local(store, made_up_file())
        text = text_of(section_of(store))
        assert "This machine: Testia 1" in text
        assert "Recorded" not in text

    def test_the_recorded_run_is_drawn_and_this_machines_is_folded(self, store: Store) -> None:
        recorded(store, made_up_file())
        local(store, made_up_file([timed("ours", 0.003, tokens=100), timed("theirs", 0.007)]))
        outside, inside = section_of(store).split('<details class="fold">', 1)
        assert "2.00 ms" in outside
        assert "3.00 ms" not in outside
        assert "3.00 ms" in inside
        assert "also run on this machine" in inside
        assert bars_of(charts_of(store)[RATIOS], base=1.0) == pytest.approx({"theirs / ours": 4.0}, rel=1e-3)

    def test_toy_sizes_are_called_so(self, store: Store) -> None:
        local(store, made_up_file(quick=True))
        assert "This machine, toy sizes:" in text_of(section_of(store))

    @pytest.mark.parametrize(
        ("field", "value", "problem"),
        [
            ("repetitions", [-1.0], "no positive, finite time"),
            ("repetitions", [], "no repetition"),
            ("value", 7.0, "not the median"),
        ],
    )
    def test_a_broken_time_is_refused_with_its_file(self, store: Store, field: str, value: Any, problem: str) -> None:
        local(store, made_up_file())
        (path,) = store.local.rglob("*.json")
        content = json.loads(path.read_text(encoding="utf-8"))
        content["cells"][0]["metrics"]["seconds"][field] = value
        path.write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(ResultError, match=f"{path}: .*{problem}"):
            section_of(store)

    @pytest.mark.parametrize("value", [None, True, -1, 0, 1e29, "<script>", [], {}, {"contender": "ours"}], ids=str)
    def test_any_value_in_its_place_is_refused_in_one_line_or_shown(self, value: Any) -> None:
        whole = json.loads(encode_file(made_up_file()))
        refusals = []
        for part in ("settings", "cells"):
            for at in places_in(whole[part]):
                content = json.loads(json.dumps(whole))
                *way, last = (part, *at)
                inner = content
                for key in way:
                    inner = inner[key]
                inner[last] = value
                try:
                    cells = decode_file(json.dumps(content).encode(), "changed.json").unpack()
                    parts = speed_parts(Table(StoredCell(cell, Path("changed.json"), local=False) for cell in cells))
                    assert "<script>" not in "".join(map(escape, parts))
                except ResultError as error:
                    refusals.append(str(error))
        assert len(refusals) > 10
        assert all(line.startswith("changed.json: ") and "\n" not in line for line in refusals)

    def test_texts_of_files_are_escaped(self, store: Store) -> None:
        bad = "<script>x</script>&"
        cells = [
            timed(bad, 1.0, 2.0, bytes=1e9),
            *(
                timed({"contender": f"{bad}2", axis: n}, 1.0, 2.0, tokens=1)
                for axis in ("tokens", "context")
                for n in (1, 2)
            ),
            timed("ours", 1.0, 2.0, other=Metric(1.0)),
            *CEILINGS,
        ]
        provenance = msgspec.structs.replace(PROVENANCE, commit=bad, command=bad, hardware={"cpu": bad})
        about = {"title": bad, "checks": [bad], "notes": [bad], bad: bad}
        comparisons = [Comparison({"contender": bad}, OURS)]
        local(store, made_up_file(cells, provenance=provenance, comparisons=comparisons, **about))
        assert bad not in section_of(store)
        assert len(charts_of(store)) == 3

    def test_long_tables_are_folded(self, store: Store) -> None:
        local(store, made_up_file([timed(f"row {i}", 1.0) for i in range(30)]))
        assert "All 30 times" in text_of(section_of(store))

    def test_benchmarks_stand_in_the_order_of_their_names(self, store: Store) -> None:
        local(store, made_up_file(benchmark="b"))
        recorded(store, made_up_file(benchmark="c"), made_up_file(benchmark="a"))
        section = section_of(store)
        places = [section.index(f'id="speed-{name}"') for name in "abc"]
        assert places == sorted(places)

    def test_recorded_runs_are_shown(self) -> None:
        section = "".join(escape(part) for part in speed_parts(Table(recorded_cells())))
        for name in ("traces_gpu", "training_cpu", "spcn"):
            assert f'id="speed-{name}"' in section


class TestCharts:
    def charts(self, store: Store, *args: Any, **about: Any) -> dict[str, Any]:
        local(store, made_up_file(*args, **about))
        return charts_of(store)

    def test_ratios_go_from_1_on_a_logarithmic_axis(self, store: Store) -> None:
        cells = [timed("ours", 2.0, 2.0, 2.0), timed("theirs", 8.0, 5.0, 10.0), timed("third", 1.0, 0.5, 1.6)]
        comparisons = [Comparison(THEIRS, OURS), Comparison({"contender": "third"}, OURS)]
        chart = self.charts(store, cells, comparisons=comparisons)[RATIOS]
        assert bars_of(chart, base=1.0) == pytest.approx({"theirs / ours": 4.0, "third / ours": 0.5}, rel=1e-3)
        assert range_of(chart, 0) == pytest.approx([2.5, 5.0], rel=1e-3)
        assert range_of(chart, 1) == pytest.approx([0.25, 0.8], rel=1e-3)
        assert chart.axis.log

    def test_ratios_of_any_size_have_an_axis(self, store: Store) -> None:
        chart = self.charts(store, [timed("ours", 1e-29), timed("theirs", 1e29)])[RATIOS]
        assert 1 <= len(chart.axis.ticks) <= MOST_TICKS

    def test_no_chart_without_numbers_for_it(self, store: Store) -> None:
        assert self.charts(store, [timed("bare", 1.0, 1.0)]) == {}

    def test_time_against_length(self, store: Store) -> None:
        seconds = {("ours", 256): 0.001, ("ours", 512): 0.002, ("loop", 256): 0.01, ("loop", 512): 0.03}
        rows = [
            timed({"contender": who, "pass": "forward", "tokens": n}, s / 2, s, 4 * s, tokens=n)
            for (who, n), s in reversed(seconds.items())
        ]
        charts = self.charts(store, rows, comparisons=[])
        assert list(charts) == [LENGTHS]
        chart: LineChart = charts[LENGTHS]
        lines = {line.name: line.points for line in chart.lines}
        for name in ("ours", "loop"):
            for point, n in zip(lines[f"{name} forward"], (256, 512), strict=True):
                median = seconds[name, n]
                assert (point.x, point.y, point.ends) == (n, median, pytest.approx((median / 2, 4 * median)))
        assert chart.x_axis.log
        assert chart.y_axis.log
        first, last = lines["proportional to length"]
        assert last.y / first.y == pytest.approx(last.x / first.x)

    def test_tokens_a_second_against_context(self, store: Store) -> None:
        rows = [timed({"contender": "gpt2", "context": n}, s, tokens=4) for n, s in ((1024, 0.2), (128, 0.1))]
        chart: LineChart = self.charts(store, rows)[CONTEXTS]
        [line] = chart.lines
        assert (line.name, [(p.x, p.y) for p in line.points]) == ("gpt2", [(128, 40.0), (1024, 20.0)])
        assert chart.x_axis.log
        assert chart.y_axis.low == 0.0

    def test_what_ran_once_is_not_compared(self, store: Store) -> None:
        assert self.charts(store, [timed("triton", 9.0, tokens=7), timed("torch", 1.0, tokens=7)]) == {}

    def test_no_two_lines_look_alike(self, store: Store) -> None:
        rows = [timed({"contender": who, "tokens": n}, 1.0, 1.0, tokens=n) for who in "abcdefgh" for n in (256, 512)]
        (chart,) = self.charts(store, rows).values()
        looks = [(key.style, key.hollow) for key in chart.keys]
        assert len(set(looks)) == len(looks) == 9
