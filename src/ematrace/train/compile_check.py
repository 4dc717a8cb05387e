"""Before a compiled model is trained, its gradient is compared with the same model's, not compiled.

A compiler that is wrong says nothing. GPT-2 with a feed-forward layer of 3,368 units, compiled by torch 2.11 for an
H200, had a plausible loss and a gradient of norm 8e7 where it is 11.8: memory that nobody had written (see
`COMPILE_OPTIONS`). Such a run trains, badly, and passes for the model's own result.

Compared are the norms of every tensor's gradient, which tells what is missing, foreign or of another scale; not signs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from ematrace.train.batches import MicroBatch
from ematrace.train.step import Gradients

MOST_APART = 2.0
"""Of two norms. Rounding to bfloat16 makes a hundredth, where top-k chooses a sixth; dropout and the load-balance loss,
which are those of each part, some more."""
SMALL = 1e-3  # of the whole norm: a tensor with less may have anything up to it
PARTS = 8


def refuse_miscompiled(gradients: Gradients, sequences: int, length: int, entries: int) -> None:
    """Raises ValueError where compiling changes the gradient on random tokens. Weights stay as they are.

    Not where the weights are sharded: parts without synchronisation would hold whole gradients.
    """
    if any(hasattr(p, "full_tensor") for p in gradients.model.parameters()):
        return
    device = gradients.world.device
    ids = torch.randint(entries, (sequences, length + 1), generator=torch.Generator().manual_seed(0)).to(device)
    whole = replace(gradients, clip=math.inf)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        with torch.compiler.set_stance("force_eager"):  # in parts: all at once would take more memory than compiled
            parts = ids.split(max(1, sequences // PARTS))
            total, expected = _norms(whole, [MicroBatch(part, None) for part in parts])
        _spoil_free_memory(device)
        _, compiled = _norms(whole, [MicroBatch(ids, None)])
    if device.type == "cuda":
        torch.cuda.empty_cache()
    if not math.isfinite(total):
        return  # which the first step will find
    for name, mine, theirs in zip(_names(gradients), compiled, expected, strict=True):
        if not _near(mine, theirs, SMALL * total):
            raise ValueError(
                f"compile: torch {torch.__version__} compiles this model wrongly: the gradient of {name} has a norm of "
                f"{mine:.3g}, and {theirs:.3g} when not compiled; train with --compile False"
            )


def _near(mine: float, theirs: float, small: float) -> bool:
    return theirs / MOST_APART - small <= mine <= theirs * MOST_APART + small


def _names(gradients: Gradients) -> list[str]:
    return [name for name, p in gradients.model.named_parameters() if p.requires_grad]


def _norms(gradients: Gradients, batch: Sequence[MicroBatch]) -> tuple[float, list[float]]:
    """Of the whole gradient, and of every tensor's."""
    total = float(gradients.compute(batch)[-1])
    found = [p.grad for p in gradients.model.parameters() if p.requires_grad]
    norms = [0.0 if grad is None else float(grad.norm()) for grad in found]
    gradients.optimiser.zero_grad(set_to_none=True)
    return total, norms


def _spoil_free_memory(device: torch.device) -> None:
    """A fresh process's memory is often zero, and what is read without having been written would pass for right."""
    if device.type == "cuda":
        free = torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device)
        torch.full((free // 4,), math.nan, device=device)
