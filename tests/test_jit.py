"""Kernels are compiled, with or without a folder to keep them in."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numba
import pytest

from ematrace import jit


@pytest.mark.parametrize("writable", [True, False])
def test_a_kernel_is_compiled_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch, writable: bool) -> None:
    asked = []

    def without_a_folder(**options: Any) -> Callable[..., Any]:
        asked.append(options.pop("cache", False))
        if asked[-1] and not writable:
            raise RuntimeError("cannot cache function: no locator available")
        return numba.njit(**options)  # type: ignore[no-any-return]

    monkeypatch.setattr(jit, "numba", SimpleNamespace(njit=without_a_folder))
    double = jit.compiled()(lambda x: 2 * x)
    assert double(21) == 42
    assert asked == ([True] if writable else [True, False])
