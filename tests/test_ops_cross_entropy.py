"""Cross-entropy of a linear head: against torch's own in float64, and what it may hold in memory."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ematrace.ops import cross_entropy as module
from ematrace.ops import linear_cross_entropy

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Problem = tuple[Tensor, Tensor, Tensor]


def draw(n: int, d: int, vocabulary: int, ignored: float = 0.0, dtype: torch.dtype = torch.float64) -> Problem:
    rng = torch.Generator().manual_seed(1000 * n + vocabulary)
    hidden = torch.randn(n, d, generator=rng, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(vocabulary, d, generator=rng, dtype=torch.float64).to(dtype).requires_grad_()
    targets = torch.randint(vocabulary, (n,), generator=rng)
    targets[torch.rand(n, generator=rng) < ignored] = -100
    return hidden, weight, targets


def with_gradients(loss: Tensor, *inputs: Tensor) -> list[Tensor]:
    return [loss.detach(), *torch.autograd.grad(loss, inputs)]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(("n", "vocabulary", "ignored"), [(1, 1, 0.0), (7, 64, 0.0), (30, 101, 0.3), (5, 2, 0.5)])
@pytest.mark.parametrize("logits_held", [1, 300, 2**28])
def test_equals_torch(
    monkeypatch: pytest.MonkeyPatch, n: int, vocabulary: int, ignored: float, reduction: Any, logits_held: int
) -> None:
    monkeypatch.setattr(module, "LOGITS_PER_SLICE", logits_held)
    hidden, weight, targets = draw(n, 6, vocabulary, ignored)
    ours = linear_cross_entropy(hidden, weight, targets, reduction=reduction)
    torchs = F.cross_entropy(hidden @ weight.T, targets, reduction=reduction)
    assert ours.dtype == torch.float64
    for a, b in zip(*(with_gradients(loss * 3, hidden, weight) for loss in (ours, torchs)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


def test_gradients_are_finite_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOGITS_PER_SLICE", 30)
    hidden, weight, targets = draw(5, 3, 9, 0.3)
    assert torch.autograd.gradcheck(lambda h, w: linear_cross_entropy(h, w, targets), (hidden, weight))
    assert torch.autograd.gradcheck(lambda h, w: linear_cross_entropy(h, w, targets, reduction="sum"), (hidden, weight))


def test_leading_dimensions_and_strides() -> None:
    hidden, weight, targets = draw(24, 6, 11)
    flat = linear_cross_entropy(hidden, weight, targets)
    shaped = linear_cross_entropy(hidden.view(2, 3, 4, 6), weight, targets.view(2, 3, 4))
    turned = linear_cross_entropy(hidden.view(4, 6, 6).transpose(0, 1), weight, targets.view(4, 6).T)
    strided = linear_cross_entropy(hidden.T.contiguous().T, weight.T.contiguous().T, targets)
    for other in (shaped, turned, strided):
        for a, b in zip(with_gradients(other, hidden, weight), with_gradients(flat, hidden, weight), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)
        flat = linear_cross_entropy(hidden, weight, targets)


def test_another_ignore_index() -> None:
    hidden, weight, targets = draw(20, 4, 5)
    ours = linear_cross_entropy(hidden, weight, targets, ignore_index=2)
    torchs = F.cross_entropy(hidden @ weight.T, targets, ignore_index=2)
    for a, b in zip(with_gradients(ours, hidden, weight), with_gradients(torchs, hidden, weight), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("n", [0, 4])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_no_target_left_is_zero_with_zero_gradients(n: int, reduction: Any) -> None:
    hidden, weight, targets = draw(n, 4, 5)
    loss, grad_hidden, grad_weight = with_gradients(
        linear_cross_entropy(hidden, weight, torch.full_like(targets, -100), reduction=reduction), hidden, weight
    )
    assert loss == 0
    assert grad_hidden.shape == (n, 4)
    assert not grad_hidden.any()
    assert not grad_weight.any()


def test_ignored_rows_do_not_spread_what_is_not_finite() -> None:
    hidden, weight, targets = draw(3, 4, 5)
    with torch.no_grad():
        hidden[1] = math.inf
    targets[1] = -100
    loss, grad_hidden, _ = with_gradients(linear_cross_entropy(hidden, weight, targets), hidden, weight)
    kept = [0, 2]
    assert loss == pytest.approx(F.cross_entropy(hidden[kept] @ weight.T, targets[kept]).item())
    assert not grad_hidden[1].any()


def test_large_logits_do_not_overflow() -> None:
    hidden = torch.tensor([[1e4], [-1e4]], requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0]], requires_grad=True)
    loss, grad, _ = with_gradients(linear_cross_entropy(hidden, weight, torch.tensor([0, 0])), hidden, weight)
    assert loss == 1e4  # the mean of 0 and 2e4
    assert grad.tolist() == [[0.0], [-1.0]]


def test_only_one_side_needs_a_gradient() -> None:
    hidden, weight, targets = draw(9, 4, 7)
    for h, w, wanted in ((hidden, weight.detach(), hidden), (hidden.detach(), weight, weight)):
        ours = torch.autograd.grad(linear_cross_entropy(h, w, targets), wanted)[0]
        torchs = torch.autograd.grad(F.cross_entropy(h @ w.T, targets), wanted)[0]
        torch.testing.assert_close(ours, torchs, rtol=1e-12, atol=1e-13)


def test_second_derivative_is_refused_instead_of_wrong() -> None:
    hidden, weight, targets = draw(9, 4, 7)
    with pytest.raises(RuntimeError, match="linear_cross_entropy has no second derivative"):
        torch.autograd.grad(linear_cross_entropy(hidden, weight, targets), hidden, create_graph=True)


def test_without_gradients_none_are_computed() -> None:
    hidden, weight, targets = draw(9, 4, 7)
    with torch.no_grad():
        assert not linear_cross_entropy(hidden, weight, targets).requires_grad
    parts = torch.ops.ematrace.linear_cross_entropy(hidden.detach(), weight.detach(), targets, -100, False)
    assert parts[1].numel() == parts[2].numel() == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_reduced_precision_is_as_good_as_its_inputs(dtype: torch.dtype) -> None:
    """Logits and their gradient are rounded once each; the sums are exact."""
    hidden, weight, targets = draw(40, 16, 130, 0.2, dtype)
    ours = with_gradients(linear_cross_entropy(hidden, weight, targets), hidden, weight)
    exact = [t.detach().double().requires_grad_() for t in (hidden, weight)]
    torchs = with_gradients(F.cross_entropy(exact[0] @ exact[1].T, targets), *exact)
    assert [t.dtype for t in ours] == [torch.float32, dtype, dtype]
    eps = torch.finfo(dtype).eps
    largest_logit = (exact[0] @ exact[1].T).abs().max().item()
    assert abs(ours[0].item() - torchs[0].item()) < eps * largest_logit
    for a, b in zip(ours[1:], torchs[1:], strict=True):
        assert (a.double() - b).norm() < eps * largest_logit * b.norm()


def test_autocast_rounds_the_products_but_not_the_sums() -> None:
    hidden, weight, targets = draw(400, 16, 130, 0.2, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        ours = with_gradients(linear_cross_entropy(hidden, weight, targets), hidden, weight)
    assert [t.dtype for t in ours] == [torch.float32] * 3
    exact = [t.detach().double().requires_grad_() for t in (hidden, weight)]
    torchs = with_gradients(F.cross_entropy(exact[0] @ exact[1].T, targets), *exact)
    assert ours[0].item() == pytest.approx(torchs[0].item(), rel=0.01)
    for a, b in zip(ours[1:], torchs[1:], strict=True):
        error = (a.double() - b).norm() / b.norm()
        assert 1e-5 < error < 0.02  # not float32 in disguise, and no worse than bfloat16's 2^-8 a few times over


def test_autocast_leaves_float64_alone() -> None:
    hidden, weight, targets = draw(9, 4, 7)
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy(hidden, weight, targets)
    torch.testing.assert_close(loss, F.cross_entropy(hidden @ weight.T, targets), rtol=1e-12, atol=0)


def test_gradient_of_the_weight_is_summed_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """4,096 equal terms in slices of one row: a bfloat16 sum would stop growing at 256 terms."""
    monkeypatch.setattr(module, "LOGITS_PER_SLICE", 2)
    n = 4096
    hidden = torch.ones(n, 1, dtype=torch.bfloat16)
    weight = torch.zeros(2, 1, requires_grad=True)
    loss = linear_cross_entropy(hidden, weight, torch.zeros(n, dtype=torch.long), reduction="sum")
    assert loss.item() == pytest.approx(n * math.log(2), rel=1e-4)
    assert torch.autograd.grad(loss, weight)[0].flatten().tolist() == [-n / 2, n / 2]


class Largest(TorchDispatchMode):
    """The number of elements in the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, tuple | list) else (out,):
            if isinstance(t, Tensor):
                self.n = max(self.n, t.numel())
        return out


def test_logits_are_never_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, targets = draw(200, 4, 50, dtype=torch.float32)
    whole = 200 * 50
    with Largest() as seen:
        F.cross_entropy(hidden @ weight.T, targets).backward()
    assert seen.n == whole  # the meter works
    monkeypatch.setattr(module, "LOGITS_PER_SLICE", whole // 10)
    operator_body = module._loss_and_gradients._init_fn  # a dispatch mode does not look inside an operator
    with Largest() as seen, torch.no_grad():
        operator_body(hidden, weight, targets, -100, True)
    assert seen.n == whole // 10


def test_a_product_has_many_rows_whatever_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CPUs, where the cache would have room for no more than one row."""
    monkeypatch.setattr(module, "LOGITS_IN_CACHE", 1)
    hidden, weight, targets = draw(module.ROWS_OF_A_PRODUCT + 9, 4, 50, dtype=torch.float32)
    with Largest() as seen, torch.no_grad():
        module._loss_and_gradients._init_fn(hidden, weight, targets, -100, True)
    assert seen.n == module.ROWS_OF_A_PRODUCT * 50


def test_compiles_without_graph_breaks() -> None:
    hidden, weight, targets = draw(20, 8, 30, 0.2)

    def loss_of(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        return linear_cross_entropy(hidden * 2, weight, targets) * 3

    compiled = torch.compile(loss_of, fullgraph=True, backend="aot_eager")
    pairs = (with_gradients(f(hidden, weight, targets), hidden, weight) for f in (compiled, loss_of))
    for a, b in zip(*pairs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("needs_gradient", [True, False])
@pytest.mark.parametrize("n", [0, 6])
def test_is_a_well_formed_operator(n: int, needs_gradient: bool) -> None:
    hidden, weight, targets = (t.detach().to(DEVICE) for t in draw(n, 4, 9, 0.2))
    for h, w in (
        (hidden, weight),
        (hidden.T.contiguous().T, weight),
        (hidden, weight.float()),
        (hidden.half(), weight),
    ):
        h, w = (t.clone().requires_grad_(needs_gradient) for t in (h, w))
        torch.library.opcheck(torch.ops.ematrace.linear_cross_entropy.default, (h, w, targets, -100, needs_gradient))


def test_arguments_that_disagree_are_refused() -> None:
    hidden, weight, targets = draw(6, 4, 9)
    for bad, message in (
        ((hidden, weight, targets[:5]), r"hidden \(6, 4\) and targets \(5,\) disagree"),
        ((hidden, weight[:, :3], targets), r"hidden \(6, 4\) and weight \(9, 3\) disagree"),
        ((hidden, weight[0], targets), r"hidden \(6, 4\) and weight \(4,\) disagree"),
    ):
        with pytest.raises(ValueError, match=message):
            linear_cross_entropy(*bad)
    with pytest.raises(ValueError, match="reduction must be 'mean' or 'sum', got 'none'"):
        linear_cross_entropy(hidden, weight, targets, reduction="none")  # type: ignore[arg-type]


# The Triton kernel: on a GPU where there is one, under Triton's interpreter otherwise.


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("vocabulary", "width"), [(1, 64), (70, 70), (70, 128), (5000, 5056)])
@pytest.mark.parametrize("needs_gradient", [True, False])
def test_kernel_equals_torch(dtype: torch.dtype, vocabulary: int, width: int, needs_gradient: bool) -> None:
    """Columns past the vocabulary hold rubbish, which must neither count nor survive in the gradient."""
    softmax_loss = pytest.importorskip("ematrace.ops.cross_entropy_triton").softmax_loss
    rng = torch.Generator().manual_seed(vocabulary)
    logits = (torch.randn(5, width, generator=rng) * 3).to(dtype)
    logits[0, vocabulary - 1] = 16.0  # the largest comes last
    logits[:, vocabulary:] = math.nan
    targets = torch.randint(vocabulary, (5,), generator=rng)
    targets[2] = -100
    exact = logits[:, :vocabulary].double().requires_grad_()
    expected = F.cross_entropy(exact, targets, reduction="sum")
    (grad,) = torch.autograd.grad(expected, exact)
    loss, out = softmax_loss(logits.clone().to(DEVICE), targets.to(DEVICE), vocabulary, -100, needs_gradient)
    torch.testing.assert_close(loss.cpu().double(), expected.detach(), rtol=1e-5, atol=1e-5)
    if needs_gradient:
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(
            out[:, :vocabulary].cpu().double(), grad, rtol=max(2 * eps, 1e-5), atol=max(1e-7, eps**2)
        )
        assert not out[:, vocabulary:].any()
        assert not out[2].any()


def test_kernel_makes_a_target_outside_the_vocabulary_visible() -> None:
    softmax_loss = pytest.importorskip("ematrace.ops.cross_entropy_triton").softmax_loss
    for outside in (64, 10**6, -1):
        logits = torch.zeros(2, 64, device=DEVICE)
        assert softmax_loss(logits, torch.tensor([3, outside], device=DEVICE), 64, -100, False)[0].isnan()


def test_target_outside_the_vocabulary_is_refused_on_cpus() -> None:
    hidden, weight, targets = draw(6, 4, 9)
    for outside in (9, -1):
        with pytest.raises((RuntimeError, IndexError)):
            linear_cross_entropy(hidden, weight, torch.full_like(targets, outside))


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("vocabulary", [64, 101])
def test_on_the_gpu(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, vocabulary: int) -> None:
    monkeypatch.setattr(module, "LOGITS_PER_SLICE", 1000)
    hidden, weight, targets = (t.detach().to(DEVICE) for t in draw(50, 16, vocabulary, 0.2, dtype))
    exact = [t.double().requires_grad_() for t in (hidden, weight)]
    torchs = with_gradients(F.cross_entropy(exact[0] @ exact[1].T, targets), *exact)
    hidden, weight = hidden.requires_grad_(), weight.requires_grad_()
    ours = with_gradients(linear_cross_entropy(hidden, weight, targets), hidden, weight)
    tolerance = {torch.bfloat16: 0.1, torch.float32: 1e-4, torch.float64: 1e-12}[dtype]
    for a, b in zip(ours, torchs, strict=True):
        assert (a.double() - b).norm() < tolerance * b.norm()
