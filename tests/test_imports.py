"""What is imported, and what can be done without: in one new process, whose seconds of importing torch all share."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from runner_support import files_in, write_own
from train_support import environment

OPTIONAL = ("tyro", "rich", "datasets", "numba", "conllu", "torchdata", "tensorboard", "ray")
STEPS = {
    "the package": "import sys, ematrace; assert 'torch' not in sys.modules",
    "the names of mixers": "from ematrace.mixers import MIXERS, build_mixer; assert 'torch' not in sys.modules",
    "traces": "ematrace.EMATraces; assert 'torch' in sys.modules; assert 'numba' not in sys.modules",
    "one mixer": (
        "build_mixer('hgrn', d_model=4); there = [m for m in sys.modules if m.startswith('ematrace.mixers.')]\n"
        "assert 'ematrace.mixers.hgrn' in there and 'ematrace.mixers.gla' not in there, there"
    ),
    "nothing optional so far": f"assert not {{*{OPTIONAL}}} & {{*sys.modules}}",
    "training": (
        f"for name in {OPTIONAL}: sys.modules[name] = None\nimport ematrace.train.loop, ematrace.train.models"
    ),
    # As on a GPU machine: no tyro, datasets, conllu or ray.
    "experiments": (
        "for name in ('rich', 'numba', 'torchdata', 'tensorboard'): del sys.modules[name]\n"
        "from ematrace.experiments import EXPERIMENTS\n"
        "from ematrace.experiments.__main__ import main\n"
        "assert all(EXPERIMENTS[name].name == name for name in EXPERIMENTS)\n"
        "main(['./squares.py', '--out', 'out', '--jobs', '1'])"
    ),
}
ONE_AFTER_THE_OTHER = """
import json, pathlib, sys, traceback
errors, here = {}, {}
for name, code in json.loads(sys.argv[1]).items():
    try:
        exec(code, here)
        errors[name] = ""
    except SystemExit as ended:
        errors[name] = f"exit code {ended.code}" if ended.code else ""
    except BaseException:
        errors[name] = traceback.format_exc()
pathlib.Path("errors.json").write_text(json.dumps(errors))
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str], list[str]]:
    """The folder it ran in, what went wrong in each step, and what it printed."""
    folder = tmp_path_factory.mktemp("elsewhere")
    write_own(folder)
    command = [sys.executable, "-c", ONE_AFTER_THE_OTHER, json.dumps(STEPS)]
    ended = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return folder, json.loads((folder / "errors.json").read_text()), ended.stdout.splitlines()


@pytest.mark.parametrize("step", STEPS)
def test_step(done: tuple[Path, dict[str, str], list[str]], step: str) -> None:
    assert done[1][step] == ""


def test_experiments_ran_without_the_dependencies_of_the_command_line(
    done: tuple[Path, dict[str, str], list[str]],
) -> None:
    folder, _, lines = done
    assert len(files_in(folder / "out")) == 2
    assert [line.rpartition(": ")[2] for line in lines] == [
        f"out/squares/width-{width}_seed-0_cpu.json" for width in (2, 3)
    ]
