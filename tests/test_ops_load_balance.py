"""The load-balance loss: its formula, its extremes, its gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import softmax

from ematrace.ops import gelu_topk, gelu_topk_balanced, load_balance_loss
from ematrace.ops.topk import TopkGrad

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_it_is_its_formula() -> None:
    rng = np.random.default_rng(0)
    u = rng.normal(size=(30, 10))
    z = u * (rng.random((30, 10)) < 0.4)
    f = (z != 0).sum(0) / (z != 0).sum()
    P = softmax(u, -1).mean(0)
    ours = load_balance_loss(torch.from_numpy(u), torch.from_numpy(z))
    assert ours.item() == pytest.approx(10 * (f * P).sum(), rel=1e-12)


def test_equal_use_gives_1_and_the_same_units_give_the_most() -> None:
    n_units, k = 12, 3
    equal = torch.zeros(8, n_units)
    for row in range(8):
        equal[row, [(row * k + i) % n_units for i in range(k)]] = 50.0
    assert load_balance_loss(equal, equal).item() == pytest.approx(1.0)
    same = torch.zeros(8, n_units)
    same[:, :k] = 50.0
    assert load_balance_loss(same, same).item() == pytest.approx(n_units / k)
    assert load_balance_loss(same, torch.zeros(8, n_units)).item() == 0.0
    low = load_balance_loss(same.bfloat16().view(2, 4, n_units), same.bfloat16().view(2, 4, n_units))
    assert low.item() == pytest.approx(n_units / k, rel=1e-2)


def test_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(5, 7, generator=generator, dtype=torch.float64, requires_grad=True)
    z = torch.where(u.detach() > 0, u.detach(), 0.0)
    mask = torch.tensor([True, False, True, True, True])
    assert torch.autograd.gradcheck(lambda u: load_balance_loss(u, z, mask), (u,))
    assert torch.autograd.gradcheck(lambda u: load_balance_loss(u, z), (u,))


def test_the_gradient_does_not_grow_as_activations_shrink() -> None:
    u = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    norms = []
    for scale in (1.0, 1e-3):
        leaf = (scale * u).requires_grad_()
        load_balance_loss(leaf, torch.where(u > 1, leaf.detach(), 0.0)).backward()
        assert leaf.grad is not None
        norms.append(leaf.grad.norm().item())
    assert norms[1] < 2 * norms[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_padding_does_not_count(dtype: torch.dtype) -> None:
    u = torch.randn(2, 6, 9, generator=torch.Generator().manual_seed(0)).to(dtype)
    z = torch.where(u > 0.5, u, 0.0)
    mask = torch.tensor([[False, True, True, False, True, True], [True] * 6])
    torch.testing.assert_close(load_balance_loss(u, z, mask), load_balance_loss(u[mask], z[mask]))


def test_it_compiles_whole() -> None:
    def loss(u: torch.Tensor) -> torch.Tensor:
        return load_balance_loss(u, torch.where(u > 0, u, 0.0))

    u = torch.randn(4, 6, requires_grad=True)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(u), loss(u))
    ours, expected = (torch.autograd.grad(f(u), u)[0] for f in (compiled, loss))
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("grad", ["ste", "masked"])
@pytest.mark.parametrize("masked", [False, True])
def test_balanced_top_k_is_top_k_and_its_loss(grad: TopkGrad, masked: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(2, 5, 16, generator=generator, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(2, 5, generator=generator) < 0.6 if masked else None
    weights = torch.randn(2, 5, 16, generator=generator, dtype=torch.float64)
    z, loss = gelu_topk_balanced(u, 4, grad, mask)
    apart = gelu_topk(u, 4, grad)
    apart_loss = load_balance_loss(u, apart, mask)
    assert torch.equal(z, apart)
    torch.testing.assert_close(loss, apart_loss, rtol=1e-12, atol=0)
    gradients = [torch.autograd.grad((a * weights).sum() + 3 * b, u)[0] for a, b in ((z, loss), (apart, apart_loss))]
    torch.testing.assert_close(*gradients, rtol=1e-11, atol=1e-13)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, behind the interpreter, on infinities
def test_kernel_of_the_balanced_gradient() -> None:
    backward = pytest.importorskip("ematrace.ops.topk_triton").gelu_topk_backward
    generator = torch.Generator().manual_seed(0)
    u, grad = (torch.randn(6, 300, generator=generator) for _ in range(2))
    f = torch.rand(300, generator=generator) / 300
    factor = torch.rand(6, 1, generator=generator)
    p = u.double().softmax(-1)
    share = (p * f).sum(-1, keepdim=True)
    expected = torch.ops.aten.gelu_backward(grad.double(), u.double()) + factor * p * (f - share)
    balance = (factor, u.logsumexp(-1, keepdim=True), share.float(), f)
    out = backward(grad.to(DEVICE), u.to(DEVICE), None, tuple(t.to(DEVICE) for t in balance))
    torch.testing.assert_close(out.cpu().double(), expected, rtol=1e-4, atol=1e-6)
