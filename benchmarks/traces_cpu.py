"""`ema_traces` on 2 cores: a compiled scan against matmuls over chunks, a plain loop, and scans by `torch.cumsum`.

Three rates (.5, .1, .02) over x [4, T, 256] in float32, forward alone and forward with backward. The contenders:
ematrace is the backend that `ema_traces` picks, a scan compiled by numba; chunked is its backend in plain torch; loop
is one `lerp` per step for all rates, which is also the reference. cumsum is h_t = (1-a)^t Σ_s (1-a)^-s a x_s, a
cumulative sum of x scaled up, scaled down again. Over a whole sequence (1-a)^-t overflows float32 at t = 128 for
a = .5, so it sums within blocks of 64 steps and carries the end of each block to the next.

Floor: x is read once and each trace written once; backward reads the traces' gradients and writes that of x. That is 16
bytes for each of the 4 T 256 numbers forward, as many backward. The copy it is compared with writes to memory it has
written before; the traces are new at each call, and from 32 MB on (T = 4,096 here) the C library gets them from the
system, which clears every page first. That takes longer than the scan.

    python benchmarks/traces_cpu.py --record results
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ematrace import ema_traces
from ematrace.bench import Case, Comparison, ceiling_row, copy_bandwidth, finish, parser, time_cases

NEEDS = "cpu"
THREADS = 2
ALPHAS = (0.5, 0.1, 0.02)
SEQUENCES, CHANNELS = 4, 256
LENGTHS, QUICK_LENGTHS = (256, 1024, 4096, 16_384), (50, 200)
REPETITIONS, QUICK_REPETITIONS = 11, 2
BLOCK = 64
TOLERANCE = 1e-5  # of traces of standard normal numbers, and of gradients of their sum with random weights


def default(x: Tensor) -> Tensor:
    return ema_traces(x, ALPHAS)[0]


def chunked(x: Tensor) -> Tensor:
    return ema_traces(x, ALPHAS, backend="chunked")[0]


def loop(x: Tensor) -> Tensor:
    return ema_traces(x, ALPHAS, backend="reference")[0]


def cumsum_scan(x: Tensor, alphas: Sequence[float] = ALPHAS) -> Tensor:
    """[B,T,D] to [A,B,T,D] by cumulative sums within blocks and a loop over blocks."""
    n_blocks = -(-x.shape[1] // BLOCK)
    padded = torch.nn.functional.pad(x, (0, 0, 0, n_blocks * BLOCK - x.shape[1])).unflatten(1, (n_blocks, BLOCK))
    step = torch.arange(BLOCK, dtype=torch.float64)
    traces = []
    for a in alphas:
        up, down = (a * (1 - a) ** -step).to(x)[:, None], ((1 - a) ** step).to(x)[:, None]
        within = (padded * up).cumsum(2) * down
        carry, carried = torch.zeros_like(within[:, 0, 0]), []
        for end in within[:, :, -1].unbind(1):
            carried.append(carry)
            carry = end + (1 - a) ** BLOCK * carry
        h = within + (1 - a) * down * torch.stack(carried, 1).unsqueeze(2)
        traces.append(h.flatten(1, 2)[:, : x.shape[1]])
    return torch.stack(traces)


CONTENDERS: dict[str, Callable[[Tensor], Tensor]] = {
    "ematrace": default,
    "chunked": chunked,
    "loop": loop,
    "cumsum": cumsum_scan,
}


def backward(contender: Callable[[Tensor], Tensor], x: Tensor, weights: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    contender(x).backward(weights)
    assert x.grad is not None
    return x.grad


def check(n_steps: int) -> list[str]:
    """Traces and gradients of every contender against the loop in float64."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(2, n_steps, 8, generator=draw)
    weights = torch.randn(len(ALPHAS), *x.shape, generator=draw)
    exact, exact_grad = loop(x.double()), backward(loop, x.double(), weights.double())
    lines = []
    for name, contender in CONTENDERS.items():
        error = float((contender(x) - exact).abs().max())
        grad_error = float((backward(contender, x, weights) - exact_grad).abs().max())
        lines.append(f"{name}, T={n_steps}: largest error of traces {error:.1e}, of gradients {grad_error:.1e}")
        if not (error < TOLERANCE and grad_error < TOLERANCE):
            raise SystemExit(f"{lines[-1]}: more than {TOLERANCE}")
    return lines


def cases_at(length: int, draw: torch.Generator) -> list[Case]:
    x = torch.randn(SEQUENCES, length, CHANNELS, generator=draw)
    weights = torch.randn(len(ALPHAS), *x.shape, generator=draw)
    moved = 4.0 * (1 + len(ALPHAS)) * x.numel()
    tokens = SEQUENCES * length

    def case(name: str, way: str, call: Callable[[], object], n_bytes: float) -> Case:
        return Case({"contender": name, "pass": way, "tokens": length}, call, bytes=n_bytes, tokens=tokens)

    return [
        *(case(name, "forward", partial(f, x), moved) for name, f in CONTENDERS.items()),
        *(
            case(name, "forward+backward", partial(backward, f, x, weights), 2 * moved)
            for name, f in CONTENDERS.items()
        ),
    ]


def main() -> None:
    arguments = parser(__doc__, quick="short sequences").parse_args()
    torch.set_num_threads(THREADS)
    lengths = QUICK_LENGTHS if arguments.quick else LENGTHS
    repetitions = QUICK_REPETITIONS if arguments.quick else REPETITIONS
    checks = check(2 * BLOCK + 5) + check(lengths[-1])
    draw = torch.Generator().manual_seed(0)
    cells = time_cases([case for length in lengths for case in cases_at(length, draw)], repetitions)
    finish(
        "traces_cpu",
        "Three traces on a CPU",
        [*cells, ceiling_row("copy", copy_bandwidth(torch.device("cpu")))],
        scale="cpu",
        checks=checks,
        comparisons=[
            Comparison({"contender": name}, {"contender": "ematrace"}) for name in CONTENDERS if name != "ematrace"
        ],
        settings={
            **{"threads": THREADS, "alphas": ALPHAS, "sequences": SEQUENCES, "channels": CHANNELS},
            **{"block": BLOCK, "repetitions": repetitions},
        },
        quick=arguments.quick,
        to=arguments.record,
        force=arguments.force,
    )


if __name__ == "__main__":
    main()
