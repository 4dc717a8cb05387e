"""Keeping freed memory for the next tensor, instead of giving it back to the system.

glibc's malloc gives each tensor of more than 32 MB pages of its own and gives them back as soon as it is freed, and it
gives back what is free at the end of its heap beyond 64 MB. Training makes tensors of the same sizes in every step, so
every step asks for the same pages again, and the system clears each of them: up to a third of the time of a small
SPEN's step. Inside `kept_memory` they stay with the process. No result changes; the peak grows by about a tenth, at
most by a quarter in what was measured, since not all that is free is in pieces that fit again.

torch frees in the thread that computes, forward and backward on a CPU: in the main thread's heap, if it is that. Heaps
of other threads end at 64 MB, and what is larger has pages of its own all the same.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

# Of <malloc.h>.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4
KEEP = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: -1}  # by mallopt(3): no pages of their own, and nothing is given back
# glibc raises both thresholds up to these as large blocks are freed, until somebody sets one.
GIVE_BACK = {M_MMAP_MAX: 65536, M_MMAP_THRESHOLD: 32 * 2**20, M_TRIM_THRESHOLD: 64 * 2**20}
CHOSEN = (  # who sets these has decided
    "GLIBC_TUNABLES",
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
)
_inside: set[object] = set()  # what stands for each block that is under way
_entering = threading.Lock()


@contextmanager
def kept_memory() -> Iterator[None]:
    """Inside, memory that is freed stays with the process; what is free when the outermost ends, goes back.

    With glibc only: elsewhere, and where the environment has settings for malloc (`CHOSEN`), this does nothing.

    glibc does not tell what its thresholds are. So after the outermost block they are glibc's largest, of 32 and
    64 MB, and fixed, whatever a program has set by mallopt(3) before. A forked process begins outside of all blocks.

    >>> with kept_memory():
    ...     sum(len(bytes(2**26)) for _ in range(3))  # the same 64 MB each time
    201326592
    """
    libc = None if any(name in os.environ for name in CHOSEN) else _glibc()
    if libc is None:
        yield
        return
    block = object()
    try:  # Ctrl-C may come at any time from here on
        with _entering:
            _inside.add(block)
            if len(_inside) == 1:
                _set(libc, KEEP)
        yield
    finally:
        if _leave(block, libc):
            libc.malloc_trim(0)  # takes its time, for which others need not wait


def _leave(block: object, libc: Any) -> bool:
    """Whether it was the outermost."""
    with _entering:
        last = _inside == {block}
        _inside.discard(block)
        if last:
            _set(libc, GIVE_BACK)
    return last


def _set(libc: Any, options: dict[int, int]) -> None:
    for option, value in options.items():
        libc.mallopt(option, value)


@cache
def _glibc() -> Any:
    """The C library, if it is glibc. Others have no mallopt, or one with other options."""
    try:
        libc = ctypes.CDLL(None)
        _ = libc.gnu_get_libc_version
        libc.mallopt.argtypes, libc.malloc_trim.argtypes = (ctypes.c_int, ctypes.c_int), (ctypes.c_size_t,)
    except (OSError, TypeError, AttributeError):  # Windows has no library without a name
        return None
    return libc


def _forget() -> None:
    """A forked process inherits the blocks and the lock, but none of the threads that would leave or release them."""
    global _entering
    _entering = threading.Lock()
    if _inside:
        _inside.clear()
        _set(_glibc(), GIVE_BACK)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
