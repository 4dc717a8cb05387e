"""What a run tells of itself: a line of JSON per step, TensorBoard when asked, and how busy the hardware was."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from ematrace.files import write_atomically
from ematrace.train.config import Precision


class Display(Protocol):
    """Whoever shows a run while it goes on."""

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


def flops_per_token(model: nn.Module, length: int) -> int:
    """Forward and backward: 6 for each weight that multiplies, plus attention's share, which grows with the length.

    The embedding is a lookup and counts only where it is also the head; learned positions do not count.
    """
    lookups = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    get_head: Any = getattr(model, "get_output_embeddings", lambda: None)
    head = get_head()
    lookups -= {id(head.weight)} if head is not None else set()
    products = sum(p.numel() for p in model.parameters() if p.dim() >= 2 and id(p) not in lookups)
    config: Any = getattr(model, "config", None)
    attention = 0
    if getattr(config, "model_type", None) == "gpt2":
        # QK^T and the product with V: 4 T d forward, three times that with the backward pass; the masked half counts.
        attention = 12 * config.n_layer * config.n_embd * length
    return 6 * products + attention


def measure_matmul_flops(device: torch.device, precision: Precision) -> float:
    """Operations a second of a plain square product on this device: what the model could reach at best.

    Measured and not looked up, so that it means the same on every machine; a vendor's figure is higher.
    """
    n, repetitions = (8192, 20) if device.type == "cuda" else (512, 3)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    # Constants would run cooler, and so faster; a generator of its own leaves the run's alone.
    draw = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(n, n, device=device, generator=draw).to(dtype) for _ in range(2))
    best = float("inf")
    with torch.no_grad():
        for _ in range(3):  # the first one warms up
            _synchronize(device)
            start = time.perf_counter()
            for _ in range(repetitions):
                a @ b
            _synchronize(device)
            best = min(best, time.perf_counter() - start)
    return 2.0 * n**3 * repetitions / best


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


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
    """`peak_memory_bytes`, counted anew ten times a second at most: torch takes a tenth of a millisecond for it."""

    def __init__(self, device: torch.device):
        self.device, self._bytes, self._due = device, 0, 0.0

    def bytes(self) -> int:
        if time.monotonic() >= self._due:
            self._bytes, self._due = peak_memory_bytes(self.device), time.monotonic() + 0.1
        return self._bytes
