"""Before a compiled model is trained, its gradient is compared with the same model's, not compiled.

A compiler that is wrong says nothing. GPT-2 with a feed-forward layer of 3,368 units, compiled by torch 2.11 for an
H200, had a plausible loss and a gradient of norm 8e7 where it is 11.8: memory that nobody had written (see
`COMPILE_OPTIONS`). Such a run trains, badly, and passes for the model's own result.
"""

from __future__ import annotations

import torch

from ematrace.train.batches import MicroBatch
from ematrace.train.step import Gradients

MOST_APART = 2.0
"""Of the two norms. Rounding to bfloat16 makes a hundredth; the load-balance loss, taken of each part, some more."""
PARTS = 8


def refuse_miscompiled(gradients: Gradients, sequences: int, length: int, entries: int) -> None:
    """Raises ValueError where compiling changes the gradient's norm on random tokens. Weights stay as they are."""
    device = gradients.world.device
    ids = torch.randint(entries, (sequences, length + 1), generator=torch.Generator().manual_seed(0)).to(device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        compiled = _norm(gradients, [MicroBatch(ids, None)])
        with torch.compiler.set_stance("force_eager"):  # in parts: all at once would take more memory than compiled
            expected = _norm(gradients, [MicroBatch(part, None) for part in ids.split(max(1, sequences // PARTS))])
    if not expected / MOST_APART <= compiled <= expected * MOST_APART:
        raise ValueError(
            f"compile: torch {torch.__version__} compiles this model wrongly: its gradient has a norm of "
            f"{compiled:.3g}, and {expected:.3g} when not compiled; train with --compile False"
        )


def _norm(gradients: Gradients, batch: list[MicroBatch]) -> float:
    norm = float(gradients.compute(batch)[-1])
    gradients.optimiser.zero_grad(set_to_none=True)
    return norm
