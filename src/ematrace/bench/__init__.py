"""Timing contenders in turn, the measured ceilings of the machine, and the cells that benchmarks leave.

A run of a benchmark is one `CellFile`: `experiment` is the benchmark's name, the seed 0, and all contenders are cells
of it, since only times of one run are compared. The factors are the same in all scripts: `FACTORS` says what each
means.

The metrics: `seconds` (the median of its `repetitions`); the least that one call needs: `bytes` to move, `operations`
(floating-point; models as `ematrace.models.flops` counts them), `tokens` to process; and others, with units.
Ratios and shares of ceilings are computed from them (`ratio`, `share`), never stored. The settings name the `title`,
the `checks` against the reference, the `comparisons` to show, and what else the times depend on.

Imports torch only when something is timed, and nothing that a GPU machine may lack.
"""

from ematrace.bench.cells import (
    FACTORS,
    About,
    Case,
    Comparison,
    ceiling_row,
    is_benchmark,
    label,
    time_cases,
    timing_row,
)
from ematrace.bench.compare import Run, Spread, Timed, ratio, runs_of, share
from ematrace.bench.measure import Timing, copy_bandwidth, matmul_rate, progress, read_bandwidth, time_cpu, time_gpu
from ematrace.bench.script import finish, gpu_unless_quick, parser, too_busy, write_run

__all__ = [
    "FACTORS",
    "About",
    "Case",
    "Comparison",
    "Run",
    "Spread",
    "Timed",
    "Timing",
    "ceiling_row",
    "copy_bandwidth",
    "finish",
    "gpu_unless_quick",
    "is_benchmark",
    "label",
    "matmul_rate",
    "parser",
    "progress",
    "ratio",
    "read_bandwidth",
    "runs_of",
    "share",
    "time_cases",
    "time_cpu",
    "time_gpu",
    "timing_row",
    "too_busy",
    "write_run",
]
