"""Kernels are compiled, and kept on disk where that works; damage there costs time, never a result."""

from __future__ import annotations

import errno
import importlib
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import pytest

from ematrace import jit

NAME = "kernels_of_a_test"


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """A kernel of a file of its own, as a new process would see it."""
    (tmp_path / f"{NAME}.py").write_text("def double(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delitem(sys.modules, NAME, raising=False)

    def made() -> Any:
        return jit.compiled()(importlib.reload(importlib.import_module(NAME)).double)

    return made


def uses_of_the_cache(kernel: Any) -> tuple[int, int]:
    """What was taken from it, and what had to be compiled."""
    assert kernel(21) == 42
    return sum(kernel.stats.cache_hits.values()), sum(kernel.stats.cache_misses.values())


def cache_files(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "cache").rglob("*") if path.is_file())


def test_machine_code_is_kept(kernel: Callable[[], Any], tmp_path: Path) -> None:
    assert uses_of_the_cache(kernel()) == (0, 1)
    assert [path.suffix for path in cache_files(tmp_path)] == [".nbc", ".nbi"]
    assert uses_of_the_cache(kernel()) == (1, 0)


@pytest.mark.parametrize("kind", ["inlined", "intrinsic", "of another"])
def test_a_change_where_functions_come_from_is_noticed(tmp_path: Path, kind: str) -> None:
    """Each time as a new process sees it; the file of the kernel stays as it is."""
    (tmp_path / "kernel_file.py").write_text(USER)
    library, parts = tmp_path / "library_file.py", tmp_path / "parts_file.py"

    def write(factor: int) -> None:
        library.write_text(LIBRARIES[kind].replace("FACTOR", str(factor)))
        parts.write_text(PART.replace("FACTOR", str(factor)))
        for path in (library, parts):
            os.utime(path, ns=(factor * 10**18, factor * 10**18))  # even where a clock is coarse

    found = []
    for factor in (2, 2, 3):
        write(factor)
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "NUMBA_DISABLE_JIT": "0"}
        told = subprocess.run(
            [sys.executable, "kernel_file.py"],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        found.append(told.stdout.split())
    assert found == [["42", "0"], ["42", "1"], ["63", "0"]]


PART = """
from ematrace.jit import inlined

@inlined()
def times(x):
    return FACTOR * x
"""
LIBRARIES = {
    "inlined": PART,
    "intrinsic": """
from numba.extending import intrinsic

@intrinsic
def times(typing, x):
    def generate(context, builder, signature, arguments):
        return builder.mul(arguments[0], context.get_constant(x, FACTOR))

    return x(x), generate
""",
    "of another": """
from ematrace.jit import inlined
from parts_file import times as of_parts

@inlined()
def times(x):
    return of_parts(x)
""",
}
USER = """
from ematrace.jit import compiled
from library_file import times

@compiled()
def kernel(x):
    return times(x)

print(kernel(21), sum(kernel.stats.cache_hits.values()))
"""


@pytest.mark.parametrize("which", [".nbi", ".nbc"])
@pytest.mark.parametrize("damage", ["empty", "cut", "bit", "text", "folder", "gone"])
def test_a_damaged_file_is_made_again(kernel: Callable[[], Any], tmp_path: Path, which: str, damage: str) -> None:
    kernel()(21)
    (path,) = (path for path in cache_files(tmp_path) if path.suffix == which)
    content = bytearray(path.read_bytes())
    content[random.Random(0).randrange(len(content))] ^= 4
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage != "gone":
        path.write_bytes({"empty": b"", "cut": content[:-9], "bit": content, "text": b"(dp0\n." * 9}[damage])
    assert uses_of_the_cache(kernel()) == (0, 1)
    if damage == "folder":
        shutil.rmtree(path)
        assert uses_of_the_cache(kernel()) == (0, 1)
    assert uses_of_the_cache(kernel()) == (1, 0)


@pytest.mark.parametrize("failing", ["replace", "makedirs"])
def test_a_full_disk_is_done_without(
    kernel: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    made = kernel()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, failing, full)
        assert uses_of_the_cache(made) == (0, 1)
    assert cache_files(tmp_path) == []


def test_a_kernel_is_compiled_where_there_is_no_folder(
    kernel: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere(self: object, function: object) -> None:
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr(jit._Cache, "__init__", nowhere)
    assert uses_of_the_cache(kernel())[0] == uses_of_the_cache(kernel())[0] == 0
