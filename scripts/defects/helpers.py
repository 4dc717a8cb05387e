"""Files, intervals and the switch of the kernels."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from defects.planting import defect, replaced, with_arguments, with_result, wrap


@defect("files", "test_files.py", "failure or ctrl_c")
def file_written_in_place(files: Any) -> None:
    """An atomic write that is not atomic: a crash leaves half a file."""

    def write_atomically(path: Any, content: bytes) -> Path:
        with Path(path).open("wb") as file:
            file.write(content[: len(content) // 2])
            file.flush()
            files.os.fsync(file.fileno())
            file.write(content[len(content) // 2 :])
        return Path(path)

    replaced(files, "write_atomically", write_atomically)


@defect("sharing", "test_sharing.py", "own_work")
def own_work_taken_for_others(sharing: Any) -> None:
    """Training sees itself as the load beside it."""
    with_result(sharing.Meter, "others", lambda others: None if others is None else others + 1.0)


@defect("memory", "test_memory.py", "outermost")
def memory_never_given_back(memory: Any) -> None:
    """malloc keeps everything for good."""
    with_arguments(memory, "_set", options=lambda options: memory.KEEP)


@defect("kernels", "test_kernels_edges.py", "switch")
def kernels_cannot_be_switched_off(kernels: Any) -> None:
    """The switch is not asked."""
    with_result(kernels, "gpu_kernels_are_on", lambda on: True)


@defect("intervals", "test_intervals.py", "wilson_matches")
def interval_of_a_proportion_is_walds(intervals: Any) -> None:
    """p ± z √(p (1 - p) / n), which covers too little at the ends."""

    def wald(original: Any) -> Any:
        def interval(k: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
            low, high = original(k, n, confidence)
            if not n:
                return low, high
            p = k / n
            half = 1.96 * math.sqrt(p * (1 - p) / n)
            return max(0.0, p - half), min(1.0, p + half)

        return interval

    wrap(intervals, "wilson_interval", wald)


def _unpaired(intervals: Any, a: Any, b: Any, confidence: float) -> Any:
    return intervals.welch_difference_interval(a, b, confidence)
