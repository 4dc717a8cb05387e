"""Three EMA traces of 56 x 2048 x 768 on one GPU, forward and backward, against flash-linear-attention and torch.

The floor is memory: forward reads x and writes three traces, backward reads three gradients and writes one. That is
four tensors of 176 MB in bfloat16 either way. The peers: the chunked version of the same operator in plain torch,
compiled (forward only: its backward takes the compiler over a minute), and flash-linear-attention's chunk_hgrn once for
each rate. chunk_hgrn needs its decay and a x in memory and leaves a gradient for each rate to be summed, none of which
is timed, and keeps its state in the input's dtype.

    python benchmarks/traces_gpu.py --record results
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ematrace.bench import Case, Comparison, ceiling_row, copy_bandwidth, finish, gpu_unless_quick, parser, time_cases
from ematrace.traces import ema_traces

NEEDS = "cuda"
ALPHAS = (0.5, 0.1, 0.02)
SHAPE, QUICK_SHAPE = (56, 2048, 768), (2, 40, 8)
REPETITIONS, QUICK_REPETITIONS = 50, 2
TOLERANCE = 2**-8  # bfloat16 rounds by half of it


@dataclass(frozen=True)
class Contender:
    """traces(*prepare(x)) is timed: one tensor with all traces, or a tensor for each rate."""

    traces: Callable[..., Sequence[Tensor]]
    prepare: Callable[[Tensor], Sequence[Tensor]] = lambda x: (x,)
    compiled: bool = False

    @property
    def with_backward(self) -> bool:
        return not self.compiled

    @property
    def factors(self) -> dict[str, bool]:
        return {"compiled": True} if self.compiled else {}


def ours(device: torch.device) -> Callable[..., Sequence[Tensor]]:
    rates = torch.tensor(ALPHAS, dtype=torch.float64, device=device)  # numbers would be copied to the GPU at each call
    return lambda x: ema_traces(x, rates)[:1]


def chunked(x: Tensor) -> Sequence[Tensor]:
    return ema_traces(x, ALPHAS, backend="chunked")[:1]  # numbers are constants to the compiler


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
    """grad [A,B,T,D] as it is for one output, or a contiguous part for each rate."""
    return [grad] if len(outputs) == 1 else [g.contiguous() for g in grad]


def check(name: str, contender: Contender, x: Tensor, grad: Tensor) -> str:
    """Traces and gradient of the first two sequences against the loop in float64."""
    exact_x = x[:2].double().requires_grad_()
    exact = ema_traces(exact_x, ALPHAS, backend="reference")[0]
    (exact_grad,) = torch.autograd.grad(exact, exact_x, grad[:, :2].double())
    low = x.detach().requires_grad_(contender.with_backward)  # without it, no backward is compiled
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


def cases_of(contenders: Mapping[str, Contender], x: Tensor, grad: Tensor) -> list[Case]:
    """Forward, and backward alone on the graph of one forward pass."""
    moved = 4 * x.numel() * x.element_size()
    cases = []
    for name, contender in contenders.items():
        inputs = [tensor.detach() for tensor in contender.prepare(x)]
        work: dict[str, Callable[[], object]] = {"forward": partial(contender.traces, *inputs)}
        if contender.with_backward:
            leaves = [tensor.detach().requires_grad_() for tensor in inputs]
            outputs = contender.traces(*leaves)
            work["backward"] = partial(
                torch.autograd.grad, outputs, leaves, gradients(outputs, grad), retain_graph=True
            )
        for way, call in work.items():
            cases.append(Case({"contender": name, **contender.factors, "pass": way}, call, bytes=moved))
    return cases


def main() -> None:
    arguments = parser(__doc__, quick="a toy size, also on a CPU").parse_args()
    device = gpu_unless_quick(arguments.quick)
    on_gpu = device.type == "cuda"
    shape = QUICK_SHAPE if arguments.quick else SHAPE
    draw = torch.Generator(device).manual_seed(0)
    x = torch.randn(shape, generator=draw, device=device, dtype=torch.bfloat16)
    # In memory the gradients lie as a matmul with the concatenated traces leaves them.
    B, T, D = shape
    grad = torch.randn((B, T, 3, D), generator=draw, device=device, dtype=torch.bfloat16).permute(2, 0, 1, 3)

    contenders = {"ematrace": Contender(ours(device))}
    contenders["chunked"] = Contender(torch.compile(chunked), compiled=True) if on_gpu else Contender(chunked)
    fla = from_fla(shape, device) if on_gpu else None
    if fla is not None:
        contenders["fla"] = fla
    checks = [check(name, contender, x, grad) for name, contender in contenders.items()]
    cells = time_cases(cases_of(contenders, x, grad), REPETITIONS if on_gpu else QUICK_REPETITIONS, device)
    if on_gpu:
        cells.append(ceiling_row("copy", copy_bandwidth(device)))
    finish(
        "traces_gpu",
        "Three EMA traces on one GPU",
        cells,
        scale="gpu" if on_gpu else "cpu",
        checks=checks,
        comparisons=[
            Comparison({"contender": name, **contender.factors}, {"contender": "ematrace"})
            for name, contender in contenders.items()
            if name != "ematrace"
        ],
        settings={"shape": shape, "alphas": ALPHAS, "dtype": "bfloat16"},
        quick=arguments.quick,
        to=arguments.record,
        force=arguments.force,
    )


if __name__ == "__main__":
    main()
