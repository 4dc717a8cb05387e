"""Runs tests in forked children of a process that has already imported what they need from other packages.

Importing torch and transformers takes longer than most of the tests. A request is a line of JSON on standard input, the
answer one on standard output.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
import pytest

from defects import DEFECTS
from defects.planting import Planter

TIMEOUT_S = 180
PRELOADED = (
    *("numpy", "scipy.stats", "sklearn.linear_model", "safetensors.torch", "filelock", "msgspec"),
    *("torch", "torch.distributed.checkpoint.state_dict", "torch.distributed.fsdp", "torch.utils._python_dispatch"),
    *("tokenizers", "transformers.models.gpt2.modeling_gpt2", "transformers.generation.utils", "transformers.trainer"),
)


class Recorder:
    """A plugin that keeps the names of tests that fail."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.broken: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.broken.append(f"{report.nodeid} cannot be imported")


def run_tests(tests: str, select: str, compiled: bool, name: str | None) -> dict[str, Any]:
    numba.config.DISABLE_JIT = int(not compiled)  # type: ignore[attr-defined]
    planter = None if name is None else Planter(DEFECTS[name])
    recorder = Recorder()
    # Numbers of interpreted kernels warn where compiled ones go to infinity.
    options = [
        "-x",
        "--tb=short",
        "-p",
        "no:cacheprovider",
        "--hypothesis-profile=once",
        "-W",
        "ignore::RuntimeWarning",
    ]
    code = pytest.main([*options, f"tests/{tests}", "-k", select], plugins=[recorder])
    problems = recorder.broken
    if code == pytest.ExitCode.NO_TESTS_COLLECTED:
        problems = [f"-k {select!r} selects no test of {tests}"]
    elif code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and not problems:
        problems = [f"pytest ended with code {int(code)}"]
    if planter is not None and planter.problem:
        problems = [planter.problem]
    return {"problems": problems, "failed": recorder.failed, "calls": planter.calls if planter else 0}


def check_places(names: list[str]) -> dict[str, Any]:
    """Plant all of them, one on top of the other: is everything there that they want to break?"""
    problems = []
    for name in names:
        try:
            DEFECTS[name].plant(importlib.import_module(DEFECTS[name].module))
        except Exception as error:
            problems.append(f"{name}: {type(error).__name__}: {error}")
    return {"problems": problems}


TASKS: dict[str, Callable[..., dict[str, Any]]] = {"run": run_tests, "check": check_places}


def in_a_child(task: str, arguments: dict[str, Any], folder: Path) -> dict[str, Any]:
    answer, output = folder / "answer.json", folder / "output.txt"
    answer.unlink(missing_ok=True)
    child = os.fork()
    if not child:
        os.setsid()
        signal.alarm(TIMEOUT_S)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(log, stream)
        try:
            answer.write_text(json.dumps(TASKS[task](**arguments)), encoding="utf-8")
        finally:
            sys.stdout.flush()
            os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what its tests have left behind
    text = output.read_text(encoding="utf-8", errors="replace")
    if status == -signal.SIGALRM:
        return {"timed_out": True, "output": text}
    if not answer.exists():
        return {"problems": [f"the tests ended with code {status}"], "output": text}
    return {**json.loads(answer.read_text(encoding="utf-8")), "output": text}


def main(folder: Path) -> None:
    from hypothesis import Phase, settings

    # Any example that fails is enough, it need not be the smallest.
    settings.register_profile("once", deadline=None, derandomize=True, phases=(Phase.explicit, Phase.generate))
    for name in PRELOADED:
        with suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(in_a_child(**json.loads(line), folder=folder)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
