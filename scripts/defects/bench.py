"""Timing, and what is computed from times."""

from __future__ import annotations

from typing import Any

from defects.planting import defect, with_result, wrap


@defect("bench.compare", "test_bench_cells.py", "TestRatio")
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


@defect("bench.script", "test_bench.py", "beside_other_programs")
def busy_machine_recorded(script: Any) -> None:
    """Times that were taken beside other programs are written to the results."""
    with_result(script, "too_busy", lambda problem: None)
