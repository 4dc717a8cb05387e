"""ema_traces on a GPU: all backends at real sizes against float64, compiled, under autocast, in CUDA graphs."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from ematrace.traces import EMATraces, ema_traces, operator
from ematrace.traces.chunked import segment_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
BACKENDS = ["reference", "chunked", "triton"]
RELATIVE = {torch.float32: 1e-5, torch.bfloat16: 2**-8, torch.float16: 2**-10}


def problem(
    *, A: int = 3, B: int = 4, T: int = 257, D: int = 96, dtype: torch.dtype = torch.float32,
    lengths: list[int] | None = None, per_channel: bool = False, with_state: bool = True,
) -> dict[str, Any]:  # fmt: skip
    draw = torch.Generator("cuda").manual_seed(0)
    options: dict[str, Any] = {"generator": draw, "device": "cuda"}
    cu = None if lengths is None else torch.tensor([0, *lengths], device="cuda").cumsum(0)
    B, T, N = (B, T, B) if lengths is None else (1, sum(lengths), len(lengths))
    alphas = 0.01 + 0.98 * torch.rand((A, D) if per_channel else (A,), **options)
    alphas[0] = 0.02
    return {
        "x": torch.randn(B, T, D, **options).to(dtype).requires_grad_(),
        "alphas": alphas.requires_grad_(),
        "state": torch.randn(A, N, D, **options).requires_grad_() if with_state else None,
        "cu_seqlens": cu,
    }


def outcome(function: Any, arguments: dict[str, Any]) -> list[Tensor]:
    """Traces, state, and gradients of x, alphas and state."""
    traces, last = function(**arguments)
    weights = torch.linspace(-1, 1, traces.shape[2], device="cuda").bfloat16().to(traces.dtype)  # exact in all dtypes
    total = (traces * weights[:, None]).sum(dtype=torch.float64) + last.sum(dtype=torch.float64)
    wanted = [arguments[name] for name in ("x", "alphas", "state") if arguments[name] is not None]
    return [traces, last, *torch.autograd.grad(total, wanted)]


def in_float64(arguments: dict[str, Any]) -> list[Tensor]:
    """The loop in float64, from the same numbers."""
    wide = {
        name: value.detach().double().requires_grad_() if isinstance(value, Tensor) and name != "cu_seqlens" else value
        for name, value in arguments.items()
    }
    return outcome(lambda **kwargs: ema_traces(**kwargs, backend="reference"), wide)


def assert_same(ours: list[Tensor], expected: list[Tensor], dtype: torch.dtype) -> None:
    """Relative to the largest number of each: cancellation in a sum of signed terms is not an error of the operator."""
    for name, mine, right in zip(("traces", "state", "dx", "dalphas", "dstate"), ours, expected, strict=False):
        relative = RELATIVE[dtype] if name in ("traces", "dx") else 2e-5
        error = (mine.double() - right).abs().max() / right.abs().max().clamp(min=1e-6)
        assert error < 2 * relative, f"{name}: {error:.1e}"


SHAPES: dict[str, dict[str, Any]] = {
    "dense": {},
    "one step": {"T": 1},
    "63": {"T": 63},
    "64": {"T": 64},
    "65": {"T": 65},
    "no state": {"with_state": False},
    "by channel": {"per_channel": True},
    "one channel, one rate": {"A": 1, "D": 1, "T": 100},
    "odd width": {"D": 131, "A": 5},
    "many rates": {"A": 9, "D": 40},
    "packed": {"lengths": [0, 100, 1, 0, 31, 32, 33, 300, 0]},
    "packed, by channel, no state": {"lengths": [64, 0, 65, 200], "per_channel": True, "with_state": False},
    "many sequences": {"lengths": [3] * 700, "D": 8},
}


@cache
def float64_of(shape: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return in_float64(problem(**SHAPES[shape], dtype=dtype))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_all_backends(shape: str, backend: str) -> None:
    run = lambda **kwargs: ema_traces(**kwargs, backend=backend)  # noqa: E731
    assert_same(outcome(run, problem(**SHAPES[shape])), float64_of(shape), torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", ["dense", "by channel", "packed"])
@pytest.mark.parametrize("backend", ["chunked", "triton"])
def test_low_precision(dtype: torch.dtype, shape: str, backend: str) -> None:
    arguments = problem(**SHAPES[shape], dtype=dtype)
    run = lambda **kwargs: ema_traces(**kwargs, backend=backend)  # noqa: E731
    ours = outcome(run, arguments)
    assert (ours[0].dtype, ours[1].dtype) == (dtype, torch.float32)
    assert_same(ours, float64_of(shape, dtype), dtype)


def test_the_size_of_a_real_layer() -> None:
    arguments = problem(B=8, T=2048, D=768, dtype=torch.bfloat16, with_state=False)
    run = lambda **kwargs: ema_traces(**kwargs, backend="triton")  # noqa: E731
    assert_same(outcome(run, arguments), in_float64(arguments), torch.bfloat16)


def test_more_numbers_than_fit_in_32_bits() -> None:
    if torch.cuda.mem_get_info()[0] < 24 * 2**30:
        pytest.skip("needs 24 GiB")
    x = torch.zeros(3, 2**15, 2**14, device="cuda", dtype=torch.bfloat16)
    x[2, -1] = 1.0
    traces, last = ema_traces(x, [0.25, 1.0], backend="triton")
    assert traces.numel() > 2**31
    assert torch.equal(traces[:, 2, -1].float(), last[:, 2])
    assert last[:, 2, 7].tolist() == [0.25, 1.0]
    assert not last[:, :2].any()


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_tf32_does_not_touch_the_traces(precision: str) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)
        for backend in ("chunked", "triton"):
            arguments = problem()
            run = lambda **kwargs: ema_traces(**kwargs, backend=backend)  # noqa: B023, E731
            assert_same(outcome(run, arguments), in_float64(arguments), torch.float32)
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("backend", ["auto", *BACKENDS])
def test_autocast_changes_nothing(backend: str) -> None:
    x = torch.randn(2, 100, 32, device="cuda")
    expected = ema_traces(x, [0.5, 0.02], backend=backend)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert all(map(torch.equal, ema_traces(x, [0.5, 0.02], backend=backend), expected))


@pytest.mark.parametrize("shape", ["by channel", "packed"])
def test_compiled_by_inductor(shape: str) -> None:
    run = torch.compile(lambda **kwargs: ema_traces(**kwargs, backend="triton"), fullgraph=True)
    assert_same(outcome(run, problem(**SHAPES[shape])), float64_of(shape), torch.float32)


def test_chunked_compiled_by_inductor() -> None:
    """One chunk with an empty sequence, forward: more take minutes to compile. test_traces_compile.py has them."""
    arguments = problem(lengths=[10, 0, 20], D=16)
    run = torch.compile(lambda **kwargs: ema_traces(**kwargs, backend="chunked"), fullgraph=True)
    with torch.no_grad():
        assert_same(list(run(**arguments)), list(ema_traces(**arguments, backend="reference")), torch.float32)


def test_segments_compiled_by_inductor() -> None:
    """Ends that repeat, at empty sequences: inductor of torch 2.11 compiled searchsorted wrongly there."""
    lengths = torch.tensor([0, 100, 1, 0, 0, 31, 300, 0], device="cuda")
    cu, time = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]), torch.arange(432, device="cuda")
    expected = torch.arange(8, device="cuda").repeat_interleave(lengths)
    assert torch.equal(torch.compile(segment_of, fullgraph=True)(time, cu), expected)


def test_auto_is_triton_for_long_and_the_loop_for_short() -> None:
    long, short = torch.zeros(1, 5, 1, device="cuda"), torch.zeros(1, 4, 1, device="cuda")
    assert operator._choose("auto", long, None) == "triton"
    assert operator._choose("auto", long.double(), None) == "chunked"
    assert operator._choose("auto", short, None) == "reference"


@pytest.mark.parametrize("T", [1, 64])
def test_cuda_graph(T: int) -> None:
    """Rates given as numbers are made on the device; nothing waits for the host."""
    x, state = torch.randn(2, T, 32, device="cuda"), torch.zeros(2, 2, 32, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        ema_traces(x, (0.5, 0.1), state)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        traces, last = ema_traces(x, (0.5, 0.1), state)
    x.normal_()
    graph.replay()
    torch.testing.assert_close((traces, last), ema_traces(x, (0.5, 0.1), state), rtol=0, atol=0)


def test_the_same_bits_every_time() -> None:
    arguments = problem(lengths=[100, 3, 400])
    run = lambda **kwargs: ema_traces(**kwargs, backend="triton")  # noqa: E731
    first, second = outcome(run, arguments), outcome(run, arguments)
    assert all(map(torch.equal, first, second))


def test_strides() -> None:
    x = torch.randn(96, 257, 2, device="cuda", dtype=torch.bfloat16).permute(2, 1, 0)
    for backend in BACKENDS:
        traces, _ = ema_traces(x, [0.3, 0.02], backend=backend)
        expected, _ = ema_traces(x.contiguous(), [0.3, 0.02], backend="reference")
        torch.testing.assert_close(traces, expected, rtol=2**-7, atol=1e-5)


def test_bad_offsets_stay_inside_the_input_and_give_nan() -> None:
    x = torch.ones(1, 50, 32, device="cuda", requires_grad=True)
    for offsets in ([-10, 60], [0, 10**9], [40, 3], [-(10**9), 7, 5, 10**9]):
        cu = torch.tensor(offsets, device="cuda")
        traces, last = ema_traces(x, torch.tensor([0.5], device="cuda", requires_grad=True), cu_seqlens=cu)
        (traces.sum() + last.sum()).backward()
        torch.cuda.synchronize()
        assert traces.isnan().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_module_with_left_padding(backend: str) -> None:
    module = EMATraces([0.5, 0.1, 0.02], backend=backend).cuda()
    x, state = torch.randn(2, 40, 16, device="cuda"), torch.randn(3, 2, 16, device="cuda")
    mask = torch.ones(2, 40, device="cuda")
    mask[0, :13] = 0
    traces, last = module(x, state, mask=mask)
    expected, expected_last = ema_traces(x[:1, 13:].double(), [0.5, 0.1, 0.02], state[:, :1].double())
    torch.testing.assert_close(traces[:, :1, 13:].double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(last[:, :1].double(), expected_last, rtol=1e-5, atol=1e-6)
