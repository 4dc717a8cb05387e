"""The command line: what it teaches, what it prints for machines, and how it answers bad input and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ematrace import cli
from ematrace.ledger import Figure, Provenance, Result, load_claims, write_result

DESIGN_FIELDS = {
    *("id", "paper", "ours", "interval", "n_seeds", "direction", "figure", "verdict", "scale", "evidence", "command"),
}
PROVENANCE = Provenance(
    date="2026-01-02T03:04:05+00:00",
    commit="0123456789",
    dirty=False,
    hardware={"cpu": "test", "cores": 2},
    versions={"python": "3.11"},
    seconds=1.0,
    peak_memory_mb=100.0,
)


def made_up(experiment: str, **values: float) -> Result:
    return Result(
        experiment=experiment,
        title=experiment,
        claims=("C17",),
        scale="cpu",
        command=f"ematrace reproduce {experiment} --seeds 2",
        settings={},
        seeds=(0, 1),
        figures={name: Figure((value, value + 0.01), 1000) for name, value in values.items()},
        provenance=PROVENANCE,
    )


@pytest.fixture
def away(tmp_path, monkeypatch):
    """An empty working directory with an empty folder of recorded results: nothing of the checkout shows."""
    (tmp_path / "recorded").mkdir()
    monkeypatch.setenv("EMATRACE_RESULTS", str(tmp_path / "recorded"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture
def call(away, monkeypatch, capsys):
    """Run the command in this process: (exit status, stdout, stderr)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ematrace", *arguments])
        handler = signal.getsignal(signal.SIGTERM)
        try:
            cli.main()
            status = 0
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else 1
        finally:
            signal.signal(signal.SIGTERM, handler)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def one_line_of(answer: tuple[int, str, str]) -> str:
    """The only line of a refusal."""
    status, out, err = answer
    assert status == 2
    assert out == ""
    assert err.endswith("\n")
    assert err.count("\n") == 1, err
    assert err.startswith("error: ")
    return err


def contents(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


# ---------------------------------------------------------------------- help


def flat(text: str) -> str:
    """Without the frame and line ends of a help page."""
    return " ".join(text.replace("│", " ").split())


def test_help_of_the_installed_module_names_the_commands():
    done = subprocess.run([sys.executable, "-m", "ematrace.cli", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr == ""
    for command in ("reproduce", "ledger", "report"):
        assert command in done.stdout


def test_help_of_reproduce_teaches_by_example(call):
    status, out, _ = call("reproduce", "--help")
    assert status == 0
    for example in ("ematrace reproduce C09", "ematrace reproduce trace_probe --seeds 20"):
        assert example in flat(out)
    for option in ("--seeds", "--jobs", "--out", "--report", "--scale"):
        assert option in out


@pytest.mark.parametrize(("command", "options"), [("ledger", ("--json", "--local")), ("report", ("--out",))])
def test_help_of_the_other_commands_names_their_options(call, command, options):
    status, out, _ = call(command, "--help")
    assert status == 0
    for option in options:
        assert option in out


# ---------------------------------------------------------------------- ledger


def test_ledger_json_without_results_has_every_claim_open(call, away):
    status, out, err = call("ledger", "--json")
    assert (status, err) == (0, "")
    rows = json.loads(out)
    assert [row["id"] for row in rows] == [claim.id for claim in load_claims()]
    assert len(rows) == 50
    for row in rows:
        assert set(row) >= DESIGN_FIELDS
        assert row["verdict"] in ("open", "not testable here")
        assert row["evidence"] == []
        assert row["ours"] == row["interval"] == {}
        assert row["n_seeds"] is row["scale"] is None
        assert row["command"] == f"ematrace reproduce {row['id']}"
    assert contents(away) == []


def test_ledger_json_shows_what_the_local_results_say(call, away):
    claim = next(c for c in load_claims() if c.id == "C17")
    figures = {ref.partition("/")[2]: 0.5 for ref in claim.refs if ref.startswith("position/")}
    path = write_result(made_up("position", **figures), away / "results" / "local")
    rows = {row["id"]: row for row in json.loads(call("ledger", "--json")[1])}
    assert rows["C17"]["ours"] == {f"position/{name}": pytest.approx(0.505) for name in figures}
    assert rows["C17"]["n_seeds"] == 2
    assert rows["C17"]["evidence"] == [path.relative_to(away).as_posix()]
    assert rows["C01"]["verdict"] == "open"


def test_ledger_table_names_every_claim(call):
    status, out, _ = call("ledger")
    assert status == 0
    assert all(claim.id in out for claim in load_claims())


@pytest.mark.parametrize("command", ["ledger", "report"])
@pytest.mark.parametrize("content", ['{"schema": 1,', "[]", '{"schema": 1}', ""])
def test_a_broken_result_file_is_named_in_one_line(call, away, command, content):
    local = away / "results" / "local"
    write_result(made_up("position", x=0.5), local)
    (local / "broken.json").write_text(content)
    assert "broken.json" in one_line_of(call(command))
    assert contents(local) == ["broken.json", "position.json"]
    assert contents(away) == ["results"]


def test_a_recorded_folder_that_is_not_there_is_named(call):
    assert "nowhere" in one_line_of(call("ledger", "--recorded", "nowhere"))


def test_brackets_in_a_path_survive(call, away):
    local = away / "runs [old]"
    local.mkdir()
    (local / "broken.json").write_text("")
    assert "runs [old]" in one_line_of(call("ledger", "--local", "runs [old]"))


def test_brackets_in_a_name_are_no_traceback(call):
    assert "[/x]" in one_line_of(call("reproduce", "[/x]"))


# ---------------------------------------------------------------------- reproduce


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("NOPE",), ("'NOPE'", "trace_probe")),
        (("trace_probe", "C99"), ("'C99'",)),
        (("C23",), ("C23", "open")),
        (("trace_probe", "--seeds", "0"), ("--seeds", "0")),
        (("trace_probe", "--seeds", "-3"), ("--seeds", "-3")),
        (("trace_probe", "--scale", "gpu"), ("--scale gpu",)),
    ],
)
def test_reproduce_refuses_bad_input_in_one_line_and_writes_nothing(call, away, arguments, expected):
    line = one_line_of(call("reproduce", *arguments))
    for part in expected:
        assert part in line
    assert contents(away) == []


def test_an_option_that_is_not_a_number_is_refused(call, away):
    status, _, err = call("reproduce", "--seeds", "many")
    assert status == 2
    assert "seeds" in err
    assert contents(away) == []


def test_reproduce_runs_prints_the_ledger_and_writes_the_page(call, away, monkeypatch):
    """The run itself is tested with the runner; here: what reaches it, and what follows it."""
    from ematrace.experiments import runner

    asked = []

    def run(plans, directory, *, jobs, progress):
        asked.append(([p.experiment for p in plans], directory, jobs, {len(p.seeds) for p in plans}))
        for task in plans[0].tasks:
            progress(task, 1.0)
        return [write_result(made_up("position", x=0.5), directory)]

    monkeypatch.setattr(runner, "run", run)
    status, out, err = call("reproduce", "C17", "--seeds", "2", "--jobs", "1", "--out", "mine", "--report", "p.html")
    assert (status, err) == (0, "")
    assert asked == [(["trace_probe", "position"], Path("mine"), 1, {2})]
    assert "C17" in out
    assert "p.html" in out
    assert contents(away) == ["mine", "p.html"]
    status, _, _ = call("reproduce", "C17", "--out", "other", "--report", "None")
    assert status == 0
    assert contents(away) == ["mine", "other", "p.html"]


# ---------------------------------------------------------------------- report


def test_report_writes_one_page_with_the_results(call, away):
    write_result(made_up("position", **{"position0.det_agent": 0.123}), away / "results" / "local")
    status, out, err = call("report", "--out", "x.html")
    assert (status, err) == (0, "")
    assert "x.html" in out
    assert contents(away) == ["results", "x.html"]
    page = (away / "x.html").read_text(encoding="utf-8")
    assert page.lower().startswith("<!doctype html>")
    assert all(claim.id in page for claim in load_claims())
    assert "results/local/position.json" in page


def test_report_into_what_is_no_folder_is_one_line_and_writes_nothing(call, away):
    (away / "file").write_text("kept")
    assert "file" in one_line_of(call("report", "--out", "file/x.html"))
    assert contents(away) == ["file"]
    assert (away / "file").read_text() == "kept"


def test_report_onto_a_folder_is_one_line_and_leaves_no_temporary_file(call, away):
    (away / "x.html").mkdir()
    assert "x.html" in one_line_of(call("report", "--out", "x.html"))
    assert contents(away) == ["x.html"]
    assert contents(away / "x.html") == []


# ---------------------------------------------------------------------- Ctrl-C


def session_members(session: int) -> dict[int, str]:
    """Living processes of a session, orphans too: pid -> command line."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found[int(entry.name)] = command
    return found


def wait_for(condition, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.1)
    return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to look for orphans")
@pytest.mark.parametrize("way", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_ends_all_processes_and_leaves_no_file(tmp_path, way):
    """While a worker is at work: Ctrl-C as from a terminal, to the whole group; SIGTERM to the command alone."""
    command = ["reproduce", "trace_probe", "--out", str(tmp_path / "out"), "--report", "None"]
    process = subprocess.Popen(
        [sys.executable, "-m", "ematrace.cli", *command],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        # the command, the manager of the progress queue, a resource tracker, and a worker
        assert wait_for(lambda: sum("spawn_main" in c for c in session_members(process.pid).values()) >= 2, 60)
        time.sleep(2)
        assert process.poll() is None, process.communicate()
        if way == signal.SIGINT:
            os.killpg(process.pid, way)
        else:
            process.send_signal(way)
        _, err = process.communicate(timeout=10)
        assert process.returncode == 130
        assert "stopped" in err
        assert wait_for(lambda: not session_members(process.pid), 5), session_members(process.pid)
    finally:
        for pid in session_members(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []
