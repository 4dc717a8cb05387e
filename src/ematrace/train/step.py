"""One step of training, launched kernel by kernel or replayed as a single CUDA graph.

Both compute the same function: the gradient of the mean loss over the micro-batches, clipped, then AdamW, which leaves
the weights alone when a loss or the gradient norm is not finite. They differ in when the CPU reads the result: the
plain step waits for it before AdamW, the graphed step decides on the device, so that the CPU may queue the next steps
first. A small model's kernels are faster than Python can launch them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ematrace.train.batches import MicroBatch
from ematrace.train.distributed import World, accumulating

AHEAD = 4
"""Steps that wait on the device while the CPU reads an earlier one: 10 ms of work for a small model."""
WARMUP = 2  # runs before the capture, in which compilers and autotuners may wait for the device

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Takes the work of a step and returns a function that does it again."""


@dataclass(frozen=True)
class StepResult:
    """The numbers of one step: a loss and a cross-entropy for each micro-batch of all processes, in their order."""

    losses: Sequence[float]
    cross_entropies: Sequence[float]
    grad_norm: float
    stop: int
    """Number of the signal that some process received, or 0."""
    seconds: float | None = field(default=None, compare=False)
    """Of a step that was queued behind another: from the end of that one to its own, by the device's clock."""

    def not_finite(self) -> tuple[str, float] | None:
        """Name and value of the first number that is NaN or infinite; the weights were then left alone."""
        parts = (("loss", self.losses), ("cross-entropy", self.cross_entropies), ("gradient norm", [self.grad_norm]))
        return next(((name, v) for name, values in parts for v in values if not math.isfinite(v)), None)


class Step(Protocol):
    """`launch` starts a step, `finish` returns the result of the oldest one that was launched."""

    @property
    def ahead(self) -> int:
        """How many steps may be launched before the oldest is finished, in addition to it."""
        ...

    def launch(self, batch: Sequence[MicroBatch], lr: float) -> None: ...
    def finish(self, stop: int) -> StepResult: ...

    def drain(self) -> None:
        """Wait for all steps that were launched, and forget their results."""
        ...


@dataclass(frozen=True)
class Gradients:
    """Forward and backward passes over the micro-batches of this process, and clipping."""

    loss: nn.Module
    """ids and cu_seqlens to (loss, cross-entropy), as wrapped for several processes."""
    model: nn.Module
    optimiser: torch.optim.Optimizer
    clip: float
    bfloat16: bool
    world: World

    def compute(self, batch: Sequence[MicroBatch]) -> Tensor:
        """Sets the gradients; returns loss and cross-entropy of each micro-batch, then the norm, in float64."""
        measured: list[Tensor] = []
        for i, micro in enumerate(batch):
            with accumulating(self.loss, last=i == len(batch) - 1):
                with self.autocast():
                    loss, cross_entropy = self.loss(micro.ids, micro.cu_seqlens)
                # The mean over this process's share; the wrapper takes the mean over processes.
                (loss / len(batch)).backward()
            measured += [loss.detach(), cross_entropy.detach()]
        return torch.stack([*measured, self._clip()]).double()

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.world.device.type, torch.bfloat16) if self.bfloat16 else nullcontext()

    def _clip(self) -> Tensor:
        norm: Tensor = nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        whole: Any = getattr(norm, "full_tensor", None)
        return norm if whole is None else whole()


class PlainStep:
    """Kernel by kernel, on any device and any number of processes; the result is read before AdamW."""

    ahead = 0

    def __init__(self, gradients: Gradients):
        self.gradients, self.optimiser, self.world = gradients, gradients.optimiser, gradients.world
        self._numbers: Tensor | None = None

    def launch(self, batch: Sequence[MicroBatch], lr: float) -> None:
        for group in self.optimiser.param_groups:
            # A graph's learning rate is a float32 on the device: rounded here too, fused AdamW computes the same bits.
            group["lr"] = float(torch.tensor(lr, dtype=torch.float32)) if group["fused"] else lr
        self._numbers = self.gradients.compute([micro.to(self.world.device) for micro in batch])

    def finish(self, stop: int) -> StepResult:
        assert self._numbers is not None
        everyone = self.world.gather([*self._numbers.tolist(), float(stop)])
        # In the order of the micro-batches: the logged loss does not depend on which process computed which.
        losses, entropies = ([v for part in everyone for v in part[at:-2:2]] for at in (0, 1))
        result = StepResult(losses, entropies, everyone[0][-2], int(max(part[-1] for part in everyone)))
        if result.not_finite() is None:
            self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return result

    def drain(self) -> None:
        self._numbers = None


class _Slot:
    """Host memory for one step in flight: what goes to the device, what comes back, and when it has come back."""

    def __init__(self, ids: Tensor, numbers: Tensor):
        on_gpu = ids.is_cuda
        # Copies from and to pinned memory run on the device's own time.
        self.ids = torch.empty(ids.shape, dtype=ids.dtype, pin_memory=on_gpu)
        self.numbers = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=on_gpu)
        # blocking: sleep, do not spin
        self._done = torch.cuda.Event(blocking=True, enable_timing=True) if on_gpu else None

    def record(self) -> None:
        if self._done is not None:
            self._done.record()

    def wait(self) -> None:
        if self._done is not None:
            self._done.synchronize()

    def seconds_since(self, earlier: _Slot) -> float | None:
        """Once both have been waited for."""
        if self._done is None or earlier._done is None:
            return None
        return float(earlier._done.elapsed_time(self._done)) / 1000


class GraphedStep:
    """The whole step as one CUDA graph over fixed memory; one process, micro-batches of one shape, fused AdamW.

    Results are those of `PlainStep`, to the bit wherever its kernels give the same bits twice. A step whose numbers are
    not finite does not change the weights, nor does any step queued behind it.
    """

    ahead = AHEAD

    def __init__(self, gradients: Gradients, shape: tuple[int, int, int], capture: Capture | None = None):
        """`shape` is that of a step's ids: micro-batches, sequences in each, tokens in a sequence + 1."""
        self.gradients, self.optimiser = gradients, gradients.optimiser
        device = gradients.world.device
        self._ids = torch.zeros(shape, dtype=torch.int64, device=device)
        self._lr = torch.zeros((), device=device)
        self._numbers = torch.zeros(2 * shape[0] + 1, dtype=torch.float64, device=device)
        # One for each step in flight, and the last one that was finished.
        self._slots = cycle([_Slot(self._ids, self._numbers) for _ in range(self.ahead + 2)])
        self._in_flight: deque[_Slot] = deque()
        self._last: _Slot | None = None
        # 1 from the first step on whose numbers are not finite. It is 1 while the step is prepared, so that AdamW makes
        # its state but changes nothing.
        self._failed = torch.ones((), device=device)
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            self._replay = (capture or cuda_graph)(self._work)
        self._failed.zero_()

    def _work(self) -> None:
        """What the graph holds: reads `_ids` and `_lr`, writes `_numbers`, weights and AdamW's state."""
        numbers = self.gradients.compute([MicroBatch(ids, None) for ids in self._ids])
        failed = 1.0 - numbers.isfinite().all().float()
        torch.maximum(self._failed, failed, out=self._failed)
        self._numbers.copy_(numbers)
        self._update()
        self.optimiser.zero_grad(set_to_none=True)  # their memory belongs to the graph

    def _update(self) -> None:
        """AdamW on the device, skipped where `_failed` is 1 by the mechanism that gradient scaling uses."""
        optimiser: Any = self.optimiser
        capturing = self._ids.is_cuda and torch.cuda.is_current_stream_capturing()
        for group in optimiser.param_groups:
            group["lr"], group["capturable"] = self._lr, capturing
        optimiser.found_inf = self._failed
        try:
            optimiser.step()
        finally:
            del optimiser.found_inf
            for group in optimiser.param_groups:
                group["lr"], group["capturable"] = 0.0, False

    def launch(self, batch: Sequence[MicroBatch], lr: float) -> None:
        if not self._in_flight:
            self._last = None  # the device was idle: what came between does not count
        slot = next(self._slots)
        for row, micro in zip(slot.ids, batch, strict=True):
            row.copy_(micro.ids)
        self._ids.copy_(slot.ids, non_blocking=True)
        self._lr.fill_(lr)
        self._replay()
        slot.numbers.copy_(self._numbers, non_blocking=True)
        slot.record()
        self._in_flight.append(slot)

    def finish(self, stop: int) -> StepResult:
        slot = self._in_flight.popleft()
        slot.wait()
        *measured, grad_norm = slot.numbers.tolist()
        seconds = None if self._last is None else slot.seconds_since(self._last)
        self._last = slot
        return StepResult(measured[0::2], measured[1::2], grad_norm, stop, seconds)

    def drain(self) -> None:
        while self._in_flight:
            self._in_flight.popleft().wait()


def cuda_graph(work: Callable[[], None]) -> Callable[[], None]:
    """A function that replays `work`, recorded as one CUDA graph after runs that compile and tune its kernels."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARMUP):
            work()
        with _waiting_is_an_error():
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # Other threads (a progress bar, the next batch) may go on meanwhile.
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        work()
    replay: Callable[[], None] = graph.replay
    return replay


@contextmanager
def _waiting_is_an_error() -> Iterator[None]:
    """RuntimeError where the CPU waits for the device: a failed capture would leave the random generator unusable."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def graph_obstacle(world: World, *, packed: bool) -> str | None:
    """Why a step cannot be a CUDA graph, or None; `packed` micro-batches have a shape of their own each."""
    if world.device.type != "cuda":
        return f"the device is {world.device}"
    if world.size > 1:
        return f"there are {world.size} processes"
    return "reset_at_documents gives every step another shape" if packed else None


def build_step(
    gradients: Gradients,
    shape: tuple[int, int, int],
    *,
    graphed: bool,
    required: bool,
    notify: Callable[[str], None],
    capture: Capture | None = None,
) -> Step:
    """A `GraphedStep` where wanted, or a `PlainStep` if the model turns out not to allow it and it is not required."""
    if not graphed:
        return PlainStep(gradients)
    try:
        return GraphedStep(gradients, shape, capture)
    except RuntimeError as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        if required:
            raise ValueError(f"cuda_graphs: the step cannot be captured: {reason}") from error
        gradients.optimiser.zero_grad(set_to_none=True)
        notify(f"no CUDA graph, the step runs kernel by kernel: {reason}")
        return PlainStep(gradients)
