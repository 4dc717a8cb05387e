"""Records of benchmarks with round numbers, for the tests of the harness, the command and the page."""

from __future__ import annotations

from typing import Any

from ematrace.bench import BenchmarkRecord, RecordFile, Row, Timing
from ematrace.ledger import Provenance

PROVENANCE = Provenance(
    date="2026-01-02T03:04:05+00:00",
    commit="0123456789abcdef",
    dirty=False,
    hardware={"cpu": "Testium 9", "cores": 2, "gpu": "Testia 1"},
    versions={"python": "3.11.7", "torch": "2.13.0", "triton": None},
    seconds=12.5,
    peak_memory_mb=100.0,
)


def made_up_record(**changes: Any) -> BenchmarkRecord:
    """Ours takes 2 ms and moves 8 MB at least: 4 GB/s, half of a copy's 8; theirs takes 5 ms."""
    fields: dict[str, Any] = {
        "benchmark": "made_up",
        "title": "Ours against theirs",
        "rows": (
            Row("ours", Timing((0.002, 0.001, 0.004)), bytes=8e6, tokens=100),
            Row("theirs", Timing((0.005, 0.004, 0.016)), operations=1e9, note="one launch each"),
        ),
        "ratios": {"ours against theirs": (4.0, 2.5, 4.0)},
        "ceilings": {"copy_bytes_per_second": 8e9, "matmul_flops_per_second": 1e12},
        "checks": ("forward: largest difference 3e-7",),
        "settings": {"shape": [2, 3], "dtype": "float32"},
        "figures": {"bytes per stream": 9216.0},
    }
    return BenchmarkRecord(**{**fields, **changes})


def made_up_file(**changes: Any) -> RecordFile:
    return RecordFile(made_up_record(**changes), PROVENANCE, "python benchmarks/made_up.py")
