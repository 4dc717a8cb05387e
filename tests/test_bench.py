"""The benchmark harness: who is timed when, the ceilings, and how a script ends."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from bench_support import CEILINGS, OURS, THEIRS, Clock, made_up_cells, made_up_file, timed
from ematrace.bench import (
    Comparison,
    Run,
    Timing,
    cells,
    copy_bandwidth,
    finish,
    matmul_rate,
    measure,
    read_bandwidth,
    runs_of,
    script,
    tables,
    time_cpu,
    time_gpu,
)
from ematrace.results import (
    CellFile,
    ResultError,
    Store,
    Table,
    read_file,
)
from ematrace.results.schema import decode_file


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """In place of the one that `time_cpu` reads."""
    made = Clock()
    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=made, monotonic=made))
    return made


class TestTiming:
    @pytest.mark.parametrize(
        ("seconds", "median"), [((3.0, 1.0, 10.0), 3.0), ((4.0, 1.0, 2.0, 8.0), 3.0), ((7.0,), 7.0)]
    )
    def test_median_fastest_slowest(self, seconds: tuple[float, ...], median: float) -> None:
        timing = Timing(seconds)
        assert (timing.median, timing.fastest, timing.slowest) == (median, min(seconds), max(seconds))

    @pytest.mark.parametrize("seconds", [(), (0.0,), (1.0, -1.0), (math.nan,), (1.0, math.inf)])
    def test_what_is_no_time_is_refused(self, seconds: tuple[float, ...]) -> None:
        with pytest.raises(ValueError, match="seconds: "):
            Timing(seconds)


class TestTimeCpu:
    def test_contenders_take_turns_in_every_repetition(self) -> None:
        order: list[str] = []
        work = {name: lambda name=name: order.append(name) for name in ("a", "b", "c")}  # type: ignore[misc]
        timings = time_cpu(work, repetitions=3, warmup=2)
        assert order == ["a", "b", "c"] * 5
        assert {name: len(t.seconds) for name, t in timings.items()} == {"a": 3, "b": 3, "c": 3}

    def test_each_has_its_own_time_and_warming_up_is_not_counted(self, clock: Clock) -> None:
        work = {"slow at first": clock.work(100.0, 1.0, 2.0), "steady": clock.work(5.0)}
        assert time_cpu(work, repetitions=2) == {
            "slow at first": Timing((1.0, 2.0)),
            "steady": Timing((5.0, 5.0)),
        }

    @pytest.mark.parametrize(("names", "repetitions"), [("", 3), ("a", 0)])
    def test_nothing_to_time_is_refused(self, names: str, repetitions: int) -> None:
        with pytest.raises(ValueError, match="nothing to time"):
            time_cpu({name: lambda: None for name in names}, repetitions)


class TestTimeGpu:
    @pytest.fixture
    def gpu(self, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Clock:
        """Events that read the clock, in milliseconds as CUDA's do, in place of a GPU."""

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = clock.now

            def synchronize(self) -> None:
                pass

            def elapsed_time(self, end: Any) -> float:
                return float(1000 * (end.at - self.at))

        def sleep(cycles: int) -> None:  # before the first event, so that it must not count
            clock.now += 1e6

        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "_sleep", sleep)
        return clock

    def test_seconds_are_those_of_one_call(self, gpu: Clock) -> None:
        timings = time_gpu({"a": gpu.work(0.25), "b": gpu.work(2.0)}, repetitions=2, warmup=1, inner=4)
        assert timings == {"a": Timing((0.25, 0.25)), "b": Timing((2.0, 2.0))}

    def test_contenders_take_turns(self, gpu: Clock) -> None:
        order: list[str] = []

        def turn(name: str) -> Callable[[], None]:
            def call() -> None:
                order.append(name)
                gpu.now += 1.0

            return call

        time_gpu({"a": turn("a"), "b": turn("b")}, repetitions=2, warmup=1, inner=2)
        assert order == ["a", "a", "b", "b"] * 3

    def test_without_a_gpu_it_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(ValueError, match="needs a CUDA GPU"):
            time_gpu({"a": lambda: None}, 1)


class TestCeilings:
    """Of the fastest call, which takes two seconds: a ceiling is half of what one call moves or computes."""

    @pytest.fixture(autouse=True)
    def two_seconds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def timed(work: Any, repetitions: int, warmup: int = 1) -> dict[str, Timing]:
            for call in work.values():
                call()
            return {name: Timing((3.0, 2.0, 9.0)) for name in work}

        monkeypatch.setattr(measure, "time_cpu", timed)

    def test_a_copy_reads_and_writes(self) -> None:
        assert copy_bandwidth(torch.device("cpu")) == 2 * 256 * 2**20 / 2

    def test_a_read_only_reads(self) -> None:
        assert read_bandwidth(torch.device("cpu")) == 256 * 2**20 / 2

    def test_a_product_multiplies_and_adds(self) -> None:
        assert matmul_rate(torch.device("cpu"), torch.float32) == 2 * 1024**3 / 2


class TestProgress:
    def test_no_bar_where_stderr_is_no_terminal(self, capsys: pytest.CaptureFixture[str]) -> None:
        time_cpu({"a": lambda: None}, repetitions=5)
        assert capsys.readouterr() == ("", "")

    def test_a_bar_on_a_terminal_once_it_takes_long(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, clock: Clock
    ) -> None:
        monkeypatch.setenv("FORCE_COLOR", "1")  # rich's word for "this is a terminal"
        time_cpu({"quick one": clock.work(0.1)}, repetitions=5)
        assert "quick one" not in capsys.readouterr().err
        time_cpu({"slow one": clock.work(2.0)}, repetitions=5)
        out, err = capsys.readouterr()
        assert "slow one" in err
        assert "5/6" in err
        assert out == ""


class TestOtherLoad:
    """Others use one processor of a second that is timed, and none of a third."""

    def test_is_the_average_over_all_timings(self, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
        monkeypatch.setattr(measure, "_loads", [])
        loads = iter([1.0, 0.0, None])
        monkeypatch.setattr(measure.Meter, "others", lambda self: next(loads))
        assert measure.other_load() is None
        time_cpu({"a": clock.work(0.5)}, repetitions=1)  # 1 s with warming up
        assert measure.other_load() == 1.0
        time_cpu({"a": clock.work(1.5)}, repetitions=1)
        assert measure.other_load() == 0.25
        time_cpu({"a": clock.work(9.0)}, repetitions=1)  # the system does not say
        assert measure.other_load() == 0.25


class TestFinish:
    @pytest.fixture(autouse=True)
    def as_a_script(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            sys, "argv", ["benchmarks/made_up.py", "--record", "somewhere", "--force", "--n", "two words"]
        )
        monkeypatch.setattr(script, "other_load", lambda: None)

    def end(self, to: Path | None, **changes: Any) -> CellFile:
        options: dict[str, Any] = {
            "scale": "cpu",
            "checks": ["forward: largest difference 3e-7"],
            "comparisons": [Comparison(THEIRS, OURS)],
            "settings": {"shape": [2, 3]},
        }
        return finish("made_up", "Ours against theirs", made_up_cells(), to=to, **{**options, **changes})

    def test_the_last_line_is_the_result_and_the_file_says_the_same(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        made = self.end(tmp_path / "new" / "folder")
        line = capsys.readouterr().out.splitlines()[-1]
        assert decode_file(line.encode()) == made
        assert (made.experiment, made.scale, made.seed, made.factors) == ("made_up", "cpu", 0, {})
        assert made.cells == list(made_up_cells())
        assert made.settings["shape"] == [2, 3]
        assert made.provenance.command == "python benchmarks/made_up.py --n 'two words'"
        assert made.provenance.versions["torch"] == torch.__version__
        assert "transformers" in made.provenance.versions
        assert made.provenance.hardware["cores"]
        path = tmp_path / "new" / "folder" / "made_up" / "seed-0_cpu.json"
        assert [p for p in tmp_path.rglob("*") if p.is_file()] == [path]
        assert read_file(path) == made

    def test_times_taken_beside_other_programs_are_not_recorded(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(script, "other_load", lambda: 0.7)
        with pytest.raises(SystemExit, match=r"made_up: not recorded: other programs kept 0.7 of .*--force"):
            self.end(tmp_path)
        assert list(tmp_path.iterdir()) == []
        assert decode_file(capsys.readouterr().out.splitlines()[-1].encode()).settings["other_load"] == 0.7
        assert "other_load" not in self.end(tmp_path / "made", makes_load=True).settings
        assert self.end(tmp_path / "forced", force=True).settings["other_load"] == 0.7
        assert {path.name for path in tmp_path.iterdir()} == {"made", "forced"}
        monkeypatch.setattr(script, "other_load", lambda: 0.2)
        self.end(tmp_path / "quiet")
        assert (tmp_path / "quiet" / "made_up" / "seed-0_cpu.json").exists()

    def test_the_store_finds_it_but_not_toy_sizes(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.end(tmp_path, quick=True)
        store = Store.open(recorded=tmp_path, local=tmp_path / "local")
        assert store.load() == []
        assert read_file(tmp_path / "quick" / "made_up" / "seed-0_cpu.json").settings["quick"] is True
        self.end(tmp_path)
        (run,) = runs_of(Table(store.load()))
        assert run.ratios == {"theirs / ours": (4.0, 2.5, 4.0)}

    def test_without_a_folder_nothing_is_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        made = self.end(None)
        assert decode_file(capsys.readouterr().out.splitlines()[-1].encode()) == made
        assert list(tmp_path.iterdir()) == []

    def test_a_stop_while_writing_leaves_the_old_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "made_up" / "seed-0_cpu.json"
        path.parent.mkdir()
        path.write_text("old")

        def stop(*_: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "fsync", stop)
        with pytest.raises(KeyboardInterrupt):
            self.end(tmp_path)
        assert [(p, p.read_text()) for p in tmp_path.rglob("*") if p.is_file()] == [(path, "old")]

    def test_a_folder_that_cannot_be_made_does_not_lose_the_result(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "taken").write_text("a file")
        with pytest.raises(OSError, match="taken"):
            self.end(tmp_path / "taken")
        assert decode_file(capsys.readouterr().out.splitlines()[-1].encode()).cells == list(made_up_cells())

    def test_settings_that_are_no_json_are_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(ResultError, match="made_up: "):
            self.end(None, settings={"dtype": torch.bfloat16})
        assert capsys.readouterr().out == ""


def shown(width: int, *args: Any, **about: Any) -> str:
    with (console := Console(width=width, highlight=False)).capture() as capture:
        console.print(tables.run_tables(Run.of_file(made_up_file(*args, **about))))
    return capture.get()


class TestTables:
    def test_no_share_of_a_ceiling_is_above_all_of_it(self) -> None:
        run = Run.of_file(made_up_file([timed("ours", 1.0, operations=3e12, bytes=4e9), *CEILINGS]))
        assert run.shares(run.timed[0]) == {"copy": 0.5}
        assert run.too_low == ("matmul",)
        lines = shown(140, [timed("ours", 1.0, operations=3e12, bytes=4e9), *CEILINGS])
        assert "measured matmul: exceeded, so that shares of it are left out" in lines
        assert "300%" not in lines

    def test_a_row_has_its_rates_and_shares(self) -> None:
        ours, theirs = (line.split() for line in shown(120).splitlines() if "–" in line and " ms" in line)
        # 8 MB in 2 ms are 4 GB/s, half of 8; 100 tokens in 2 ms are 50,000 a second; 1 GFLOP in 5 ms are 200 GFLOP/s
        assert ours == ["ours", "2.00", "ms", "1.00–4.00", "ms", "50,000", "4.00", "50%", "–", "–"]
        assert theirs == ["theirs", "5.00", "ms", "4.00–16.0", "ms", "–", "–", "–", "200", "20%"]

    def test_ratios_figures_ceilings_checks_and_notes_follow(self) -> None:
        text = shown(120, notes=["with compilation"])
        for part in (
            "theirs / ours",
            "4.00x (2.50–4.00)",
            "9,216",
            "measured copy: 8.00 GB/s",
            "forward: largest difference 3e-7",
            "with compilation",
        ):
            assert part in text

    def test_columns_that_nobody_fills_are_left_out(self) -> None:
        text = shown(120, [timed("a", 1.0)])
        assert "median" in text
        assert "tokens/s" not in text
        assert "FLOP/s" not in text

    @pytest.mark.parametrize("width", [60, 80])
    def test_numbers_and_words_are_whole_on_narrow_terminals(self, width: int) -> None:
        rows = [timed(f"{'a longer name ' * 4}{i}", 0.002, 0.001, 0.004, tokens=100) for i in range(2)]
        text = shown(width, rows)
        assert text.count("1.00–4.00 ms") == 2
        assert "…" not in text
        assert text.count("longer") == 8  # no word was cut in two
        assert max(map(len, text.splitlines())) <= width

    @pytest.mark.parametrize("width", range(60, 121, 5))
    def test_every_number_is_shown_at_any_width(self, width: int) -> None:
        rows = [timed("a name of words", 0.002, 0.0001, tokens=100, operations=1e9, bytes=8e6), *CEILINGS]
        assert shown(width, rows).count("95%") == 2  # of copy and, in the last column, of matmul
        assert max(map(len, shown(width, rows).splitlines())) <= width

    def test_a_table_that_does_not_fit_becomes_a_list(self) -> None:
        rows = [timed("ours with a longer name", 0.002, tokens=100, operations=1e9, bytes=8e6), *CEILINGS]
        assert "median 2.00 ms, spread 2.00–2.00 ms, 50,000 tokens/s, 4.00 GB/s, 50%" in shown(80, rows)
        assert "median" in shown(120, rows).splitlines()[2]

    def test_the_legend_explains_the_factors_that_are_shown(self) -> None:
        text = shown(120, [timed({"contender": "ours", "streams": 8}, 1.0)])
        assert f"streams: {cells.FACTORS['streams']}" in text
        assert "dtype:" not in text

    def test_names_are_no_markup(self) -> None:
        assert "[red]x[/red]" in shown(120, [timed("[red]x[/red]", 1.0)])

    def test_the_summary_has_a_line_per_row_and_ratio(self) -> None:
        with (console := Console(width=80, highlight=False)).capture() as capture:
            console.print(tables.summary([Run.of_file(made_up_file())]))
        heading, *lines = capture.get().splitlines()
        assert heading.startswith("made_up  ")
        assert [line.split() for line in lines if "ours" in line or "theirs" in line] == [
            ["ours", "2.00", "ms", "50,000", "50%", "copy"],
            ["theirs", "5.00", "ms", "–", "20%", "matmul"],
            ["theirs", "/", "ours", "4.00x", "(2.50–4.00)"],
        ]


def test_imports_little() -> None:
    """It has to run where only the contenders are installed, and reading results should not wait for torch."""
    banned = ("tyro", "datasets", "numba", "hypothesis", "transformers", "ray", "statsmodels")
    code = f"import sys; sys.modules.update(dict.fromkeys({banned!r})); import ematrace.bench.tables"
    subprocess.run([sys.executable, "-c", f"{code}; sys.exit('torch' in sys.modules)"], check=True)
