"""What this package's fast operators and its registry do, in plain torch, for models that leave the package.

`standalone.py` puts this file in their place. The fast operators are tested against the same equations; what is here is
tested by comparing a model's logits, loss and gradients.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ematrace.mixers.base import Mixer
from ematrace.ops.load_balance import load_balance_loss
from ematrace.ops.topk import check_topk, gelu_rank, topk_mask
from ematrace.traces.arguments import Alphas, checked, nan_outside, state_dtype
from ematrace.traces.chunked import ema_chunked
from ematrace.traces.operator import no_autocast
from ematrace.traces.reference import ema_reference

SHORT = 4
MIXERS: dict[str, type[Mixer]] = {}
"""The last line of a model's code fills it in."""


def ema_traces(
    x: Tensor, alphas: Alphas, state: Tensor | None = None, cu_seqlens: Tensor | None = None, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    """h_t = (1 - a) h_{t-1} + a x_t for each rate a: traces [A,B,T,D] of x [B,T,D], and the last ones, [A,B,D]."""
    rates, state, n_sequences = checked(x, alphas, state, cu_seqlens)
    dtype = state_dtype(x)
    if x.numel() == 0:
        before = x.new_zeros(rates.shape[0], n_sequences, x.shape[2], dtype=dtype) if state is None else state.clone()
        return (rates[:, None, None] * x).to(x.dtype), before
    with no_autocast(x):
        if cu_seqlens is None and x.shape[1] <= SHORT:
            first = x.new_zeros(rates.shape[0], n_sequences, x.shape[2], dtype=dtype) if state is None else state
            traces, last = ema_reference(x.to(dtype), nan_outside(rates), first)
        else:
            traces, last = ema_chunked(x, nan_outside(rates), state, cu_seqlens)
    return traces.to(x.dtype), last.to(dtype)


def can_fuse_columns(x: Tensor) -> bool:
    return False


def fused_columns(*arguments: Any) -> tuple[Tensor, Tensor]:
    raise NotImplementedError("a GPU kernel of ematrace")


def kept_weight(z: Tensor, weight: Tensor) -> Tensor:
    """Summed weight of the rows in which a unit is not 0, [n_units]; z [rows, n_units], weight [rows, 1]."""
    return ((z != 0) * weight).sum(0)


def gelu_topk(u: Tensor, k: int, grad: str = "ste") -> Tensor:
    """The k largest of GELU(u), the rest 0; with "ste" the gradient passes as if all had been kept."""
    check_topk(u, k, grad)
    z = F.gelu(u)
    kept = torch.where(topk_mask(gelu_rank(u.detach()), k), z, 0.0)
    return z + (kept - z).detach() if grad == "ste" else kept


def gelu_topk_balanced(u: Tensor, k: int, grad: str = "ste", mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    z = gelu_topk(u, k, grad)
    return z, load_balance_loss(u, z, mask)


def linear_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Of softmax(hidden @ weight.T) against targets, without those that are -100."""
    logits = F.linear(hidden, weight.to(hidden.dtype)).flatten(0, -2)
    exact = logits if logits.dtype == torch.float64 else logits.float()
    loss = F.cross_entropy(exact, targets.flatten(), ignore_index=-100, reduction="sum")
    return loss if reduction == "sum" else loss / (targets != -100).sum().clamp(min=1)


def registered_mixer(name: str) -> type[Mixer]:
    if name not in MIXERS:
        raise ValueError(f"this file has the mixer {', '.join(MIXERS)}; {name!r} needs ematrace")
    return MIXERS[name]


def build_mixer(name: str, d_model: int, **options: Any) -> Mixer:
    return registered_mixer(name)(d_model, **options)


def write_atomically(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def modeling_code(config: Any) -> str:
    """This very file: it goes with a model wherever that is saved."""
    return Path(__file__).read_text(encoding="utf-8")
