"""The notebooks of examples/ run from top to bottom, at a size of seconds; its mixer is that of CONTRIBUTING.md.

Their cells are executed here instead of in a kernel, whose start would take longer than the cells.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
# What each prints if it did what it says.
SAYS = {
    "traces_in_your_model": "traces     copy",
    "spcn_on_your_sequences": "the same features: True",
    "spen_trained_and_streamed": "continues exactly: True",
}


def cells(name: str) -> list[dict[str, Any]]:
    notebook = json.loads((EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    found: list[dict[str, Any]] = notebook["cells"]
    return found


def test_the_mixer_is_the_one_that_is_explained() -> None:
    """tests/test_one_file.py checks that one, and tests/test_readme.py this one by its command."""
    explained = (EXAMPLES.parent / "CONTRIBUTING.md").read_text(encoding="utf-8").split("```python\n")[1]
    assert (EXAMPLES / "running_sum.py").read_text(encoding="utf-8") == explained.partition("```")[0]


def test_every_notebook_is_listed() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.ipynb")} == set(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_notebook_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EXAMPLE_SCALE", "0.05")
    monkeypatch.setenv("EMATRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    with torch.random.fork_rng():
        for i, cell in enumerate(cells(name)):
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), f"{name}.ipynb, cell {i}", "exec"), namespace)
    assert SAYS[name] in capsys.readouterr().out


@pytest.mark.parametrize("name", SAYS)
def test_notebook_is_committed_without_outputs(name: str) -> None:
    assert [c["outputs"] for c in cells(name) if c["cell_type"] == "code" and c["outputs"]] == []
    assert cells(name)[0]["cell_type"] == "markdown"
