"""The runner on this machine: what it writes and when, resume, failures, Ctrl-C, the same numbers in any process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from threadpoolctl import threadpool_limits

from ematrace.experiments import EXPERIMENTS, Context
from ematrace.experiments.base import rows_of
from ematrace.experiments.runner import Request, make_plan, run
from ematrace.results import ResultError
from runner_support import executions, files_in, run_request, working_in, write_own

TINY = (
    *(f"sentences.{name}" for name in ("train=40", "within=20", "transfer=20", "bigru_epochs=1")),
    "spcn.widths=[64, 32, 16, 8]",
)
RUN = ("trace_probe", "position", "distances")


@pytest.fixture(autouse=True)
def away(tmp_path) -> Iterator[Path]:
    with working_in(tmp_path):
        yield tmp_path


def squares(**changes) -> Request:
    return Request(**{"names": ("./squares.py",), "seeds": 2, "jobs": 2, "out": Path("out"), **changes})


def test_each_unit_is_one_file_with_everything_in_it(away):
    write_own(away)
    events, written = [], []
    failed = run_request(
        squares(),
        progress=lambda unit, share: events.append((unit.label, share)),
        written=lambda unit, path: written.append((unit.label, path.exists(), path)),
    )
    assert failed == {}
    files = files_in(away / "out")
    assert set(files) == {f"squares/width-{w}_seed-{s}_cpu.json" for w in (2, 3) for s in (0, 1)}
    assert {Path("out") / name for name in files} == {path for _, _, path in written}
    assert all(there for _, there, _ in written)
    for file in files.values():
        area, threads = file.cells
        assert area.metrics["area"].value == file.factors["width"] ** 2 + file.seed
        assert threads.metrics["count"].value == 1  # a thread each: the processes fill the cores
        assert (file.experiment, file.scale) == ("squares", "cpu")
        assert {**file.settings, "measure_sha256": ""} == {"sleep": 0.0, "texts": {}, "measure_sha256": ""}
        assert file.provenance.peak_memory_mb > 10
        width, seed = file.factors["width"], file.seed
        command = f"ematrace reproduce ./squares.py --seeds 2 --only width={width} seed={seed} --fresh"
        assert file.provenance.command == command
    labels = {label for label, _ in events}
    assert len(labels) == 4
    for label in labels:
        shares = [share for name, share in events if name == label]
        assert shares == sorted(shares)
        assert shares[-1] == 1.0


def test_a_second_run_does_nothing(away):
    write_own(away)
    run_request(squares())
    before = {path: path.stat().st_mtime_ns for path in (away / "out").rglob("*.json")}
    run_request(squares())
    assert {path: path.stat().st_mtime_ns for path in (away / "out").rglob("*.json")} == before
    assert executions(away) == {f"{w} {s}": 1 for w in (2, 3) for s in (0, 1)} | {"shared 0": 2, "shared 1": 2}


def test_what_is_not_there_is_run_and_nothing_else(away):
    write_own(away)
    run_request(squares())
    (away / "out/squares/width-3_seed-1_cpu.json").unlink()
    write_own(away, widths="[2, 3, 4]")
    run_request(squares())
    counts = {name: n for name, n in executions(away).items() if not name.startswith("shared")}
    assert counts == {"2 0": 1, "3 0": 1, "2 1": 1, "3 1": 2, "4 0": 1, "4 1": 1}


def test_fresh_and_changed_settings_run_again(away):
    write_own(away)
    once = {"seeds": 1, "only": ("width=2",)}
    run_request(squares(**once))
    run_request(squares(**once, fresh=True))
    assert executions(away)["2 0"] == 2
    changed = squares(**once, settings=("sleep=0.01",))
    run_request(changed)
    assert executions(away)["2 0"] == 3
    run_request(changed)
    assert executions(away)["2 0"] == 3
    (file,) = files_in(away / "out").values()
    assert file.settings["sleep"] == 0.01


def test_a_broken_file_in_its_place_is_named_and_kept_unless_fresh(away):
    write_own(away)
    run_request(squares(seeds=1))
    path = away / "out/squares/width-2_seed-0_cpu.json"
    path.write_text('{"schema": 99}')
    with pytest.raises(ResultError, match=r"width-2_seed-0_cpu\.json.*schema 99"):
        make_plan(squares(seeds=1))
    assert path.read_text() == '{"schema": 99}'
    run_request(squares(seeds=1, fresh=True))
    assert len(files_in(away / "out")) == 2


@pytest.mark.parametrize(
    ("width", "why"),
    [
        (13, r"ZeroDivisionError: thirteen is refused (squares.py, line "),
        (99, "its process was killed by SIGKILL (out of memory?), 3 times"),
    ],
)
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_unit_that_fails_or_dies_loses_no_other(away, width, why, jobs):
    write_own(away, widths=f"[2, {width}, 3, 4]")
    failed = run_request(squares(seeds=1, jobs=jobs))
    assert set(failed) == {f"squares, width={width}, seed 0"}
    assert next(iter(failed.values())).startswith(why)
    assert "\n" not in next(iter(failed.values()))
    assert {file.factors["width"] for file in files_in(away / "out").values()} == {2, 3, 4}
    assert make_plan(squares(seeds=1)).to_run[0].factors == {"width": width}
    assert executions(away)[f"{width} 0"] == (3 if width == 99 else 1)
    assert [executions(away)[f"{other} 0"] for other in (2, 3, 4)] == [1, 1, 1]


def test_a_unit_whose_process_is_killed_is_named_and_run_again(away):
    """As a machine without memory does, once; the unit after it in the same job waits for it."""
    for name in ("squares", "more_squares"):
        write_own(away, name, widths="[2]", options='group="sums"')
    path = away / "squares.py"
    once = "    if LOG.read_text() == '2 0\\n':\n"
    killed = f"{once}        os.kill(os.getpid(), signal.SIGTERM)\n    if width == 13"
    path.write_text(path.read_text().replace("    if width == 13", killed))
    lost = []
    request = squares(names=("./squares.py", "./more_squares.py"), seeds=1)
    assert run_request(request, lost=lambda unit, why: lost.append((unit.label, why))) == {}
    assert lost == [("squares, width=2, seed 0", "its process was killed by SIGTERM")]
    assert {file.experiment for file in files_in(away / "out").values()} == {"squares", "more_squares"}
    assert executions(away)["2 0"] == 3


def test_a_unit_that_fails_loses_no_other_of_its_group(away):
    """The group is one job of one process, in which the failing unit comes first."""
    for name in ("squares", "more_squares"):
        write_own(away, name, widths="[2]", options='group="sums"')
    failing = away / "squares.py"
    failing.write_text(failing.read_text().replace("width == 13", "width == 2"))
    failed = run_request(squares(names=("./squares.py", "./more_squares.py"), seeds=1))
    assert set(failed) == {"squares, width=2, seed 0"}
    assert [file.experiment for file in files_in(away / "out").values()] == ["more_squares"]


@pytest.mark.parametrize(
    ("result", "why"),
    [
        ("[Row({}, {'x': Metric(1.0)}), Row({}, {'x': Metric(2.0)})]", "two cells have the same factors"),
        ("[Row({'width': 1}, {'x': Metric(1.0)})]", "factor 'width' stands in the file's factors and in a cell's"),
        ("[Row({}, {'bad name': Metric(1.0)})]", "ResultError"),
        ("None", "TypeError"),
    ],
)
def test_results_that_break_the_schema_fail_like_errors(away, result, why):
    path = write_own(away, widths="[2, 3]")
    path.write_text(
        path.read_text().replace("    ctx.share(", f"    if width == 2:\n        return {result}\n    ctx.share(")
    )
    failed = run_request(squares(seeds=1))
    assert why in failed["squares, width=2, seed 0"]
    assert {file.factors["width"] for file in files_in(away / "out").values()} == {3}


def test_a_number_is_a_metric_and_one_that_is_not_finite_is_unknown():
    (row,) = rows_of({"a": 2, "b": float("nan"), "c": float("inf")})
    assert {name: m.value for name, m in row.metrics.items()} == {"a": 2.0, "b": None, "c": None}


def test_units_of_a_group_share_a_process_and_what_it_made(away):
    """Two experiments of one group, the same factors: one process for each seed, which makes what is shared once."""
    factory = write_own(away, "common").read_text().partition("def measure")[0]
    (away / "common.py").write_text(factory)
    for name in ("squares", "more_squares"):
        path = write_own(away, name, widths="[2]", options='group="sums"')
        path.write_text(path.read_text().replace("ctx.share(expensive", 'ctx.share(__import__("common").expensive'))
    run_request(squares(names=("./squares.py", "./more_squares.py"), seeds=3))
    assert [executions(away)[f"shared {seed}"] for seed in range(3)] == [1, 1, 1]
    processes: dict[int, set[float]] = {}
    for file in files_in(away / "out").values():
        processes.setdefault(file.seed, set()).add(file.cells[0].metrics["process"].value)
    assert sorted(processes) == [0, 1, 2]
    assert all(len(found) == 1 for found in processes.values())
    assert len(set().union(*processes.values())) == 2


def test_what_a_group_shared_is_gone_with_it(away):
    """Networks of twenty seeds would fill the memory: one process, two groups, each makes its own."""
    write_own(away, widths="[2]", options='group="sums"')
    run_request(squares(seeds=2, jobs=1))
    assert {name: n for name, n in executions(away).items() if name.startswith("shared")} == {
        "shared 0": 1,
        "shared 1": 1,
    }


def test_a_module_of_the_working_directory_runs_in_the_workers(away):
    (away / "mypackage").mkdir()
    (away / "mypackage/__init__.py").write_text("")
    write_own(away / "mypackage")
    assert run_request(squares(names=("mypackage.squares",), seeds=1)) == {}
    assert run_request(squares(names=("mypackage.squares:EXPERIMENT",), seeds=2)) == {}
    assert len(files_in(away / "out")) == 4
    assert executions(away / "mypackage")["2 0"] == 1


@pytest.mark.parametrize(("jobs", "processes"), [(None, 1), (3, 3)])
def test_units_for_a_gpu_run_one_at_a_time_unless_they_are_to_share_it(away, monkeypatch, jobs, processes):
    """The workers here do not look for the GPU that they were promised."""
    monkeypatch.setattr("ematrace.experiments.runner.plan._sees_gpu", lambda request: True)
    write_own(away, widths="[2, 3, 4]", options='needs="gpu"')
    assert run_request(squares(seeds=1, jobs=jobs, scale="gpu", settings=("sleep=0.5",))) == {}
    files = files_in(away / "out")
    assert set(files) == {f"squares/width-{width}_seed-0_gpu.json" for width in (2, 3, 4)}
    assert len({file.cells[0].metrics["process"].value for file in files.values()}) == processes
    assert all("--scale gpu" in file.provenance.command for file in files.values())


@pytest.fixture(scope="module")
def grammar_run(tmp_path_factory):
    """Two seeds of three experiments and two drawn grammars, in two processes: one start for all checks."""
    folder = tmp_path_factory.mktemp("results")
    requests = [
        Request(RUN, seeds=2, settings=TINY, out=folder),
        Request(("robustness",), settings=TINY, out=folder, only=("seed=1",)),
    ]
    units = [unit for request in requests for unit in make_plan(request).to_run]
    assert run(units, folder, jobs=2) == {}
    return folder, units


def test_the_numbers_of_a_worker_are_those_of_measure_bit_for_bit(grammar_run):
    """In another process, beside another seed: the same numbers."""
    folder, units = grammar_run
    files = files_in(folder)
    assert len(files) == len(units) == 9
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    memo = {}
    with threadpool_limits(1):
        for unit in units:
            file = files[f"{unit.experiment}/{unit.file_name}"]
            ctx = Context(seed=unit.seed, settings=unit.settings, memo=memo)
            assert file.cells == rows_of(EXPERIMENTS[unit.experiment].measure(ctx, **unit.factors))
    torch.set_num_threads(threads)


def test_files_say_what_they_were_measured_with(grammar_run):
    folder, _ = grammar_run
    for file in files_in(folder).values():
        assert file.settings["sentences"] == {"train": 40, "within": 20, "transfer": 20, "bigru_epochs": 1}
        drawn = file.factors["grammar"] == "fully_drawn"
        assert file.settings["grammar"]["drawn_seed"] == (1 if drawn else None)
        assert file.settings["spcn"]["k"] == 0.08
        assert "--settings" in file.provenance.command


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
        time.sleep(0.05)
    return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to look for orphans")
@pytest.mark.parametrize(
    ("module", "way"),
    [
        ("ematrace.cli", signal.SIGINT),
        ("ematrace.experiments", signal.SIGTERM),
        ("ematrace.cli", signal.SIGKILL),
    ],
)
def test_a_stop_ends_all_processes_and_keeps_what_was_done(away, way, module):
    """While workers are at work: Ctrl-C as from a terminal, to the whole group; the others to the command alone."""
    path = write_own(away, widths="[2, 3, 100, 101]")
    slow = "    if width > 99:\n        tempfile.mkdtemp(dir=ctx.scratch)\n        time.sleep(60)\n    ctx.share("
    path.write_text("import tempfile\n" + path.read_text().replace("    ctx.share(", slow))
    (away / "tmp").mkdir()
    names = ["reproduce", "./squares.py"] if module == "ematrace.cli" else ["./squares.py"]
    command = [sys.executable, "-m", module, *names, "--out", "out", "--jobs", "2"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env=os.environ | {"TMPDIR": str(away / "tmp")},
    )  # fmt: skip
    try:
        assert wait_for(lambda: executions(away)["101 0"] == 1, 60), process.communicate()
        time.sleep(0.3)
        if way == signal.SIGINT:
            os.killpg(process.pid, way)
        else:
            process.send_signal(way)
        _, err = process.communicate(timeout=10)
        assert process.returncode == (-9 if way == signal.SIGKILL else 130)
        assert "Traceback" not in err
        assert wait_for(lambda: not session_members(process.pid), 5), session_members(process.pid)
    finally:
        for pid in session_members(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()
    assert {file.factors["width"] for file in files_in(away / "out").values()} == {2, 3}
    if way != signal.SIGKILL:
        assert [p for p in (away / "tmp").rglob("*") if "ematrace" in p.name] == []
    assert {unit.factors["width"] for unit in make_plan(squares(seeds=1)).to_run} == {100, 101}


def test_a_failed_unit_makes_the_exit_code_1(away):
    write_own(away, widths="[2, 13]")
    command = [sys.executable, "-m", "ematrace.experiments", "./squares.py", "--out", "out"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("failed: squares, width=13, seed 0: ZeroDivisionError: thirteen is refused")
    assert done.stderr.count("\n") == 1
    assert len(files_in(away / "out")) == 1
