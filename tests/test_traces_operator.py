"""ema_traces by the loop, by chunks and by numba, against the closed form in float64; gradients against differences."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import lfilter
from torch import Tensor
from torch.nested import nested_tensor
from torch.utils._python_dispatch import TorchDispatchMode

import ematrace
from ematrace.traces import chunked, ema_traces, operator
from traces_oracle import closed_form

BACKENDS = ("reference", "chunked", "numba")
ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-10}


def strided(x: Tensor, how: str) -> Tensor:
    """The same numbers, laid out differently."""
    if how == "transposed":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if how == "sliced":
        return torch.stack([x, torch.full_like(x, float("nan"))], -1)[..., 0]
    return x


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of ema_traces in float64: shapes, packs with empty sequences, strides and rates of all kinds."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    A, D = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    lengths = draw(st.one_of(st.none(), st.lists(st.integers(0, 90), min_size=1, max_size=6)))
    if lengths is None:
        B, T, cu = draw(st.integers(1, 3)), draw(st.integers(0, 140)), None
        N = B
    else:
        B, T, N = 1, sum(lengths), len(lengths)
        dtype = draw(st.sampled_from([torch.int32, torch.int64]))
        cu = torch.tensor([0, *lengths]).cumsum(0).to(dtype)
    alphas = torch.rand(draw(st.sampled_from([(A,), (A, D)])), generator=generator, dtype=torch.float64)
    if draw(st.booleans()):
        alphas[draw(st.integers(0, A - 1))] = draw(st.sampled_from([0.0, 1.0, 0.02]))
    x = torch.randn(B, T, D, generator=generator, dtype=torch.float64)
    state = torch.randn(A, N, D, generator=generator, dtype=torch.float64) if draw(st.booleans()) else None
    return {
        "x": strided(x, draw(st.sampled_from(["plain", "transposed", "sliced"]))),
        "alphas": alphas,
        "state": state,
        "cu_seqlens": cu,
    }


@pytest.mark.parametrize("backend", [*BACKENDS, "auto"])
@given(problem=problems())
def test_closed_form(backend: str, problem: dict[str, Any]) -> None:
    traces, last = ema_traces(**problem, backend=backend)
    expected, expected_last = closed_form(**problem)
    torch.testing.assert_close(traces, expected, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(last, expected_last, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ROUNDING)
@given(problem=problems())
@settings(max_examples=25)
def test_low_precision_rounds_once(backend: str, dtype: torch.dtype, problem: dict[str, Any]) -> None:
    problem["x"] = problem["x"].to(dtype)
    traces, last = ema_traces(**problem, backend=backend)
    expected, expected_last = closed_form(**problem)
    assert traces.dtype == dtype
    torch.testing.assert_close(traces.double(), expected, rtol=ROUNDING[dtype], atol=1e-6)
    assert last.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(last.double(), expected_last, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("T", [1, 31, 32, 33, 63, 64, 65, 1023, 1024, 1025, 1057])
def test_lengths_around_whole_chunks(backend: str, T: int) -> None:
    x, state = torch.randn(2, T, 3, dtype=torch.float64), torch.randn(2, 2, 3, dtype=torch.float64)
    alphas = torch.tensor([0.3, 0.004], dtype=torch.float64)
    traces, last = ema_traces(x, alphas, state, backend=backend)
    expected, expected_last = closed_form(x, alphas, state)
    torch.testing.assert_close(traces, expected, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(last, expected_last, rtol=1e-11, atol=1e-12)


def test_three_levels_of_chunks() -> None:
    T = chunked.CHUNK**2 + 5
    x = torch.randn(1, 2 * T, 1, dtype=torch.float64)
    for cu in (None, torch.tensor([0, 7, T, 2 * T])):
        traces, _ = ema_traces(x, [0.001], cu_seqlens=cu, backend="chunked")
        expected, _ = ema_traces(x, [0.001], cu_seqlens=cu, backend="reference")
        torch.testing.assert_close(traces, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("backend", [*BACKENDS, "auto"])
@given(problem=problems(), cuts=st.lists(st.integers(0, 140), max_size=4))
def test_carrying_the_state_on(backend: str, problem: dict[str, Any], cuts: list[int]) -> None:
    problem["cu_seqlens"], problem["state"] = None, None
    x = problem.pop("x")
    whole, last = ema_traces(x, **problem, backend=backend)
    bounds = [0, *sorted(min(cut, x.shape[1]) for cut in cuts), x.shape[1]]
    parts = []
    for start, end in pairwise(bounds):
        part, problem["state"] = ema_traces(x[:, start:end], **problem, backend=backend)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, 2), whole, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(problem["state"], last, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("per_channel", [False, True])
def test_rates_at_their_limits_are_exact(backend: str, per_channel: bool) -> None:
    x, state = torch.randn(2, 77, 3), torch.randn(2, 2, 3)
    alphas = torch.tensor([0.0, 1.0])
    traces, last = ema_traces(x, alphas[:, None].repeat(1, 3) if per_channel else alphas, state, backend=backend)
    assert torch.equal(traces[0], state[0, :, None].expand_as(x))
    assert torch.equal(traces[1], x)
    assert torch.equal(last, torch.stack([state[0], x[:, -1]]))


def test_a_slow_trace_in_float32_is_not_biased() -> None:
    """1 - a rounded to float32 and multiplied 20,000 times would be off by 3e-4 at this rate."""
    x = torch.rand(1, 20000, 2)
    expected = lfilter([1e-4], [1.0, 1e-4 - 1.0], x.double().numpy(), axis=1)
    for backend in BACKENDS:
        traces, _ = ema_traces(x, 1e-4, backend=backend)
        torch.testing.assert_close(traces[0].double(), torch.from_numpy(expected), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@given(problem=problems(), where=st.integers(0, 10**6))
@settings(max_examples=25)
def test_a_step_that_is_not_finite_reaches_only_what_comes_after_it(
    backend: str, value: float, problem: dict[str, Any], where: int
) -> None:
    """The clean input's numbers before it, in other channels, sequences and documents; nothing finite after it."""
    x = problem.pop("x").contiguous()
    if x.numel() == 0:
        return
    expected, expected_last = ema_traces(x, **problem, backend=backend)
    b, t, d = np.unravel_index(where % x.numel(), tuple(x.shape))
    x[b, t, d] = value
    traces, last = ema_traces(x, **problem, backend=backend)
    cu = problem["cu_seqlens"]
    n, end = (b, x.shape[1]) if cu is None else (int((cu[1:] <= t).sum()), int(cu[cu > t][0]))
    assert not traces[:, b, t:end, d].isfinite().any()
    assert not last[:, n, d].isfinite().any()
    traces[:, b, t:end, d], last[:, n, d] = expected[:, b, t:end, d], expected_last[:, n, d]
    torch.testing.assert_close((traces, last), (expected, expected_last), rtol=1e-12, atol=1e-13)


def test_gradients_of_an_input_that_is_not_finite() -> None:
    """As by the loop: those of x do not see it before it, those of the rates are NaN."""
    gradients = {}
    for backend in BACKENDS:
        x, alphas, _, cu = inputs(packed=True, per_channel=False)
        x.data[0, 20, 1] = torch.nan
        traces, _ = ema_traces(x, alphas, None, cu, backend)
        of_x, of_rates = torch.autograd.grad(traces[:, :, :30].sum(), (x, alphas))
        assert of_rates.isnan().all()
        gradients[backend] = of_x[:, torch.arange(37) != 20]
    for backend in BACKENDS:
        torch.testing.assert_close(gradients[backend], gradients["reference"], rtol=1e-10, atol=1e-12)


def inputs(packed: bool, per_channel: bool, T: int = 37) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    torch.manual_seed(T)
    B, A, D = (1, 2, 2) if packed else (2, 2, 2)
    cu = torch.tensor([0, 0, 3, T, T]) if packed else None
    x = torch.randn(B, T, D, dtype=torch.float64, requires_grad=True)
    alphas = (0.05 + 0.9 * torch.rand((A, D) if per_channel else (A,), dtype=torch.float64)).requires_grad_()
    state = torch.randn(A, 4 if packed else B, D, dtype=torch.float64, requires_grad=True)
    return x, alphas, state, cu


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("per_channel", [False, True])
def test_gradcheck(backend: str, packed: bool, per_channel: bool) -> None:
    x, alphas, state, cu = inputs(packed, per_channel)
    assert torch.autograd.gradcheck(lambda *args: ema_traces(*args, cu, backend), (x, alphas, state))
    # Every entry once is enough; without a state random directions do.
    assert torch.autograd.gradcheck(lambda *args: ema_traces(*args, None, cu, backend), (x, alphas), fast_mode=True)


@pytest.mark.parametrize("packed", [False, True])
def test_second_derivatives(packed: bool) -> None:
    x, alphas, state, cu = inputs(packed, per_channel=False, T=5)
    for backend in BACKENDS:
        assert torch.autograd.gradgradcheck(lambda *args: ema_traces(*args, cu, backend), (x, alphas, state))  # noqa: B023
        fixed = lambda x: ema_traces(x, alphas.detach(), None, cu, backend)[0] ** 2  # noqa: B023, E731
        assert torch.autograd.gradgradcheck(fixed, x)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("per_channel", [False, True])
def test_gradients_at_the_limits_of_the_rates(packed: bool, per_channel: bool) -> None:
    x, _, state, cu = inputs(packed, per_channel, T=70)
    limits = torch.tensor([0.0, 1.0], dtype=torch.float64)
    gradients = {}
    for backend in BACKENDS:
        alphas = (limits[:, None].repeat(1, 2) if per_channel else limits.clone()).requires_grad_()
        traces, last = ema_traces(x, alphas, state, cu, backend)
        weights = torch.arange(traces.numel(), dtype=torch.float64).view_as(traces).cos()
        gradients[backend] = torch.autograd.grad((traces * weights).sum() + last.sum(), (x, alphas, state))
    for backend in BACKENDS:
        for ours, expected in zip(gradients[backend], gradients["reference"], strict=True):
            assert torch.isfinite(ours).all()
            torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 5, 3), (2, 5, 0), (0, 0, 0), (1, 1, 1)])
@pytest.mark.parametrize("per_channel", [False, True])
def test_empty_inputs(backend: str, shape: tuple[int, int, int], per_channel: bool) -> None:
    B, _, D = shape
    x = torch.randn(shape, dtype=torch.bfloat16, requires_grad=True)
    state = torch.randn(2, B, D, dtype=torch.bfloat16)
    alphas = torch.full((2, D) if per_channel else (2,), 0.0)
    for given_state in (None, state):
        traces, last = ema_traces(x, alphas, given_state, backend=backend)
        assert (traces.shape, traces.dtype) == ((2, *shape), torch.bfloat16)
        assert torch.equal(last, torch.zeros(2, B, D) if given_state is None else state.float())
        traces.sum().backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_empty_sequences(backend: str) -> None:
    state = torch.randn(1, 3, 2)
    traces, last = ema_traces(torch.zeros(1, 0, 2), 0.5, state, torch.zeros(4, dtype=torch.int32), backend)
    assert traces.shape == (1, 1, 0, 2)
    assert torch.equal(last, state)
    assert last.data_ptr() != state.data_ptr()


class Products(TorchDispatchMode):
    """Dtypes of the matrix products that are computed; bfloat16 is refused, since not every CPU can do it."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (torch.ops.aten.bmm, torch.ops.aten.mm, torch.ops.aten.baddbmm):
            self.dtypes |= {arg.dtype for arg in args if isinstance(arg, Tensor)}
            assert torch.bfloat16 not in self.dtypes
        return func(*args, **(kwargs or {}))


def test_autocast_changes_nothing() -> None:
    x, alphas = torch.randn(2, 100, 8), torch.tensor([0.5, 0.02])
    for backend in BACKENDS:
        expected = ema_traces(x, alphas, backend=backend)
        with Products(), torch.autocast("cpu", dtype=torch.bfloat16):
            assert all(map(torch.equal, ema_traces(x, alphas, backend=backend), expected))


@pytest.mark.parametrize(("precision", "used"), [("highest", torch.float32), ("high", torch.float64)])
def test_products_are_never_rounded_to_fewer_bits(precision: str, used: torch.dtype) -> None:
    """With "high", float32 products may be computed in TF32 or bfloat16, which rounds their factors."""
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)
        with Products() as products:
            x = torch.randn(1, 70, 2, requires_grad=True)
            traces, last = ema_traces(x, 0.5, backend="chunked")
            traces.sum().backward()
        assert products.dtypes == {used}
        assert traces.dtype == last.dtype == torch.float32
    finally:
        torch.set_float32_matmul_precision(before)


def test_what_auto_picks() -> None:
    packed = torch.tensor([0, 2])
    assert operator._choose("auto", torch.zeros(1, 1, 1), None) == "reference"
    assert operator._choose("auto", torch.zeros(1, 2, 1), packed) == "numba"
    assert operator._choose("auto", torch.zeros(1, 5, 1), None) == "numba"
    assert operator._choose("auto", torch.zeros(1, 5, 1, device="meta"), None) == "chunked"


def test_alphas_may_be_given_in_many_ways() -> None:
    x = torch.randn(1, 6, 2)
    expected = ema_traces(x, [0.25, 0.5])[0]
    for alphas in ((0.25, 0.5), torch.tensor([0.25, 0.5]), torch.tensor([0.25, 0.5]).double().numpy()):
        assert torch.equal(ema_traces(x, alphas)[0], expected)
    assert torch.equal(ema_traces(x, 0.25)[0], expected[:1])
    assert torch.equal(ema_traces(x, torch.tensor(0.25))[0], expected[:1])


X = torch.zeros(2, 5, 3)
PACKED = torch.zeros(1, 5, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": X[0], "alphas": 0.5}, r"x must be \[B,T,D\].* got \[5, 3\]"),
        ({"x": X.int(), "alphas": 0.5}, r"x must be .* got .* in torch.int32"),
        ({"x": X, "alphas": 1.5}, r"alphas must lie in \[0, 1\], got 1.5"),
        ({"x": X, "alphas": [0.5, -0.1]}, r"alphas must lie in \[0, 1\], got -0.1"),
        ({"x": X, "alphas": float("nan")}, r"alphas must lie in \[0, 1\], got nan"),
        ({"x": X, "alphas": torch.tensor([0.5, float("nan")])}, r"alphas must lie in \[0, 1\], got nan"),
        ({"x": X, "alphas": torch.tensor([[0.5, 2.0, 0.1]])}, r"alphas must lie in \[0, 1\], got 2.0"),
        ({"x": X, "alphas": []}, "alphas must be a number, numbers or a tensor"),
        ({"x": X, "alphas": ["fast"]}, "alphas must be a number, numbers or a tensor"),
        ({"x": X, "alphas": torch.ones(2, 4)}, r"alphas \[A,D\] must have D = 3 as x, got \[2, 4\]"),
        ({"x": X, "alphas": torch.ones(2, 3, 1)}, r"alphas must be floating point \[A\] or \[A,D\], got \[2, 3, 1\]"),
        ({"x": X, "alphas": torch.ones(2).int()}, "alphas must be floating point"),
        ({"x": X, "alphas": torch.ones(2, device="meta")}, "alphas must be on cpu as x, got meta"),
        ({"x": X, "alphas": 0.5, "state": torch.zeros(2, 2, 3)}, r"state must be .*\[1, 2, 3\], got \[2, 2, 3\]"),
        ({"x": X, "alphas": 0.5, "state": torch.zeros(1, 2, 3).int()}, "state must be floating point"),
        ({"x": X, "alphas": 0.5, "state": torch.zeros(1, 2, 3, device="meta")}, "state must be on cpu"),
        ({"x": X, "alphas": 0.5, "cu_seqlens": torch.tensor([0, 5])}, "needs B = 1, got B = 2"),
        ({"x": PACKED, "alphas": 0.5, "cu_seqlens": torch.tensor([0.0, 5.0])}, "cu_seqlens must be .* int32 or int64"),
        ({"x": PACKED, "alphas": 0.5, "cu_seqlens": torch.tensor([[0, 5]])}, r"cu_seqlens must be \[N\+1\]"),
        ({"x": PACKED, "alphas": 0.5, "cu_seqlens": torch.tensor([0])}, "N >= 1"),
        ({"x": PACKED, "alphas": 0.5, "cu_seqlens": torch.tensor([1, 5])}, "cu_seqlens must rise from 0 to T = 5"),
        ({"x": PACKED, "alphas": 0.5, "cu_seqlens": torch.tensor([0, 4])}, "cu_seqlens must rise from 0 to T = 5"),
        ({"x": PACKED, "alphas": 0.5, "cu_seqlens": torch.tensor([0, 4, 2, 5])}, "cu_seqlens must rise"),
        ({"x": PACKED, "alphas": 0.5, "cu_seqlens": torch.zeros(2, device="meta").int()}, "cu_seqlens must be on cpu"),
        ({"x": [[[0.5]]], "alphas": 0.5}, "x must be a tensor, got a builtins.list"),
        ({"x": X.numpy(), "alphas": 0.5}, "x must be a tensor, got a numpy.ndarray"),
        ({"x": X.to_sparse(), "alphas": 0.5}, "x must be a dense tensor, got a sparse_coo one"),
        ({"x": nested_tensor([X[0], X[0]], layout=torch.jagged), "alphas": 0.5}, "x must be .* dense .* a nested one"),
        ({"x": nested_tensor([X[0], X[0]]), "alphas": 0.5}, "x must be a dense tensor, got a nested one"),
        ({"x": X, "alphas": torch.ones(2).to_sparse()}, "alphas must be a dense tensor, got a sparse_coo one"),
        ({"x": X, "alphas": None}, "alphas must be a number, numbers or a tensor, got None"),
        ({"x": X, "alphas": np.zeros((9, 9))}, r"alphas must be a number, numbers or a tensor, got array\("),
        ({"x": X, "alphas": 0.5, "state": np.zeros((1, 2, 3))}, "state must be a tensor, got a numpy.ndarray"),
        ({"x": X, "alphas": 0.5, "state": torch.zeros(1, 2, 3).to_sparse()}, "state must be a dense tensor"),
        ({"x": PACKED, "alphas": 0.5, "cu_seqlens": [0, 5]}, "cu_seqlens must be a tensor, got a builtins.list"),
        ({"x": X[:, :0], "alphas": 0.5, "backend": "cuda"}, "backend must be one of .*, got 'cuda'"),
        (
            {"x": X, "alphas": 0.5, "backend": "cuda"},
            "backend must be one of auto, reference, chunked, numba, triton, got 'cuda'",
        ),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        ema_traces(**arguments)
    assert "\n" not in str(error.value)


def test_the_package_has_the_names_of_its_traces() -> None:
    assert ematrace.ema_traces is ema_traces
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ematrace.nothing
