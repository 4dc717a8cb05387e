"""The benchmark harness: who is timed when, what a ratio and a share are, and records that are whole or refused."""

from __future__ import annotations

import doctest
import json
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

from bench_support import PROVENANCE, made_up_file, made_up_record
from ematrace.bench import (
    RecordFile,
    Row,
    Timing,
    copy_bandwidth,
    finish,
    matmul_rate,
    measure,
    parse_record,
    ratio,
    read_bandwidth,
    read_record,
    read_records,
    record,
    tables,
    time_cpu,
    time_gpu,
)


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def work(self, *seconds: float) -> Callable[[], None]:
        """Takes the first of `seconds` at the first call, the second at the next, and the last from then on."""
        left = list(seconds)

        def call() -> None:
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return call


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
    """With every call taking two seconds, a ceiling is half of what one call moves or computes."""

    @pytest.fixture(autouse=True)
    def two_seconds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def timed(work: Any, repetitions: int, warmup: int = 1) -> dict[str, Timing]:
            for call in work.values():
                call()
            return {name: Timing((1.0, 2.0, 9.0)) for name in work}

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


class TestRatio:
    def test_is_taken_within_repetitions(self) -> None:
        """A moment that slows both down ten times leaves each ratio, but not the ratio of the medians, as it was."""
        theirs, ours = Timing((2.0, 20.0, 30.0)), Timing((1.0, 10.0, 1.0))
        assert ratio(theirs, ours) == (2.0, 2.0, 30.0)
        assert theirs.median / ours.median == 20.0

    def test_of_two_runs_is_refused(self) -> None:
        with pytest.raises(ValueError, match="2 and 1 repetitions"):
            ratio(Timing((1.0, 2.0)), Timing((1.0,)))


class TestShares:
    def test_are_what_the_work_needs_over_time_and_ceiling(self) -> None:
        made = made_up_record(rows=(Row("a", Timing((0.5,)), bytes=3e9, operations=1e11),))
        (row,) = made.rows
        assert made.shares(row) == {"copy": 3e9 / 0.5 / 8e9, "matmul": 1e11 / 0.5 / 1e12}
        assert made.share_of_ceiling(row) == ("copy", 0.75)

    def test_use_the_median(self) -> None:
        ours, _ = made_up_record().rows
        assert made_up_record().shares(ours) == {"copy": 8e6 / 0.002 / 8e9}

    def test_bytes_are_held_against_reads_where_those_were_measured(self) -> None:
        ceilings = {"copy_bytes_per_second": 1e9, "read_bytes_per_second": 16e9}
        made = made_up_record(ceilings=ceilings)
        assert made.share_of_ceiling(made.rows[0]) == ("read", 0.25)

    def test_none_without_a_ceiling_or_an_amount(self) -> None:
        made = made_up_record(ceilings={})
        assert [made.share_of_ceiling(row) for row in made.rows] == [None, None]
        bare = made_up_record(rows=(Row("a", Timing((1.0,))),))
        assert bare.share_of_ceiling(bare.rows[0]) is None


class TestRecords:
    def test_go_through_json_unchanged(self) -> None:
        made = made_up_file()
        assert parse_record(made.to_json()) == made
        assert parse_record(made.to_text()) == made
        assert "\n" not in made.to_json()

    def test_types_that_json_does_not_know(self) -> None:
        made = made_up_file(
            settings={"dtype": torch.bfloat16, "folder": Path("a")}, figures={"n": torch.tensor(2.0).item()}
        )
        assert parse_record(made.to_json()).record.settings == {"dtype": "torch.bfloat16", "folder": "a"}

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize(
        ("where", "make"),
        [
            ("figures.x", lambda bad: made_up_record(figures={"x": bad})),
            ("ceilings.x", lambda bad: made_up_record(ceilings={"x": bad})),
            ("ratios.x", lambda bad: made_up_record(ratios={"x": (bad, bad, bad)})),
            ("bytes", lambda bad: Row("x", Timing((1.0,)), bytes=bad)),
            ("operations", lambda bad: Row("x", Timing((1.0,)), operations=bad)),
            ("tokens", lambda bad: Row("x", Timing((1.0,)), tokens=bad)),
            ("settings", lambda bad: made_up_file(settings={"deep": [{"x": bad}]}).to_json()),
        ],
    )
    def test_numbers_that_are_not_finite_are_refused(
        self, bad: float, where: str, make: Callable[[float], Any]
    ) -> None:
        with pytest.raises(ValueError, match=f"field '{where}'"):
            make(bad)

    @pytest.mark.parametrize(
        ("field", "changes"),
        [
            ("benchmark", {"benchmark": "../elsewhere"}),
            ("rows", {"rows": (Row("a", Timing((1.0,))), Row("a", Timing((1.0,))))}),
            ("ratios.r", {"ratios": {"r": (1.0, 2.0, 3.0)}}),
            ("ceilings.copy_bytes_per_second", {"ceilings": {"copy_bytes_per_second": 0.0}}),
        ],
    )
    def test_contradictions_are_refused(self, field: str, changes: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=f"field '{field}'"):
            made_up_record(**changes)

    @pytest.mark.parametrize(
        ("field", "spoil"),
        [
            ("format", lambda r: r.update(format=2)),
            ("benchmark", lambda r: r.pop("benchmark")),
            ("title", lambda r: r.update(title=3)),
            ("rows", lambda r: r.update(rows={})),
            ("rows[1].seconds", lambda r: r["rows"][1].pop("seconds")),
            ("rows[1].seconds[0]", lambda r: r["rows"][1].update(seconds=["fast"])),
            ("rows[0]", lambda r: r["rows"][0].update(seconds=[])),
            ("rows[0]", lambda r: r["rows"][0].update(bytes=-1)),
            ("rows[0].speed", lambda r: r["rows"][0].update(speed=1)),
            ("ratios.ours against theirs", lambda r: r["ratios"].update({"ours against theirs": [1.0]})),
            ("ratios.ours against theirs[2]", lambda r: r["ratios"].update({"ours against theirs": [1.0, 1.0, None]})),
            ("ceilings.copy_bytes_per_second", lambda r: r["ceilings"].update(copy_bytes_per_second="much")),
            ("figures.bytes per stream", lambda r: r["figures"].update({"bytes per stream": True})),
            ("provenance.commit", lambda r: r["provenance"].pop("commit")),
            ("provenance.date", lambda r: r["provenance"].update(date="yesterday")),
            ("command", lambda r: r.pop("command")),
            ("surprise", lambda r: r.update(surprise=1)),
        ],
    )
    def test_a_broken_file_is_refused_in_one_line_with_file_and_field(
        self, field: str, spoil: Callable[[dict[str, Any]], object], tmp_path: Path
    ) -> None:
        content = json.loads(made_up_file().to_json())
        spoil(content)
        path = tmp_path / "broken.json"
        path.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=r"broken\.json") as caught:
            read_record(path)
        assert f"field '{field}'" in str(caught.value)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("text", ["", "[]", made_up_file().to_json()[:-40], '{"format": NaN}'])
    def test_a_file_that_is_no_record_is_refused(self, text: str, tmp_path: Path) -> None:
        path = tmp_path / "broken.json"
        path.write_text(text)
        with pytest.raises(ValueError, match=r"broken\.json: [^\n]+$"):
            read_record(path)

    def test_a_folder_gives_its_records_without_files_of_other_kinds(self, tmp_path: Path) -> None:
        (tmp_path / "other.json").write_text('{"benchmark": "spcn", "tokens_per_s": {}}')
        (tmp_path / "b.json").write_text(made_up_file(benchmark="b").to_text())
        (tmp_path / "a.json").write_text(made_up_file(benchmark="a").to_text())
        assert [file.record.benchmark for _, file in read_records(tmp_path)] == ["a", "b"]
        assert read_records(tmp_path / "not there") == []

    def test_a_folder_with_a_file_cut_short_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "cut.json").write_text(made_up_file().to_text()[:-30])
        with pytest.raises(ValueError, match=r"cut\.json"):
            read_records(tmp_path)

    def test_those_that_come_with_the_code_can_be_read(self) -> None:
        folder = Path(__file__).parents[1] / "results" / "benchmarks"
        if not folder.is_dir():
            pytest.skip("no checkout")
        for path in folder.glob("*.json"):
            assert read_record(path).record.benchmark == path.stem


class TestFinish:
    @pytest.fixture(autouse=True)
    def as_a_script(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "argv", ["benchmarks/made_up.py", "--quick", "--record", "somewhere"])

    def test_the_last_line_is_the_record_and_the_file_says_the_same(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        finish(made_up_record(), tmp_path / "new" / "folder")
        told = parse_record(capsys.readouterr().out.splitlines()[-1])
        assert told.record == made_up_record()
        assert told.command == "python benchmarks/made_up.py --quick"
        assert told.provenance.versions["torch"] == torch.__version__
        assert told.provenance.versions["python"] == sys.version.split()[0]
        assert told.provenance.hardware["cores"]
        assert list(tmp_path.rglob("*.*")) == [tmp_path / "new" / "folder" / "made_up.json"]
        assert read_record(tmp_path / "new" / "folder" / "made_up.json") == told

    def test_without_a_folder_nothing_is_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        finish(made_up_record(), None)
        assert parse_record(capsys.readouterr().out.splitlines()[-1]).record == made_up_record()
        assert list(tmp_path.iterdir()) == []

    def test_a_stop_while_writing_leaves_the_old_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "made_up.json").write_text("old")

        def stop(*_: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "fsync", stop)
        with pytest.raises(KeyboardInterrupt):
            finish(made_up_record(), tmp_path)
        assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("made_up.json", "old")]

    def test_a_folder_that_cannot_be_made_does_not_lose_the_record(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "taken").write_text("a file")
        with pytest.raises(OSError, match="taken"):
            finish(made_up_record(), tmp_path / "taken")
        assert parse_record(capsys.readouterr().out.splitlines()[-1]).record == made_up_record()


def shown(width: int, **changes: Any) -> str:
    with (console := Console(width=width, highlight=False)).capture() as capture:
        console.print(tables.record_tables(made_up_record(**changes)))
    return capture.get()


class TestTables:
    def test_a_row_has_its_rates_and_shares(self) -> None:
        ours, theirs = (line.split() for line in shown(120).splitlines() if "–" in line and " ms" in line)
        # 8 MB in 2 ms are 4 GB/s, half of 8; 100 tokens in 2 ms are 50,000 a second; 1 GFLOP in 5 ms are 200 GFLOP/s
        assert ours == ["ours", "2.00", "ms", "1.00–4.00", "ms", "50,000", "4.00", "50%", "–", "–", "–"]
        assert theirs[:5] == ["theirs", "5.00", "ms", "4.00–16.0", "ms"]
        assert theirs[5:] == ["–", "–", "–", "200", "20%", "one", "launch", "each"]

    def test_ratios_figures_ceilings_and_checks_follow(self) -> None:
        text = shown(120)
        for part in ("4.00x (2.50–4.00)", "9,216", "measured copy: 8.00 GB/s", "forward: largest difference 3e-7"):
            assert part in text

    def test_columns_that_nobody_fills_are_left_out(self) -> None:
        text = shown(120, rows=(Row("a", Timing((1.0,))),))
        assert "median" in text
        assert "tokens/s" not in text
        assert "FLOP/s  " not in text

    @pytest.mark.parametrize("width", [60, 80])
    def test_numbers_are_whole_on_narrow_terminals(self, width: int) -> None:
        rows = tuple(Row(f"{'a long name ' * 4}{i}", Timing((0.002, 0.001, 0.004)), tokens=100) for i in range(2))
        text = shown(width, rows=rows)
        assert text.count("1.00–4.00 ms") == 2
        assert "…" not in text

    def test_names_are_no_markup(self) -> None:
        assert "[red]x[/red]" in shown(120, rows=(Row("[red]x[/red]", Timing((1.0,))),))

    def test_the_summary_has_a_line_per_row_and_ratio(self) -> None:
        with (console := Console(width=120, highlight=False)).capture() as capture:
            console.print(tables.summary_table([made_up_record()]))
        lines = [line.split() for line in capture.get().splitlines() if "made_up" in line]
        assert lines == [
            ["made_up", "ours", "2.00", "ms", "50,000", "50%", "copy", "–"],
            ["made_up", "theirs", "5.00", "ms", "–", "20%", "matmul", "–"],
            ["made_up", "ours", "against", "theirs", "–", "–", "–", "4.00x", "(2.50–4.00)"],
        ]


@pytest.mark.parametrize("module", [measure, record, tables])
def test_examples_of_the_docstrings(module: Any) -> None:
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0
    assert outcome.failed == 0


def test_imports_little() -> None:
    """It has to run where only the contenders are installed, and reading a record should not wait for torch."""
    banned = ("tyro", "datasets", "numba", "plotly", "hypothesis", "transformers")
    code = f"import sys; sys.modules.update(dict.fromkeys({banned!r})); import ematrace.bench.tables"
    subprocess.run([sys.executable, "-c", f"{code}; sys.exit('torch' in sys.modules)"], check=True)


def test_a_file_with_a_provenance_keeps_it() -> None:
    made = RecordFile(made_up_record(), PROVENANCE, "python benchmarks/made_up.py --n 'two words'")
    again = parse_record(made.to_json())
    assert (again.provenance, again.command) == (PROVENANCE, made.command)
