"""A mechanism and an experiment are one file each: those of CONTRIBUTING.md, up to the ledger and the page."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ematrace.mixers.conformance import check_mixer

ROOT = Path(__file__).resolve().parents[1]
MIXER, EXPERIMENT = "mysum", "sum_or_nothing"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The two files, as the page has them, but trained on next to nothing."""
    here = tmp_path_factory.mktemp("own")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL)
    mixer, experiment = blocks
    (here / f"{MIXER}.py").write_text(mixer)
    assert experiment.count("200_000") == 1
    (here / f"{EXPERIMENT}.py").write_text(experiment.replace("200_000", "8_192"))
    return here


def ematrace(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"EMATRACE_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "ematrace", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_the_mixer_conforms(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    results = check_mixer(f"{MIXER}:RunningSum")
    assert len(results) > 8
    assert [r for r in results if not r.passed] == []
    done = ematrace(folder, "check", f"{MIXER}:RunningSum")
    assert done.returncode == 0, done.stderr


def test_the_experiment_reaches_cells_ledger_and_page(folder: Path) -> None:
    done = ematrace(folder, "reproduce", f"./{EXPERIMENT}.py", "--seeds", "2", "--jobs", "1")
    assert done.returncode == 0, done.stderr
    files = sorted((folder / "results" / "local" / EXPERIMENT).glob("*.json"))
    assert len(files) == 4
    cells = [json.loads(path.read_text()) for path in files]
    assert {cell["factors"]["mixer"] for cell in cells} == {"none", f"{MIXER}:RunningSum"}
    assert "X1" in done.stdout
    assert f"ematrace reproduce ./{EXPERIMENT}.py" in (folder / "report.html").read_text(encoding="utf-8")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "A running sum as the only context beats no context." in page
    assert EXPERIMENT in page
    again = ematrace(folder, "reproduce", f"./{EXPERIMENT}.py", "--seeds", "2", "--dry-run")
    assert "0 units to run, 4 already" in again.stdout
    assert {path.name for path in folder.iterdir()} - {"__pycache__"} == {
        *(f"{MIXER}.py", f"{EXPERIMENT}.py", "results", "report.html", "cache"),
    }
