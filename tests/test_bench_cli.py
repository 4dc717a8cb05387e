"""`ematrace bench` on made-up scripts: which ones run, what is kept of them, and what a failure or a stop leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from bench_support import made_up_file
from cli_support import exit_status
from ematrace import results, sharing
from ematrace.bench import Run
from ematrace.cli import app
from ematrace.cli import bench as bench_cli
from ematrace.results import CellFile, Store, read_file
from ematrace.results.schema import decode_file

Answer = tuple[int, str, str]
REPOSITORY = Path(__file__).parents[1]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of benchmarks, seen from an empty working directory, on a machine without a GPU."""
    made = tmp_path / "benchmarks"
    made.mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(bench_cli, "benchmarks_folder", lambda: made)
    monkeypatch.setattr(bench_cli, "sees_gpu", lambda: False)
    monkeypatch.setattr(bench_cli, "LOOK", 0.0)
    monkeypatch.setattr(sharing.Meter, "others", lambda self: 0.0)
    monkeypatch.setattr(app, "console", Console(width=140))  # made at import, with the stdout of that time
    return made


def line_of(file: CellFile) -> str:
    return msgspec.json.encode(file).decode()


def script(folder: Path, name: str, code: str = "", needs: str | None = "cpu", **about: Any) -> None:
    """Runs `code`, in which `result` is a line of JSON that a real benchmark would end in."""
    constant = "" if needs is None else f'NEEDS = "{needs}"\n'
    result = line_of(made_up_file(benchmark=name, **about))
    body = textwrap.dedent(code) or "print(result)"
    (folder / f"{name}.py").write_text(
        f'"""What {name} measures.\n\nMore."""\nimport sys\n{constant}result = {result!r}\n{body}\n', encoding="utf-8"
    )


@pytest.fixture
def call(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Run the command in this process, its scripts outside: (exit status, stdout, stderr)."""

    def run(*arguments: str) -> Answer:
        return exit_status(monkeypatch, "bench", *arguments), *capfd.readouterr()

    return run


def kept(folder: str | Path = "results/local") -> list[str]:
    """The benchmarks that left a file."""
    return sorted(p.relative_to(folder).parent.as_posix() for p in Path(folder).rglob("*") if p.is_file())


def result_of(name: str, folder: str = "results/local") -> CellFile:
    return read_file(Path(folder, name, "seed-0_cpu.json"))


def test_help_teaches_by_example(call: Callable[..., Answer]) -> None:
    status, out, _ = call("--help")
    assert status == 0
    for part in ("ematrace bench --list", "ematrace bench streaming_cpu length_cpu", "--quick", "--out", "--force"):
        assert part in out


class TestChoice:
    def test_the_list_tells_of_scripts_without_running_them(self, call: Callable[..., Answer], folder: Path) -> None:
        script(folder, "one", "import a_module_that_is_not_there")
        script(folder, "two", needs="cuda")
        script(folder, "three", needs=None)
        (folder / "_helper.py").write_text("no benchmark, and no Python either")
        status, out, err = call("--list")
        assert (status, err) == (0, "")
        lines = [line.split() for line in out.splitlines() if "What" in line]
        assert lines == [
            ["one", "cpu", "yes", "What", "one", "measures"],
            ["three", "unknown", "no", "What", "three", "measures"],
            ["two", "cuda", "no", "What", "two", "measures"],
        ]
        assert list(Path().iterdir()) == []

    def test_scripts_for_a_gpu_run_where_there_is_one(
        self, call: Callable[..., Answer], folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        script(folder, "slow", needs="cpu")
        script(folder, "fast", needs="cuda")
        status, _, err = call()
        assert (status, kept()) == (0, ["slow"])
        assert "fast (needs cuda)" in err
        monkeypatch.setattr(bench_cli, "sees_gpu", lambda: True)
        assert call()[0] == 0
        assert kept() == ["fast", "slow"]

    def test_names_choose(self, call: Callable[..., Answer], folder: Path) -> None:
        for name in ("a", "b", "c"):
            script(folder, name)
        assert call("c", "a", "c")[0] == 0
        assert kept() == ["a", "c"]

    def test_an_unknown_name_is_refused_before_anything_runs(self, call: Callable[..., Answer], folder: Path) -> None:
        script(folder, "a")
        status, out, err = call("a", "nope")
        assert (status, out) == (2, "")
        assert err == "error: no benchmark 'nope'; there are a\n"
        assert list(Path().iterdir()) == []

    def test_a_script_for_a_gpu_that_is_asked_for_without_one(self, call: Callable[..., Answer], folder: Path) -> None:
        script(folder, "fast", needs="cuda")
        status, _, err = call("fast")
        assert status == 2
        assert err.count("\n") == 1
        assert "fast needs a CUDA GPU" in err
        assert call("fast", "--quick")[0] == 0

    def test_a_wrong_constant_is_refused_with_its_line(self, call: Callable[..., Answer], folder: Path) -> None:
        script(folder, "a", needs="tpu")
        status, _, err = call("--list")
        assert status == 2
        assert f"{folder / 'a.py'}, line 5: NEEDS" in err
        assert err.count("\n") == 1

    def test_a_script_that_is_no_python_is_refused(self, call: Callable[..., Answer], folder: Path) -> None:
        (folder / "a.py").write_text("def (:")
        status, _, err = call("--list")
        assert status == 2
        assert str(folder / "a.py") in err
        assert err.count("\n") == 1

    def test_an_installed_wheel_says_where_the_benchmarks_are(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(results, "checkout_root", lambda: None)
        status = exit_status(monkeypatch, "bench")
        out, err = capsys.readouterr()
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert "benchmarks/ of ematrace's source checkout" in err


class TestRunning:
    def test_output_is_shown_and_the_result_is_not(self, call: Callable[..., Answer], folder: Path) -> None:
        script(folder, "a", "print('a table')\nprint('a remark', file=sys.stderr)\nprint(result)")
        status, out, err = call()
        assert status == 0
        assert "What a measures" in out
        assert "a table\n" in out
        assert err == "a remark\n"
        assert '{"schema"' not in out
        assert result_of("a") == made_up_file(benchmark="a")
        assert {s.cell.experiment for s in Store(None, Path("results/local")).load()} == {"a"}

    def test_the_summary_stands_at_the_end(self, call: Callable[..., Answer], folder: Path) -> None:
        script(folder, "a")
        script(folder, "b")
        lines = [line.split() for line in call()[1].splitlines()]
        ours = ["ours", "2.00", "ms", "50,000", "50%", "copy"]  # 8 MB in 2 ms against 8 GB/s
        against = ["theirs", "/", "ours", "4.00x", "(2.50–4.00)"]
        begins = [lines.index([name, "Ours", "against", "theirs"]) for name in "ab"]
        places = [lines.index(line, begin) for begin in begins for line in (ours, against)]
        assert places == sorted(places)
        assert lines.index(["[2/2]", "b", "What", "b", "measures"]) < begins[0]

    def test_quick_is_passed_on_and_never_counts(self, call: Callable[..., Answer], folder: Path) -> None:
        script(folder, "a", "print(sys.argv[1:])\nprint(result)")
        assert "\n[]\n" in call()[1]
        before = result_of("a")
        script(folder, "a", "print(sys.argv[1:])\nprint(result)", title="toy", quick=True)
        out = call("--quick")[1]
        assert "\n['--quick']\n" in out
        assert out.endswith("results: results/local/quick\n")
        assert result_of("a") == before
        assert result_of("a", "results/local/quick").settings["title"] == "toy"
        assert {s.cell.settings["title"] for s in Store(None, Path("results/local")).load()} == {"Ours against theirs"}

    def test_out_says_where_results_go(self, call: Callable[..., Answer], folder: Path) -> None:
        script(folder, "a")
        assert call("--out", "there/it/is")[0] == 0
        assert kept("there/it/is") == ["a"]
        assert sorted(p.name for p in Path().iterdir()) == ["there"]

    def test_an_out_that_is_a_file_is_refused_before_anything_runs(
        self, call: Callable[..., Answer], folder: Path
    ) -> None:
        script(folder, "a", "open('ran', 'w').close()")
        Path("taken").write_text("a file")
        status, _, err = call("--out", "taken")
        assert status == 2
        assert "taken" in err
        assert not Path("ran").exists()

    def test_a_script_may_leave_several_results(self, call: Callable[..., Answer], folder: Path) -> None:
        other = line_of(made_up_file(benchmark="a-other"))
        script(folder, "a", f"print({other!r})\nprint(result)")
        assert call()[0] == 0
        assert kept() == ["a", "a-other"]


class TestBusyMachine:
    def test_is_refused_before_anything_runs(
        self, call: Callable[..., Answer], folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        script(folder, "a", "open('ran', 'w').close()\nprint(result)")
        monkeypatch.setattr(sharing.Meter, "others", lambda self: 1.3)
        status, _, err = call()
        assert (status, err.count("\n")) == (2, 1)
        assert "other programs kept 1.3 of" in err
        assert "--force" in err
        assert not Path("ran").exists()
        assert call("--force")[0] == 0
        assert kept() == ["a"]

    def test_toy_sizes_run_at_any_time(
        self, call: Callable[..., Answer], folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        script(folder, "a", quick=True, other_load=1.9)
        monkeypatch.setattr(sharing.Meter, "others", lambda self: 1.3)
        assert call("--quick")[0] == 0

    def test_what_was_timed_beside_others_is_not_recorded(self, call: Callable[..., Answer], folder: Path) -> None:
        script(folder, "a", other_load=1.9)
        script(folder, "b", other_load=0.1)
        status, _, err = call()
        assert status == 1
        assert kept() == ["b"]
        assert "a (not recorded: other programs kept 1.9 of" in err.splitlines()[-1]
        assert call("--force")[0] == 0
        assert kept() == ["a", "b"]


class TestFailing:
    @pytest.mark.parametrize(
        ("code", "problem"),
        [
            ("sys.exit(3)", "exit code 3"),
            ("sys.exit('forward differs from the reference')", "exit code 1"),
            ("print(result)\nraise RuntimeError('late')", "exit code 1"),
            ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "ended by SIGKILL"),
            ("print('nothing measured')", "it ended without a result"),
            ("print(result.replace('\"cells\"', '\"rows\"'))", "rows"),
            ("print(result.replace('\"seconds\"', '\"bytes_\"', 1)[:-1])", "not JSON"),
            ("print(result.replace('0.001', '-0.001'))", "no positive, finite time"),
            ("print(result.replace('\"checks\"', '\"passed\"'))", "`checks`"),
        ],
    )
    def test_the_others_still_run_and_the_exit_code_is_1(
        self, code: str, problem: str, call: Callable[..., Answer], folder: Path
    ) -> None:
        script(folder, "a")
        script(folder, "b", code)
        script(folder, "c")
        status, out, err = call()
        assert status == 1
        assert kept() == ["a", "c"]
        assert [line.split()[0] for line in out.splitlines() if line.endswith("  Ours against theirs")] == ["a", "c"]
        last = err.splitlines()[-1]
        assert last.startswith("error: failed: b (")
        assert problem in last

    def test_what_it_said_is_shown(self, call: Callable[..., Answer], folder: Path) -> None:
        script(folder, "a", "sys.exit('forward differs from the reference')")
        assert "forward differs from the reference\n" in call()[2]

    def test_an_older_result_stays(self, call: Callable[..., Answer], folder: Path) -> None:
        script(folder, "a")
        call()
        script(folder, "a", "print(result)\nsys.exit(1)", title="newer")
        assert call()[0] == 1
        assert result_of("a").settings["title"] == "Ours against theirs"


def alive(pid: int) -> bool:
    """Whether it runs; one that has ended and waits for somebody to ask does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at /proc")
@pytest.mark.parametrize("way", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_ends_the_script_and_what_it_started_and_leaves_no_file(folder: Path, way: signal.Signals) -> None:
    script(
        folder,
        "endless",
        """
        import os, subprocess, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(result, flush=True)
        with open("started.part", "w") as file:
            file.write(f"{os.getpid()} {child.pid}")
        os.rename("started.part", "started")
        time.sleep(600)
        """,
    )
    code = f"""
import sys
from pathlib import Path
from ematrace import cli
from ematrace.cli import bench as bench_cli
bench_cli.benchmarks_folder = lambda: Path({str(folder)!r})
bench_cli.refuse_if_busy = lambda command: None
sys.argv = ["ematrace", "bench"]
cli.main()
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    started = Path("started")
    pids: list[int] = []
    try:
        deadline = time.monotonic() + 60
        while not started.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        pids = [int(pid) for pid in started.read_text().split()]
        assert all(map(alive, pids))
        process.send_signal(way)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 130
        assert "stopped" in err
        assert "Traceback" not in err
        deadline = time.monotonic() + 5
        while any(map(alive, pids)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(map(alive, pids))
        assert [p.name for p in Path("results").rglob("*") if p.is_file()] == []
    finally:
        process.kill()
        process.wait()
        for pid in filter(alive, pids):
            os.kill(pid, signal.SIGKILL)


def test_every_benchmark_says_what_it_needs_and_measures() -> None:
    scripts = bench_cli.find_scripts(REPOSITORY / "benchmarks")
    assert len(scripts) >= 10
    assert all(script.needs and script.about for script in scripts)


def test_the_benchmark_of_spcn_runs(tmp_path: Path) -> None:
    pytest.importorskip("reservoirpy")
    command = [sys.executable, str(REPOSITORY / "benchmarks" / "spcn.py"), "--quick", "--record", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    file = decode_file(done.stdout.splitlines()[-1].encode())
    assert result_of("spcn", str(tmp_path / "quick")) == file
    assert file.provenance.command == "python benchmarks/spcn.py --quick"
    run = Run.of_file(file)
    ours = next(t for t in run.timed if t.factors == {"contender": "spcn", "task": "learn", "variant": "full"})
    theirs = next(t for t in run.timed if t.factors == {"contender": "reservoirpy", "task": "hebbian_fit"})
    # Their fit sees fewer tokens, so what is compared are times per token, within repetitions.
    rates = [
        (t / theirs.tokens) / (o / ours.tokens) for o, t in zip(ours.timing.seconds, theirs.timing.seconds, strict=True)
    ]
    name = "reservoirpy task=hebbian_fit / spcn task=learn variant=full, per token"
    assert run.ratios[name][1:] == pytest.approx((min(rates), max(rates)))
