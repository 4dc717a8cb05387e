"""The record of a run: a line of JSON per step, TensorBoard on request, and how busy the hardware was."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch

from ematrace.files import write_atomically
from ematrace.train.config import Precision


class Display(Protocol):
    """Shows a run in progress. `on_step` is called for every step, so it must return in microseconds."""

    def on_start(self, total_steps: int) -> None: ...
    def on_step(self, metrics: Mapping[str, Any]) -> None: ...
    def on_event(self, text: str) -> None: ...
    def close(self) -> None: ...


class Silent:
    """No display."""

    def on_start(self, total_steps: int) -> None:
        pass

    def on_step(self, metrics: Mapping[str, Any]) -> None:
        pass

    def on_event(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


class MetricsFile:
    """metrics.jsonl: one line per step, numbers in full precision, so that two curves can be compared bit for bit."""

    def __init__(self, path: Path, *, after_step: int):
        """Lines past `after_step` belong to steps that are about to be done again."""
        self.path = path
        kept = [line for line in self._lines() if line["step"] <= after_step]
        write_atomically(path, "".join(json.dumps(line) + "\n" for line in kept).encode())
        self._file = path.open("a", encoding="utf-8")

    def _lines(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        lines = []
        for text in self.path.read_text(encoding="utf-8").splitlines():
            try:
                lines.append(json.loads(text))
            except json.JSONDecodeError:  # the last line of a killed run may be cut short
                break
        return lines

    def write(self, metrics: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(metrics) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def open_tensorboard(folder: Path, *, after_step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError("tensorboard is not installed; pip install 'ematrace[tensorboard]'") from None
    return SummaryWriter(str(folder), purge_step=after_step + 1)


@cache
def matmul_ceiling(device: torch.device, precision: Precision, threads: int) -> float:
    """`ematrace.bench.matmul_rate`, measured once in a process: it takes longer than a short run's step."""
    from ematrace.bench.measure import matmul_rate

    return matmul_rate(device, torch.bfloat16 if precision == "bfloat16" else torch.float32)


def peak_memory_bytes(device: torch.device) -> int:
    """Of the device; on a CPU, of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource  # Unix only
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024)


class PeakMemory:
    """`peak_memory_bytes`, read ten times a second at most: torch takes a tenth of a millisecond for it."""

    def __init__(self, device: torch.device):
        self.device, self._bytes, self._due = device, 0, 0.0

    def bytes(self) -> int:
        if time.monotonic() >= self._due:
            self._bytes, self._due = peak_memory_bytes(self.device), time.monotonic() + 0.1
        return self._bytes
