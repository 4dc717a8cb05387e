"""What the tests of the operators' compiled CPU kernels share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from types import ModuleType

import numpy as np
import pytest
import torch

CHOICES = (  # setting of EMATRACE_KERNELS, dtype, whether the compiled kernels are used
    ("1", torch.float32, True),
    ("1", torch.bfloat16, True),
    ("1", torch.float16, True),
    ("1", torch.float64, False),
    ("0", torch.float32, False),
)


def calls_of(monkeypatch: pytest.MonkeyPatch, kernels: ModuleType, names: Sequence[str], setting: str) -> list[str]:
    """Fills with the functions that an operator calls, as if numba compiled."""
    monkeypatch.setenv("EMATRACE_KERNELS", setting)
    monkeypatch.setattr("ematrace.kernels.numba_compiles", lambda: True)
    calls: list[str] = []
    for name in names:
        function = getattr(kernels, name)
        monkeypatch.setattr(kernels, name, lambda *args, n=name, f=function: calls.append(n) or f(*args))
    return calls


@contextmanager
def threads(n: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def check_scratch(
    monkeypatch: pytest.MonkeyPatch, kernels: ModuleType, name: str, scratch: str, work: Callable[[], object]
) -> None:
    """Each of three threads hands memory of its own to this parameter of the kernel."""
    kernel = getattr(kernels, name)
    place, found = list(inspect.signature(kernel).parameters).index(scratch), []
    monkeypatch.setattr(kernels, "LEAST", 1)
    monkeypatch.setattr(kernels, name, lambda *args: found.append(args[place]) or kernel(*args))
    with threads(3):
        work()
    assert len(found) == 3
    assert not any(np.shares_memory(a, b) for a, b in combinations(found, 2))
