"""Timing, and what is computed from times."""

from __future__ import annotations

from typing import Any

from defects.planting import defect, with_arguments, with_result, wrap


@defect("bench.compare", "test_bench.py", "TestRatio")
def ratio_upside_down(compare: Any) -> None:
    """How many times as fast, where it says how many times as long."""
    wrap(
        compare,
        "ratio",
        lambda original: lambda *args, over, under, **kwargs: original(*args, over=under, under=over, **kwargs),
    )


@defect("bench.measure", "test_bench.py", "own_time")
def warm_up_counts(measure: Any) -> None:
    """Compiling is part of the time."""
    wrap(
        measure,
        "_in_turn",
        lambda original: lambda work, once, repetitions, warmup: original(work, once, repetitions + warmup, 0),
    )


@defect("bench.measure", "test_bench.py", "take_turns")
def one_contender_after_the_other(measure: Any) -> None:
    """A slow moment of the machine hits one of them alone."""

    def apart(original: Any) -> Any:
        def in_turn(work: Any, once: Any, repetitions: int, warmup: int) -> Any:
            timings: dict[str, Any] = {}
            for name in work:
                timings |= original({name: work[name]}, once, repetitions, warmup)
            return timings or original(work, once, repetitions, warmup)

        return in_turn

    wrap(measure, "_in_turn", apart)


@defect("bench.measure", "test_bench.py", "copy_reads")
def copy_counted_once(measure: Any) -> None:
    """A copy moves every byte twice."""
    with_result(measure, "copy_bandwidth", lambda rate: rate / 2)


@defect("bench.cells", "test_bench.py", "TestCells")
def fastest_repetition_reported(cells: Any) -> None:
    """The value of a timing is its best, not its median."""
    with_arguments(cells, "timing_row", timing=lambda timing: type(timing)((timing.fastest,) * len(timing.seconds)))
