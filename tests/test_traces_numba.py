"""The compiled CPU kernels: whole vectors and what is left of them, threads, memory, and torch around them.

That they compute the traces at all is tested with the other backends in `test_traces_operator.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from ematrace.traces import ema_traces, operator
from traces_oracle import closed_form

numba_scan = pytest.importorskip("ematrace.traces.numba_scan")
NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def _poison(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Memory that a kernel should have written but did not is NaN."""
    allocate = Tensor.new_empty

    def poisoned(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return allocate(self, *args, **kwargs).fill_(NAN)

    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "new_empty", poisoned)
        yield


@pytest.fixture
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def problem(
    *, A: int = 2, B: int = 2, T: int = 11, D: int = 70, lengths: list[int] | None = None, per_channel: bool = False,
    with_state: bool = True, dtype: torch.dtype = torch.float32,
) -> dict[str, Any]:  # fmt: skip
    draw = torch.Generator().manual_seed(T + D)
    cu = None if lengths is None else torch.tensor([0, *lengths]).cumsum(0)
    B, T, N = (B, T, B) if lengths is None else (1, sum(lengths), len(lengths))
    alphas = torch.rand((A, D) if per_channel else (A,), generator=draw)
    alphas[0] = 0.02
    return {
        "x": torch.randn(B, T, D, generator=draw).to(dtype).requires_grad_(),
        "alphas": alphas.requires_grad_(),
        "state": torch.randn(A, N, D, generator=draw).requires_grad_() if with_state else None,
        "cu_seqlens": cu,
    }


def outcome(of: Any, arguments: dict[str, Any], **options: Any) -> list[Tensor]:
    """Traces, last state, and gradients of x, alphas and state."""
    traces, last = of(**arguments, **options)
    weights = torch.linspace(-1, 1, traces.numel(), dtype=traces.dtype).view_as(traces)
    leaves = [arguments[name] for name in ("x", "alphas", "state") if arguments[name] is not None]
    return [traces, last, *torch.autograd.grad([traces, last], leaves, [weights, last.detach().sin()])]


PROBLEMS: dict[str, dict[str, Any]] = {
    "sequences and parts of them": {"B": 3},
    "one sequence": {"B": 1, "with_state": False},
    "fewer channels than a piece": {"D": 5, "per_channel": True},
    "whole pieces": {"D": 48, "T": 4, "A": 3},
    "less than the steps at once": {"D": 35, "T": 3, "A": 1},
    "packed": {"lengths": [0, 5, 13, 0, 1, 0]},
    "packed, fresh, by channel": {"lengths": [3, 0, 8], "D": 33, "per_channel": True, "with_state": False},
}


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("name", PROBLEMS)
def test_any_number_of_threads_has_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba_scan, "WORK", 1)
    arguments = problem(**PROBLEMS[name])
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(outcome(ema_traces, arguments, backend="numba"))
    for i, expected in enumerate(outcome(closed_form, arguments)):
        scale = max(1.0, expected.abs().max().item())
        torch.testing.assert_close(results[0][i].double(), expected.double(), rtol=1e-5, atol=1e-6 * scale)
        assert torch.equal(results[0][i], results[1][i])
        assert torch.equal(results[0][i], results[2][i])


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize(("T", "slices"), [(64, 1), (1024, 2)])
def test_threads_are_started_for_enough_work(monkeypatch: pytest.MonkeyPatch, T: int, slices: int) -> None:
    started: list[tuple[int, int]] = []

    def counting(kernel: Any, n: int, least: int) -> None:
        numba_split(lambda begin, end: (started.append((begin, end)), kernel(begin, end)), n, least)

    numba_split = numba_scan.split
    monkeypatch.setattr(numba_scan, "split", counting)
    torch.set_num_threads(2)
    ema_traces(torch.zeros(1, T, 512), [0.5, 0.1], backend="numba")
    assert sorted(started) == [(32 * i // slices, 32 * (i + 1) // slices) for i in range(slices)]


def test_error_does_not_grow_with_time() -> None:
    """Rounded to float32 at every step, both would be off by 1e-6."""
    x = torch.ones(1, 5000, 1, requires_grad=True)
    decay = (1 - 1e-3) ** torch.arange(5000, dtype=torch.float64)
    traces, last = ema_traces(x, 1e-3, backend="numba")
    torch.testing.assert_close(traces.flatten().double(), 1 - (1 - 1e-3) * decay, rtol=1e-7, atol=0)
    (grad,) = torch.autograd.grad(last.sum(), x)
    torch.testing.assert_close(grad.flatten().double(), 1e-3 * decay.flip(0), rtol=1e-7, atol=0)


def test_a_state_does_not_stay_subnormal_in_silence() -> None:
    """Half of the smallest number is rounded to it again, and every such step is slow. What is not a number stays."""
    x, state = torch.zeros(1, 1200, 2, dtype=torch.float64, requires_grad=True), torch.tensor([[[1.0, NAN]]])
    traces, last = ema_traces(x, 0.5, state.double(), backend="numba")
    assert traces[0, 0, 900, 0] == 0.5**901
    assert last[0, 0, 0] == 0
    assert last[0, 0, 1].isnan()
    (grad,) = torch.autograd.grad(last[..., 0].sum(), x)
    assert grad[0, [-1, -900], 0].tolist() == [0.5, 0.5**900]
    assert grad[0, 0, 0] == 0


def test_the_traces_of_a_step_lie_side_by_side() -> None:
    traces, _ = ema_traces(torch.randn(2, 9, 5), [0.5, 0.1, 0.02], backend="numba")
    side_by_side = traces.permute(1, 2, 0, 3).flatten(-2)
    assert side_by_side.data_ptr() == traces.data_ptr()
    assert side_by_side.is_contiguous()


@pytest.mark.parametrize("how", ["sliced", "side by side", "expanded", "transposed"])
def test_strides_of_input_and_gradient(how: str) -> None:
    base, weights, alphas = torch.randn(4, 22, 40), torch.randn(2, 4, 22, 40), torch.tensor([0.1, 0.6])
    x, g = base[::2, ::2, 1:36], weights[:, ::2, ::2, 1:36]
    if how == "side by side":
        x, g = x.transpose(0, 1).contiguous().transpose(0, 1), g.permute(1, 2, 0, 3).contiguous().permute(2, 0, 1, 3)
    elif how == "expanded":
        x, g = x[:, :1].expand(-1, 11, -1), g[:, :, :1, :1].expand(-1, -1, 11, 35)
    elif how == "transposed":
        x, g = (t.transpose(-1, -2).contiguous().transpose(-1, -2) for t in (x, g))
    results = []
    for backend, dtype in (("numba", torch.float32), ("reference", torch.float64)):
        given = x.detach().to(dtype).requires_grad_(), alphas.to(dtype).requires_grad_()
        traces, _ = ema_traces(*given, backend=backend)
        results.append((traces, *torch.autograd.grad(traces, given, g.to(dtype))))
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours.double(), expected, rtol=1e-5, atol=1e-5)
    if how in ("sliced", "side by side"):  # the layouts that models have: nothing is copied
        assert numba_scan._channels_last(x) is x
        assert numba_scan._flat(g).ctypes.data == g.data_ptr()


def test_what_is_not_finite_stays_in_its_channel_and_its_future() -> None:
    x, alphas, state = torch.randn(1, 11, 40), torch.tensor([0.0, 0.3, 1.0]), torch.randn(3, 1, 40)
    clean, clean_last = closed_form(x, alphas, state)
    touched = torch.zeros_like(clean, dtype=torch.bool)
    for channel, (step, bad) in enumerate(((0, INF), (3, -INF), (4, NAN), (10, INF))):
        x[0, step, channel] = bad
        touched[:, 0, step:, channel] = True
    state[:, 0, 39] = torch.tensor([INF, -INF, NAN])
    touched[..., 39] = True
    traces, last = ema_traces(x, alphas, state, backend="numba")
    assert torch.equal(traces.isfinite(), ~touched)
    torch.testing.assert_close(traces[~touched].double(), clean[~touched], rtol=1e-5, atol=1e-6)
    fine = ~touched[:, :, -1]
    torch.testing.assert_close(last[fine].double(), clean_last[fine], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("offsets", [[-40, 8], [0, 50], [5, 2], [60, 70, 80], [-9, -3, 200]])
def test_bad_offsets_stay_inside_the_input(offsets: list[int]) -> None:
    """Compiled by torch they are not checked. Around x everything is NaN."""
    around, around_grad = torch.full((1, 300, 2), NAN), torch.full((1, 1, 300, 2), NAN)
    around[:, 100:110] = around_grad[:, :, 100:110] = 1.0
    cu, rates = torch.tensor(offsets), torch.full((1, 1), 0.5, dtype=torch.float64)
    x, g = around[:, 100:110], around_grad[:, :, 100:110]
    traces, last = numba_scan.ema_scan(x, rates, None, cu)
    assert traces.shape == (1, 1, 10, 2)
    assert torch.isfinite(last).all()
    _, grad_state, grad_rates = numba_scan.ema_scan_backward(g, torch.zeros_like(last), rates, cu, x, None)
    assert torch.isfinite(grad_state).all()
    assert torch.isfinite(grad_rates).all()


@pytest.mark.parametrize("learned", [False, True])
def test_what_is_kept_for_the_backward_pass(learned: bool) -> None:
    arguments = problem()
    arguments["alphas"].requires_grad_(learned)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        ema_traces(**arguments, backend="numba")
    assert sum(t.numel() for t in kept if t.dtype == torch.float32) == (
        arguments["x"].numel() + arguments["state"].numel() if learned else 0
    )


@pytest.mark.parametrize(("lengths", "learned"), [(None, False), ([3, 0, 4], True)])
def test_opcheck(lengths: list[int] | None, learned: bool) -> None:
    arguments = problem(T=7, D=2, lengths=lengths)
    rates = arguments["alphas"].detach()[:, None].double().requires_grad_(learned)
    given = (arguments["x"], rates, arguments["state"], arguments["cu_seqlens"])
    torch.library.opcheck(numba_scan.ema_scan, given)
    traces, last = (t.detach() for t in numba_scan.ema_scan(*given))
    rest = (arguments["x"].detach(), arguments["state"].detach()) if learned else (None, None)
    torch.library.opcheck(
        numba_scan.ema_scan_backward,
        (traces, last, rates.detach(), arguments["cu_seqlens"], *rest),
        test_utils=("test_schema", "test_faketensor"),
    )


def test_gradients_of_gradients_in_float32() -> None:
    """Also where torch may round float32 products, and plain torch therefore computes in float64."""
    before = torch.get_float32_matmul_precision()
    results = []
    try:
        for backend, precision in (("reference", "highest"), ("numba", "highest"), ("numba", "high")):
            torch.set_float32_matmul_precision(precision)
            arguments = problem(D=3)
            x, alphas = arguments["x"], arguments["alphas"]
            total = sum(part.pow(2).sum() for part in ema_traces(**arguments, backend=backend))
            first = torch.autograd.grad(total, (x, alphas), create_graph=True)
            results.append(torch.autograd.grad(sum(part.pow(2).sum() for part in first), (x, alphas)))
    finally:
        torch.set_float32_matmul_precision(before)
    for ours in results[1:]:
        for mine, expected in zip(ours, results[0], strict=True):
            torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-4)


TRANSFORMS = {
    "vmap": lambda f, x, alphas: torch.vmap(f, (0, None))(torch.stack([x, 2 * x]), alphas),
    "gradient": lambda f, x, alphas: torch.func.grad(lambda *a: f(*a).sin().sum(), (0, 1))(x, alphas),
    "of the rates alone": lambda f, x, alphas: torch.func.grad(lambda a: f(x, a).sin().sum())(alphas),
    "forward": lambda f, x, alphas: torch.func.jvp(f, (x, alphas), (x.cos(), alphas.cos())),
    "forward, without torch.func": lambda f, x, alphas: tangent_of(f, x, alphas),
    "second": lambda f, x, alphas: torch.func.hessian(lambda a: f(x, a).sin().sum())(alphas),
}


def tangent_of(f: Any, x: Tensor, alphas: Tensor) -> Tensor:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x.cos())
        return torch.autograd.forward_ad.unpack_dual(f(dual, alphas)).tangent


@pytest.mark.parametrize("name", TRANSFORMS)
def test_auto_leaves_transforms_to_plain_torch(name: str) -> None:
    x = torch.randn(2, 9, 3, dtype=torch.float64)
    alphas = torch.tensor([0.3, 0.1], dtype=torch.float64)
    of = {b: lambda x, alphas, b=b: ema_traces(x, alphas, backend=b)[0] for b in ("auto", "reference", "numba")}
    ours, expected = (TRANSFORMS[name](of[backend], x, alphas) for backend in ("auto", "reference"))
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-11)
    with pytest.raises(ValueError, match="backend 'numba' has no forward derivatives"):
        TRANSFORMS[name](of["numba"], x, alphas)


def test_when_it_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(1, 5, 3)
    monkeypatch.delenv("EMATRACE_KERNELS", raising=False)
    monkeypatch.setattr("ematrace.kernels.numba_compiles", lambda: True)
    assert operator._choose("auto", x, None) == "numba"
    monkeypatch.setenv("EMATRACE_KERNELS", "0")
    assert operator._choose("auto", x, None) == "chunked"
    assert operator._choose("numba", x, None) == "numba"
    monkeypatch.delenv("EMATRACE_KERNELS")
    with pytest.raises(ValueError, match="backend 'numba' needs tensors on a CPU, got x on meta"):
        ema_traces(x.to("meta"), 0.5, backend="numba")
    monkeypatch.setattr("ematrace.kernels.numba_compiles", lambda: False)
    assert operator._choose("auto", x, None) == "chunked"
    monkeypatch.setitem(sys.modules, "ematrace.traces.numba_scan", None)
    monkeypatch.delattr("ematrace.traces.numba_scan", raising=False)
    with pytest.raises(ValueError, match="backend 'numba' needs numba, which cannot be imported here"):
        ema_traces(x, 0.5, backend="numba")
