"""Floating-point operations per token: the one count that MFU, benchmarks and the cost axis of a plot use.

Matmuls alone, as torch.utils.flop_counter.FlopCounterMode counts them: two operations for each multiply-add, the whole
T x T square of attention, nothing for embedding lookups, norms, activations and elementwise recurrences. A top-k layer
counts as a dense one, since that is what is computed. Against another convention, 6 per parameter and token, this
leaves out the embedding and adds attention.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention
from transformers.pytorch_utils import Conv1D

BACKWARD = 2.0
"""The backward pass over the forward pass: each matmul has two, for its input and for its weight."""


def flops_per_token(model: nn.Module, seq_len: int, *, backward: bool = True) -> float:
    """Mean over a sequence of `seq_len` tokens, of a training step or (backward=False) of reading or generating.

    Models of `ematrace.models` and `ematrace.spen`, transformers' GPT-2, and modules made of these parts. A module with
    a method `flops(seq_len)`, as every mixer has, is asked instead of being looked into. A decoder that generates the
    next token after `seq_len` - 1 others does flops_per_token(model, seq_len, backward=False).

    >>> flops_per_token(nn.Linear(3, 5), seq_len=7, backward=False)  # two for each weight
    30.0
    """
    if seq_len < 1:
        raise ValueError(f"seq_len is {seq_len}; it must be at least 1")
    return (1.0 + BACKWARD * backward) * _forward(model, seq_len)


def _forward(module: Any, seq_len: int) -> float:
    if callable(getattr(module, "flops", None)):
        return float(module.flops(seq_len))
    own = 0.0
    if isinstance(module, nn.Linear):
        own = 2.0 * module.in_features * module.out_features
    elif isinstance(module, Conv1D):  # GPT-2's linear layer, its weight transposed
        own = 2.0 * module.nx * module.nf
    elif isinstance(module, GPT2Attention):  # Q K^T and its matmul with V; the projections are its children
        own = 4.0 * seq_len * module.embed_dim
    return own + sum(_forward(child, seq_len) for child in module.children())
