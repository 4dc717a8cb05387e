"""The batches of a run as a function of seed and step, whatever the number of processes.

A step has `sequences` windows of `length` + 1 tokens, cut into micro-batches that are the same for one process or many;
each process takes its share of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ematrace.text.order import sequences_at
from ematrace.text.streamed import starts_after

Ids = NDArray[np.int64]
STEPS_AHEAD = 2


class Windows(Protocol):
    """The part of `ematrace.text.PackedTokens` that training uses."""

    @property
    def n_tokens(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def eos_id(self) -> int: ...
    @property
    def fingerprint(self) -> str: ...
    def n_windows(self, length: int) -> int: ...
    def window(self, i: int, length: int) -> Ids: ...
    def document_starts(self, i: int, length: int) -> Any: ...
    def counts(self) -> Ids: ...


class Stream(Protocol):
    """The part of `ematrace.text.StreamedTokens` that training uses."""

    def __iter__(self) -> Iterator[Ids]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class MicroBatch:
    """One forward pass: ids [b, T+1]; with resets, the starts of windows and documents along the b * T inputs."""

    ids: Tensor
    cu_seqlens: Tensor | None

    def to(self, device: torch.device) -> MicroBatch:
        return MicroBatch(_move(self.ids, device), None if self.cu_seqlens is None else _move(self.cu_seqlens, device))


def _move(tensor: Tensor, device: torch.device) -> Tensor:
    # From pinned memory the copy runs while the device still computes on the micro-batch before.
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


class Batches(Protocol):
    def micro_batches(self, step: int, share: range) -> Iterator[MicroBatch]:
        """The micro-batches of a step (0, 1, ...) whose numbers are in `share`."""
        ...

    def position(self) -> dict[str, Any]:
        """Position in the data after the last step that was read, as plain JSON."""
        ...

    def restore(self, position: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True)
class StepBatch:
    """The micro-batches of one step, and the position in the data after it."""

    micro_batches: Sequence[MicroBatch]
    position: Mapping[str, Any]


def read_ahead(batches: Batches, steps: range, share: range) -> Generator[StepBatch]:
    """The batches of `steps`; a background thread assembles STEPS_AHEAD of them in advance."""

    def assemble_step(step: int) -> StepBatch:
        return StepBatch(list(batches.micro_batches(step, share)), batches.position())

    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")  # one, so they come in order
    waiting: deque[Future[StepBatch]] = deque()
    try:
        for step in steps:
            waiting.append(thread.submit(assemble_step, step))
            if len(waiting) > STEPS_AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        thread.shutdown(cancel_futures=True)


def assemble(windows: Sequence[Ids], starts: Sequence[Any] | None) -> MicroBatch:
    """Windows [T+1] as one micro-batch; `starts` are the positions within each where a document begins."""
    ids = torch.from_numpy(np.stack(windows))
    if starts is None:
        return MicroBatch(ids, None)
    length = ids.shape[1] - 1
    bounds = {len(windows) * length}
    for row, within in enumerate(starts):
        bounds |= {row * length, *(row * length + int(p) for p in within)}
    return MicroBatch(ids, torch.tensor(sorted(bounds)))


class PackedBatches:
    """Epoch after epoch over packed tokens, each in its own order: position p is window order[p % n] of epoch p//n."""

    def __init__(self, tokens: Windows, *, sequences: int, length: int, micro_batch: int, seed: int, reset: bool):
        self.tokens, self.length, self.reset = tokens, length, reset
        self.sequences, self.micro_batch, self.seed = sequences, micro_batch, seed
        self.n_windows = tokens.n_windows(length)  # refuses a text that is shorter
        self._done = 0

    def micro_batches(self, step: int, share: range) -> Iterator[MicroBatch]:
        of_step = sequences_at(step, self.sequences, self.n_windows, self.seed)
        for m in share:
            chosen = [int(i) for i in of_step[m * self.micro_batch : (m + 1) * self.micro_batch]]
            starts = [self.tokens.document_starts(i, self.length) for i in chosen] if self.reset else None
            yield assemble([self.tokens.window(i, self.length) for i in chosen], starts)
        self._done = (step + 1) * self.sequences

    def position(self) -> dict[str, Any]:
        return {"sequences": self._done}

    def restore(self, position: Mapping[str, Any]) -> None:
        self._done = int(position["sequences"])


class StreamedBatches:
    """One pass after another over a stream, in its own order. Every process reads all of it and keeps its share."""

    def __init__(self, stream: Stream, *, sequences: int, length: int, micro_batch: int, eos_id: int, reset: bool):
        self.stream, self.length, self.eos_id, self.reset = stream, length, eos_id, reset
        self.sequences, self.micro_batch = sequences, micro_batch
        self._windows: Iterator[Ids] | None = None

    def _endless(self) -> Iterator[Ids]:
        while True:  # a text that is shorter than one window is refused by the stream itself
            yield from self.stream

    def micro_batches(self, step: int, share: range) -> Iterator[MicroBatch]:
        if self._windows is None:
            self._windows = self._endless()
        for m in range(self.sequences // self.micro_batch):
            windows = list(islice(self._windows, self.micro_batch))
            if m in share:
                starts = [starts_after(window, self.eos_id) for window in windows]
                yield assemble(windows, starts if self.reset else None)

    def position(self) -> dict[str, Any]:
        return self.stream.state_dict()

    def restore(self, position: Mapping[str, Any]) -> None:
        self.stream.load_state_dict(dict(position))
        self._windows = None
