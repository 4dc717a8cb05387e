"""200 steps of training with the Triton kernels and with plain torch, from the same weights on the same tokens.

Kernels sum in another order, and top-k turns rounding into other units: the two curves part after some steps, as two
runs of the same code with other seeds do. So the distance between them is held against the distance between two seeds
of the plain-torch run. Nothing is timed but for information.

    python benchmarks/curves_gpu.py --record results/benchmarks
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import torch

from ematrace.bench import BenchmarkRecord, Row, Timing, finish
from ematrace.kernels import SWITCH
from ematrace.train import TrainConfig, train

NEEDS = "cuda"
STEPS, LENGTH, SEQUENCES = 200, 256, 32
QUICK_STEPS, QUICK_LENGTH, QUICK_SEQUENCES = 3, 16, 2
TAIL = 50  # steps whose mean is the end of a curve


def curve(kernels: bool, seed: int, steps: int, length: int, sequences: int, preset: str) -> list[float]:
    os.environ[SWITCH] = "1" if kernels else "0"
    with tempfile.TemporaryDirectory() as folder:
        train(
            TrainConfig(
                preset=preset,
                data="builtin",
                out=Path(folder),
                tokens=steps * length * sequences,
                length=length,
                sequences=sequences,
                seed=seed,
                compile=False,  # the kernels are the same, and the compiler takes longer than the run
                checkpoint_every=10**9,
            )
        )
        lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["cross_entropy"] for line in lines]


def distance(a: list[float], b: list[float]) -> tuple[float, float]:
    """Largest difference of the curves smoothed over ten steps, and difference of their ends."""
    width = min(10, len(a))
    smooth = [abs(sum(a[i : i + width]) - sum(b[i : i + width])) / width for i in range(len(a) - width + 1)]
    tail = min(TAIL, len(a))
    return max(smooth), abs(sum(a[-tail:]) - sum(b[-tail:])) / tail


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three steps of a toy model, also on a CPU")
    parser.add_argument("--record", type=Path, help="folder for the record")
    arguments = parser.parse_args()
    if not torch.cuda.is_available() and not arguments.quick:
        raise SystemExit("curves_gpu: no GPU here; --quick runs on a CPU")
    size = (QUICK_STEPS, QUICK_LENGTH, QUICK_SEQUENCES) if arguments.quick else (STEPS, LENGTH, SEQUENCES)
    preset = "spen-tiny" if arguments.quick else "spen-7m"
    runs = {"kernels": (True, 0), "plain torch": (False, 0), "plain torch, another seed": (False, 1)}
    curves, seconds = {}, {}
    for name, (kernels, seed) in runs.items():
        begun = time.monotonic()
        curves[name] = curve(kernels, seed, *size, preset)
        seconds[name] = time.monotonic() - begun
        print(f"{name}: from {curves[name][0]:.4f} to {curves[name][-1]:.4f} nats", flush=True)
    apart, ends = distance(curves["kernels"], curves["plain torch"])
    seeds_apart, seeds_ends = distance(curves["plain torch"], curves["plain torch, another seed"])
    line = (
        f"kernels and plain torch: at most {apart:.4f} nats apart (smoothed over ten steps), {ends:.4f} at the end; "
        f"two seeds: {seeds_apart:.4f} and {seeds_ends:.4f}"
    )
    print(line)
    if not arguments.quick and not apart < seeds_apart:
        raise SystemExit(f"curves_gpu: {line}: more than noise")
    finish(
        BenchmarkRecord(
            benchmark="curves_gpu",
            title="The same training with kernels and with plain torch",
            rows=tuple(
                Row(
                    name,
                    Timing((seconds[name],)),
                    tokens=size[0] * size[1] * size[2],
                    note="with the compilation of kernels",
                )
                for name in runs
            ),
            ratios={},
            ceilings={},
            checks=(line,),
            settings={"preset": preset, "steps": size[0], "length": size[1], "sequences": size[2]},
            figures={
                "kernels and plain torch: nats apart at most": apart,
                "kernels and plain torch: nats apart at the end": ends,
                "two seeds: nats apart at most": seeds_apart,
                "two seeds: nats apart at the end": seeds_ends,
                **{f"{name}: nats in the last step": values[-1] for name, values in curves.items()},
            },
        ),
        arguments.record,
    )


if __name__ == "__main__":
    main()
