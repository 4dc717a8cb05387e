"""Top-k of GELU: the selection against numpy's stable sort, the gradients against GELU's own derivative."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ematrace.ops import gelu_topk, topk_mask

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAN, INF, NOT_FINITE = math.nan, math.inf, 12345.0


def stable_top_k(z: Tensor, k: int) -> np.ndarray:
    """The first k of a stable descending sort; float64 holds every value of the smaller dtypes exactly."""
    values = z.detach().cpu().double().numpy()
    ranked = -np.where(np.isnan(values), np.inf, values)
    mask = np.zeros(values.shape, dtype=bool)
    np.put_along_axis(mask, np.argsort(ranked, axis=-1, kind="stable")[..., :k], True, axis=-1)
    return mask


def gelu_slope(u: Tensor) -> Tensor:
    """d/du of u Phi(u) = Phi(u) + u phi(u)."""
    return 0.5 * (1 + torch.erf(u / 2**0.5)) + u * torch.exp(-u * u / 2) / (2 * math.pi) ** 0.5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(7,), (3, 40), (2, 3, 100), (1, 1, 1, 5), (0, 9), (2, 0, 9)])
def test_keeps_the_first_k_of_a_stable_sort(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    u = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)
    z = F.gelu(u)
    for k in {1, shape[-1] // 2, shape[-1] - 1, shape[-1]} - {0}:
        assert (topk_mask(z, k).numpy() == stable_top_k(z, k)).all()
        kept = stable_top_k(F.gelu(u.double()), k)  # nothing of GELU's order is lost to rounding
        out = gelu_topk(u, k)
        assert out.dtype == dtype
        assert out.shape == shape
        assert torch.equal(out, torch.where(torch.from_numpy(kept), z, torch.zeros_like(z)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_mask_with_ties_zeros_and_values_that_are_not_finite(dtype: torch.dtype) -> None:
    few = torch.tensor([-3.0, -1.0, -0.0, 0.0, 0.5, 1.0, 2.0, INF, -INF, NAN], dtype=dtype)
    for alphabet in (few, few[:7], few[2:4], few[-3:]):  # few values, so that ties within a row are the rule
        z = alphabet[torch.randint(len(alphabet), (300, 6), generator=torch.Generator().manual_seed(0))]
        for k in range(1, 7):
            mask = topk_mask(z, k)
            assert (mask.sum(-1) == k).all()
            assert (mask.numpy() == stable_top_k(z, k)).all()


def test_selects_by_value_not_by_magnitude() -> None:
    assert topk_mask(torch.tensor([-5.0, 1.0, -2.0, 0.0]), 2).tolist() == [False, True, False, True]


def test_negative_zero_ties_with_zero_and_nan_with_infinity() -> None:
    assert topk_mask(torch.tensor([-0.0, 0.0, -0.0, 0.0]), 2).tolist() == [True, True, False, False]
    assert topk_mask(torch.tensor([1.0, INF, NAN, INF]), 2).tolist() == [False, True, True, False]
    assert topk_mask(torch.tensor([1.0, NAN, INF, NAN]), 2).tolist() == [False, True, True, False]


def test_a_broken_input_stays_visible() -> None:
    out = gelu_topk(torch.tensor([1.0, NAN, 2.0, INF]), 2)
    assert out[1].isnan()
    assert not out[3].isfinite()  # torch makes NaN of GELU(inf) on CPUs
    assert out[[0, 2]].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -1.0])
def test_equal_values_leave_the_first_k(value: float) -> None:
    u = torch.full((2, 10), value)
    kept = torch.where(torch.arange(10) < 4, F.gelu(u), 0.0)
    assert torch.equal(gelu_topk(u, 4), kept)
    assert topk_mask(u, 4).tolist() == [[True] * 4 + [False] * 6] * 2


def test_all_units_are_gelu_itself() -> None:
    u = torch.randn(4, 33)
    assert torch.equal(gelu_topk(u, 33), F.gelu(u))


@pytest.mark.parametrize("grad", ["ste", "masked"])
def test_strides_do_not_matter(grad: str) -> None:
    base = torch.randn(12, 6, 5, dtype=torch.float64)
    for view in (base.transpose(0, 2), base.permute(1, 2, 0)[:, ::2], base[..., :1].expand(12, 6, 5)):
        u, copy = (t.detach().clone(memory_format=f).requires_grad_() for t, f in _both_layouts(view))
        outs = gelu_topk(u, 3, grad), gelu_topk(copy, 3, grad)
        torch.testing.assert_close(*outs, rtol=1e-14, atol=0)
        weights = torch.randn(outs[0].shape, dtype=torch.float64)
        grads = [torch.autograd.grad((out * weights).sum(), x)[0] for out, x in zip(outs, (u, copy), strict=True)]
        torch.testing.assert_close(*grads, rtol=1e-13, atol=1e-15)


def _both_layouts(view: Tensor) -> list[tuple[Tensor, torch.memory_format]]:
    return [(view, torch.preserve_format), (view, torch.contiguous_format)]


def test_straight_through_gradient_is_the_slope_of_gelu_everywhere() -> None:
    u = torch.randn(5, 20, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(5, 20, dtype=torch.float64)
    (gelu_topk(u, 3, "ste") * weights).sum().backward()
    torch.testing.assert_close(u.grad, weights * gelu_slope(u.detach()), rtol=1e-12, atol=1e-14)


def test_masked_gradient_is_the_slope_on_kept_units_and_zero_elsewhere() -> None:
    u = torch.randn(5, 20, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(5, 20, dtype=torch.float64)
    (gelu_topk(u, 3, "masked") * weights).sum().backward()
    kept = torch.from_numpy(stable_top_k(F.gelu(u), 3))
    expected = torch.where(kept, weights * gelu_slope(u.detach()), 0.0)
    torch.testing.assert_close(u.grad, expected, rtol=1e-12, atol=1e-14)


def test_masked_gradient_is_the_true_one() -> None:
    # Values half a unit apart: no finite difference crosses from one rank to another.
    u = (torch.stack([torch.randperm(9) for _ in range(4)]).double() * 0.5 - 1.9).requires_grad_()
    assert torch.autograd.gradcheck(lambda u: gelu_topk(u, 4, "masked"), u)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradient_has_the_dtype_of_the_input(dtype: torch.dtype) -> None:
    u = torch.randn(3, 8, dtype=dtype, requires_grad=True)
    gelu_topk(u, 2).sum().backward()
    assert u.grad is not None
    assert u.grad.dtype == dtype
    torch.testing.assert_close(u.grad.double(), gelu_slope(u.detach().double()), rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("grad", ["ste", "masked"])
def test_compiles_without_graph_breaks(grad: str) -> None:
    u = torch.randn(3, 16, requires_grad=True)

    def value_and_grad(f) -> tuple[Tensor, Tensor]:
        z = f(u)
        return z, torch.autograd.grad(z.square().sum(), u)[0]

    compiled = torch.compile(lambda u: gelu_topk(u * 2, 5, grad), fullgraph=True, backend="aot_eager")
    for a, b in zip(value_and_grad(compiled), value_and_grad(lambda u: gelu_topk(u * 2, 5, grad)), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("straight_through", [True, False])
def test_is_a_well_formed_operator(straight_through: bool) -> None:
    for u in (torch.randn(4, 12), torch.randn(12, 4).T, torch.randn(2, 3, 12).transpose(0, 1), torch.zeros(0, 12)):
        u = u.to(DEVICE).requires_grad_()
        torch.library.opcheck(torch.ops.ematrace.gelu_topk.default, (u, 5, straight_through, False))


@pytest.mark.parametrize("k", [0, -1, 9])
def test_k_must_fit(k: int) -> None:
    with pytest.raises(ValueError, match=rf"k must lie between 1 and the number of units, 8; got {k}"):
        gelu_topk(torch.zeros(2, 8), k)


def test_unknown_gradient_is_refused() -> None:
    with pytest.raises(ValueError, match="grad must be 'ste' or 'masked', got 'sigmoid'"):
        gelu_topk(torch.zeros(2, 8), 1, "sigmoid")  # type: ignore[arg-type]


# The Triton kernel: on a GPU where there is one, under Triton's interpreter otherwise.


def kernel_forward() -> Callable[[Tensor, int], Tensor]:
    forward = pytest.importorskip("ematrace.ops.topk_triton").gelu_topk_forward
    return lambda u, k: forward(u, k)[0]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, behind the interpreter, on infinities
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("n_units", [1, 100, 3000])
def test_kernel_keeps_the_first_k_of_a_stable_sort(dtype: torch.dtype, n_units: int) -> None:
    """At 3000 units, as in a model, bfloat16 values tie; the interpreter cuts bfloat16 instead of rounding it."""
    forward = kernel_forward()
    u = torch.randn(3, n_units, generator=torch.Generator().manual_seed(n_units)).to(DEVICE, dtype)
    exact = F.gelu(u.double())
    one_ulp = 2 * torch.finfo(dtype).eps
    for k in {1, n_units // 16 + 1, 3 * n_units // 4 or 1, n_units}:  # few of many, and negative ones too
        kept = torch.from_numpy(stable_top_k(exact, k)).to(DEVICE)
        out = forward(u, k)
        assert ((out != 0).sum(-1) == k).all()
        assert torch.equal(out != 0, kept)
        torch.testing.assert_close(out.double(), torch.where(kept, exact, 0.0), rtol=max(one_ulp, 3e-4), atol=2e-6)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, behind the interpreter, on infinities
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_kernel_equals_torch_on_ties(dtype: torch.dtype) -> None:
    """GELU is the identity above 6 and zero below -14 in these dtypes: no rounding, many ties."""
    forward = kernel_forward()
    values = torch.tensor([-40.0, -20.0, -0.0, 0.0, 6.0, 7.0, 8.0, INF, NAN, -INF])
    u = values[torch.randint(len(values), (14, 21), generator=torch.Generator().manual_seed(0))].to(dtype)
    u[:10] = values[:, None].to(dtype)  # rows of equal values
    u[10] = values[:4].repeat(6)[:21]  # a row of zeros of both signs
    for k in (4, 20):
        ranked = torch.where(u.isfinite(), F.gelu(u.double()), INF)
        expected = torch.where(torch.from_numpy(stable_top_k(ranked, k)), ranked, 0.0)
        for out in (forward(u.to(DEVICE), k).cpu(), gelu_topk(u, k)):
            # What becomes of an infinity, an infinity or NaN, is left to the backend; it ranks first and is not finite.
            finite = torch.where(out.isfinite(), out.double(), INF)
            torch.testing.assert_close(finite, expected, rtol=0, atol=1e-8)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, behind the interpreter, on infinities
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("masked", [False, True])
def test_kernel_of_the_gradient(dtype: torch.dtype, masked: bool) -> None:
    backward = pytest.importorskip("ematrace.ops.topk_triton").gelu_topk_backward
    draw = torch.Generator().manual_seed(0)
    u, grad = ((4 * torch.randn(3, 1700, generator=draw)).to(DEVICE, dtype) for _ in range(2))
    u[0, :4] = torch.tensor([0.0, -0.0, 30.0, -30.0], dtype=dtype)
    z = (torch.rand(u.shape, generator=draw) < 0.3).to(DEVICE, dtype)
    expected = grad.double() * gelu_slope(u.double())
    if masked:
        expected = torch.where(z != 0, expected, 0.0)
    out = backward(grad, u, z if masked else None)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-5)
    assert backward(grad, u * NAN, z).isnan().any()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, behind the interpreter, on infinities
@pytest.mark.parametrize("shift", [-30.0, 0.0])
def test_kernel_finds_the_threshold_wherever_the_row_lies(shift: float) -> None:
    """Rows that are no normal numbers: shifted, with one giant, nearly all equal, of many scales."""
    forward = kernel_forward()
    u = torch.randn(6, 500, generator=torch.Generator().manual_seed(0)) + shift
    u[1, 7] = 1e30
    u[2, 3:] = shift
    u[3] = torch.logspace(-30, 30, 500)
    u[4] = -torch.logspace(-30, 30, 500)
    u[5, ::2] = 0.0
    for dtype, k in ((torch.bfloat16, 30), (torch.float32, 499)):
        low = u.to(dtype)
        exact = F.gelu(low.double())
        kept = torch.from_numpy(stable_top_k(torch.where(low >= 0, low.double(), F.gelu(low.float()).double()), k))
        out = forward(low.to(DEVICE), k).cpu().double()
        torch.testing.assert_close(out, torch.where(kept, exact, 0.0), rtol=2e-2, atol=1e-6)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_kernel_of_the_summed_exponentials(dtype: torch.dtype) -> None:
    forward = pytest.importorskip("ematrace.ops.topk_triton").gelu_topk_forward
    u = (5 * torch.randn(2, 3, 300, generator=torch.Generator().manual_seed(0))).to(DEVICE, dtype)
    z, log_sum = forward(u, 20, True)
    assert torch.equal(z, forward(u, 20)[0])
    torch.testing.assert_close(log_sum.double(), u.double().logsumexp(-1, keepdim=True), rtol=1e-6, atol=1e-5)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, behind the interpreter, on infinities
def test_kernel_takes_any_leading_shape_and_strides() -> None:
    forward = kernel_forward()
    u = torch.randn(4, 3, 2, device=DEVICE)
    for view, k in itertools.product((u, u.mT, u[::2], u[:0], u[0, 0]), (1, 2)):
        out = forward(view, k)
        assert out.shape == view.shape
        torch.testing.assert_close(out, gelu_topk(view.contiguous(), k), rtol=1e-5, atol=1e-6)
