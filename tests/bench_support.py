"""Runs of benchmarks with round numbers, for the tests of the harness, the command and the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ematrace.bench import Comparison, Timing, ceiling_row, timing_row
from ematrace.results import CellFile, Metric, Provenance, Row
from ematrace.results.schema import SCHEMA

PROVENANCE = Provenance(
    date="2026-01-02T03:04:05+00:00",
    commit="0123456789abcdef",
    dirty=False,
    hardware={"cpu": "Testium 9", "cores": 2, "gpu": "Testia 1"},
    versions={"python": "3.11.7", "torch": "2.13.0", "triton": None},
    seconds=12.5,
    peak_memory_mb=100.0,
    command="python benchmarks/made_up.py",
)
OURS, THEIRS = {"contender": "ours"}, {"contender": "theirs"}
CEILINGS = (ceiling_row("copy", 8e9), ceiling_row("matmul", 1e12))


def timed(factors: dict[str, Any] | str, *seconds: float, **amounts: Any) -> Row:
    """A cell of one timing; a contender's name alone will do."""
    return timing_row({"contender": factors} if isinstance(factors, str) else factors, Timing(seconds), **amounts)


def made_up_cells() -> tuple[Row, ...]:
    """Ours takes 2 ms and moves 8 MB at least: 4 GB/s, half of a copy's 8; theirs takes 5 ms."""
    return (
        timed("ours", 0.002, 0.001, 0.004, bytes=8e6, tokens=100, state_bytes=Metric(9216.0, "bytes")),
        timed("theirs", 0.005, 0.004, 0.016, operations=1e9),
        *CEILINGS,
    )


def made_up_file(
    cells: Sequence[Row] | None = None, *, benchmark: str = "made_up", provenance: Provenance = PROVENANCE, **about: Any
) -> CellFile:
    """`about` changes settings."""
    settings: dict[str, Any] = {
        "title": "Ours against theirs",
        "checks": ["forward: largest difference 3e-7"],
        "comparisons": [Comparison(over=THEIRS, under=OURS)],
        "shape": [2, 3],
        "dtype": "float32",
    }
    return CellFile(
        schema=SCHEMA,
        experiment=benchmark,
        scale="cpu",
        seed=0,
        factors={},
        settings=msgspec.to_builtins({**settings, **about}),
        provenance=provenance,
        cells=list(made_up_cells() if cells is None else cells),
    )


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def work(self, *seconds: float) -> Callable[[], None]:
        """Takes the first of `seconds` at the first call, the second at the next, and the last from then on."""
        left = list(seconds)

        def call() -> None:
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return call
