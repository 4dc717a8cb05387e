"""Files, intervals and the switch of the kernels."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from defects.planting import defect, replaced, skipped, with_result, wrap


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


@defect("kernels", "test_kernels_edges.py", "switch")
def kernels_cannot_be_switched_off(kernels: Any) -> None:
    """The switch is not asked."""
    with_result(kernels, "gpu_kernels_are_on", lambda on: True)


@defect("workers", "test_workers.py", "exception_comes_after")
def slices_left_under_way(workers: Any) -> None:
    """An exception in one thread returns before the others are done."""
    skipped(workers, "wait")


@defect("intervals", "test_intervals.py", "wilson")
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


@defect("intervals", "test_intervals.py", "newcombe")
def ends_of_the_wrong_side(intervals: Any) -> None:
    """Newcombe's interval with the two proportions' ends exchanged."""
    wrap(
        intervals,
        "newcombe_difference_interval",
        lambda original: lambda k1, n1, k2, n2, *rest: tuple(-end for end in original(k1, n1, k2, n2, *rest)),
    )


@defect("intervals", "test_intervals.py", "seed_intervals")
def pairs_of_seeds_torn_apart(intervals: Any) -> None:
    """The interval of paired differences takes the two sides for independent."""
    replaced(
        intervals, "paired_difference_interval", lambda a, b, confidence=0.95: _unpaired(intervals, a, b, confidence)
    )


def _unpaired(intervals: Any, a: Any, b: Any, confidence: float) -> Any:
    return intervals.welch_difference_interval(a, b, confidence)
