"""GELU and top-k of 184 in 3072 units for 56 x 2048 tokens on one GPU, forward and straight-through backward.

The floor is memory: forward reads u and writes z, backward reads u and dz and writes du, 705 MB each in bfloat16. The
peers, compiled: torch.topk with a scatter, and GELU alone, which selects nothing.

    python benchmarks/topk_gpu.py --record results
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ematrace.bench import Case, Comparison, ceiling_row, copy_bandwidth, finish, gpu_unless_quick, parser, time_cases
from ematrace.ops import gelu_topk, topk_mask
from ematrace.ops.topk import gelu_rank
from ematrace.results import Factors

NEEDS = "cuda"
ROWS, UNITS, K = 56 * 2048, 3072, 184
QUICK_ROWS, QUICK_UNITS, QUICK_K = 16, 48, 5
REPETITIONS, QUICK_REPETITIONS = 50, 2


def torch_topk(u: Tensor, k: int) -> Tensor:
    """Ties go to whichever unit the sort puts first."""
    z = F.gelu(u)
    values, units = z.topk(k, dim=-1, sorted=False)
    return torch.zeros_like(z).scatter(-1, units, values)


def check(u: Tensor, grad: Tensor, k: int) -> str:
    """Exactly k units, those of the highest rank in float32; their values and gradients against float64."""
    u, grad = u[:4096], grad[:4096]
    leaf = u.detach().requires_grad_()
    z = gelu_topk(leaf, k)
    (du,) = torch.autograd.grad(z, leaf, grad)
    kept = topk_mask(gelu_rank(u), k)
    exact = torch.where(kept, F.gelu(u.double()), 0.0)
    exact_du = torch.ops.aten.gelu_backward(grad.double(), u.double())
    error, grad_error = (float((a.detach().double() - b).norm() / b.norm()) for a, b in ((z, exact), (du, exact_du)))
    wrong = int((((z != 0) != kept) & (exact != 0)).sum())
    line = (
        f"{wrong} of {kept.numel()} units selected otherwise, values off by {error:.1e}, gradients by {grad_error:.1e}"
    )
    print(line)
    if wrong or not max(error, grad_error) < 2**-8:
        raise SystemExit(f"topk_gpu: {line}")
    return line


def cases_of(
    contenders: Mapping[str, Callable[[Tensor], Tensor]], peer: dict[str, bool], u: Tensor, grad: Tensor
) -> list[Case]:
    """A copy of u, and each contender forward and backward; `peer` are the factors of all but ours."""
    leaf = u.detach().requires_grad_()
    cases = [Case({"contender": "copy"}, partial(torch.empty_like(u).copy_, u), bytes=2 * u.nbytes)]
    for name, contender in contenders.items():
        factors: Factors = {"contender": name, **(peer if name != "ematrace" else {})}
        cases.append(Case({**factors, "pass": "forward"}, partial(contender, u), bytes=2 * u.nbytes))
        back = partial(torch.autograd.grad, contender(leaf), leaf, grad, retain_graph=True)
        cases.append(Case({**factors, "pass": "backward"}, back, bytes=3 * u.nbytes))
    return cases


def main() -> None:
    arguments = parser(__doc__, quick="a toy size, also on a CPU").parse_args()
    device = gpu_unless_quick(arguments.quick)
    on_gpu = device.type == "cuda"
    rows, units, k = (QUICK_ROWS, QUICK_UNITS, QUICK_K) if arguments.quick else (ROWS, UNITS, K)
    draw = torch.Generator(device).manual_seed(0)
    u, grad = (torch.randn(rows, units, generator=draw, device=device, dtype=torch.bfloat16) for _ in range(2))
    checks = [check(u, grad, k)]
    by_torch: Callable[..., Tensor] = torch.compile(torch_topk) if on_gpu else torch_topk
    gelu: Callable[..., Tensor] = torch.compile(F.gelu) if on_gpu else F.gelu
    contenders: dict[str, Callable[[Tensor], Tensor]] = {
        "ematrace": lambda u: gelu_topk(u, k),
        "torch": lambda u: by_torch(u, k),
        "gelu": lambda u: gelu(u),
    }
    peer = {"compiled": True} if on_gpu else {}
    cases = cases_of(contenders, peer, u, grad)
    cells = time_cases(cases, REPETITIONS if on_gpu else QUICK_REPETITIONS, device)
    if on_gpu:
        cells.append(ceiling_row("copy", copy_bandwidth(device)))
    finish(
        "topk_gpu",
        "GELU and top-k on one GPU",
        cells,
        scale="gpu" if on_gpu else "cpu",
        checks=checks,
        comparisons=[
            *(
                Comparison({"contender": "ematrace", "pass": way}, {"contender": "copy"}, per="bytes")
                for way in ("forward", "backward")
            ),
            Comparison({"contender": "torch", **peer}, {"contender": "ematrace"}),
        ],
        settings={"rows": rows, "units": units, "k": k, "dtype": "bfloat16"},
        quick=arguments.quick,
        to=arguments.record,
        force=arguments.force,
    )


if __name__ == "__main__":
    main()
