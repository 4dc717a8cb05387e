"""What `ema_traces` is given, checked and brought into the form that backends want."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
Alphas = float | Sequence[float] | Tensor


def checked(
    x: Tensor, alphas: Alphas, state: Tensor | None, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor | None, int]:
    """Rates and state as backends want them, and the number of sequences; ValueError for what does not fit.

    Values that cannot be looked at here (see `can_look_at`) are not refused. For bad offsets the rates are NaN instead,
    and so is everything that is computed from them; backends do the same with rates outside of [0, 1].
    """
    check_dense(x, "x")
    if x.dim() != 3 or x.dtype not in DTYPES:
        raise ValueError(
            f"x must be [B,T,D] in float16, bfloat16, float32 or float64, got {list(x.shape)} in {x.dtype}"
        )
    rates = rates_for(alphas, x)
    n_sequences = x.shape[0]
    if cu_seqlens is not None:
        n_sequences = _check_packing(cu_seqlens, x)
        if not can_look_at(cu_seqlens):
            rates = torch.where(_rises_to(x.shape[1], cu_seqlens), rates, torch.nan)
    if state is not None:
        _check_state(state, (rates.shape[0], n_sequences, x.shape[2]), x)
        state = state.to(state_dtype(x))
    return rates, state, n_sequences


def can_look_at(values: Tensor) -> bool:
    """Whether values may be asked for: a GPU would have to be waited for, and a graph does not have them yet."""
    return values.device.type == "cpu" and not torch.compiler.is_compiling()


def check_dense(value: object, name: str) -> None:
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a tensor, got a {type(value).__module__}.{type(value).__qualname__}")
    if value.is_nested or value.layout is not torch.strided:
        kind = "nested" if value.is_nested else str(value.layout).removeprefix("torch.")
        raise ValueError(f"{name} must be a dense tensor, got a {kind} one")


def rates_for(alphas: Alphas, x: Tensor) -> Tensor:
    """alphas as [A,1] or [A,D] in float64, so that 1 - a and its powers are rounded only once."""
    exact = torch.float32 if x.device.type == "mps" else torch.float64
    if isinstance(alphas, Tensor):
        return _check_rates(alphas, x).to(exact)
    numbers = as_numbers(alphas, "alphas")
    for a in numbers:
        if not 0.0 <= a <= 1.0:  # also catches NaN
            raise ValueError(f"alphas must lie in [0, 1], got {a}")
    if x.device.type == "cpu":
        return torch.tensor([[a] for a in numbers], dtype=exact)
    # Filled in on the device: a copy from the host would wait for it, and could not go into a CUDA graph.
    return torch.stack([torch.full((1,), a, dtype=exact, device=x.device) for a in numbers])


def as_numbers(values: float | Sequence[float], name: str) -> tuple[float, ...]:
    try:
        numbers: list[Any] = [values] if isinstance(values, Real) else list(values)  # type: ignore[arg-type]
    except TypeError:  # not a sequence
        numbers = []
    if not numbers or not all(isinstance(number, Real) for number in numbers):
        raise ValueError(f"{name} must be a number, numbers or a tensor, got {' '.join(repr(values).split())[:100]}")
    return tuple(float(number) for number in numbers)


def _check_rates(alphas: Tensor, x: Tensor) -> Tensor:
    check_dense(alphas, "alphas")
    if alphas.dim() > 2 or (alphas.dim() and alphas.shape[0] == 0) or not alphas.is_floating_point():
        raise ValueError(f"alphas must be floating point [A] or [A,D], got {list(alphas.shape)} in {alphas.dtype}")
    if alphas.dim() == 2 and alphas.shape[1] != x.shape[2]:
        raise ValueError(f"alphas [A,D] must have D = {x.shape[2]} as x, got {list(alphas.shape)}")
    if alphas.device != x.device:
        raise ValueError(f"alphas must be on {x.device} as x, got {alphas.device}")
    if can_look_at(alphas):
        outside = alphas.detach()[~_are_rates(alphas)]
        if outside.numel():
            raise ValueError(f"alphas must lie in [0, 1], got {outside[0].item()}")
    return alphas if alphas.dim() == 2 else alphas.reshape(-1, 1)


def _are_rates(alphas: Tensor) -> Tensor:
    return (alphas >= 0) & (alphas <= 1)


def nan_outside(rates: Tensor) -> Tensor:
    """Rates that may have gone unchecked, with NaN for what is outside of [0, 1]."""
    return rates if can_look_at(rates) else torch.where(_are_rates(rates), rates, torch.nan)


def _check_packing(cu_seqlens: Tensor, x: Tensor) -> int:
    """The number of packed sequences."""
    B, T, _ = x.shape
    check_dense(cu_seqlens, "cu_seqlens")
    if cu_seqlens.dim() != 1 or cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"cu_seqlens must be [N+1] int32 or int64, got {list(cu_seqlens.shape)} in {cu_seqlens.dtype}")
    if cu_seqlens.device != x.device:
        raise ValueError(f"cu_seqlens must be on {x.device} as x, got {cu_seqlens.device}")
    if B != 1:
        raise ValueError(f"cu_seqlens packs sequences along T and needs B = 1, got B = {B}")
    if cu_seqlens.shape[0] < (2 if T else 1):
        raise ValueError(f"cu_seqlens must be [N+1] with N >= 1 for T = {T}, got {list(cu_seqlens.shape)}")
    if can_look_at(cu_seqlens):
        check_offsets(cu_seqlens, T)
    return cu_seqlens.shape[0] - 1


def check_offsets(cu_seqlens: Tensor, T: int) -> None:
    if not _rises_to(T, cu_seqlens):
        raise ValueError(f"cu_seqlens must rise from 0 to T = {T} without falling, got {cu_seqlens.tolist()[:8]}")


def _rises_to(T: int, cu_seqlens: Tensor) -> Tensor:
    """Whether offsets rise from 0 to T, as a tensor of one truth value."""
    return (cu_seqlens.diff() >= 0).all() & (cu_seqlens[0] == 0) & (cu_seqlens[-1] == T)


def _check_state(state: Tensor, shape: tuple[int, int, int], x: Tensor) -> None:
    check_dense(state, "state")
    if tuple(state.shape) != shape or not state.is_floating_point():
        raise ValueError(f"state must be floating point {list(shape)}, got {list(state.shape)} in {state.dtype}")
    if state.device != x.device:
        raise ValueError(f"state must be on {x.device} as x, got {state.device}")


def state_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32
