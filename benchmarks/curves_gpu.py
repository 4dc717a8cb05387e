"""200 steps of training with the Triton kernels and with plain torch, from the same weights on the same tokens.

Kernels sum in another order, and top-k turns rounding into other units: the two curves part after some steps, as two
runs of the same code with other seeds do. So the distance between them is compared with the distance between two seeds
of the plain-torch run. The times are for information only.

    python benchmarks/curves_gpu.py --record results
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path

from ematrace.bench import Timing, finish, gpu_unless_quick, parser, timing_row
from ematrace.kernels import SWITCH
from ematrace.results import Factors, Metric, Row
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
    arguments = parser(__doc__, quick="three steps of a toy model, also on a CPU").parse_args()
    device = gpu_unless_quick(arguments.quick)
    size = (QUICK_STEPS, QUICK_LENGTH, QUICK_SEQUENCES) if arguments.quick else (STEPS, LENGTH, SEQUENCES)
    preset = "spen-tiny" if arguments.quick else "spen-7m"
    curves: dict[tuple[str, int], list[float]] = {}
    cells: list[Row] = []
    for contender, seed in (("triton", 0), ("torch", 0), ("torch", 1)):
        begun = time.monotonic()
        values = curves[contender, seed] = curve(contender == "triton", seed, *size, preset)
        timing = Timing((time.monotonic() - begun,))
        last = Metric(values[-1], "nats", better="low")
        tokens = size[0] * size[1] * size[2]
        factors: Factors = {"contender": contender, "init_seed": seed}
        cells.append(timing_row(factors, timing, tokens=tokens, last_cross_entropy=last))
        print(f"{contender}, seed {seed}: from {values[0]:.4f} to {values[-1]:.4f} nats", flush=True)
    apart, ends = distance(curves["triton", 0], curves["torch", 0])
    seeds_apart, seeds_ends = distance(curves["torch", 0], curves["torch", 1])
    line = (
        f"triton and torch: at most {apart:.4f} nats apart (smoothed over ten steps), {ends:.4f} at the end; "
        f"two seeds: {seeds_apart:.4f} and {seeds_ends:.4f}"
    )
    print(line)
    if not arguments.quick and not apart < seeds_apart:
        raise SystemExit(f"curves_gpu: {line}: more than noise")
    for pair, (largest, final) in {"backends": (apart, ends), "seeds": (seeds_apart, seeds_ends)}.items():
        differences = {"largest_difference": Metric(largest, "nats"), "final_difference": Metric(final, "nats")}
        cells.append(Row({"pair": pair}, {**differences}))
    finish(
        "curves_gpu",
        "The same training with kernels and with plain torch",
        cells,
        scale="gpu" if device.type == "cuda" else "cpu",
        checks=[line],
        notes=["The times contain the compilation of kernels."],
        settings={"preset": preset, "steps": size[0], "length": size[1], "sequences": size[2]},
        quick=arguments.quick,
        to=arguments.record,
        force=arguments.force,
    )


if __name__ == "__main__":
    main()
