"""`ema_traces`: picks a backend."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ematrace.kernels import cpu_kernels_are_on, gpu_kernels_are_on
from ematrace.traces.arguments import Alphas, checked, nan_outside, state_dtype
from ematrace.traces.chunked import ema_chunked
from ematrace.traces.reference import ema_reference, ema_reference_packed

try:
    from ematrace.traces import triton_scan
except ImportError:  # Triton comes with torch on GPU machines only
    triton_scan = None  # type: ignore[assignment]

BACKENDS = ("auto", "reference", "chunked", "numba", "triton")
# Asked once: torch.compile of torch 2.11 cannot trace the question and would break the graph there.
AUTOCAST_DEVICES = frozenset(d for d in ("cpu", "cuda", "mps", "xpu") if torch.amp.is_autocast_available(d))
SHORT = 4  # up to here, as in decoding step by step, the loop has less to set up than anything else


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
    to x, alphas and state. From a step of x that is NaN or infinite on, the traces of that channel and sequence are not
    finite; no other is touched.

    A `ValueError` names what does not fit. Values on a GPU, which would have to be waited for, and values in a compiled
    graph are not looked at: there, a rate outside of [0, 1] gives traces of NaN, and so do bad `cu_seqlens`.

    >>> import torch
    >>> x = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1)
    >>> traces, state = ema_traces(x, [0.5, 1.0])
    >>> traces[:, 0, :, 0]
    tensor([[0.5000, 0.2500, 0.1250],
            [1.0000, 0.0000, 0.0000]])
    """
    rates, state, n_sequences = checked(x, alphas, state, cu_seqlens)
    chosen = _choose(backend, x, cu_seqlens)
    with no_autocast(x):
        if x.numel() == 0:
            return _nothing(x, rates, state, n_sequences)
        if chosen == "numba" and _is_transformed(x, rates, state):
            if backend == "numba":
                raise ValueError(
                    "backend 'numba' has no forward derivatives and no transforms of torch.func, use 'chunked'"
                )
            chosen = "chunked"
        return _dispatch(x, rates, state, cu_seqlens, n_sequences, chosen)


def _dispatch(
    x: Tensor, rates: Tensor, state: Tensor | None, cu_seqlens: Tensor | None, n_sequences: int, chosen: str
) -> tuple[Tensor, Tensor]:
    if chosen == "triton":
        return triton_scan.ema_triton(x, rates, state, cu_seqlens)
    rates = nan_outside(rates)
    if chosen == "numba":
        try:
            from ematrace.traces import numba_scan
        except ImportError as error:
            raise ValueError("backend 'numba' needs numba, which cannot be imported here") from error

        traces, last = numba_scan.ema_scan(x.to(state_dtype(x)), rates, state, cu_seqlens)
    elif chosen == "chunked":
        traces, last = ema_chunked(x, rates, state, cu_seqlens)
    else:
        work = x.to(state_dtype(x))
        if state is None:
            state = work.new_zeros(rates.shape[0], n_sequences, x.shape[2])
        if cu_seqlens is None:
            traces, last = ema_reference(work, rates, state)
        else:
            traces, last = ema_reference_packed(work, rates, state, cu_seqlens)
    return traces.to(x.dtype), last.to(state_dtype(x))


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


def _nothing(x: Tensor, rates: Tensor, state: Tensor | None, n_sequences: int) -> tuple[Tensor, Tensor]:
    """No steps, no sequences or no channels: empty traces, still part of the graph, and the state as it was."""
    traces = (rates[:, None, None] * x).to(x.dtype)
    if state is None:
        return traces, x.new_zeros(rates.shape[0], n_sequences, x.shape[2], dtype=state_dtype(x))
    return traces, state.clone()


def no_autocast(x: Tensor) -> AbstractContextManager[object]:
    if x.device.type in AUTOCAST_DEVICES:
        return torch.autocast(x.device.type, enabled=False)
    return nullcontext()
