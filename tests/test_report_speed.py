"""The page's section on speed, on records made by hand: it shows their numbers, and without any it is not there."""

from __future__ import annotations

import doctest
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from bench_support import PROVENANCE, made_up_file
from ematrace.bench import RecordFile, Row, Timing
from ematrace.ledger import Store
from ematrace.report import render_report, speed_plots, write_report
from ematrace.report.sources import Sources


def write(folder: Path, *files: RecordFile) -> None:
    (folder / "benchmarks").mkdir(parents=True, exist_ok=True)
    for file in files:
        (folder / "benchmarks" / f"{file.record.benchmark}.json").write_text(file.to_text(), encoding="utf-8")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "recorded").mkdir()
    return Store.open(recorded=tmp_path / "recorded", local=tmp_path / "local")


def page_of(store: Store) -> str:
    return render_report(Sources.read(store))


def section_of(page: str) -> str:
    match = re.search(r'<section id="speed">.*?</section>', page, flags=re.DOTALL)
    assert match
    return match[0]


def text_of(markup: str) -> str:
    """As a reader sees it, with a bar between cells."""
    return " ".join(re.sub(r"<[^>]*>", " ", re.sub(r"</t[dh]>", " | ", markup)).split())


def plots_of(page: str) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="plot-specs">(.*?)</script>', page, flags=re.DOTALL)
    assert match
    found: dict[str, Any] = json.loads(match[1])
    return {name: spec for name, spec in found.items() if name.startswith("speed-")}


def bars_of(plot: dict[str, Any]) -> dict[str, float]:
    """Label of each bar, and where it ends."""
    labels = dict(zip(plot["layout"]["yaxis"]["tickvals"], plot["layout"]["yaxis"]["ticktext"], strict=True))
    return {
        labels[y]: (trace.get("base") or 0.0) + x
        for trace in plot["data"]
        if trace["type"] == "bar"
        for x, y in zip(trace["x"], trace["y"], strict=True)
    }


class TestSection:
    def test_is_not_there_without_records(self, store: Store) -> None:
        page = page_of(store)
        assert 'id="speed"' not in page
        assert 'href="#speed"' not in page
        assert plots_of(page) == {}

    def test_has_every_number_of_a_record(self, store: Store) -> None:
        assert store.recorded is not None
        write(store.recorded, made_up_file())
        page = page_of(store)
        assert 'href="#speed"' in page
        text = text_of(section_of(page))
        # 2 ms (1 to 4) for 100 tokens and 8 MB against a copy of 8 GB/s; 1 GFLOP in 5 ms against 1 TFLOP/s
        assert "ours | 2.00 ms | 1.00–4.00 ms | 50,000 | 50% of copy |" in text
        assert "theirs one launch each | 5.00 ms | 4.00–16.0 ms | – | 20% of matmul |" in text
        assert "ours against theirs | 4.00x | 2.50–4.00 |" in text
        assert "bytes per stream | 9,216 |" in text

    def test_says_where_a_record_comes_from_and_how_to_get_it_again(self, store: Store) -> None:
        assert store.recorded is not None
        write(store.recorded, made_up_file())
        text = text_of(section_of(page_of(store)))
        assert (
            "Recorded: Testia 1, Testium 9, 2 cores; python 3.11.7, torch 2.13.0; commit 012345678; 2026-01-02" in text
        )
        assert "Again: python benchmarks/made_up.py" in text
        for part in ("forward: largest difference 3e-7", "copy: 8.00 GB/s", "matmul: 1.00 TFLOP/s", "float32"):
            assert part in text
        assert "triton" not in text  # not installed there

    def test_a_record_of_this_machine_alone_is_shown_as_such(self, store: Store) -> None:
        write(store.local, made_up_file())
        text = text_of(section_of(page_of(store)))
        assert "This machine: Testia 1" in text
        assert "Recorded" not in text

    def test_the_recorded_run_is_drawn_and_this_machines_is_folded(self, store: Store) -> None:
        assert store.recorded is not None
        here = (Row("ours", Timing((0.003,)), tokens=100), Row("theirs", Timing((0.007,))))
        write(store.recorded, made_up_file())
        write(store.local, made_up_file(rows=here, ratios={}))
        page = page_of(store)
        outside, inside = section_of(page).split('<details class="fold">')
        assert "2.00 ms" in outside
        assert "3.00 ms" not in outside
        assert "3.00 ms" in inside
        assert "also run on this machine" in inside
        assert bars_of(plots_of(page)["speed-made_up-share"])["ours"] == pytest.approx(0.5)

    def test_toy_sizes_are_called_so(self, store: Store) -> None:
        write(store.local, replace(made_up_file(), command="python benchmarks/made_up.py --quick"))
        assert "This machine, toy sizes:" in text_of(section_of(page_of(store)))

    def test_a_folder_that_is_both_counts_once(self, tmp_path: Path) -> None:
        write(tmp_path, made_up_file())
        assert len(Sources.read(Store.open(recorded=tmp_path, local=tmp_path)).speed) == 1

    def test_files_of_other_kinds_are_left_alone(self, store: Store) -> None:
        assert store.recorded is not None
        (store.recorded / "benchmarks").mkdir()
        (store.recorded / "benchmarks" / "other.json").write_text('{"benchmark": "other"}')
        assert 'id="speed"' not in page_of(store)

    def test_a_broken_record_is_refused_and_the_old_page_stays(self, store: Store, tmp_path: Path) -> None:
        assert store.recorded is not None
        write(store.recorded, made_up_file())
        path = store.recorded / "benchmarks" / "made_up.json"
        path.write_text(path.read_text().replace('"tokens": 100.0', '"tokens": "many"'))
        out = tmp_path / "report.html"
        out.write_text("old")
        with pytest.raises(ValueError, match=r"made_up\.json: field 'rows\[0\]\.tokens'"):
            write_report(store, out)
        assert out.read_text() == "old"

    def test_texts_of_files_are_escaped(self, store: Store) -> None:
        bad = "<script>x</script>&"
        timing = Timing((1.0, 2.0))
        rows = (
            Row(bad, timing, bytes=1e9, note=bad),
            *(Row(f"{bad} {axis}={n}", timing, tokens=1) for axis in ("T", "context") for n in (1, 2)),
        )
        file = made_up_file(
            title=bad, rows=rows, ratios={bad: (1.0, 1.0, 1.0)}, figures={bad: 1.0}, checks=(bad,), settings={bad: bad}
        )
        write(store.local, RecordFile(file.record, replace(PROVENANCE, commit=bad), bad))
        page = page_of(store)
        assert bad not in page
        # Plotly reads labels as markup, too.
        assert "<script" not in json.dumps(plots_of(page))

    def test_long_tables_are_folded(self, store: Store) -> None:
        rows = tuple(Row(f"row {i}", Timing((1.0,))) for i in range(30))
        write(store.local, made_up_file(rows=rows))
        assert "All 30 rows" in text_of(section_of(page_of(store)))

    def test_the_same_records_give_the_same_section(self, store: Store) -> None:
        write(store.local, made_up_file(benchmark="b"), made_up_file(benchmark="a"))
        first = section_of(page_of(store))
        assert first == section_of(page_of(store))
        assert first.index('id="speed-a"') < first.index('id="speed-b"')

    def test_records_that_come_with_the_code_are_shown(self) -> None:
        recorded = Path(__file__).parents[1] / "results"
        if not recorded.is_dir():
            pytest.skip("no checkout")
        section = section_of(page_of(Store.open(recorded=recorded, local=recorded / "nowhere")))
        for path in (recorded / "benchmarks").glob("*.json"):
            assert f'id="speed-{path.stem}"' in section


class TestPlots:
    def plots(self, store: Store, **changes: Any) -> dict[str, Any]:
        write(store.local, made_up_file(**changes))
        found = plots_of(page_of(store))
        for spec in found.values():
            go.Figure(spec["data"], spec["layout"])  # refuses what plotly does not know
        return found

    def test_shares_of_the_ceiling(self, store: Store) -> None:
        plot = self.plots(store)["speed-made_up-share"]
        assert bars_of(plot) == {"ours": pytest.approx(8e6 / 0.002 / 8e9), "theirs": pytest.approx(1e9 / 0.005 / 1e12)}
        ours = next(trace for trace in plot["data"] if "copy" in trace.get("name", ""))
        # The slowest repetition, 4 ms, has half the share of the median, the fastest twice.
        assert ours["error_x"]["arrayminus"] == [pytest.approx(0.25)]
        assert ours["error_x"]["array"] == [pytest.approx(0.5)]

    def test_tokens_a_second_where_no_ceiling_was_measured(self, store: Store) -> None:
        plots = self.plots(store, ceilings={})
        assert "speed-made_up-share" not in plots
        assert bars_of(plots["speed-made_up-tokens"]) == {"ours": pytest.approx(50_000)}

    def test_ratios_go_from_1_on_a_logarithmic_axis(self, store: Store) -> None:
        ratios = {"faster": (4.0, 2.5, 5.0), "slower": (0.5, 0.25, 0.8)}
        plot = self.plots(store, ratios=ratios)["speed-made_up-ratios"]
        assert bars_of(plot) == {"faster": 4.0, "slower": 0.5}
        (bars,) = (trace for trace in plot["data"] if trace["type"] == "bar")
        assert bars["base"] == 1.0
        assert bars["error_x"]["arrayminus"] == [1.5, 0.25]
        assert plot["layout"]["xaxis"]["type"] == "log"
        low, high = (10**end for end in plot["layout"]["xaxis"]["range"])
        assert low <= 0.25
        assert high >= 5.0

    def test_no_plot_without_numbers_for_it(self, store: Store) -> None:
        rows = (Row("bare", Timing((1.0,))),)
        assert self.plots(store, rows=rows, ratios={}) == {}

    def test_time_against_length(self, store: Store) -> None:
        seconds = {("ours", 256): 0.001, ("ours", 512): 0.002, ("a loop", 256): 0.01, ("a loop", 512): 0.03}
        rows = tuple(
            Row(f"{name} T={n}", Timing((s / 2, s, 4 * s)), tokens=n) for (name, n), s in reversed(seconds.items())
        )
        plots = self.plots(store, benchmark="length_cpu", rows=rows, ratios={})
        assert list(plots) == ["speed-length_cpu-lengths"]
        plot = plots["speed-length_cpu-lengths"]
        lines = {trace["name"]: trace for trace in plot["data"]}
        for name in ("ours", "a loop"):
            assert lines[name]["x"] == [256, 512]
            assert lines[name]["y"] == [seconds[name, 256], seconds[name, 512]]
            assert lines[name]["error_y"]["array"] == pytest.approx([3 * seconds[name, 256], 3 * seconds[name, 512]])
        assert (plot["layout"]["xaxis"]["type"], plot["layout"]["yaxis"]["type"]) == ("log", "log")
        guide = lines["proportional to length"]
        assert guide["y"][1] / guide["y"][0] == pytest.approx(guide["x"][1] / guide["x"][0])

    def test_tokens_a_second_against_context(self, store: Store) -> None:
        rows = tuple(Row(f"GPT-2 context={n}", Timing((s,)), tokens=4) for n, s in ((1024, 0.2), (128, 0.1)))
        plot = self.plots(store, benchmark="streaming_cpu", rows=rows)["speed-streaming_cpu-contexts"]
        (line,) = plot["data"]
        assert (line["name"], line["x"], line["y"]) == ("GPT-2", [128, 1024], [40.0, 20.0])
        assert plot["layout"]["xaxis"]["type"] == "log"
        assert plot["layout"]["yaxis"]["rangemode"] == "tozero"

    def test_rows_that_are_no_points_keep_their_bars(self, store: Store) -> None:
        points = tuple(Row(f"ours T={n}", Timing((1.0,)), tokens=n) for n in (256, 512))
        plots = self.plots(store, rows=(*points, Row("prefill", Timing((1.0, 1.0)), tokens=7)))
        assert bars_of(plots["speed-made_up-tokens"]) == {"prefill": 7.0}

    def test_what_ran_once_is_not_compared(self, store: Store) -> None:
        rows = (Row("with kernels", Timing((9.0,)), tokens=7), Row("plain", Timing((1.0,)), tokens=7))
        assert self.plots(store, rows=rows, ratios={}) == {}

    def test_no_two_lines_look_alike(self, store: Store) -> None:
        rows = tuple(Row(f"{name} T={n}", Timing((1.0, 1.0)), tokens=n) for name in "abcdefgh" for n in (256, 512))
        (plot,) = self.plots(store, rows=rows, ratios={}).values()
        looks = [(line["line"]["color"], line.get("marker", {}).get("symbol")) for line in plot["data"]]
        assert len(set(looks)) == len(looks)

    def test_a_single_length_is_a_bar(self, store: Store) -> None:
        plots = self.plots(store, rows=(Row("ours T=256", Timing((1.0, 1.0)), tokens=7),), ratios={})
        assert list(plots) == ["speed-made_up-tokens"]


def test_examples_of_the_docstrings() -> None:
    outcome = doctest.testmod(speed_plots)
    assert outcome.attempted > 0
    assert outcome.failed == 0
