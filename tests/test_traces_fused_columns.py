"""Traces, input and direction as columns of one matrix, against their definition in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ematrace import ema_traces
from ematrace.traces.fused_columns import can_fuse_columns, fused_columns

triton_scan = pytest.importorskip("ematrace.traces.triton_scan")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.skipif(
    DEVICE == "cpu" and not triton_scan.INTERPRETED, reason="neither a GPU nor TRITON_INTERPRET=1"
)


def by_definition(x: Tensor, alphas: Tensor, state: Tensor, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor]:
    traces, last = ema_traces(x, alphas, state, cu_seqlens, backend="reference")
    length = traces[-1].norm(dim=-1, keepdim=True)
    unit = torch.where(length > 0, traces[-1] / torch.where(length > 0, length, 1.0), 0.0)
    return torch.cat([*traces, x, unit], -1), last


@pytest.mark.parametrize("T", [1, 8, 19])
@pytest.mark.parametrize("packed", [False, True])
def test_values_and_gradients(T: int, packed: bool) -> None:
    draw = torch.Generator().manual_seed(T)
    B, D, N = (1, 5, 3) if packed else (2, 5, 2)
    cu = torch.tensor([0, T // 3, T // 3, T]) if packed else None
    alphas = torch.tensor([0.7, 0.2])
    x, state = torch.randn(B, T, D, generator=draw), torch.randn(2, N, D, generator=draw)
    weights = torch.randn(B, T, 4 * D, generator=draw), torch.randn(2, N, D, generator=draw)
    results = []
    for make, place in ((fused_columns, {"device": DEVICE}), (by_definition, {"dtype": torch.float64})):
        inputs = [t.to(**place).requires_grad_() for t in (x, alphas, state)]
        outputs = make(*inputs, None if cu is None else cu.to(place.get("device", "cpu")))
        grads = torch.autograd.grad(outputs, inputs, [w.to(o) for w, o in zip(weights, outputs, strict=True)])
        results.append((*outputs, *grads))
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours.cpu().double(), expected, rtol=1e-5, atol=1e-5)


def test_no_length_no_direction() -> None:
    x = torch.zeros(1, 3, 4, device=DEVICE)
    x[0, 1] = 1.0
    x.requires_grad_()
    columns, _ = fused_columns(x, [0.5, 0.25])
    assert columns[0, 0, -4:].tolist() == [0.0] * 4
    assert columns[0, 1, -4:].tolist() == [0.5] * 4
    (grad,) = torch.autograd.grad(columns[0, 0].sum(), x)
    assert grad[0, 0].tolist() == [0.5 + 0.25 + 1.0] * 4  # through the traces and x itself: nothing through 0 / |0|


def test_strides_and_bfloat16() -> None:
    base = torch.randn(2, 20, 12, generator=torch.Generator().manual_seed(0)).bfloat16()
    x = base.to(DEVICE)[:, ::2, 1:9]
    columns, _ = fused_columns(x, [0.5, 0.02])
    expected, _ = by_definition(
        x.double().cpu(), torch.tensor([0.5, 0.02]).double(), torch.zeros(2, 2, 8).double(), None
    )
    assert columns.dtype == torch.bfloat16
    assert columns.is_contiguous()
    torch.testing.assert_close(columns.cpu().double(), expected, rtol=2**-7, atol=2**-9)


@pytest.mark.parametrize(("D", "dtype"), [(70, torch.float32), (66, torch.bfloat16)])
def test_several_programs_a_sequence_and_fixed_rates(D: int, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(D)
    x, weights = torch.randn(1, 17, D, generator=draw).to(dtype), torch.randn(1, 17, 4 * D, generator=draw).to(dtype)
    results = []
    for make, place in ((fused_columns, {"device": DEVICE}), (by_definition, {"dtype": torch.float64})):
        y, alphas = x.to(**place).requires_grad_(), torch.tensor([0.7, 0.2], dtype=torch.float64)
        columns, _ = make(y, alphas.to(y.device), torch.zeros(2, 1, D).to(y.device, torch.float64), None)
        results.append((columns, *torch.autograd.grad(columns, y, weights.to(columns))))
    tolerance = 1e-5 if dtype == torch.float32 else 2**-6
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours.cpu().double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("state", "cu_seqlens"), [((1, 1, 4), None), (None, [0, 3]), ((2, 3, 4), None), (None, [0.0, 3.0])]
)
def test_refuses_what_ema_traces_refuses(state: tuple[int, ...] | None, cu_seqlens: list[float] | None) -> None:
    x = torch.zeros(2, 3, 4, device=DEVICE)
    arguments = (
        None if state is None else torch.zeros(state, device=DEVICE),
        None if cu_seqlens is None else torch.tensor(cu_seqlens, device=DEVICE),
    )
    with pytest.raises(ValueError, match=r"state must|cu_seqlens") as refused:
        ema_traces(x, [0.5, 0.1], *arguments)
    with pytest.raises(ValueError, match=r"state must|cu_seqlens") as also_refused:
        fused_columns(x, [0.5, 0.1], *arguments)
    assert str(also_refused.value) == str(refused.value)


def test_only_where_a_kernel_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_fuse_columns(torch.zeros(1, 1, 1, device=DEVICE)) == (DEVICE == "cuda")
    monkeypatch.setenv("EMATRACE_KERNELS", "0")
    assert not can_fuse_columns(torch.zeros(1, 1, 1, device=DEVICE))
