"""`ema_traces`: checks its arguments once, picks a backend."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ematrace.kernels import cpu_kernels_are_on, gpu_kernels_are_on
from ematrace.traces.chunked import ema_chunked
from ematrace.traces.reference import ema_reference, ema_reference_packed

try:
    from ematrace.traces import triton_scan
except ImportError:  # Triton comes with torch on GPU machines only
    triton_scan = None  # type: ignore[assignment]

BACKENDS = ("auto", "reference", "chunked", "numba", "triton")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Asked once: torch.compile of torch 2.11 cannot trace the question and would break the graph there.
AUTOCAST_DEVICES = frozenset(d for d in ("cpu", "cuda", "mps", "xpu") if torch.amp.is_autocast_available(d))
SHORT = 4  # up to here, as in decoding step by step, the loop has less to set up than anything else

Alphas = float | Sequence[float] | Tensor


def ema_traces(
    x: Tensor,
    alphas: Alphas,
    state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Exponential moving averages of x at several rates: h_t = (1 - a) h_{t-1} + a x_t, with h_{-1} = state or 0.

    x           [B,T,D], float16, bfloat16, float32 or float64, any strides
    alphas      rates in [0, 1]: a number, A numbers, or a tensor [A] or [A,D] (a rate for each channel)
    state       [A,B,D], what an earlier call returned, to carry on from there
    cu_seqlens  [N+1] int32 or int64 with B = 1: sequence n is x[0, cu_seqlens[n]:cu_seqlens[n+1]], state is [A,N,D]
    backend     "reference" (the loop), "chunked" (matrix products), "numba" (CPUs), "triton" (GPUs), or "auto"

    Returns traces [A,B,T,D] in x's dtype and the state after the last step in float32 (float64 for float64 x), which is
    also what they are computed in, under autocast too. An empty sequence returns the state it was given. Gradients flow
    to x, alphas and state.

    >>> x = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1)
    >>> traces, state = ema_traces(x, [0.5, 1.0])
    >>> traces[:, 0, :, 0]
    tensor([[0.5000, 0.2500, 0.1250],
            [1.0000, 0.0000, 0.0000]])
    """
    rates, state, n_sequences = checked(x, alphas, state, cu_seqlens)
    with no_autocast(x):
        if x.numel() == 0:
            return _nothing(x, rates, state, n_sequences)
        return _dispatch(x, rates, state, cu_seqlens, n_sequences, backend)


def checked(
    x: Tensor, alphas: Alphas, state: Tensor | None, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor | None, int]:
    """Rates and state as backends want them, and the number of sequences; ValueError for what does not fit."""
    if x.dim() != 3 or x.dtype not in DTYPES:
        raise ValueError(
            f"x must be [B,T,D] in float16, bfloat16, float32 or float64, got {list(x.shape)} in {x.dtype}"
        )
    rates = rates_for(alphas, x)
    n_sequences = x.shape[0] if cu_seqlens is None else _check_packing(cu_seqlens, x)
    if state is not None:
        _check_state(state, (rates.shape[0], n_sequences, x.shape[2]), x)
        state = state.to(_state_dtype(x))
    return rates, state, n_sequences


def _dispatch(
    x: Tensor, rates: Tensor, state: Tensor | None, cu_seqlens: Tensor | None, n_sequences: int, backend: str
) -> tuple[Tensor, Tensor]:
    chosen = _choose(backend, x, cu_seqlens)
    if chosen == "numba" and _is_transformed(x, rates, state):
        if backend == "numba":
            raise ValueError(
                "backend 'numba' has no forward derivatives and no transforms of torch.func, use 'chunked'"
            )
        chosen = "chunked"
    if chosen == "triton":
        return triton_scan.ema_triton(x, rates, state, cu_seqlens)
    if chosen == "numba":
        try:
            from ematrace.traces import numba_scan
        except ImportError as error:
            raise ValueError("backend 'numba' needs numba, which cannot be imported here") from error

        traces, last = numba_scan.ema_scan(x.to(_state_dtype(x)), rates, state, cu_seqlens)
    elif chosen == "chunked":
        traces, last = ema_chunked(x, rates, state, cu_seqlens)
    else:
        work = x.to(_state_dtype(x))
        if state is None:
            state = work.new_zeros(rates.shape[0], n_sequences, x.shape[2])
        if cu_seqlens is None:
            traces, last = ema_reference(work, rates, state)
        else:
            traces, last = ema_reference_packed(work, rates, state, cu_seqlens)
    return traces.to(x.dtype), last.to(_state_dtype(x))


def _choose(backend: str, x: Tensor, cu_seqlens: Tensor | None) -> str:
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if backend == "triton":
        if triton_scan is None:
            raise ValueError("backend 'triton' needs Triton, which cannot be imported here")
        triton_scan.check(x)
    if backend == "numba" and x.device.type != "cpu":
        raise ValueError(f"backend 'numba' needs tensors on a CPU, got x on {x.device}")
    if backend != "auto":
        return backend
    if cu_seqlens is None and x.shape[1] <= SHORT:
        return "reference"
    if x.is_cuda and x.dtype != torch.float64 and gpu_kernels_are_on():
        return "triton"
    return "numba" if x.device.type == "cpu" and cpu_kernels_are_on() else "chunked"


def _is_transformed(*tensors: Tensor | None) -> bool:
    """Whether one of them has a tangent, or is a wrapper of torch.func, which has no memory of its own."""
    for t in tensors:
        if t is None:
            continue
        if forward_ad.unpack_dual(t).tangent is not None:
            return True
        if not torch.compiler.is_compiling():  # which cannot trace this; torch.func inside of torch.compile is refused
            try:
                t.untyped_storage()
            except NotImplementedError:
                return True
    return False


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
    numbers: list[Any] = [values] if isinstance(values, Real) else list(values)  # type: ignore[arg-type]
    if not numbers or not all(isinstance(number, Real) for number in numbers):
        raise ValueError(f"{name} must be a number, numbers or a tensor, got {values!r}")
    return tuple(float(number) for number in numbers)


def _check_rates(alphas: Tensor, x: Tensor) -> Tensor:
    if alphas.dim() > 2 or (alphas.dim() and alphas.shape[0] == 0) or not alphas.is_floating_point():
        raise ValueError(f"alphas must be floating point [A] or [A,D], got {list(alphas.shape)} in {alphas.dtype}")
    if alphas.dim() == 2 and alphas.shape[1] != x.shape[2]:
        raise ValueError(f"alphas [A,D] must have D = {x.shape[2]} as x, got {list(alphas.shape)}")
    if alphas.device != x.device:
        raise ValueError(f"alphas must be on {x.device} as x, got {alphas.device}")
    if alphas.device.type == "cpu" and not torch.compiler.is_compiling():
        outside = alphas.detach()[~((alphas >= 0) & (alphas <= 1))]
        if outside.numel():
            raise ValueError(f"alphas must lie in [0, 1], got {outside[0].item()}")
    return alphas if alphas.dim() == 2 else alphas.reshape(-1, 1)


def _check_packing(cu_seqlens: Tensor, x: Tensor) -> int:
    """The number of packed sequences."""
    B, T, _ = x.shape
    if cu_seqlens.dim() != 1 or cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"cu_seqlens must be [N+1] int32 or int64, got {list(cu_seqlens.shape)} in {cu_seqlens.dtype}")
    if cu_seqlens.device != x.device:
        raise ValueError(f"cu_seqlens must be on {x.device} as x, got {cu_seqlens.device}")
    if B != 1:
        raise ValueError(f"cu_seqlens packs sequences along T and needs B = 1, got B = {B}")
    if cu_seqlens.shape[0] < (2 if T else 1):
        raise ValueError(f"cu_seqlens must be [N+1] with N >= 1 for T = {T}, got {list(cu_seqlens.shape)}")
    if cu_seqlens.device.type == "cpu" and not torch.compiler.is_compiling():
        first, last = int(cu_seqlens[0]), int(cu_seqlens[-1])
        if first != 0 or last != T or bool((cu_seqlens.diff() < 0).any()):
            raise ValueError(f"cu_seqlens must rise from 0 to T = {T} without falling, got {cu_seqlens.tolist()[:8]}")
    return cu_seqlens.shape[0] - 1


def _check_state(state: Tensor, shape: tuple[int, int, int], x: Tensor) -> None:
    if tuple(state.shape) != shape or not state.is_floating_point():
        raise ValueError(f"state must be floating point {list(shape)}, got {list(state.shape)} in {state.dtype}")
    if state.device != x.device:
        raise ValueError(f"state must be on {x.device} as x, got {state.device}")


def _state_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _nothing(x: Tensor, rates: Tensor, state: Tensor | None, n_sequences: int) -> tuple[Tensor, Tensor]:
    """No steps, no sequences or no channels: empty traces, still part of the graph, and the state as it was."""
    traces = (rates[:, None, None] * x).to(x.dtype)
    if state is None:
        return traces, x.new_zeros(rates.shape[0], n_sequences, x.shape[2], dtype=_state_dtype(x))
    return traces, state.clone()


def no_autocast(x: Tensor) -> AbstractContextManager[object]:
    if x.device.type in AUTOCAST_DEVICES:
        return torch.autocast(x.device.type, enabled=False)
    return nullcontext()
