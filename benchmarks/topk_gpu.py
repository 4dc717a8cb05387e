"""GELU and top-k of 184 in 3072 units for 56 x 2048 tokens on one GPU, forward and straight-through backward.

The floor is memory: forward reads u and writes z, backward reads u and dz and writes du, 705 MB each in bfloat16. The
peers: torch.topk with a scatter, compiled, and GELU alone, compiled, which selects nothing.

    python benchmarks/topk_gpu.py --record results/benchmarks
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ematrace.bench import BenchmarkRecord, Row, Timing, copy_bandwidth, finish, ratio, time_cpu, time_gpu
from ematrace.ops import gelu_topk, topk_mask
from ematrace.ops.topk import gelu_rank

NEEDS = "cuda"
ROWS, UNITS, K = 56 * 2048, 3072, 184
QUICK_ROWS, QUICK_UNITS, QUICK_K = 16, 48, 5
REPETITIONS, QUICK_REPETITIONS = 50, 2


def torch_topk(u: Tensor, k: int) -> Tensor:
    """What one would write with torch; its ties go to whichever unit the sort puts first."""
    z = F.gelu(u)
    values, units = z.topk(k, dim=-1, sorted=False)
    return torch.zeros_like(z).scatter(-1, units, values)


def check(u: Tensor, grad: Tensor, k: int) -> str:
    """Exactly k units, the ones that the rank in float32 says, their values and gradients against float64."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="toy size, also on a CPU, to see that it runs")
    parser.add_argument("--record", type=Path, help="folder for the record")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not arguments.quick:
        raise SystemExit("topk_gpu: no GPU here; --quick runs the checks on a CPU")
    rows, units, k = (QUICK_ROWS, QUICK_UNITS, QUICK_K) if arguments.quick else (ROWS, UNITS, K)
    draw = torch.Generator(device).manual_seed(0)
    u, grad = (torch.randn(rows, units, generator=draw, device=device, dtype=torch.bfloat16) for _ in range(2))
    checks = [check(u, grad, k)]

    def fast(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return torch.compile(f) if device.type == "cuda" else f

    contenders: dict[str, Callable[[Tensor], Tensor]] = {"ematrace": lambda u: gelu_topk(u, k)}
    by_torch, gelu = fast(torch_topk), fast(F.gelu)
    contenders["torch.topk and scatter, compiled"] = lambda u: by_torch(u, k)
    contenders["GELU alone, compiled"] = lambda u: gelu(u)
    leaf = u.detach().requires_grad_()
    copied = torch.empty_like(u)
    work: dict[str, Callable[[], object]] = {"copy": lambda: copied.copy_(u)}
    for name, contender in contenders.items():
        work[f"{name} forward"] = lambda f=contender: f(u)  # type: ignore[misc]
        kept = contender(leaf)
        work[f"{name} backward"] = lambda kept=kept: torch.autograd.grad(kept, leaf, grad, retain_graph=True)  # type: ignore[misc]
    size = u.numel() * u.element_size()
    if device.type == "cuda":
        timings = time_gpu(work, REPETITIONS)
        ceilings = {"copy_bytes_per_second": copy_bandwidth(device)}
    else:
        timings, ceilings = time_cpu(work, QUICK_REPETITIONS), {}
    copy = timings["copy"]
    copy_of_three = Timing(tuple(1.5 * s for s in copy.seconds))
    ours = {way: timings[f"ematrace {way}"] for way in ("forward", "backward")}
    ratios = {
        "ematrace forward / copy of the same bytes": ratio(ours["forward"], copy),
        "ematrace backward / copy of the same bytes": ratio(ours["backward"], copy_of_three),
    }
    for way in ours:
        peer = "torch.topk and scatter, compiled"
        ratios[f"{peer} {way} / ematrace {way}"] = ratio(timings[f"{peer} {way}"], ours[way])
    finish(
        BenchmarkRecord(
            benchmark="topk_gpu",
            title="GELU and top-k on one GPU",
            rows=tuple(
                Row(name, timing, bytes=(3 if name.endswith("backward") else 2) * size)
                for name, timing in timings.items()
            ),
            ratios=ratios,
            ceilings=ceilings,
            checks=tuple(checks),
            settings={"rows": rows, "units": units, "k": k, "dtype": "bfloat16"},
            figures={},
        ),
        arguments.record,
    )


if __name__ == "__main__":
    main()
