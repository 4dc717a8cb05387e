"""Timing contenders side by side, the ceilings of this machine, and the records that benchmarks leave.

Imports torch, numpy, rich and the standard library only, so that a benchmark runs wherever its contenders do.
"""

from ematrace.bench.measure import Timing, copy_bandwidth, matmul_rate, progress, read_bandwidth, time_cpu, time_gpu
from ematrace.bench.record import (
    BenchmarkRecord,
    RecordFile,
    Row,
    finish,
    parse_record,
    ratio,
    read_record,
    read_records,
)

__all__ = [
    "BenchmarkRecord",
    "RecordFile",
    "Row",
    "Timing",
    "copy_bandwidth",
    "finish",
    "matmul_rate",
    "parse_record",
    "progress",
    "ratio",
    "read_bandwidth",
    "read_record",
    "read_records",
    "time_cpu",
    "time_gpu",
]
