"""What users import is documented, and every example in a docstring runs."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pydoc
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ematrace
from ematrace.mixers import _registry

PACKAGE = Path(ematrace.__file__).parent
WITHOUT_EXAMPLE = {
    "ematrace.bench.measure.copy_bandwidth": "copies gigabytes to find one number, another on every machine",
    "ematrace.bench.measure.read_bandwidth": "reads gigabytes likewise",
    "ematrace.bench.measure.time_gpu": "needs a CUDA GPU",
}


def module_name(path: Path) -> str:
    parts = ("ematrace", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules_with(pattern: str) -> list[str]:
    """Found in the text: importing all of them would make every other test of this file wait."""
    compiled = re.compile(pattern, re.MULTILINE)
    return sorted(module_name(path) for path in PACKAGE.rglob("*.py") if compiled.search(path.read_text("utf-8")))


WITH_EXAMPLES = modules_with(r"^\s*>>> ")
PUBLIC = modules_with(r"^__all__ = ")


def public_names(package: str) -> dict[str, Any]:
    """What `from package import *` brings."""
    module = importlib.import_module(package)
    return {name: getattr(module, name) for name in module.__all__}


def callables(package: str) -> Iterator[tuple[str, Any]]:
    """Public classes and functions by their full names; not constants and aliases of types."""
    for thing in public_names(package).values():
        if (inspect.isclass(thing) or inspect.isfunction(thing)) and thing.__module__.startswith("ematrace"):
            yield f"{thing.__module__}.{thing.__qualname__}", thing


def home(full: str) -> str:
    """The package that a name is from; others may export it, too."""
    return max((package for package in PUBLIC if full.startswith(f"{package}.")), key=len)


def examples_of(full: str, thing: Any, names: dict[str, Any]) -> list[doctest.DocTest]:
    """Those of a class or function and of its methods."""
    found = doctest.DocTestFinder().find(thing, full, module=inspect.getmodule(thing), globs=names)
    return [test for test in found if test.examples]


def run_all(tests: list[doctest.DocTest]) -> None:
    runner = doctest.DocTestRunner()
    for test in tests:
        runner.run(test)
    assert runner.failures == 0


@pytest.fixture(autouse=True)
def leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Files go to a folder of the test's own, and the mixer that an example registers is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EMATRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", list(sys.path))  # where an example finds an experiment
    yield
    _registry._registered.pop("nothing", None)


@pytest.mark.parametrize("package", PUBLIC)
def test_examples_of_public_names_run_after_one_import(package: str) -> None:
    """As a reader would try them: pasted after `from package import *`, with nothing else there."""
    names = public_names(package)
    own = [(full, thing) for full, thing in callables(package) if home(full) in (package, "ematrace")]
    run_all([test for full, thing in own for test in examples_of(full, thing, names)])


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_other_examples_run(name: str) -> None:
    """Those of modules, and of functions that are not public."""
    packages = [package for package in PUBLIC if f"{name}.".startswith(f"{package}.")]
    public = {full for package in packages for full, _ in callables(package)}
    found = doctest.DocTestFinder().find(importlib.import_module(name), name)
    owners = {test.name: [test.name.rsplit(".", cut)[0] for cut in range(3)] for test in found}
    run_all([test for test in found if test.examples and not any(owner in public for owner in owners[test.name])])


def test_every_public_class_and_function_has_an_example() -> None:
    """One that runs; that of a function calls it."""
    missing = []
    for full, thing in {full: thing for package in PUBLIC for full, thing in callables(package)}.items():
        examples = [e for test in examples_of(full, thing, {}) for e in test.examples]
        shown = [e.source for e in examples if doctest.SKIP not in e.options]
        if inspect.isfunction(thing):
            shown = [source for source in shown if f"{thing.__name__}(" in source]
        if not shown:
            missing.append(full)
    assert sorted(missing) == sorted(WITHOUT_EXAMPLE)


@pytest.mark.parametrize("package", PUBLIC)
def test_public_names_exist_and_say_what_they_are(package: str) -> None:
    assert importlib.import_module(package).__doc__
    for full, thing in callables(package):
        assert inspect.getdoc(thing), f"{full} has no docstring"


def test_help_lists_every_package() -> None:
    text = pydoc.render_doc(ematrace, renderer=pydoc.plaintext)
    listed = re.findall(r"^ +(ematrace\.\w+)  ", text, re.MULTILINE)
    folders = {f"ematrace.{init.parent.name}" for init in PACKAGE.glob("*/__init__.py")}
    assert sorted(listed) == sorted({*folders, "ematrace.evaluation"})
    assert "ema_traces" in text
