"""The Triton kernels, interpreted where there is no GPU: against the closed form in float64, and as torch operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from ematrace.traces import ema_traces, operator
from traces_oracle import closed_form

triton_scan = pytest.importorskip("ematrace.traces.triton_scan")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.skipif(
    DEVICE == "cpu" and not triton_scan.INTERPRETED, reason="neither a GPU nor TRITON_INTERPRET=1"
)


@pytest.fixture(autouse=True)
def _poison(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Memory that a kernel should have written but did not is NaN."""
    allocate = Tensor.new_empty

    def poisoned(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        fresh = allocate(self, *args, **kwargs)
        return fresh.fill_(float("nan")) if fresh.is_floating_point() else fresh

    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "new_empty", poisoned)
        yield


def problem(
    *,
    A: int = 3,
    B: int = 2,
    T: int = 40,
    D: int = 3,
    lengths: list[int] | None = None,
    per_channel: bool = False,
    with_state: bool = True,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(T + D)
    cu = None if lengths is None else torch.tensor([0, *lengths]).cumsum(0).to(DEVICE)
    B, T, N = (B, T, B) if lengths is None else (1, sum(lengths), len(lengths))
    alphas = torch.rand((A, D) if per_channel else (A,), generator=draw)
    alphas[0] = 0.02
    return {
        "x": torch.randn(B, T, D, generator=draw).to(DEVICE, dtype).requires_grad_(),
        "alphas": alphas.to(DEVICE).requires_grad_(),
        "state": torch.randn(A, N, D, generator=draw).to(DEVICE).requires_grad_() if with_state else None,
        "cu_seqlens": cu,
    }


PROBLEMS = {
    "one step": {"T": 1},
    "a tile less one": {"T": 31, "with_state": False},
    "a tile": {"T": 32, "per_channel": True},
    "a tile and one": {"T": 33, "A": 1, "D": 1},
    "tiles": {"T": 70, "A": 2, "B": 1, "D": 2},
    "blocks of channels": {"T": 3, "D": 35, "B": 1, "A": 1, "per_channel": True},
    "many rates": {"A": 5, "T": 18, "B": 1, "D": 2},
    "more rates than a tile unrolls": {"A": 9, "T": 11, "B": 2, "D": 2},
    "packed": {"lengths": [0, 5, 35, 0, 30, 0], "A": 2, "D": 2},
    "packed, fresh, by channel": {"lengths": [33, 0, 32, 1], "A": 2, "D": 2, "per_channel": True, "with_state": False},
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_traces_and_gradients(name: str) -> None:
    settings = problem(**PROBLEMS[name])
    results = {}
    for of in (ema_traces, closed_form):
        traces, last = of(**settings, backend="triton") if of is ema_traces else of(**settings)
        weights = torch.linspace(-1, 1, traces.numel(), device=DEVICE, dtype=traces.dtype).view_as(traces)
        total = (traces * weights).sum() + (last * last.detach().sin()).sum()
        wanted = [settings[key] for key in ("x", "alphas", "state") if settings[key] is not None]
        results[of] = (traces, last, *torch.autograd.grad(total, wanted))
    for ours, expected in zip(results[ema_traces], results[closed_form], strict=True):
        scale = max(1.0, expected.abs().max().item())
        torch.testing.assert_close(ours.double(), expected.double(), rtol=1e-5, atol=1e-6 * scale)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision(dtype: torch.dtype) -> None:
    """Rounded once at the end; the gradient of the rates does not see the rounding of the traces."""
    settings = problem(T=40, A=2, B=1, D=2, dtype=dtype)
    traces, last = ema_traces(**settings, backend="triton")
    expected, expected_last = closed_form(**settings)
    assert (traces.dtype, last.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(traces.double(), expected, rtol=torch.finfo(dtype).eps, atol=1e-6)
    torch.testing.assert_close(last.double(), expected_last, rtol=1e-5, atol=1e-6)
    (ours,) = torch.autograd.grad(traces.float().sum() + last.sum(), settings["alphas"])
    (exact,) = torch.autograd.grad(expected.sum() + expected_last.sum(), settings["alphas"])
    torch.testing.assert_close(ours, exact, rtol=1e-5, atol=1e-4)


def test_limits_of_the_rates_are_exact() -> None:
    settings = problem(T=37, A=2, B=1, D=2)
    settings["alphas"] = torch.tensor([0.0, 1.0], device=DEVICE).requires_grad_()
    x, state = settings["x"], settings["state"]
    traces, last = ema_traces(**settings, backend="triton")
    assert torch.equal(traces[0], state[0, :, None].expand_as(x))
    assert torch.equal(traces[1], x)
    assert torch.equal(last, torch.stack([state[0], x[:, -1]]))
    ours = torch.autograd.grad(traces.sum() + last.sum(), settings["alphas"])
    exact = torch.autograd.grad(sum(part.sum() for part in closed_form(**settings)), settings["alphas"])
    torch.testing.assert_close(ours[0], exact[0], rtol=1e-5, atol=1e-4)


def test_strides_of_input_and_gradient() -> None:
    settings = problem(T=34, A=2, B=2, D=3)
    expected, _ = closed_form(**settings)
    stretched = torch.stack([settings["x"].detach()] * 2, -1).transpose(0, 1)[..., 0].transpose(0, 1)
    settings["x"] = stretched.requires_grad_()
    assert not settings["x"].is_contiguous()
    traces, _ = ema_traces(**settings, backend="triton")
    torch.testing.assert_close(traces.double(), expected, rtol=1e-5, atol=1e-6)
    gradients = [torch.autograd.grad(h.sum(), settings["x"])[0] for h in (traces, closed_form(**settings)[0])]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)  # that of a sum has strides of 0


def test_a_slow_trace_is_not_biased() -> None:
    """1 - a rounded to float32 and multiplied step by step would be off by 1e-5 at 600 steps of this rate."""
    x = torch.ones(1, 3000, 1, device=DEVICE)
    traces, _ = ema_traces(x, 1e-3, backend="triton")
    expected = 1 - (1 - 1e-3) ** torch.arange(1, 3001, device=DEVICE, dtype=torch.float64)
    torch.testing.assert_close(traces.flatten().double(), expected, rtol=2e-6, atol=0)


@pytest.mark.parametrize("offsets", [[-40, 8], [0, 50], [5, 2], [60, 70, 80], [-9, -3, 200]])
def test_bad_offsets_stay_inside_the_input(offsets: list[int]) -> None:
    """On a GPU they cannot be checked without waiting for it. Around x everything is NaN."""
    around = torch.full((1, 300, 2), float("nan"), device=DEVICE)
    around[:, 100:110] = 1.0
    cu = torch.tensor(offsets, device=DEVICE)
    rates = torch.full((1, 1), 0.5, dtype=torch.float64, device=DEVICE)
    traces, last, states, _ = triton_scan.ema_scan(around[:, 100:110], rates, None, cu, True, False)
    assert traces.shape == (1, 1, 10, 2)
    assert torch.isfinite(traces).all()  # every step is written, though nobody can say what it should be
    assert torch.isfinite(last).all()
    around_grad = torch.full((1, 1, 300, 2), float("nan"), device=DEVICE)
    around_grad[:, :, 100:110] = 1.0
    gradients = triton_scan.ema_scan_backward(
        around_grad[:, :, 100:110], None, torch.zeros_like(last), rates, cu, around[:, 100:110], states
    )
    assert torch.isfinite(gradients[1]).all()
    assert torch.isfinite(gradients[2]).all()


@pytest.mark.parametrize("learned", [False, True])
def test_what_is_kept_for_the_backward_pass(learned: bool) -> None:
    settings = problem(T=64, B=1, A=2, D=4)
    settings["alphas"].requires_grad_(learned)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        ema_traces(**settings, backend="triton")
    assert any(t.numel() >= settings["x"].numel() for t in kept) == learned


@pytest.mark.parametrize(
    ("lengths", "learned", "beside"), [(None, False, False), ([3, 0, 4], True, False), (None, True, True)]
)
def test_opcheck(lengths: list[int] | None, learned: bool, beside: bool) -> None:
    settings = problem(T=7, A=2, B=2, D=2, lengths=lengths)
    rates = settings["alphas"].detach()[:, None].double().requires_grad_(learned)
    arguments = (settings["x"], rates, settings["state"], settings["cu_seqlens"], learned, beside)
    torch.library.opcheck(triton_scan.ema_scan, arguments)
    traces, last, states, _ = (t.detach() for t in triton_scan.ema_scan(*arguments))
    rest = (settings["x"].detach(), states) if learned else (None, None)
    torch.library.opcheck(
        triton_scan.ema_scan_backward,
        (traces[:2], traces[-1].clone() if beside else None, last, rates.detach(), settings["cu_seqlens"], *rest),
        test_utils=("test_schema", "test_faketensor"),
    )


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(1, 2, 3)
    with pytest.raises(ValueError, match="use 'chunked' for float64"):
        ema_traces(x.double(), 0.5, backend="triton")
    monkeypatch.setattr(triton_scan, "INTERPRETED", False)
    with pytest.raises(ValueError, match="backend 'triton' needs tensors on a GPU, got x on cpu"):
        ema_traces(x, 0.5, backend="triton")
    monkeypatch.setattr(operator, "triton_scan", None)
    with pytest.raises(ValueError, match="backend 'triton' needs Triton"):
        ema_traces(x, 0.5, backend="triton")


def test_a_step_that_is_not_finite_reaches_only_what_comes_after_it() -> None:
    settings = problem(lengths=[20, 0, 30], A=2, D=2)
    expected, expected_last = ema_traces(**settings, backend="triton")
    for t, end in ((3, 20), (17, 20), (20, 50), (49, 50)):
        for value in (float("nan"), float("inf")):
            x = settings["x"].detach().clone()
            x[0, t, 1] = value
            traces, last = (part.detach() for part in ema_traces(**{**settings, "x": x}, backend="triton"))
            assert not traces[:, 0, t:end, 1].isfinite().any()
            traces[:, 0, t:end, 1], last[:, 0 if end == 20 else 2, 1] = 0, 0
            where = traces != 0
            torch.testing.assert_close(traces[where], expected[where], rtol=0, atol=0)
            assert torch.isfinite(last).all()
            assert torch.equal(last[last != 0], expected_last[last != 0])
