"""Workers that end with the process that started them, however that one ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

PR_SET_PDEATHSIG = 1
SECONDS_BETWEEN_LOOKS = 1.0


def end_with_parent(parent: int) -> None:
    """Let this process end when its parent is gone, even by SIGKILL, which the parent cannot pass on.

    Not on Windows, where a process keeps the number of a parent that is gone: there it goes on with what it measures.
    """
    if sys.platform == "linux":  # at once, also inside a kernel that holds the GIL
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_watch, args=(parent,), name="parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:  # orphans are adopted by another process
        time.sleep(SECONDS_BETWEEN_LOOKS)
    os._exit(1)
