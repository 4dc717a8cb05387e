"""Does a streamed SPEN say what the parallel one says? (C26)

Without fast weights the two differ by rounding alone. With top-k a difference of rounding can let a unit in or out that
nearly tied, and from there on the two go slightly different ways, so logits are compared as a whole and units are
compared block by block on identical inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from ematrace.spen.mixer import SpenBlock
from ematrace.spen.modeling import SpenForCausalLM
from ematrace.spen.stream import SpenStream


@dataclass(frozen=True)
class Parity:
    """Streamed against parallel on the same tokens."""

    max_difference: float
    """Largest difference of two logits."""
    perplexity_parallel: float
    perplexity_streamed: float
    flipped_share: float
    """Share of (block, position) pairs in which top-k kept other units, both given the same input."""
    block_difference: float
    """Largest difference of a block's output, given the same input, where the units kept are the same."""

    @property
    def perplexity_ratio(self) -> float:
        return self.perplexity_streamed / self.perplexity_parallel


@torch.no_grad()
def parity(model: SpenForCausalLM, ids: Tensor) -> Parity:
    """Read ids [1, T] both ways. T steps through all blocks twice: a few thousand tokens are a matter of seconds."""
    model = model.eval()
    output = model(ids, output_hidden_states=True)
    stream = SpenStream(model, decoder=None)
    streamed = torch.stack([stream.step(ids[:, t]) for t in range(ids.shape[1])], 1)
    flips, difference = _by_block(model, output.hidden_states)
    return Parity(
        max_difference=float((streamed - output.logits).abs().max()),
        perplexity_parallel=_perplexity(output.logits, ids),
        perplexity_streamed=_perplexity(streamed, ids),
        flipped_share=flips,
        block_difference=difference,
    )


def _by_block(model: SpenForCausalLM, inputs: tuple[Tensor, ...]) -> tuple[float, float]:
    flipped, difference, pairs = 0, 0.0, 0
    for layer, x in zip(model.model.layers, inputs, strict=False):  # the last hidden state enters no block
        block = cast(SpenBlock, layer)
        parallel_out, parallel, _ = block.algorithm1(x)
        state, steps = None, []
        for x_t in x.split(1, 1):
            out, units, state = block.algorithm1(x_t, state)
            steps.append((out, units))
        streamed_out, streamed = (torch.cat(parts, 1) for parts in zip(*steps, strict=True))
        changed = ((parallel != 0) != (streamed != 0)).any(-1)
        flipped += int(changed.sum())
        pairs += changed.numel()
        same = (parallel_out - streamed_out).abs().amax(-1)[~changed]
        difference = max(difference, float(same.max()) if same.numel() else 0.0)
    return flipped / pairs, difference


def _perplexity(logits: Tensor, ids: Tensor) -> float:
    log_p = logits[:, :-1].double().log_softmax(-1)
    return float(log_p.gather(-1, ids[:, 1:, None]).mean().neg().exp())
