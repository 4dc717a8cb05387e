"""Threads for compiled CPU kernels that release Python's lock."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

_made = threading.Lock()
_pool: ThreadPoolExecutor | None = None


def split(kernel: Callable[[int, int], object], n: int, least: int = 1) -> None:
    """kernel(begin, end) for slices that cover range(n), on as many threads as torch uses now.

    A slice has at least `least` items: below that, starting a thread costs more than it saves.
    """
    n_slices = max(1, min(torch.get_num_threads(), n // least))
    ends = [n * i // n_slices for i in range(n_slices + 1)]
    others = [_workers().submit(kernel, *ends[i : i + 2]) for i in range(1, n_slices)]
    kernel(ends[0], ends[1])  # the calling thread works, too
    for other in others:
        other.result()


def _workers() -> ThreadPoolExecutor:
    global _pool
    with _made:
        if _pool is None:
            _pool = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="ematrace")
        return _pool


def _forget() -> None:
    """A forked process has the pool, but none of its threads."""
    global _pool, _made
    _pool, _made = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
