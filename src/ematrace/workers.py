"""A thread pool for compiled CPU kernels, which release the GIL."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

import torch

NAME = "ematrace"
_made = threading.Lock()
_pool: ThreadPoolExecutor | None = None


def split(kernel: Callable[[int, int], object], n: int, least: int = 1) -> None:
    """Run kernel(begin, end) on slices that cover range(n), in `torch.get_num_threads()` threads.

    A slice has at least `least` items: with fewer, a thread costs more than it saves. All slices have ended when this
    returns or raises.
    """
    n_slices = max(1, min(torch.get_num_threads(), n // least))
    if threading.current_thread().name.startswith(NAME):  # a nested call would deadlock
        n_slices = 1
    ends = [n * i // n_slices for i in range(n_slices + 1)]
    others: list[Future[object]] = []
    try:
        try:
            for i in range(1, n_slices):
                others.append(_workers().submit(kernel, ends[i], ends[i + 1]))  # noqa: PERF401 - submit may fail half-way
        except RuntimeError as error:
            if "shutdown" not in str(error):
                raise
            # The interpreter is shutting down and starts no more threads.
            kernel(ends[len(others) + 1], n)
        kernel(0, ends[1])  # in the calling thread
    finally:
        wait(others)
    for other in others:
        other.result()


def _workers() -> ThreadPoolExecutor:
    global _pool
    with _made:
        if _pool is None:
            _pool = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix=NAME)
        return _pool


def _forget() -> None:
    """A forked process inherits the pool, but none of its threads."""
    global _pool, _made
    _pool, _made = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
