"""The compiled CPU kernels of top-k: bit for bit what plain torch keeps, and closed forms in float64 for the rest.

Small, since scripts/plant_defects.py runs them interpreted.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ematrace.ops import gelu_topk, gelu_topk_balanced, topk
from ops_support import CHOICES, calls_of, check_scratch, threads

kernels = pytest.importorskip("ematrace.ops.topk_cpu")
NAN, INF = math.nan, math.inf


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def few(values: list[float], *shape: int) -> Tensor:
    """Rows of few different values, so that ties are the rule."""
    return torch.tensor(values)[torch.randint(len(values), shape, generator=torch.Generator().manual_seed(0))]


ROWS = {
    "normal": draw(4, 70),
    "one unit": draw(3, 1),
    "mostly negative": draw(4, 37) - 2.5,
    "both sides of the minimum of GELU": torch.linspace(-6, 0, 61).repeat(2, 1),
    "ties": few([-3.0, -1.0, 0.5, 1.0, 2.0], 6, 21),
    "zeros of both signs": few([0.0, -0.0], 5, 9),
    "zeros and what GELU rounds to zero": few([0.0, -0.0, -1e-45, 1e-45, -20.0, -40.0], 6, 15),
    "not finite": few([1.0, INF, -INF, NAN, -NAN, 0.0, -1.0], 8, 12),
    "all broken": few([INF, -INF, NAN], 3, 8),
    "denormal": draw(3, 20) * 1e-38,
    "extremes": few([-3.0e38, 3.0e38, -1e-45, 1e-45, 0.0, 1.0], 4, 11),
    "neighbours with equal GELU": (3.0 * (1 + torch.arange(30) * 2**-23)).flip(0).repeat(2, 1),
    "many scales": torch.logspace(-30, 30, 41)[None] * torch.tensor([[1.0], [-1.0]]),
}


def some_k(n_units: int) -> list[int]:
    return sorted({1, 2, n_units // 2, n_units - 1, n_units} & set(range(1, n_units + 1)))


@pytest.mark.parametrize("kind", ROWS)
def test_keeps_what_plain_torch_keeps(kind: str) -> None:
    u = ROWS[kind]
    for k in some_k(u.shape[-1]):
        expected = torch.where(topk.topk_mask(topk.gelu_rank(u), k), F.gelu(u), 0.0)
        z, log_sum = kernels.gelu_topk_forward(u, k)
        assert log_sum.numel() == 0
        torch.testing.assert_close(z, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["normal", "mostly negative", "ties", "not finite"])
def test_reduced_precision_is_rounded_at_the_end(kind: str, dtype: torch.dtype) -> None:
    u = ROWS[kind].to(dtype)
    for k in some_k(u.shape[-1]):
        z = kernels.gelu_topk_forward(u, k)[0]
        assert z.dtype == dtype
        torch.testing.assert_close(z, kernels.gelu_topk_forward(u.float(), k)[0].to(dtype), equal_nan=True)


def test_any_leading_shape_and_strides() -> None:
    u = draw(4, 3, 6)
    for view in (u, u.mT, u[::2], u[:0], u[0, 0], u.expand(2, 4, 3, 6)):
        z, log_sum = kernels.gelu_topk_forward(view, 2, True)
        assert z.shape == view.shape
        assert z.is_contiguous()
        assert torch.equal(z, torch.where(topk.topk_mask(topk.gelu_rank(view), 2), F.gelu(view.contiguous()), 0.0))
        torch.testing.assert_close(log_sum, view.logsumexp(-1, keepdim=True))


@pytest.mark.parametrize("shift", [0.0, -1000.0, 1000.0, 3e38])
@pytest.mark.parametrize("n_units", [1, 5, 70])
def test_summed_exponentials(shift: float, n_units: int) -> None:
    u = 5 * draw(3, n_units) + shift
    _, log_sum = kernels.gelu_topk_forward(u, 1, True)
    torch.testing.assert_close(log_sum.double(), u.double().logsumexp(-1, keepdim=True), rtol=3e-7, atol=1e-6)


@pytest.mark.parametrize("bad", [NAN, INF])
def test_summed_exponentials_show_what_is_not_finite(bad: float) -> None:
    for place in (0, 3, 69):
        u = draw(3, 70)
        u[1, place] = bad
        assert kernels.gelu_topk_forward(u, 4, True)[1].isfinite().flatten().tolist() == [True, False, True]


def test_a_probability_of_zero_is_nothing_special() -> None:
    u = draw(2, 9)
    u[:, 4] = -INF
    u[:, 5] = -200.0
    _, log_sum = kernels.gelu_topk_forward(u, 4, True)
    p = u.double().softmax(-1)
    torch.testing.assert_close(log_sum.double(), u.double().logsumexp(-1, keepdim=True), rtol=0, atol=1e-6)
    f = torch.rand(9, generator=torch.Generator().manual_seed(0))
    share = kernels.weighted_probability(u, log_sum, f)
    torch.testing.assert_close(share.double(), (p * f).sum(-1, keepdim=True), rtol=1e-6, atol=0)


def test_weighted_probability() -> None:
    u, f = 3 * draw(5, 70), torch.rand(70, generator=torch.Generator().manual_seed(0))
    share = kernels.weighted_probability(u, u.logsumexp(-1, keepdim=True), f)
    torch.testing.assert_close(share.double(), (u.double().softmax(-1) * f).sum(-1, keepdim=True), rtol=2e-6, atol=0)


def test_kept_weight() -> None:
    z, weight = few([0.0, -0.0, 1.0, -1e-45, NAN], 50, 13), torch.rand(50, 1)
    expected = torch.where(z != 0, weight.double(), 0.0).sum(0)
    torch.testing.assert_close(kernels.kept_weight(z, weight).double(), expected, rtol=1e-7, atol=0)
    assert kernels.kept_weight(z[:0], weight[:0]).tolist() == [0.0] * 13
    few_rows = kernels.kept_weight(z[:3], weight[:3]).double()
    torch.testing.assert_close(few_rows, torch.where(z != 0, weight.double(), 0.0)[:3].sum(0), rtol=1e-7, atol=0)


def test_kept_weight_is_summed_in_float64() -> None:
    """Beside 2^25 a weight of 1 is lost in float32."""
    weight = torch.ones(4 * kernels.PARTS, 1)
    weight[0] = 2**25
    assert kernels.kept_weight(torch.ones(len(weight), 1), weight).item() == 2**25 + len(weight)


def slope(u: Tensor) -> Tensor:
    """GELU'(u) = Φ(u) + u φ(u)."""
    return torch.special.ndtr(u) + u * torch.exp(-u * u / 2) / math.sqrt(2 * math.pi)


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradient(masked: bool, balanced: bool, dtype: torch.dtype) -> None:
    u, grad = (2 * draw(2, 3, 70)).to(dtype), draw(2, 3, 70, seed=1).to(dtype)
    z = few([0.0, 1.0, -0.1], 2, 3, 70).to(dtype)
    expected = grad.double() * slope(u.double())
    if masked:
        expected = torch.where(z != 0, expected, 0.0)
    balance: tuple[Tensor, ...] = ()
    if balanced:
        factor, f = torch.rand(2, 3, 1), torch.rand(70)
        p = u.double().softmax(-1)
        share = (p * f).sum(-1, keepdim=True)
        expected += factor * p * (f - share)
        balance = (factor, u.float().logsumexp(-1, keepdim=True), share.float(), f)
    out = kernels.gelu_topk_backward(grad, u, z if masked else None, balance)
    assert out.dtype == dtype
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), expected, rtol=rounding, atol=1e-6)


def test_slope_is_as_good_as_torchs() -> None:
    """Within 3e-7 everywhere, as torch's own in float32, and with the limits 0 and 1."""
    u = torch.cat([torch.linspace(-14, 14, 2001), torch.tensor([0.0, -0.0, 1e-45, 3e38, -3e38])])[None]
    expected = slope(u.double())
    for slopes in (
        kernels.gelu_topk_backward(torch.ones_like(u), u, None),
        topk._gelu_topk_backward(torch.ones_like(u), u, *[None] * 5),
    ):
        assert (slopes - expected).abs().max() < 3e-7


def test_a_gradient_that_is_not_finite_stays_visible() -> None:
    u, grad = draw(2, 20), draw(2, 20, seed=1)
    u[0, 3], u[0, 5], grad[0, 7] = NAN, INF, NAN
    out = kernels.gelu_topk_backward(grad, u, torch.ones_like(u))
    assert (~out.isfinite()).nonzero().tolist() == [[0, 3], [0, 5], [0, 7]]
    assert not kernels.gelu_topk_backward(grad, u, torch.zeros_like(u)).any()


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for least in ("LEAST", "LEAST_OF_SUMS"):
        monkeypatch.setattr(kernels, least, 1)
    u, grad, weight = draw(37, 33), draw(37, 33, seed=1), torch.rand(37, 1)

    def everything() -> list[Tensor]:
        z, log_sum = kernels.gelu_topk_forward(u, 5, True)
        f = kernels.kept_weight(z, weight)
        share = kernels.weighted_probability(u, log_sum, f)
        return [z, log_sum, f, share, kernels.gelu_topk_backward(grad, u, z, (weight, log_sum, share, f))]

    results = []
    for n in (1, 2, 3, 5):
        with threads(n):
            results.append(everything())
    for others in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], others, strict=True))


def test_threads_do_not_share_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    check_scratch(monkeypatch, kernels, "keep_largest", "rank", lambda: kernels.gelu_topk_forward(draw(6, 9), 3))


# The operators choose them


FUNCTIONS = ("gelu_topk_forward", "weighted_probability", "kept_weight", "gelu_topk_backward")


@pytest.mark.parametrize(("setting", "dtype", "used"), CHOICES)
def test_switch_and_dtype_choose(monkeypatch: pytest.MonkeyPatch, setting: str, dtype: torch.dtype, used: bool) -> None:
    calls = calls_of(monkeypatch, kernels, FUNCTIONS, setting)
    u = draw(3, 9).to(dtype).requires_grad_()
    z, loss = gelu_topk_balanced(u, 2)
    (z.sum() + loss).backward()
    assert sorted(calls) == (sorted(FUNCTIONS) if used else [])


def test_kernels_and_plain_torch_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for setting in ("1", "0"):
        monkeypatch.setenv("EMATRACE_KERNELS", setting)
        u = draw(2, 6, 40).requires_grad_()
        mask = torch.tensor([[True] * 6, [False] * 2 + [True] * 4])
        z, loss = gelu_topk_balanced(u, 5, "masked", mask)
        results.append([z, loss, *torch.autograd.grad((z * z).sum() + 5 * loss, u)])
    assert torch.equal(results[0][0], results[1][0])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)


def test_without_a_graph() -> None:
    u = draw(3, 9)
    with torch.inference_mode():
        assert torch.equal(gelu_topk(u + 0, 2), gelu_topk(u, 2))
        assert torch.equal(gelu_topk_balanced(u + 0, 2)[0], gelu_topk(u, 2))


def test_well_formed_operators() -> None:
    u, z = draw(4, 6), few([0.0, 1.0], 4, 6)
    rows, units = torch.rand(4, 1), torch.rand(6)
    torch.library.opcheck(torch.ops.ematrace.kept_weight.default, (z, rows))
    torch.library.opcheck(torch.ops.ematrace.weighted_probability.default, (u, rows, units))
    torch.library.opcheck(torch.ops.ematrace.gelu_topk_backward.default, (u, u, z, rows, rows, rows, units))
    torch.library.opcheck(torch.ops.ematrace.gelu_topk.default, (u, 2, True, True))


def test_balanced_top_k_compiles_whole() -> None:
    u = draw(4, 6).requires_grad_()
    compiled = torch.compile(lambda u: gelu_topk_balanced(u, 2), fullgraph=True, backend="aot_eager")
    results = []
    for function in (compiled, lambda u: gelu_topk_balanced(u, 2)):
        z, loss = function(u)
        results.append([z, loss, *torch.autograd.grad((z * z).sum() + loss, u)])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize(
    ("k", "grad", "told"), [(9, "ste", "k must lie between"), (0, "ste", "k must"), (2, "st", "grad must be")]
)
def test_balanced_top_k_refuses_what_top_k_refuses(k: int, grad: Any, told: str) -> None:
    for function in (topk.gelu_topk, gelu_topk_balanced):
        with pytest.raises(ValueError, match=told):
            function(draw(3, 8), k, grad)


def test_whole_numbers_are_refused_as_by_torch() -> None:
    with pytest.raises(NotImplementedError):
        topk.gelu_topk(torch.tensor([1, 2, 3]), 1)
