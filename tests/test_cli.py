"""The command line: what it teaches, prints for machines, and answers to bad input. (Ctrl-C: test_runner.py.)"""

from __future__ import annotations

import html
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from rich.console import Console

from cells_support import make_file
from cli_support import exit_status
from ematrace.cli.reproduce import Reproduce, bears_on_any, experiments_for, reproduce
from ematrace.experiments.runner import Request, make_plan
from ematrace.ledger import load_claims
from ematrace.results import Metric, Row, write_file
from runner_support import files_in, working_in, write_own

DESIGN_FIELDS = {
    *("id", "paper", "ours", "interval", "n_seeds", "direction", "figure", "verdict", "scale", "evidence", "command"),
}
OWN_CLAIMS = """
[X1]
part = "extension"
claim = "A wider square is larger."
paper = "none"
direction = [{ left = "squares/area{width=3}", op = ">", right = "squares/area{width=2}" }]
"""


def write_cells(experiment: str, folder: Path, *rows: Row) -> Path:
    """Two seeds; the path of the first."""
    made = rows or (Row({}, {"x": Metric(0.5)}),)
    paths = [write_file(make_file(*made, experiment=experiment, seed=seed), folder) for seed in (0, 1)]
    return paths[0]


@pytest.fixture
def away(tmp_path, monkeypatch):
    """An empty working directory with an empty folder of recorded results: nothing of the checkout shows."""
    (tmp_path / "recorded").mkdir()
    monkeypatch.setenv("EMATRACE_RESULTS", str(tmp_path / "recorded"))
    (tmp_path / "here").mkdir()
    with working_in(tmp_path / "here"):
        yield tmp_path / "here"


@pytest.fixture
def call(away, monkeypatch, capsys):
    """Run the command in this process: (exit status, stdout, stderr)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        return exit_status(monkeypatch, *arguments), *capsys.readouterr()

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
    """Without Python's bytecode, which is kept or not as the environment says."""
    return sorted(p.name for p in folder.iterdir() if p.name != "__pycache__")


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
    for option in (
        *("--seeds", "--jobs", "--out", "--report", "--scale", "--data", "--dry-run", "--shard", "--engine", "--fresh"),
        *("--only", "--settings"),
    ):
        assert option in out


@pytest.mark.parametrize(("command", "options"), [("ledger", ("--json", "--local")), ("report", ("--out",))])
def test_help_of_the_other_commands_names_their_options(call, command, options):
    status, out, _ = call(command, "--help")
    assert status == 0
    for option in options:
        assert option in out


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
    share = Row({"role": "det_patient"}, {"first_word_share": Metric(0.5, unit="accuracy", n=1000)})
    path = write_cells("position", away / "results" / "local", share)
    rows = {row["id"]: row for row in json.loads(call("ledger", "--json")[1])}
    assert rows["C17"]["ours"] == {"position/first_word_share{role=det_patient}": 0.5}
    assert rows["C17"]["n_seeds"] == 2
    assert path.relative_to(away).as_posix() in rows["C17"]["evidence"]
    assert rows["C01"]["verdict"] == "open"


def test_the_long_ledger_names_every_claim(call):
    status, out, _ = call("ledger", "--long")
    assert status == 0
    assert all(claim.id in out for claim in load_claims())


def test_the_ledger_is_short_and_names_every_claim_that_has_an_experiment(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    status, out, _ = call("ledger")
    assert status == 0
    claims = [claim for claim in load_claims() if claim.selectors]
    assert all(f" {claim.id} " in out and claim.title in out for claim in claims)
    assert "F2, F4: no experiment yet" in out
    assert "○ 49 open" in out
    assert len(out.splitlines()) <= 32
    assert max(map(len, out.splitlines())) <= 80


def test_ids_show_these_claims_alone(call, away):
    share = Row({"role": "det_patient"}, {"first_word_share": Metric(0.5, unit="accuracy", n=1000)})
    write_cells("position", away / "results" / "local", share)
    status, out, _ = call("ledger", "c17", "F05", "C17")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines() if line[:1] in "CF" and line[1:2].isdigit()] == ["C17", "F5"]
    for part in ("Position alone", "50/50", "✓", "for 2 of 3 comparisons", "ematrace reproduce C17"):
        assert part in out
    assert "results/local/position/seed-0_cpu.json" in out
    rows = json.loads(call("ledger", "c17", "--json")[1])
    assert [row["id"] for row in rows] == ["C17"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("c99",), "no claim 'c99'; there are C01 to C18, C20 to C46, F1 to F5"),
        (("CC10",), "did you mean C10?"),
        (("lag_decoding",), "`ematrace reproduce lag_decoding` runs it, and the claims that rest on it are: C18"),
        (("C10", "--long"), "--long: has no effect with ids"),
        (("--long", "--json"), "--long: has no effect with --json"),
    ],
)
def test_the_ledger_refuses_what_it_cannot_show(call, arguments, expected):
    assert expected in one_line_of(call("ledger", *arguments))


def test_two_files_that_cannot_both_count_are_named_and_the_rest_is_shown(call, tmp_path) -> None:
    """An arm of C30 at two learning rates: page and card say nothing of it, and go on."""
    arm = {"context": "ema_error", "ffn": "topk_ste", "residual": "ffn", "width": "matched", "size": "2m"}
    arm |= {"predictor": "static", "reads": "traces_now", "query": "slow_trace", "values": "as_read"}
    row = Row({"text": "validation", "slice": "all"}, {"nats": Metric(5.0, "nats")})
    paths = [
        write_file(make_file(row, experiment="gap_predictors", factors={**arm, "lr": lr}), tmp_path / "cells")
        for lr in (0.004, 0.008)
    ]
    places = ("--recorded", str(tmp_path / "cells"), "--local", str(tmp_path / "none"))
    status, out, err = call("report", *places, "--out", str(tmp_path / "page.html"))
    assert (status, out.strip()) == (0, f"page: {tmp_path / 'page.html'}")
    assert err.splitlines() == [
        f"not shown: {paths[0]} and {paths[1]} differ in 'lr' (0.004, 0.008); if one of them is left over, delete it"
    ]
    assert "differ in 'lr' (0.004, 0.008)" in html.unescape((tmp_path / "page.html").read_text())
    status, out, _ = call("ledger", "C30", *places)
    assert status == 0
    assert "differ in 'lr' (0.004, 0.008)" in " ".join(out.split())


@pytest.mark.parametrize("command", ["ledger", "report"])
@pytest.mark.parametrize("content", ['{"schema": 2,', "[]", '{"schema": 1}', '{"schema": 2}', ""])
def test_a_broken_result_file_is_named_in_one_line(call, away, command, content):
    folder = write_cells("position", away / "results" / "local").parent
    (folder / "broken.json").write_text(content)
    assert "broken.json" in one_line_of(call(command))
    assert contents(folder) == ["broken.json", "seed-0_cpu.json", "seed-1_cpu.json"]
    assert contents(away) == ["results"]


def test_a_recorded_folder_that_is_not_there_is_named(call):
    assert "nowhere" in one_line_of(call("ledger", "--recorded", "nowhere"))


def test_brackets_in_a_path_survive(call, away):
    folder = away / "runs [old]" / "x"
    folder.mkdir(parents=True)
    (folder / "broken.json").write_text("")
    assert "runs [old]" in one_line_of(call("ledger", "--local", "runs [old]"))


def test_brackets_in_a_name_are_no_traceback(call):
    assert "[/x]" in one_line_of(call("reproduce", "[/x]"))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("NOPE",), ("'NOPE'", "trace_probe", "robustness", "C01 to C18, C20 to C46, F1 to F5", "./file.py")),
        (("trace_probe", "C99"), ("'C99'",)),
        (("trace_prob",), ("did you mean trace_probe?",)),
        (("position", "--scale", "gpu"), ("--scale gpu", "none")),
        (("C31",), ("no experiment tests C31 yet", "open")),
        (("trace_probe", "--seeds", "0"), ("--seeds", "0")),
        (("trace_probe", "--seeds", "-3"), ("--seeds", "-3")),
        (("trace_probe", "--jobs", "0"), ("--jobs", "0")),
        (("trace_probe", "--shard", "3/2"), ("--shard", "3/2")),
        (("trace_probe", "--only", "seed=9"), ("--only", "seed=9")),
        (("trace_probe", "--settings", "nothing=1"), ("--settings", "nothing")),
        (("trace_probe", "--data", "builtin"), ("--data", "none")),
        (("./nowhere.py",), ("./nowhere.py: no such file",)),
        (("nowhere.at_all",), ("nowhere.at_all: no such module",)),
    ],
)
def test_reproduce_refuses_bad_input_in_one_line_and_writes_nothing(call, away, arguments, expected):
    line = one_line_of(call("reproduce", *arguments))
    for part in expected:
        assert part in line
    assert contents(away) == []


NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="says what is missing without a GPU")


@NO_GPU
@pytest.mark.parametrize(
    ("name", "line"),
    [
        (
            "C21",
            "error: spen_training needs a CUDA GPU (torch sees none here) and a text source: "
            "ematrace reproduce C21 --scale gpu --data SOURCE\n",
        ),
        (
            "F5",
            "error: spen_streaming needs a CUDA GPU (torch sees none here): ematrace reproduce F5 --scale gpu\n",
        ),
    ],
)
def test_a_claim_that_needs_a_gpu_says_exactly_what_it_needs(call, away, name, line):
    assert one_line_of(call("reproduce", name)) == line
    assert contents(away) == []
    status, out, err = call("reproduce", name, "--dry-run")
    assert (status, err) == (0, "")
    what, command = line.removeprefix("error: ").split(": ")
    assert f"\nmissing: {what}\ncommand: {command}\n" in out


@NO_GPU
def test_every_command_of_the_ledger_runs_or_says_what_it_needs(call):
    """A dry run: what would run is counted in test_runner_plan.py, and that it runs is seen in `make reproduce`."""
    commands = [row["command"].split() for row in json.loads(call("ledger", "--json")[1])]
    assert len(commands) == 50
    run = []
    for _, *arguments in commands:
        status, out, err = call(*arguments, "--dry-run")
        assert status in (0, 2), err
        if status == 0:
            assert err == ""
            run += [arguments[1]] if "\nmissing: nothing\n" in out else []
        else:
            needs = ("no experiment tests {} yet", "{} needs a GPU", "{} is not testable here")
            assert err.startswith(tuple(f"error: {text.format(arguments[1])}" for text in needs))
    assert len(run) >= 25


def test_claims_stand_for_their_experiments():
    claims = load_claims()
    assert experiments_for(["C09"], claims) == ("trace_probe", "supervised")
    assert experiments_for(["c09", "trace_probe"], claims) == ("trace_probe", "supervised")
    assert experiments_for(["supervised", "C09"], claims) == ("supervised", "trace_probe")
    assert experiments_for(["robustness", "./x.py"], claims) == ("robustness", "./x.py")


def test_a_claim_runs_what_it_rests_on_and_nothing_else(call):
    """`gap_predictors` has the ablation of two claims and of sizes and blocks that neither speaks of."""
    claims = load_claims()
    request = Request(("gap_predictors", "gap"), scale="gpu", data="builtin")
    everything = make_plan(request).units
    for name, sizes in (("C30", {"2m"}), ("F1", {"130m"}), ("C27", {"ablation"})):
        units = make_plan(request, partial(bears_on_any, [claims.find(name)])).units
        assert {unit.factors["size"] for unit in units} == sizes
        assert {unit.experiment for unit in units} == {"gap_predictors"}
        for selector in claims.find(name).selectors:
            where = {key: value for key, value in selector.where.items() if key in units[0].factors}
            fitting = [u for u in everything if where.items() <= u.factors.items() and u.experiment == "gap_predictors"]
            assert {u.file_name for u in fitting} <= {u.file_name for u in units}  # none that it asks for is left out
    status, out, _ = call("reproduce", "F1", "--scale", "gpu", "--data", "builtin", "--dry-run")
    assert (status, out.count("to run  gap_predictors")) == (0, 3)
    _, whole, _ = call("reproduce", "F1", "gap_predictors", "--scale", "gpu", "--data", "builtin", "--dry-run")
    assert "ablation" in whole  # an experiment that is named runs whole
    only = ("--scale", "gpu", "--data", "builtin", "--only", "size=130m")
    status, _, err = call("reproduce", "C30", *only)
    assert (status, "--only: no unit has size=130m" in err) == (2, True)


def test_a_claim_runs_its_control_in_its_own_experiments():
    claim, request = load_claims().find("C39"), Request(("gap_130m",), scale="gpu", data="builtin")
    assert claim.control is not None
    with_it, without = (
        make_plan(request, partial(bears_on_any, [c])).units for c in (claim, replace(claim, control=None))
    )
    assert len(without) < len(with_it) <= len(make_plan(request).units)


def test_nothing_means_everything_that_bears_on_a_claim():
    claims = load_claims()
    bearing = {name for claim in claims for name in claim.experiments}
    assert set(experiments_for([], claims, "gpu")) == bearing | {"gap", "robustness"}
    assert "choices" not in bearing
    assert set(experiments_for([], claims)) < set(experiments_for([], claims, "gpu"))
    with pytest.raises(ValueError, match=r"C25 needs a GPU.*: ematrace reproduce C25 --scale gpu --data SOURCE"):
        experiments_for(["C25"], claims)
    assert experiments_for(["C25"], claims, "gpu") == ("gap_130m",)


def test_an_option_that_is_not_a_number_is_refused(call, away):
    status, _, err = call("reproduce", "--seeds", "many")
    assert status == 2
    assert "seeds" in err
    assert contents(away) == []


def test_reproduce_runs_prints_the_ledger_and_writes_the_page(call, away):
    """At toy sizes: one claim, its two experiments on two seeds."""
    toy = [f"sentences.{name}" for name in ("train=40", "within=20", "transfer=20")]
    settings = ("--settings", *toy, "spcn.widths=[64, 32, 16, 8]")
    arguments = ("C17", "--seeds", "2", "--jobs", "1", "--out", "mine", *settings)
    status, out, err = call("reproduce", *arguments, "--report", "p.html")
    assert (status, err) == (0, "")
    assert "4 units to run" in out
    assert out.count("\nC17 ") == 1
    assert "this machine's run is the evidence" in out
    assert "C01" not in out
    assert "p.html" in out
    assert contents(away) == ["mine", "p.html"]
    files = files_in(away / "mine")
    assert set(files) == {
        f"{name}/grammar-half_passives_seed-{seed}_cpu.json" for name in ("position", "trace_probe") for seed in (0, 1)
    }
    assert all("--settings" in file.provenance.command for file in files.values())
    before = {path: path.stat().st_mtime_ns for path in (away / "mine").rglob("*.json")}
    status, out, _ = call("reproduce", *arguments, "--report", "None")
    assert status == 0
    assert "nothing to run: 4 units in mine already (--fresh runs them again)" in out
    assert {path: path.stat().st_mtime_ns for path in (away / "mine").rglob("*.json")} == before
    status, out, _ = call("reproduce", *arguments, "--dry-run")
    assert "0 units to run, 4 already in mine" in out


@NO_GPU
def test_without_names_what_cannot_run_here_is_left_out_and_said(call, away):
    status, out, err = call("reproduce", "--only", "experiment=spen_streaming", "--report", "None")
    assert status == 0
    assert "left out: spen_streaming needs a CUDA GPU" in err
    assert "C22" in out
    assert contents(away) == []
    status, out, err = call("reproduce", "--dry-run")
    assert (status, err) == (0, "")
    # 12 experiments, 3 of them on 4 drawn grammars; the gap has 11 arms
    assert "\n34 units to run, 0 already in results/local\n" in out
    assert "\nmissing: spen_prefill needs a CUDA GPU" in out
    assert "\n         spen_streaming needs a CUDA GPU" in out
    assert "\ncommand: ematrace reproduce --scale gpu --data SOURCE\n" in out
    assert "\nto run  position           0-3    grammar=fully_drawn\n" in out


def test_a_dry_run_in_a_terminal_is_a_screenful(away, capsys):
    write_own(away, widths="list(range(25))")
    for terminal, rows in ((True, 20), (False, 25)):
        console = Console(width=80, force_terminal=terminal, color_system=None)
        reproduce(Reproduce(("./squares.py",), dry_run=True), console, console)
        out = capsys.readouterr().out
        assert out.count("\nto run ") == rows
        assert ("\n5 more units: " in out) == terminal


def test_an_experiment_of_ones_own_is_one_file(call, away):
    """Cells, its own claim in the ledger and on the page; a second run measures only what is new."""
    write_own(away, options=f'seconds=1, claims="""{OWN_CLAIMS}"""')
    status, out, err = call("reproduce", "./squares.py", "--seeds", "2", "--jobs", "2")
    assert (status, err) == (0, "")
    files = files_in(away / "results" / "local")
    assert set(files) == {f"squares/width-{w}_seed-{s}_cpu.json" for w in (2, 3) for s in (0, 1)}
    assert {name: file.cells[0].metrics["area"].value for name, file in files.items()} == {
        f"squares/width-{w}_seed-{s}_cpu.json": w**2 + s for w in (2, 3) for s in (0, 1)
    }
    assert "X1  ✓ answered: yes" in out
    page = (away / "report.html").read_text(encoding="utf-8")
    assert "A wider square is larger." in page
    assert contents(away) == ["executions", "report.html", "results", "squares.py"]
    command = files["squares/width-3_seed-1_cpu.json"].provenance.command
    assert command == "ematrace reproduce ./squares.py --seeds 2 --only width=3 seed=1 --fresh"
    before = (away / "executions").read_text().count("\n")
    (away / "squares.py").rename(away / "moved.py")  # a later ledger knows the claim without the file
    assert "A wider square is larger." in call("ledger", "x1")[1]
    assert "X1" in call("ledger")[1]
    assert "X1 is tested by: ematrace reproduce ./squares.py" in one_line_of(call("reproduce", "X1"))
    (away / "moved.py").rename(away / "squares.py")
    assert call(*command.split()[1:], "--report", "None")[0] == 0
    assert (away / "executions").read_text().count("\n") == before + 2  # the unit and what it shares


def test_a_failed_unit_is_a_line_and_exit_code_1(call, away):
    write_own(away, widths="[2, 13, 3]")
    status, out, err = call("reproduce", "./squares.py", "--report", "None")
    assert status == 1
    assert err.startswith("failed: squares, width=13, seed 0: ZeroDivisionError: thirteen is refused (squares.py, line")
    assert err.count("\n") == 1
    assert "no claim rests on these experiments; their results: results/local/squares\n" in out
    assert len(files_in(away / "results" / "local")) == 2


def test_report_writes_one_page_with_the_results(call, away):
    write_cells("position", away / "results" / "local", Row({"role": "det_agent"}, {"first_word_share": Metric(0.123)}))
    status, out, err = call("report", "--out", "x.html")
    assert (status, err) == (0, "")
    assert "x.html" in out
    assert contents(away) == ["results", "x.html"]
    page = (away / "x.html").read_text(encoding="utf-8")
    assert page.lower().startswith("<!doctype html>")
    assert all(claim.id in page for claim in load_claims())
    assert "results/local/position/seed-0_cpu.json" in page


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
