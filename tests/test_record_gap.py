"""The rounds behind docs/gap.md: every stage has units, sweeps go on while more is asked for, and everything can be
stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from ematrace.experiments import EXPERIMENTS
from ematrace.experiments.__main__ import read_request
from ematrace.experiments.runner import Request, make_plan

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import record_gap  # noqa: E402
from record_gap import TRACKS, Recorder, Stage  # noqa: E402

Fake = Callable[..., list[list[str]]]
SLEEP = "import time; time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


def units_of(stage: Stage, folder: Path) -> list[tuple[str, str]]:
    request = Request((stage.experiment,), scale="gpu", data="builtin", only=stage.only, out=folder)
    return [(unit.experiment, unit.file_name) for unit in make_plan(request).units]


def test_every_stage_has_units_or_waits_for_its_sweep(tmp_path: Path) -> None:
    """And no two tracks train the same model: side by side, both would."""
    tracks: Counter[tuple[str, str]] = Counter()
    for name, stages in TRACKS.items():
        found: set[tuple[str, str]] = set()
        for i, stage in enumerate(stages):
            assert stage.experiment in EXPERIMENTS
            try:
                units = units_of(stage, tmp_path)
            except ValueError:  # rates are not settled
                assert any(before.sweep for before in stages[:i]), f"{name}: {stage}"
                continue
            assert units, f"{name}: {stage}"
            found |= set(units)
        tracks.update(found)
    assert [unit for unit, n in tracks.items() if n > 1] == []


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Stages run Python code instead, `choose` that of the rates; returns what was asked for, as it is asked for."""

    def replace(tracks: dict[str, tuple[Stage, ...]], choose: str = "", code: str = "pass") -> list[list[str]]:
        asked: list[list[str]] = []
        (tmp_path / "rates").write_text("0")
        (tmp_path / "choose.py").write_text(f"path = r'{tmp_path / 'rates'}'\n{choose}\n")

        def command(self: Recorder, stage: Stage) -> list[str]:
            asked.append([stage.experiment, *stage.only])
            return [sys.executable, "-c", code]

        monkeypatch.setattr(record_gap, "FILE", tmp_path / "rates")
        monkeypatch.setattr(record_gap, "CHOOSE", tmp_path / "choose.py")
        monkeypatch.setattr(record_gap, "TRACKS", tracks)
        monkeypatch.setattr(record_gap, "SWEEPS", ("sweep",))
        monkeypatch.setattr(
            record_gap, "EXPERIMENTS", {s.experiment: EXPERIMENTS["gap"] for t in tracks.values() for s in t}
        )
        monkeypatch.setattr(Recorder, "command", command)
        return asked

    return replace


def recorder(seconds: float = 60.0) -> Recorder:
    return Recorder((), time.monotonic() + seconds)


def test_a_sweep_goes_on_until_nothing_more_is_asked_for(fake: Fake) -> None:
    """The rates change twice; the third choice is that of the second."""
    count = "n = int(open(path).read()); open(path, 'w').write(str(min(2, n + 1)))"
    asked = fake({"one": (Stage("sweep"), Stage("figures", ("size=7m",)))}, count)
    assert recorder().run(["one"], lanes=1)
    assert asked == [["sweep"]] * 3 + [["figures", "size=7m"]]


def test_a_choice_that_another_track_made_meanwhile_counts(fake: Fake, tmp_path: Path) -> None:
    """It is made while the sweep runs; the own choice then changes nothing, and the sweep must still go on."""
    code = f"p = r'{tmp_path / 'rates'}'; n = int(open(p).read()); open(p, 'w').write(str(min(1, n + 1)))"
    asked = fake({"one": (Stage("sweep"),)}, code=code)
    assert recorder().run(["one"], lanes=1)
    assert asked == [["sweep"]] * 2


def test_a_sweep_that_never_settles_ends_and_is_no_success(fake: Fake) -> None:
    asked = fake({"one": (Stage("sweep"),)}, "open(path, 'a').write('1')")
    assert not recorder().run(["one"], lanes=1)
    assert len(asked) == record_gap.MOST_SWEEPS


def test_tracks_are_taken_in_order_and_side_by_side(fake: Fake) -> None:
    asked = fake({name: (Stage(name),) for name in "abc"})
    assert recorder().run(["c", "a", "b"], lanes=1)
    assert asked == [["c"], ["a"], ["b"]]
    assert recorder().run(["c", "a", "b"], lanes=3)
    assert sorted(asked[3:]) == [["a"], ["b"], ["c"]]


def test_what_measures_speed_runs_alone(fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes last, though it is named first, and begins after the others have ended."""
    marks = f"import time; open(r'{tmp_path / 'marks'}', 'a').write('b'); time.sleep(.3); "
    marks += f"open(r'{tmp_path / 'marks'}', 'a').write('e')"
    asked = fake({name: (Stage(name),) for name in ("fast", "a", "b")}, code=marks)
    monkeypatch.setitem(record_gap.EXPERIMENTS, "fast", EXPERIMENTS["gap_130m"])  # type: ignore[arg-type]
    assert EXPERIMENTS["gap_130m"].alone
    assert recorder().run(["fast", "a", "b"], lanes=3)
    assert asked[-1] == ["fast"]
    assert (tmp_path / "marks").read_text().endswith("ebe")


def test_a_failed_stage_is_said_and_the_next_is_tried(fake: Fake) -> None:
    asked = fake({"one": (Stage("a"), Stage("b"))}, code="import sys; sys.exit(2)")
    assert not recorder().run(["one"], lanes=1)
    assert asked == [["a"], ["b"]]


def test_time_ends_what_runs_and_begins_nothing_more(fake: Fake, capfd: pytest.CaptureFixture[str]) -> None:
    fake({"one": (Stage("first"), Stage("second"))}, code=SLEEP)
    started = time.monotonic()
    assert not recorder(1.0).run(["one"], lanes=1)
    assert time.monotonic() - started < 20
    out = capfd.readouterr().out
    assert "begins: one: first" in out
    assert "begins: one: second" not in out


def test_what_ignores_sigterm_is_killed(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record_gap, "GRACE", 0.3)
    fake({"one": (Stage("first"),)}, code=STUBBORN)
    assert not recorder(1.5).run(["one"], lanes=1)
    assert "ended with exit code -9: one: first" in capfd.readouterr().out


def test_a_signal_stops_every_lane(tmp_path: Path) -> None:
    """To the script alone, as `kill` sends it: nothing is left running, and no further stage begins."""
    script = f"""
import sys
sys.path.insert(0, {str(ROOT / "scripts")!r})
import record_gap
from record_gap import Recorder, Stage
record_gap.TRACKS = {{n: (Stage("gap"), Stage("gap_second")) for n in "ab"}}
run = "import os, time; open(os.path.join({str(tmp_path)!r}, str(os.getpid())), 'w'); time.sleep(60)"
Recorder.command = lambda self, stage: [sys.executable, "-c", run]
sys.exit(record_gap.main(["a", "b", "--data", "none"]))
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    until = time.monotonic() + 30
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 130
    assert out.count("begins: ") == 2
    for file in tmp_path.iterdir():
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.name), 0)


@pytest.mark.parametrize(("per_gpu", "processes"), [(4, "2"), (1, "1")])
def test_a_stage_may_take_fewer_processes(per_gpu: int, processes: str) -> None:
    command = Recorder(("--scale", "gpu"), 0.0, per_gpu).command(Stage("gap", ("seed=0",), processes=2))
    assert command[command.index("--per-gpu") + 1] == processes
    assert command.count("--per-gpu") == 1
    assert command[-2:] == ["--only", "seed=0"]
    usual = Recorder((), 0.0, per_gpu).command(Stage("gap"))
    assert usual[usual.index("--per-gpu") + 1] == str(per_gpu)
    assert {stage.processes for stage in TRACKS["decoding"]} == {2}


def test_options_reach_every_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those of a request: `python -m ematrace.experiments` understands the whole command."""
    runs: list[tuple[Recorder, list[str], int]] = []
    monkeypatch.setattr(Recorder, "run", lambda self, names, lanes: runs.append((self, names, lanes)) or True)
    given = ["units", "30m", "units", "--data", "t.txt", "--settings", "validation=v.txt", "--lanes", "3"]
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert record_gap.main([*given, "--seconds", "100"]) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    [(made, names, lanes)] = runs
    assert (names, lanes) == (["units", "30m"], 3)
    assert made.deadline - time.monotonic() == pytest.approx(100, abs=5)
    stage = TRACKS["30m"][0]
    request = read_request(made.command(stage)[3:])
    assert (request.names, request.scale, request.data) == (("gap_size_rates",), "gpu", "t.txt")
    assert (request.settings, request.per_gpu, request.out) == (("validation=v.txt",), 4, ROOT / "results")
    assert request.only == stage.only
