"""Time of the head's cross-entropy, forward and backward, for several sizes of its slices, replayed as a CUDA graph.

`ematrace.ops.cross_entropy.LOGITS_PER_SLICE` logits are in memory at a time. Slices that fit the L2 save traffic,
larger ones make better matmuls. The last line is JSON: milliseconds by 2^n logits. Under a minute on an H200.

    python scripts/gpu/head_slices.py [--device cpu --quick]
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch

from ematrace.bench.measure import time_cpu, time_gpu
from ematrace.ops import cross_entropy, linear_cross_entropy
from ematrace.train.distributed import choose_device
from ematrace.train.step import cuda_graph

SIZES = {"small": (32768, 8192, 128), "130m": (114688, 50257, 768)}  # tokens, vocabulary, width
QUICK = {"small": (64, 100, 8)}
EXPONENTS = range(22, 31)


def work(tokens: int, vocabulary: int, width: int, device: torch.device) -> Any:
    """One call of forward and backward on random data."""
    draw = torch.Generator(device).manual_seed(0)
    hidden = torch.randn(tokens, width, device=device, generator=draw).requires_grad_()
    weight = (0.02 * torch.randn(vocabulary, width, device=device, generator=draw)).requires_grad_()
    targets = torch.randint(vocabulary, (tokens,), device=device, generator=draw)

    def once() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = linear_cross_entropy(hidden, weight, targets)
        torch.autograd.grad(loss, (hidden, weight))

    return cuda_graph(once) if device.type == "cuda" else once


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--quick", action="store_true", help="toy size, to see that it runs")
    arguments = parser.parse_args()
    device = choose_device(arguments.device)
    result: dict[str, Any] = {"script": "head_slices"}
    for name, size in (QUICK if arguments.quick else SIZES).items():
        calls = {}
        for exponent in EXPONENTS:
            cross_entropy.LOGITS_PER_SLICE = 2**exponent
            if 128 * size[1] <= 2**exponent < 2 * size[0] * size[1]:
                calls[str(exponent)] = work(*size, device)
        if not calls:
            calls["all"] = work(*size, device)
        timings = time_gpu(calls, 20) if device.type == "cuda" else time_cpu(calls, 3)
        result[name] = {exponent: round(1000 * timing.median, 4) for exponent, timing in timings.items()}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
