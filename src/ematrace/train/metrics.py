"""The record of a run: a line of JSON per step, TensorBoard on request, and how busy the hardware was."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import torch

from ematrace.files import parse_json, write_atomically
from ematrace.train.config import Precision


class Display(Protocol):
    """Shows a run in progress. `on_step` is called for every step, so it must return in microseconds.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> class Printed(Display):
    ...     def on_start(self, total_steps):
    ...         print(total_steps, "steps")
    ...     def on_step(self, metrics):
    ...         print("step", metrics["step"], sorted(metrics)[:2])
    >>> short = {"tokenizer": "bpe", "tokens": 256, "sequences": 2, "length": 64}
    >>> with TemporaryDirectory() as folder:
    ...     size = Path(folder, "tale.txt").write_text("the cat sees the dog " * 2000)
    ...     summary = train(TrainConfig(f"{folder}/tale.txt", out=Path(folder, "run"), **short), display=Printed())
    2 steps
    step 1 ['cross_entropy', 'grad_norm']
    step 2 ['cross_entropy', 'grad_norm']
    """

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

    def __init__(self, path: Path, *, after_step: int, warn: Callable[[str], None] = lambda _: None):
        """Lines past `after_step` belong to steps that are about to be done again.

        Nothing else is lost: of a damaged file every good line is kept, and the file as it was beside it.
        """
        self.path = path
        content = path.read_bytes() if path.exists() else b""
        good, damaged = sort_lines(content)
        if damaged or (good and not after_step):
            aside = _keep_aside(path, content)
            what = f"{len(damaged)} damaged" if damaged else "those of a run without a checkpoint"
            warn(f"{path}: lines left out: {what}; the file as it was is {aside.name}")
        kept = b"".join(line + b"\n" for line, values in good if values["step"] <= after_step)
        if kept != content:
            write_atomically(path, kept)
        self._file = path.open("ab", buffering=0)  # nothing left to write when it is closed after an error

    def write(self, metrics: Mapping[str, Any]) -> None:
        line = memoryview(json.dumps(metrics).encode() + b"\n")
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:  # a full disk; the part of a line that is there now is dropped on resume
            raise OSError(error.errno, error.strerror, str(self.path)) from error

    def close(self) -> None:
        self._file.close()


def sort_lines(content: bytes) -> tuple[list[tuple[bytes, dict[str, Any]]], list[bytes]]:
    """Lines with what they hold, and lines that hold no step; a last one without its end is in neither."""
    good, damaged = [], []
    for line in content.split(b"\n")[:-1]:
        try:
            values = parse_json(line, "", allow_nan=True)
        except ValueError:
            values = {}
        if type(values.get("step")) is int and values["step"] > 0:
            good.append((line, values))
        else:
            damaged.append(line)
    return good, damaged


def _keep_aside(path: Path, content: bytes) -> Path:
    """A copy under the first free name `NAME.1`, `NAME.2`, ..."""
    free = next(other for n in count(1) if not (other := path.with_name(f"{path.name}.{n}")).exists())
    return write_atomically(free, content)


def import_tensorboard() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError("tensorboard is not installed; pip install 'ematrace[tensorboard]'") from None
    return SummaryWriter


def open_tensorboard(folder: Path, *, after_step: int) -> Any:
    return import_tensorboard()(str(folder), purge_step=after_step + 1)


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
