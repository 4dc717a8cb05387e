"""Three EMA traces of 56 x 2048 x 768 on one GPU, forward and backward, against flash-linear-attention and torch.

The floor is memory: forward reads x and writes three traces, backward reads three gradients and writes one; that is
four tensors of 176 MB in bfloat16 either way, beside which 2 multiply-adds a number and rate are nothing. The peers:
the pure-torch chunked version of the same operator, compiled (forward only: its backward keeps the compiler
busy for over a minute), and flash-linear-attention's chunk_hgrn once for each rate, which wants its decay and a x
written out in memory and leaves a gradient for each rate to be summed (none of this is timed), and keeps its state in
the input's dtype.

    python benchmarks/traces_gpu.py --record results/benchmarks
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ematrace.bench import BenchmarkRecord, Row, Timing, copy_bandwidth, finish, ratio, time_cpu, time_gpu
from ematrace.traces import ema_traces

NEEDS = "cuda"
ALPHAS = (0.5, 0.1, 0.02)
SHAPE, QUICK_SHAPE = (56, 2048, 768), (2, 40, 8)
REPETITIONS, QUICK_REPETITIONS = 50, 2
TOLERANCE = 2**-8  # bfloat16 rounds by half of it


@dataclass(frozen=True)
class Contender:
    """traces(*prepare(x)) is timed; one tensor with all traces, or a tensor for each rate."""

    traces: Callable[..., Sequence[Tensor]]
    prepare: Callable[[Tensor], Sequence[Tensor]] = lambda x: (x,)
    with_backward: bool = True


def ours(device: torch.device) -> Callable[..., Sequence[Tensor]]:
    rates = torch.tensor(ALPHAS, dtype=torch.float64, device=device)  # as numbers they would be filled in on each call
    return lambda x: ema_traces(x, rates)[:1]


def chunked(x: Tensor) -> Sequence[Tensor]:
    return ema_traces(x, ALPHAS, backend="chunked")[:1]  # as numbers they are constants to the compiler


def from_fla(shape: tuple[int, int, int], device: torch.device) -> Contender | None:
    """chunk_hgrn: h_t = exp(g_t) h_{t-1} + x_t, with g = log(1 - a) and a x in memory."""
    try:
        from fla.ops.hgrn import chunk_hgrn
    except ImportError as error:
        print(f"flash-linear-attention is not timed: {error}")
        return None
    decays = [torch.full(shape, math.log1p(-a), device=device, dtype=torch.bfloat16) for a in ALPHAS]
    return Contender(
        lambda *scaled: [chunk_hgrn(x, g)[0] for x, g in zip(scaled, decays, strict=True)],
        prepare=lambda x: [a * x for a in ALPHAS],
    )


def gradients(outputs: Sequence[Tensor], grad: Tensor) -> list[Tensor]:
    """grad [A,B,T,D] as the outputs want it, in memory as it is or a contiguous one for each rate."""
    return [grad] if len(outputs) == 1 else [g.contiguous() for g in grad]


def check(name: str, contender: Contender, x: Tensor, grad: Tensor) -> str:
    """Traces and gradient of the first two sequences against the loop in float64."""
    exact_x = x[:2].double().requires_grad_()
    exact = ema_traces(exact_x, ALPHAS, backend="reference")[0]
    (exact_grad,) = torch.autograd.grad(exact, exact_x, grad[:, :2].double())
    low = x.detach().requires_grad_(contender.with_backward)  # without, the compiler leaves the backward alone
    outputs = contender.traces(*contender.prepare(low))
    traces = outputs[0] if len(outputs) == 1 else torch.stack(list(outputs))
    line = f"{name}: traces off by {(error := distance(traces[:, :2], exact)):.1e} of their norm"
    if contender.with_backward:
        (low_grad,) = torch.autograd.grad(outputs, low, gradients(outputs, grad))
        line += f", gradient by {(grad_error := distance(low_grad[:2], exact_grad)):.1e}"
        error = max(error, grad_error)
    print(line, flush=True)
    if name == "ematrace" and not error < TOLERANCE:
        raise SystemExit(f"{line}: more than {TOLERANCE}")
    return line


def distance(a: Tensor, b: Tensor) -> float:
    return float((a.detach().double() - b.detach()).norm() / b.detach().norm())


def work_of(contenders: Mapping[str, Contender], x: Tensor, grad: Tensor) -> dict[str, Callable[[], object]]:
    """Forward, and backward alone on the graph of one forward pass."""
    work: dict[str, Callable[[], object]] = {}
    for name, contender in contenders.items():
        inputs = [tensor.detach() for tensor in contender.prepare(x)]
        work[f"{name} forward"] = partial(contender.traces, *inputs)
        if contender.with_backward:
            leaves = [tensor.detach().requires_grad_() for tensor in inputs]
            outputs = contender.traces(*leaves)
            work[f"{name} backward"] = partial(
                torch.autograd.grad, outputs, leaves, gradients(outputs, grad), retain_graph=True
            )
    return work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="toy size, also on a CPU, to see that it runs")
    parser.add_argument("--record", type=Path, help="folder for the record")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not arguments.quick:
        raise SystemExit("traces_gpu: no GPU here; --quick runs the checks on a CPU")
    shape = QUICK_SHAPE if arguments.quick else SHAPE
    draw = torch.Generator(device).manual_seed(0)
    x = torch.randn(shape, generator=draw, device=device, dtype=torch.bfloat16)
    # In memory the gradients lie as a matrix product with the concatenated traces leaves them.
    B, T, D = shape
    grad = torch.randn((B, T, 3, D), generator=draw, device=device, dtype=torch.bfloat16).permute(2, 0, 1, 3)

    contenders = {"ematrace": Contender(ours(device)), "chunked": Contender(chunked)}
    if device.type == "cuda":
        contenders["chunked, compiled"] = Contender(
            torch.compile(contenders.pop("chunked").traces), with_backward=False
        )
        fla = from_fla(shape, device)
        if fla is not None:
            contenders["fla chunk_hgrn x3"] = fla
    checks = [check(name, contender, x, grad) for name, contender in contenders.items()]

    work = work_of(contenders, x, grad)
    moved = 4 * x.numel() * x.element_size()
    if device.type == "cuda":
        timings = time_gpu(work, REPETITIONS)
        ceilings = {"copy_bytes_per_second": copy_bandwidth(device)}
    else:
        timings, ceilings = time_cpu(work, QUICK_REPETITIONS), {}
    finish(
        BenchmarkRecord(
            benchmark="traces_gpu",
            title="Three EMA traces on one GPU",
            rows=tuple(Row(name, timing, bytes=moved) for name, timing in timings.items()),
            ratios=ratios(timings),
            ceilings=ceilings,
            checks=tuple(checks),
            settings={"shape": list(shape), "alphas": list(ALPHAS), "dtype": "bfloat16"},
            figures={},
        ),
        arguments.record,
    )


def ratios(timings: dict[str, Timing]) -> dict[str, tuple[float, float, float]]:
    return {
        f"{name} / ematrace {way}": ratio(timings[f"{name} {way}"], timings[f"ematrace {way}"])
        for way in ("forward", "backward")
        for name in dict.fromkeys(row.rsplit(" ", 1)[0] for row in timings)
        if name != "ematrace" and f"{name} {way}" in timings
    }


if __name__ == "__main__":
    main()
