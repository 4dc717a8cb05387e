"""Where the tokens of a batch are: padding moved before each row's first token, positions counted without it."""

from __future__ import annotations

import torch
from torch import Tensor


def padding_order(
    attention_mask: Tensor | None, x: Tensor, seen_tokens: int, cu_seqlens: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Mask and order that put the padding of each row before its first token, or (None, None) without padding.

    Left-padded rows stay as they are; with padding elsewhere the state at the end is still that of the last token.
    """
    if attention_mask is None:
        return None, None
    if attention_mask.ndim != 2:
        raise ValueError(f"attention_mask must be [batch, time], got {tuple(attention_mask.shape)}")
    length = x.shape[1]
    if attention_mask.shape[1] < length:
        raise ValueError(f"attention_mask covers {attention_mask.shape[1]} steps, the input has {length}")
    mask = attention_mask[:, attention_mask.shape[1] - length :].bool()  # generate() sends the mask of the past along
    if not torch.compiler.is_compiling() and bool(mask.all()):
        return None, None
    if cu_seqlens is not None:
        raise ValueError(
            "attention_mask with padding and cu_seqlens exclude each other: packed sequences have no padding"
        )
    if seen_tokens:
        raise ValueError(
            "attention_mask has padding after a carried state; pad only the first call, before the first token"
        )
    order = mask.to(torch.int8).argsort(dim=1, stable=True)
    return mask.gather(1, order), order


def positions_of(
    x: Tensor,
    mask: Tensor | None,
    cu_seqlens: Tensor | None,
    before: Tensor | None,
    seen_tokens: int,
    limit: int,
) -> tuple[Tensor, Tensor]:
    """Positions [B, T] of x [B, T, D], padding not counted, and the tokens that each row or packed sequence has now.

    `before` [B or N] is what they had already; a position beyond `limit` is refused.
    """
    B, T, _ = x.shape
    steps = torch.arange(T, device=x.device)
    if cu_seqlens is not None:
        starts, lengths = cu_seqlens[:-1], cu_seqlens.diff()
        segment = torch.repeat_interleave(torch.arange(len(lengths), device=x.device), lengths, output_size=T)
        begun = torch.zeros_like(lengths) if before is None else before
        positions, after = (steps - starts[segment] + begun[segment])[None], begun + lengths
    else:
        begun = steps.new_zeros(B) if before is None else before
        counted = steps.expand(B, T) if mask is None else (mask.cumsum(1) - 1).clamp(min=0)
        positions = counted + begun[:, None]
        after = begun + (T if mask is None else mask.sum(1))
    may_exceed = seen_tokens + T > limit  # padding and packed sequences need a second look, which waits for the GPU
    if may_exceed and not torch.compiler.is_compiling() and T and int(after.max()) > limit:
        raise ValueError(f"a sequence of {int(after.max())} tokens; the model has {limit} learned positions")
    return positions, after
