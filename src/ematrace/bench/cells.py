"""A benchmark's measurements as cells: what was timed, the ceilings of the machine, and what is compared with what."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ematrace.bench.measure import Timing, time_cpu, time_gpu
from ematrace.results import Cell, Factors, Metric, Row
from ematrace.results.schema import Factor, Name

if TYPE_CHECKING:
    import torch

UNITS = {"bytes": "bytes", "operations": "FLOP", "tokens": "tokens"}
# What a ceiling limits, and the metric it is measured in.
CEILINGS = {
    "copy": ("bytes", "bytes_per_second"),
    "read": ("bytes", "bytes_per_second"),
    "matmul": ("operations", "flops_per_second"),
}
BARE = ("contender", "pass")  # factors whose values need no name beside them
# What the factors of benchmarks mean. Tables print the lines of those that they show.
FACTORS = {
    "contender": "what is timed",
    "pass": "forward, backward, or both",
    "tokens": "length of each sequence",
    "context": "tokens that were read before decoding starts",
    "streams": "sequences that are decoded together",
    "size": "the preset's (tiny, 7m, 130m); 2m has width 128, 4 blocks and a vocabulary of 8,192",
    "dtype": "of the weights",
    "ffn": "the feed-forward layer: topk keeps the k largest units, dense all",
    "read": "parallel: the whole text at once; streamed: token by token",
    "decoder": "of spen: eager (the model's own step), compiled (CPU), one_kernel or matmuls (GPU); of gpt2: loop, "
    "transformers",
    "split": "parts that the sums of a matmul are split into",
    "cache": "transformers' class of KV cache",
    "compiled": "by torch.compile",
    "graphed": "whole training steps replayed as CUDA graphs",
    "task": "of spcn: learn, encode; of reservoirpy: run, hebbian_fit",
    "variant": "what SPCN leaves out",
    "cores": "processes that share the work",
    "init_seed": "of a model that is trained",
    "pair": "whose training curves are compared: backends, seeds, or steps (graphed and plain)",
    "waiting": "how torch's threads wait: spinning (libgomp's default), asleep (OMP_WAIT_POLICY=passive), shared "
    "(spinning, but only shortly while other programs are busy: ematrace.sharing)",
    "load": "busy loops that run beside what is timed",
    "part": "of the time of learning",
    "against": "contender of a ratio in a record of version 0.1, which kept no times",
    "against_cores": "its processes",
    "ceiling": "what the machine can do: copy or read memory, multiply matrices",
}


class Comparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Cells whose times are divided: those with the factors `over` by those with `under`, both with `where`.

    Two cells are a pair if all their other factors are equal. With `per`, times are taken per token or per byte.

    >>> comparison = Comparison(over={"contender": "theirs"}, under={"contender": "ours"}, where={"pass": "forward"})
    >>> f"{label(comparison.over)} / {label(comparison.under)}, {label(comparison.where)}"
    'theirs / ours, forward'
    """

    over: Mapping[Name, Factor]
    under: Mapping[Name, Factor]
    where: Mapping[Name, Factor] = {}
    per: Literal["tokens", "bytes"] | None = None


class About(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the settings of every benchmark say. `checks` is what was compared with the reference before timing.

    >>> import msgspec
    >>> msgspec.to_builtins(About("Sums of a list", checks=["both sums are equal"], quick=True))
    {'title': 'Sums of a list', 'checks': ['both sums are equal'], 'quick': True}
    """

    title: str
    checks: list[str]
    quick: bool = False
    """Toy sizes: the times say nothing."""
    notes: list[str] = []
    comparisons: list[Comparison] = []
    other_load: float | None = None
    """Processors that other programs kept busy, on average, while something was timed on the CPU."""


def is_benchmark(cell: Cell) -> bool:
    """Benchmarks and experiments share the store; only benchmarks have `checks` in their settings.

    >>> from ematrace.results import CellFile, collect_provenance
    >>> rows = [timing_row({"contender": "ours"}, Timing((0.5,)))]
    >>> settings = {"title": "Sums of a list", "checks": ["both sums are equal"]}
    >>> file = CellFile(2, "sums", "cpu", 0, {}, settings, collect_provenance(1.5), rows)
    >>> is_benchmark(file.unpack()[0])
    True
    """
    return "checks" in cell.settings


def label(factors: Factors) -> str:
    """Factors in words.

    >>> label({"contender": "chunked", "compiled": True, "pass": "forward", "tokens": 256})
    'chunked forward compiled tokens=256'
    """
    bare = [str(factors[name]) for name in BARE if name in factors]
    named = [
        name if value is True else f"{name}={str(value).lower() if value is False else value}"
        for name, value in factors.items()
        if name not in BARE
    ]
    return " ".join((*bare, *named))


@dataclass(frozen=True)
class Case:
    """One thing to time: its factors, and what one call needs to move and compute at the least.

    >>> numbers = list(range(1000))
    >>> case = Case({"contender": "sum"}, lambda: sum(numbers), tokens=1000)
    >>> row = time_cases([case], repetitions=3)[0]
    >>> row.metrics["tokens"].value, len(row.metrics["seconds"].repetitions)
    (1000.0, 3)
    """

    factors: Factors
    call: Callable[[], object]
    bytes: float = 0
    operations: float = 0
    tokens: float = 0
    scale: float = 1.0
    """Seconds are multiplied by it: 1/64 where a call makes 64 steps and the cell is about one."""
    prepare: Callable[[], object] | None = None
    """Called before each call, untimed."""
    others: Mapping[str, Metric] = field(default_factory=dict)


def time_cases(
    cases: Sequence[Case],
    repetitions: int,
    device: torch.device | None = None,
    warmup: int | None = None,
) -> list[Row]:
    """Time all cases in turn in every repetition; a cell for each.

    CUDA events on a GPU; the wall clock on a CPU, which is also the default.

    >>> numbers = list(range(1000))
    >>> cases = [Case({"contender": "sum"}, lambda: sum(numbers)), Case({"contender": "max"}, lambda: max(numbers))]
    >>> for row in time_cases(cases, repetitions=3):
    ...     print(label(row.factors), row.metrics["seconds"].unit, len(row.metrics["seconds"].repetitions))
    sum s 3
    max s 3
    """
    by_label = {label(case.factors): case for case in cases}
    if len(by_label) < len(cases):
        raise ValueError("two cases have the same factors")
    work = {name: case.call for name, case in by_label.items()}
    options: dict[str, Any] = {} if warmup is None else {"warmup": warmup}
    if device is not None and device.type == "cuda":
        timings = time_gpu(work, repetitions, **options)
    else:
        prepare = {name: case.prepare for name, case in by_label.items() if case.prepare is not None}
        timings = time_cpu(work, repetitions, prepare=prepare, **options)
    return [_timed_row(case, timings[name]) for name, case in by_label.items()]


def _timed_row(case: Case, timing: Timing) -> Row:
    return timing_row(
        case.factors,
        Timing(tuple(s * case.scale for s in timing.seconds)),
        bytes=case.bytes,
        operations=case.operations,
        tokens=case.tokens,
        **case.others,
    )


def timing_row(
    factors: Factors,
    timing: Timing,
    *,
    bytes: float = 0,
    operations: float = 0,
    tokens: float = 0,
    **others: Metric,
) -> Row:
    """A cell of one timing; an amount of 0 does not apply.

    >>> row = timing_row({"contender": "ours"}, Timing((0.2, 0.3, 0.7)), tokens=60)
    >>> row.metrics["seconds"].value, row.metrics["tokens"].value
    (0.3, 60.0)
    """
    seconds = Metric(timing.median, "s", better="low", repetitions=timing.seconds)
    amounts = {"bytes": bytes, "operations": operations, "tokens": tokens}
    for name, amount in amounts.items():
        if not 0 <= amount < math.inf:
            raise ValueError(f"{name}: {amount} is not an amount")
    known = {name: Metric(float(amount), UNITS[name]) for name, amount in amounts.items() if amount}
    return Row(dict(factors), {"seconds": seconds, **known, **others})


def ceiling_row(ceiling: Literal["copy", "read", "matmul"], per_second: float) -> Row:
    """The cell of a measured ceiling.

    >>> ceiling_row("copy", 4.3e12).metrics
    {'bytes_per_second': Metric(value=4300000000000.0, unit='bytes/s')}
    """
    amount, metric = CEILINGS[ceiling]
    if not 0 < per_second < math.inf:
        raise ValueError(f"ceiling {ceiling}: {per_second} is not a rate")
    return Row({"ceiling": ceiling}, {metric: Metric(float(per_second), f"{UNITS[amount]}/s")})
