"""A mechanism and an experiment are one file each: those of CONTRIBUTING.md, up to the ledger and the page."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from cli_support import exit_status

ROOT = Path(__file__).resolve().parents[1]
MIXER, EXPERIMENT = "mysum", "sum_or_nothing"
TOKENS, BYTES = "4_096", 400_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The two files, as the page has them, but trained on next to nothing."""
    here = tmp_path_factory.mktemp("own")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL)
    mixer, experiment = blocks
    (here / f"{MIXER}.py").write_text(mixer)
    assert experiment.count("200_000") == 1
    # The experiment's module is imported by its worker as well, so that both read less of the built-in text.
    less = f"from ematrace.text import corpora\n\ncorpora.BUILTIN_BYTES = {BYTES}\n"
    (here / f"{EXPERIMENT}.py").write_text(experiment.replace("200_000", TOKENS) + less)
    return here


@pytest.fixture
def call(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """A command in this process, which has imported torch already; the worker that it starts has its own."""

    def run(*arguments: str) -> str:
        monkeypatch.chdir(folder)
        monkeypatch.setenv("EMATRACE_CACHE", str(folder / "cache"))
        monkeypatch.setenv("EMATRACE_RESULTS", str(tmp_path))  # the page of this experiment alone
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        monkeypatch.setattr("ematrace.text.corpora.BUILTIN_BYTES", BYTES)
        monkeypatch.setattr(sys, "path", [*sys.path])
        code = exit_status(monkeypatch, *arguments)
        captured = capsys.readouterr()
        assert code == 0, captured.err
        return captured.out

    return run


def test_the_mixer_conforms(call) -> None:
    found = re.search(r"(\d+) of (\d+) checks passed", call("check", f"{MIXER}:RunningSum"))
    assert found is not None
    assert int(found[1]) == int(found[2]) > 8


def test_the_experiment_reaches_cells_ledger_and_page(folder: Path, call) -> None:
    out = call("reproduce", f"./{EXPERIMENT}.py", "--seeds", "1", "--jobs", "1")
    files = sorted((folder / "results" / "local" / EXPERIMENT).glob("*.json"))
    assert len(files) == 2
    cells = [json.loads(path.read_text()) for path in files]
    assert {cell["factors"]["mixer"] for cell in cells} == {"none", f"{MIXER}:RunningSum"}
    assert "X1" in out
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert f"ematrace reproduce ./{EXPERIMENT}.py" in page
    assert "A running sum as the only context beats no context." in page
    assert EXPERIMENT in page
    assert "0 units to run, 2 already" in call("reproduce", f"./{EXPERIMENT}.py", "--seeds", "1", "--dry-run")
    assert {path.name for path in folder.iterdir()} - {"__pycache__"} == {
        *(f"{MIXER}.py", f"{EXPERIMENT}.py", "results", "report.html", "cache"),
    }
