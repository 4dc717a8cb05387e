"""Times of several contenders in one run, and the ceilings of the machine.

Every repetition runs all contenders in turn, so that a busy moment of a shared machine hits them alike. Ratios are
taken within repetitions (`ematrace.bench.ratio`). What other programs use meanwhile is measured (`other_load`), and the
threads of all contenders wait alike, as `ematrace.sharing` has them wait, and none of them gives memory back to the
system (`ematrace.memory`).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ematrace.memory import kept_memory
from ematrace.sharing import Meter, shared_processors

if TYPE_CHECKING:  # reading results does not wait for torch
    import torch

Work = Mapping[str, Callable[[], object]]

PATIENCE = 3.0  # seconds without a bar
SHORTEST_LOAD = 0.5  # seconds, below which the system's clock ticks are too coarse to tell
_loads: list[tuple[float, float]] = []  # processors that others used, and for how many seconds, of each CPU timing
LAUNCH_CYCLES = 2_000_000  # of the GPU's clock, about a millisecond: enough for Python to launch a backward pass


@dataclass(frozen=True)
class Timing:
    """Seconds of each repetition, in their order.

    >>> timing = Timing((0.2, 0.7, 0.3))
    >>> timing.median, timing.fastest, timing.slowest
    (0.3, 0.2, 0.7)
    """

    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "seconds", tuple(float(s) for s in self.seconds))
        if not self.seconds:
            raise ValueError("seconds: no repetition")
        if not all(0.0 < s < math.inf for s in self.seconds):
            raise ValueError("seconds: a repetition took no positive, finite time")

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def fastest(self) -> float:
        return min(self.seconds)

    @property
    def slowest(self) -> float:
        return max(self.seconds)


def time_cpu(
    work: Work, repetitions: int, warmup: int = 1, prepare: Mapping[str, Callable[[], object]] | None = None
) -> dict[str, Timing]:
    """Wall-clock seconds of each contender; `warmup` repetitions come first and do not count.

    `prepare` is called before each call of the contender of that name, untimed.

    >>> list(time_cpu({"ours": lambda: sum(range(9)), "theirs": lambda: max(range(9))}, repetitions=3))
    ['ours', 'theirs']
    """

    def once(name: str) -> float:
        if prepare and name in prepare:
            prepare[name]()
        begun = time.perf_counter()
        work[name]()
        return time.perf_counter() - begun

    with shared_processors(), kept_memory():
        meter, begun = Meter(), time.monotonic()
        timings = _in_turn(work, once, repetitions, warmup)
        others = meter.others()
    if others is not None:
        _loads.append((others, time.monotonic() - begun))
    return timings


def other_load() -> float | None:
    """Processors that other programs kept busy, on average over all CPU timings of this process; None: not known."""
    seconds = sum(seconds for _, seconds in _loads)
    return sum(n * s for n, s in _loads) / seconds if seconds >= SHORTEST_LOAD else None


def time_gpu(work: Work, repetitions: int, warmup: int = 3, inner: int = 1) -> dict[str, Timing]:
    """GPU seconds per call, by CUDA events around `inner` calls on the current stream.

    The GPU spins for about a millisecond before the first event, so that launches queue up behind it: kernels are
    timed, not Python. Use an `inner` that takes longer than that to see whether Python launches fast enough.
    Caches are not cleared: use inputs larger than the L2.
    """
    import torch

    if inner < 1:
        raise ValueError(f"inner is {inner}; it must be at least 1")
    if not torch.cuda.is_available():
        raise ValueError("time_gpu needs a CUDA GPU, and torch sees none here")

    def once(name: str) -> float:
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        torch.cuda._sleep(LAUNCH_CYCLES)
        begun.record()
        for _ in range(inner):
            work[name]()
        ended.record()
        ended.synchronize()
        return float(begun.elapsed_time(ended)) / 1000 / inner

    return _in_turn(work, once, repetitions, warmup)


def _in_turn(work: Work, once: Callable[[str], float], repetitions: int, warmup: int) -> dict[str, Timing]:
    if not work or repetitions < 1 or warmup < 0:
        raise ValueError(f"nothing to time: {len(work)} contenders, {repetitions} repetitions, warm-up {warmup}")
    seconds: dict[str, list[float]] = {name: [] for name in work}
    with progress((warmup + repetitions) * len(work)) as step:
        for repetition in range(-warmup, repetitions):
            for name in work:
                step(name)
                taken = once(name)
                if repetition >= 0:
                    seconds[name].append(taken)
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """A progress bar on stderr, if that is a terminal, once a few seconds have passed.

    Call `step(name)` before each of `total` pieces of work. The bar is drawn inside `step` only: a thread of its own
    would disturb the timing.

    >>> with progress(total=2) as step:
    ...     for name in ("ours", "theirs"):
    ...         step(name)  # then the work
    """
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:  # training measures a ceiling, and needs no rich
        yield lambda name: None
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda name: None
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        auto_refresh=False,
    )
    task = bar.add_task("", total=total)
    begun = time.monotonic()
    calls = -1

    def step(name: str) -> None:
        nonlocal calls
        calls += 1
        bar.update(task, description=name, completed=calls)
        if time.monotonic() - begun > PATIENCE:
            bar.start()  # does nothing the second time
            bar.refresh()

    try:
        yield step
    finally:
        bar.stop()


def copy_bandwidth(device: torch.device) -> float:
    """Bytes read and written a second by a large `copy_`: the ceiling of whatever moves memory."""
    import torch

    on_gpu = device.type == "cuda"
    source = torch.ones(2**31 if on_gpu else 2**28, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)  # zeros: its pages exist before the copy is timed
    work = {"copy": lambda: target.copy_(source)}
    timing = time_gpu(work, repetitions=20) if on_gpu else time_cpu(work, repetitions=9, warmup=2)
    return 2 * source.nbytes / _undisturbed(timing["copy"], on_gpu)


def read_bandwidth(device: torch.device) -> float:
    """Bytes a second of reading a large tensor and writing next to nothing: the ceiling of a decoder's weight reads.

    On a CPU it is well above `copy_bandwidth`, which pays for reading the lines that it writes.
    """
    import torch

    on_gpu = device.type == "cuda"
    source = torch.ones(2**29 if on_gpu else 2**26, device=device)
    work = {"read": lambda: torch.sum(source)}
    timing = time_gpu(work, repetitions=20) if on_gpu else time_cpu(work, repetitions=9, warmup=2)
    return source.nbytes / _undisturbed(timing["read"], on_gpu)


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations a second of a square matmul: the ceiling of training and of batched decoding.

    At the size that is fastest, so that no model's matmuls run faster: on a GPU 8192, on a CPU the best of several,
    since what fits its cache depends on the machine. On random data: constants draw less power on a GPU and let it run
    faster. It takes a second on a GPU and a third of one on two cores.

    >>> import torch
    >>> matmul_rate(torch.device("cpu"), torch.float32) > 0  # operations a second
    True
    """
    import torch

    on_gpu = device.type == "cuda"
    sizes = (8192,) if on_gpu else (256, 512, 1024) if torch.get_num_threads() <= 8 else (512, 1024, 4096)
    draw = torch.Generator(device).manual_seed(0)
    work: dict[str, Callable[[], object]] = {}
    for n in sizes:
        a, b = (torch.randn(n, n, device=device, generator=draw).to(dtype) for _ in range(2))
        work[str(n)] = partial(torch.mm, a, b, out=torch.empty_like(a))
    with torch.no_grad():
        timing = time_gpu(work, repetitions=10, inner=20) if on_gpu else time_cpu(work, repetitions=5, warmup=2)
    return max(2.0 * n**3 / _undisturbed(timing[str(n)], on_gpu) for n in sizes)


def _undisturbed(timing: Timing, on_gpu: bool) -> float:
    """Seconds of a ceiling: on a CPU, which other programs share, the fastest repetition, on a GPU the median."""
    return timing.median if on_gpu else timing.fastest
