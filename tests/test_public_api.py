"""What users import is documented, and every example in a docstring runs."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pydoc
import re
from pathlib import Path

import pytest

import ematrace

PACKAGE = Path(ematrace.__file__).parent
PUBLIC = ("mixers", "models", "spen", "spcn", "grammar", "probes", "train", "experiments", "results", "ledger")


def module_name(path: Path) -> str:
    parts = ("ematrace", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


WITH_EXAMPLES = sorted(
    module_name(path) for path in PACKAGE.rglob("*.py") if re.search(r"^\s*>>> ", path.read_text("utf-8"), re.MULTILINE)
)


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_in_docstrings_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = doctest.testmod(importlib.import_module(name))
    assert outcome.attempted > 0
    assert outcome.failed == 0


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_exist_and_say_what_they_are(name: str) -> None:
    module = importlib.import_module(f"ematrace.{name}")
    assert module.__doc__
    for public in module.__all__:
        thing = getattr(module, public)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert inspect.getdoc(thing), f"ematrace.{name}.{public} has no docstring"


def test_help_lists_every_public_package() -> None:
    text = pydoc.render_doc(ematrace, renderer=pydoc.plaintext)
    for name in PUBLIC:
        assert f"ematrace.{name}" in text
    assert "ema_traces" in text
