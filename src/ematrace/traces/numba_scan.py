"""The traces as one pass over memory on CPUs: x is read once for all rates, and so are the gradients backward.

A thread walks through time with the states of its sequences and channels, which stay in its cache. They are float64:
rounded to float32 at every step, a slow trace would be off by up to 3e-8 / a. That costs no time, since memory takes
more. Nothing is contracted or reassociated, so that a channel has the same bits however many threads there are.
"""

# mypy: disallow-untyped-decorators=false, disallow-untyped-calls=false
from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ematrace.jit import compiled, inlined
from ematrace.traces.chunked import ema_chunked
from ematrace.workers import split

_compile, _inline = compiled(), inlined()  # so that the number of steps is a constant, and loops unroll

STEPS = 4  # with the state in registers, which saves three of four loads and stores of it
LANES = 16  # channels of a piece of work: a cache line, which threads should not share
WORK = 2**19  # numbers that are worth a thread, about .2 ms
TINY = 1e-290  # smaller states are 0: in silence they would go on to subnormal numbers, which take 100 times as long
unsigned = np.uint64  # numba asks of signed indices whether they count from the end, and then does not vectorise


@_compile
def sequences(cu, n_sequences, n_channels, begin, end):  # type: ignore[no-untyped-def]
    """First and one after the last sequence that has one of the pieces of work begin ... end.

    A piece is 16 channels of one sequence, sequence by sequence, or, since packed ones have lengths of all kinds, of
    all packed sequences.
    """
    pieces = -(-n_channels // LANES)
    return (0, n_sequences) if cu.size else (begin // pieces, -(-end // pieces))


@_compile
def channels(cu, n, n_channels, begin, end):  # type: ignore[no-untyped-def]
    """First and one after the last channel of sequence n in the pieces of work begin ... end."""
    before = 0 if cu.size else n * -(-n_channels // LANES)
    return max(begin - before, 0) * LANES, min((end - before) * LANES, n_channels)


@_compile
def steps(cu, n, n_steps):  # type: ignore[no-untyped-def]
    """Row of the batch, first step and one after the last of sequence n.

    Inside of x and all of x, whatever the offsets say: the first begins at 0, the last one ends with x.
    """
    if cu.size == 0:
        return n, 0, n_steps
    start = 0 if n == 0 else min(max(cu[n], 0), n_steps)
    end = n_steps if n + 2 == cu.size else cu[n + 1]
    return 0, start, min(max(end, start), n_steps)


@_inline
def audible(state):  # type: ignore[no-untyped-def]
    return 0.0 if abs(state) < TINY else state


@_inline
def follow(count, x, at, stride, rates, h, n, traces, row, low, high):  # type: ignore[no-untyped-def]
    """h_t = (1 - a) h_{t-1} + a x_t over `count` steps, exact at a = 0 and a = 1."""
    for a in range(rates.shape[0]):
        for channel in range(low, high):
            j = unsigned(channel)
            rate, h_t = rates[a, j], h[a, n, j]
            for i in range(count):
                h_t = (h_t - rate * h_t) + rate * x[unsigned(at + i * stride + channel)]
                traces[row + i, a, j] = h_t
            h[a, n, j] = audible(h_t)


@_compile
def forward(x, x_strides, n_steps, cu, rates, h, traces, begin, end):  # type: ignore[no-untyped-def]
    """Traces [B T,A,D], and h [A,N,D] from the state before each sequence to that after it."""
    _, N, D = h.shape
    first, last = sequences(cu, N, D, begin, end)
    stride_b, stride = x_strides
    for n in range(first, last):
        low, high = channels(cu, n, D, begin, end)
        b, t, stop = steps(cu, n, n_steps)
        at, row = b * stride_b, b * n_steps
        while t + STEPS <= stop:
            follow(STEPS, x, at + t * stride, stride, rates, h, n, traces, row + t, low, high)
            t += STEPS
        while t < stop:
            follow(1, x, at + t * stride, stride, rates, h, n, traces, row + t, low, high)
            t += 1


@_inline
def retrace(count, g, at, stride_a, stride, rates, G, n, grad_x, row, low, high):  # type: ignore[no-untyped-def]
    """G_t = g_t + (1 - a) G_{t+1} over `count` steps back from t, and dx_t = Σ_a a G_t; G holds (1 - a) G_t."""
    for a in range(rates.shape[0]):
        for channel in range(low, high):
            j = unsigned(channel)
            rate, later = rates[a, j], G[a, n, j]
            for i in range(count):
                G_t = g[unsigned(at + a * stride_a - i * stride + channel)] + later
                so_far = grad_x[row - i, j] if a > 0 else 0.0
                grad_x[row - i, j] = so_far + rate * G_t
                later = G_t - rate * G_t
            G[a, n, j] = audible(later)


@_compile
def backward(g, g_strides, n_steps, cu, rates, G, grad_x, begin, end):  # type: ignore[no-untyped-def]
    """grad_x [B T,D], and G [A,N,D] from the gradient of the state after each sequence to that before it."""
    _, N, D = G.shape
    first, last = sequences(cu, N, D, begin, end)
    stride_a, stride_b, stride = g_strides
    for n in range(first, last):
        low, high = channels(cu, n, D, begin, end)
        b, start, stop = steps(cu, n, n_steps)
        at, row, t = b * stride_b, b * n_steps, stop - 1
        while t + 1 >= start + STEPS:
            retrace(STEPS, g, at + t * stride, stride_a, stride, rates, G, n, grad_x, row + t, low, high)
            t -= STEPS
        while t >= start:
            retrace(1, g, at + t * stride, stride_a, stride, rates, G, n, grad_x, row + t, low, high)
            t -= 1


@_compile
def rates_gradient(x, x_strides, g, g_strides, n_steps, cu, rates, h, s, total, begin, end):  # type: ignore[no-untyped-def]
    """total [A,N,D] = Σ_t g_t s_t with s = dh/da: s_t = (1 - a) s_{t-1} + x_t - h_{t-1}.

    Forward in time, where h is computed on the way: nothing has to be kept of it, and it is not rounded.
    """
    A, N, D = h.shape
    first, last = sequences(cu, N, D, begin, end)
    for n in range(first, last):
        low, high = channels(cu, n, D, begin, end)
        b, start, stop = steps(cu, n, n_steps)
        for t in range(start, stop):
            for a in range(A):
                x_at, g_at = b * x_strides[0] + t * x_strides[1], a * g_strides[0] + b * g_strides[1] + t * g_strides[2]
                for channel in range(low, high):
                    j = unsigned(channel)
                    rate, x_t = rates[a, j], x[unsigned(x_at + channel)]
                    s_t = (s[a, n, j] - rate * s[a, n, j]) + (x_t - h[a, n, j])
                    h_t = (h[a, n, j] - rate * h[a, n, j]) + rate * x_t
                    total[a, n, j] += g[unsigned(g_at + channel)] * s_t
                    h[a, n, j], s[a, n, j] = audible(h_t), audible(s_t)


@torch.library.custom_op("ematrace::ema_scan_cpu", mutates_args=())
def ema_scan(x: Tensor, rates: Tensor, state: Tensor | None, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor]:
    """Traces and last state in the dtype of x, which is float32 or float64."""
    traces, last = _empty_outputs(x, rates, state, cu_seqlens)
    (A, N, D), T = last.shape, x.shape[1]
    x = _channels_last(x)
    h = torch.zeros(A, N, D, dtype=torch.float64) if state is None else _float64(state)
    rows = traces.permute(1, 2, 0, 3).view(-1, A, D)
    cu, wide = _offsets(cu_seqlens), _wide(rates, D)
    _run(forward, traces.shape, _flat(x), x.stride()[:2], T, cu, wide, h.numpy(), rows.numpy())
    return traces, last.copy_(h)


@ema_scan.register_fake
def _empty_outputs(x: Tensor, rates: Tensor, state: Tensor | None, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor]:
    (A, _), (B, T, D) = rates.shape, x.shape
    # The traces of a step lie side by side in memory: what reads all of them, as a matrix product does, copies nothing.
    traces = x.new_empty(B, T, A, D).permute(2, 0, 1, 3)
    return traces, x.new_empty(A, B if cu_seqlens is None else cu_seqlens.shape[0] - 1, D)


@torch.library.custom_op("ematrace::ema_scan_cpu_backward", mutates_args=())
def ema_scan_backward(
    grad_traces: Tensor,
    grad_last: Tensor,
    rates: Tensor,
    cu_seqlens: Tensor | None,
    x: Tensor | None,
    state: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, state and rates; the last one only when x is given."""
    grad_x, grad_state, grad_rates = _empty_gradients(grad_traces, grad_last, rates, cu_seqlens, x, state)
    _, _, T, D = shape = grad_traces.shape
    g = _channels_last(grad_traces)
    cu, wide, G = _offsets(cu_seqlens), _wide(rates, D), _float64(grad_last)
    _run(backward, shape, _flat(g), g.stride()[:3], T, cu, wide, G.numpy(), grad_x.view(-1, D).numpy())
    if x is not None:
        x = _channels_last(x)
        h = torch.zeros_like(G) if state is None else _float64(state)
        s, total = torch.zeros_like(G), torch.zeros_like(G)
        moving = (h.numpy(), s.numpy(), total.numpy())
        _run(rates_gradient, shape, _flat(x), x.stride()[:2], _flat(g), g.stride()[:3], T, cu, wide, *moving)
        total.addcmul_(grad_last, s)
        # Summed by numpy, on one thread: the order in which torch sums depends on how many it has.
        by_channel = total.numpy().sum(1)
        grad_rates.numpy()[...] = by_channel.sum(1, keepdims=True) if rates.shape[1] < D else by_channel
    return grad_x, grad_state.copy_(G), grad_rates


@ema_scan_backward.register_fake
def _empty_gradients(
    grad_traces: Tensor,
    grad_last: Tensor,
    rates: Tensor,
    cu_seqlens: Tensor | None,
    x: Tensor | None,
    state: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    grad_x = grad_traces.new_empty(grad_traces.shape[1:])
    return grad_x, grad_last.new_empty(grad_last.shape), rates.new_empty(rates.shape if x is not None else (0,))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, rates, state, cu_seqlens = inputs
    # Without learned rates nothing of the size of x has to be kept.
    ctx.save_for_backward(rates, cu_seqlens, *((x, state) if ctx.needs_input_grad[1] else (None, None)))


def _backward(ctx: Any, grad_traces: Tensor, grad_last: Tensor) -> tuple[Tensor | None, ...]:
    gradients = _differentiable_backward if torch.is_grad_enabled() else ema_scan_backward  # by create_graph=True
    grad_x, grad_state, grad_rates = gradients(grad_traces, grad_last, *ctx.saved_tensors)
    learned, carried = ctx.needs_input_grad[1:3]
    return grad_x, grad_rates if learned else None, grad_state if carried else None, None


def _differentiable_backward(
    grad_traces: Tensor,
    grad_last: Tensor,
    rates: Tensor,
    cu_seqlens: Tensor | None,
    x: Tensor | None,
    state: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same gradients in plain torch, which has gradients itself."""

    def traced(x: Tensor, rates: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        traces, last = ema_chunked(x, rates, state, cu_seqlens)
        return traces.to(grad_traces.dtype), last.to(grad_last.dtype)

    # The traces are linear in x and state, so that these are not needed for their own gradients.
    x = torch.zeros_like(grad_traces[0]) if x is None else x
    state = torch.zeros_like(grad_last) if state is None else state
    pull_back = torch.func.vjp(traced, x, rates, state)[1]
    grad_x, grad_rates, grad_state = pull_back((grad_traces, grad_last))
    return grad_x, grad_state, grad_rates


ema_scan.register_autograd(_backward, setup_context=_save)


def _run(kernel: Any, shape_ABTD: torch.Size, *arguments: Any) -> None:
    """The kernel on as many threads as the work is worth."""
    pieces = shape_ABTD[1] * -(-shape_ABTD[3] // LANES)
    split(partial(kernel, *arguments), pieces, least=-(-WORK * pieces // shape_ABTD.numel()))


def _channels_last(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _flat(x: Tensor) -> npt.NDArray[Any]:
    """The memory from the first number of x to its last, for kernels that compute the places in it from strides."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.detach().as_strided((extent,), (1,)).numpy()


def _wide(rates: Tensor, n_channels: int) -> npt.NDArray[np.float64]:
    return rates.detach().double().expand(-1, n_channels).contiguous().numpy()


def _float64(state: Tensor) -> Tensor:
    """A copy to work on."""
    return state.detach().to(torch.float64, memory_format=torch.contiguous_format, copy=True)


def _offsets(cu_seqlens: Tensor | None) -> npt.NDArray[np.int64]:
    return np.zeros(0, np.int64) if cu_seqlens is None else cu_seqlens.long().contiguous().numpy()
