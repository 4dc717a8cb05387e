"""Imports go one way: the contract holds, notices an import that goes up, and is what the docs say."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def layers() -> list[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = settings["tool"]["importlinter"]["contracts"]
    return list(contract["layers"])


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """`lint-imports` on the package under `folder`, as `make lint` runs it."""
    lines = ("import sys", "from importlinter.cli import lint_imports", "sys.path.insert(0, 'src')")
    code = "; ".join((*lines, "sys.exit(lint_imports(no_cache=True))"))
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)


def copy_of_package(folder: Path) -> Path:
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(ROOT / "pyproject.toml", folder)
    return folder / "src" / "ematrace"


def test_an_import_that_goes_up_fails_the_lint(tmp_path: Path) -> None:
    package = copy_of_package(tmp_path)
    clean = lint(tmp_path)
    assert clean.returncode == 0, clean.stdout
    planted = package / "results" / "sample.py"
    planted.write_text(planted.read_text(encoding="utf-8") + "\nfrom ematrace.ledger import load_claims\n")
    broken = lint(tmp_path)
    assert broken.returncode == 1
    assert re.search(r"ematrace\.results\.sample\s*->\s*ematrace\.ledger", broken.stdout)


def test_a_new_package_must_find_its_place(tmp_path: Path) -> None:
    package = copy_of_package(tmp_path)
    (package / "nowhere").mkdir()
    (package / "nowhere" / "__init__.py").write_text("")
    assert lint(tmp_path).returncode == 1


def test_docs_show_the_contract() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    match = re.search(r"<!-- layers -->\n```\n(.*?)```", text, re.DOTALL)
    assert match is not None
    shown = [re.split(r"\s{2,}", line)[0].strip() for line in match[1].splitlines() if line.strip()]
    assert shown == layers()
