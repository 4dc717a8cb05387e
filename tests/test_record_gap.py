"""The rounds behind docs/gap.md: every stage has units, sweeps go on while more is asked for, time ends everything."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from ematrace.experiments import EXPERIMENTS
from ematrace.experiments.__main__ import read_request
from ematrace.experiments.runner import Request, make_plan

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import record_gap
from record_gap import TRACKS, Round, Stage, run_tracks

LATER = {"30m", "30m-gpt2", "sizes"}
"""Tracks whose figures have units once their sweep is settled."""
STAGES = [(name, stage) for name, stages in TRACKS.items() for stage in stages]


@pytest.mark.parametrize(("name", "stage"), STAGES, ids=[f"{name}-{stage.experiment}" for name, stage in STAGES])
def test_every_stage_has_units_or_waits_for_its_sweep(name: str, stage: Stage, tmp_path: Path) -> None:
    assert stage.experiment in EXPERIMENTS
    request = Request((stage.experiment,), scale="gpu", data="builtin", only=stage.only, out=tmp_path)
    if stage.experiment == "gap_sizes" and name in LATER:
        return
    assert make_plan(request).units


def commands(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> list[list[str]]:
    """Stages and choices run `script` instead, with a word of their own as its argument; what was asked for."""
    asked: list[list[str]] = []
    monkeypatch.setattr(record_gap, "FILE", folder / "rates.json")
    monkeypatch.setattr(record_gap, "CHOOSE", folder / "choose.py")
    (folder / "rates.json").write_text("0")
    (folder / "choose.py").write_text(script)

    def command(self: Round, stage: Stage) -> list[str]:
        asked.append([stage.experiment, *stage.only])
        return [sys.executable, "-c", "pass"]

    monkeypatch.setattr(Round, "command", command)
    return asked


def soon(seconds: float = 60.0) -> Round:
    return Round((), time.monotonic() + seconds)


def test_a_sweep_goes_on_until_nothing_more_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rates change twice; the third choice is that of the second."""
    counts = "p = r'{}'; n = int(open(p).read()); open(p, 'w').write(str(min(2, n + 1)))"
    asked = commands(monkeypatch, tmp_path, counts.format(tmp_path / "rates.json"))
    monkeypatch.setattr(record_gap, "TRACKS", {"one": (Stage("sweep", sweep=True), Stage("figures", ("size=7m",)))})
    run_tracks(["one"], soon(), lanes=1)
    assert asked == [["sweep"]] * 3 + [["figures", "size=7m"]]


def test_a_sweep_that_never_settles_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = commands(monkeypatch, tmp_path, f"open(r'{tmp_path / 'rates.json'}', 'a').write('1')")
    monkeypatch.setattr(record_gap, "TRACKS", {"one": (Stage("sweep", sweep=True),)})
    run_tracks(["one"], soon(), lanes=1)
    assert len(asked) == record_gap.MOST_ROUNDS


def test_tracks_are_taken_in_order_and_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = commands(monkeypatch, tmp_path, "")
    monkeypatch.setattr(record_gap, "TRACKS", {name: (Stage(name),) for name in "abc"})
    run_tracks(["c", "a", "b"], soon(), lanes=1)
    assert asked == [["c"], ["a"], ["b"]]
    run_tracks(["c", "a", "b"], soon(), lanes=3)
    assert sorted(asked[3:]) == [["a"], ["b"], ["c"]]


def test_time_ends_what_runs_and_begins_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Round, "command", lambda self, stage: [sys.executable, "-c", "import time; time.sleep(60)"])
    monkeypatch.setattr(record_gap, "TRACKS", {"one": (Stage("first"), Stage("second"))})
    started = time.monotonic()
    run_tracks(["one"], soon(1.0), lanes=1)
    assert time.monotonic() - started < 20


def test_a_stage_is_a_command_that_a_person_could_type() -> None:
    made = Round(["--scale", "gpu"], 0.0).command(Stage("gap_sizes", ("size=7m", "block=gpt2")))
    assert made[1:] == ["-m", "ematrace.experiments", "gap_sizes", "--scale", "gpu", "--only", "size=7m", "block=gpt2"]


def test_options_reach_every_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those of a request: `python -m ematrace.experiments` understands the whole command."""
    rounds: list[tuple[list[str], Round, int]] = []
    monkeypatch.setattr(record_gap, "run_tracks", lambda *given: rounds.append(given))
    record_gap.main(["kept", "30m", "--data", "t.txt", "--settings", "validation=v.txt", "--lanes", "3"])
    [(names, how, lanes)] = rounds
    assert (names, lanes) == (["kept", "30m"], 3)
    request = read_request(how.command(TRACKS["30m"][0])[3:])
    assert (request.names, request.scale, request.data) == (("gap_size_rates",), "gpu", "t.txt")
    assert (request.settings, request.per_gpu, request.out) == (("validation=v.txt",), 4, Path("results"))
    assert request.only == TRACKS["30m"][0].only
