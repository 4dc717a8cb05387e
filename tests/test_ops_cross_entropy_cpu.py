"""The compiled softmax loss of CPUs: against torch's own and closed forms in float64.

Small but for the last, since scripts/plant_defects.py runs them interpreted.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ematrace.ops import cross_entropy, linear_cross_entropy
from ops_support import CHOICES, calls_of, check_scratch, threads

kernels = pytest.importorskip("ematrace.ops.cross_entropy_cpu")
NAN, INF = math.nan, math.inf
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
IGNORED = -100


def draw(rows: int, vocabulary: int, dtype: torch.dtype = torch.float32, scale: float = 3.0) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(rows + vocabulary)
    logits = (scale * torch.randn(rows, vocabulary, generator=rng)).to(dtype)
    return logits, torch.randint(vocabulary, (rows,), generator=rng)


def ours(logits: Tensor, targets: Tensor, vocabulary: int | None = None) -> tuple[Tensor, Tensor]:
    """The logits stay as they are."""
    width = logits.shape[1] if vocabulary is None else vocabulary
    loss, grad = kernels.softmax_loss(logits.clone(), targets, width, IGNORED, True)
    assert loss.dtype == torch.float32
    assert grad.dtype == logits.dtype
    return loss, grad


def exact(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    z = logits.double().requires_grad_()
    loss = F.cross_entropy(z, targets, reduction="sum", ignore_index=IGNORED)
    return loss.detach(), torch.autograd.grad(loss, z)[0]


def check_gradient(grad: Tensor, expected: Tensor, logits: Tensor) -> None:
    """Rounded once to its dtype, after a few roundings of float32, of which that of x - max grows with the distance."""
    z = logits.double()
    below = z.amax(1, keepdim=True) - z
    eps = torch.finfo(grad.dtype).eps
    least = torch.finfo(grad.dtype).smallest_normal if grad.dtype != torch.float16 else 2**-24
    allowed = (eps / 2 + 5e-7 + below * 2**-23) * expected.abs() + least
    assert ((grad.double() - expected).abs() <= allowed).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "vocabulary"), [(1, 1), (3, 2), (5, 70), (2, 33)])
def test_equals_float64(dtype: torch.dtype, rows: int, vocabulary: int) -> None:
    logits, targets = draw(rows, vocabulary, dtype)
    loss, grad = ours(logits, targets)
    expected_loss, expected_grad = exact(logits, targets)
    torch.testing.assert_close(loss.double(), expected_loss, rtol=1e-6, atol=1e-6)
    check_gradient(grad, expected_grad, logits)


def test_rows_of_the_gradient_sum_to_zero() -> None:
    _, grad = ours(*draw(6, 70))
    assert grad.double().sum(1).abs().max() < 1e-6


def test_the_largest_may_stand_anywhere_and_be_negative() -> None:
    for place in (0, 15, 36):
        logits = torch.full((1, 37), -300.0)
        logits[0, place] = -200.0
        loss, grad = ours(logits, torch.tensor([3]))
        torch.testing.assert_close(loss.double(), exact(logits, torch.tensor([3]))[0], rtol=1e-6, atol=0)
        assert grad[0, place] == 1


def test_large_logits_lose_nothing() -> None:
    """ln 2 is far below what float32 resolves beside a logit of 1e6, so the largest must be taken away first."""
    for level in (1e6, -1e6, 3e38):
        loss, grad = ours(torch.full((1, 2), level), torch.tensor([1]))
        assert loss.item() == pytest.approx(math.log(2), rel=1e-6)
        assert grad.tolist() == [[0.5, -0.5]]


def test_the_gradient_of_a_target_that_is_nearly_certain() -> None:
    """p - 1 = -q of all others together, though p itself is rounded to 1 - 2^-24 or 1."""
    for gap in (5.0, 12.0):
        _, grad = ours(torch.tensor([[0.0, -gap, -gap]]), torch.tensor([0]))
        q = 2 * math.exp(-gap) / (1 + 2 * math.exp(-gap))
        assert grad[0, 0].item() == pytest.approx(-q, rel=1e-4)


def test_small_probabilities_are_not_lost_beside_a_large_sum() -> None:
    """In float32 an addition of 2^-25 to 1 changes nothing, however often."""
    logits = torch.full((1, 65), math.log(2.0**-25))
    logits[0, 0] = 0.0
    loss, _ = ours(logits, torch.tensor([0]))
    assert loss.item() == pytest.approx(math.log1p(64 * 2.0**-25), rel=1e-5)


def test_bfloat16_is_rounded_to_nearest_and_ties_to_even() -> None:
    """Every float32 whose lower half is 0, the middle, or beside it, in a few binades and both signs."""
    upper = torch.tensor([0x3C00, 0x3C01, 0x3C02, 0x3F7F, 0x0080, 0xBC01, 0xBC02], dtype=torch.int64)
    lower = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=torch.int64)
    bits = (upper[:, None] * 2**16 + lower).flatten()
    values = bits.to(torch.uint32).view(torch.float32)
    rounded = [int(kernels.narrowed(x, 16)) for x in values.numpy()]
    assert rounded == values.bfloat16().view(torch.uint16).tolist()
    assert [int(kernels.narrowed(x, 0)) for x in values.numpy()] == bits.tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [NAN, -NAN, INF])
def test_a_row_that_is_not_finite_is_not_hidden(dtype: torch.dtype, bad: float) -> None:
    """As in torch: the loss and all of that row's gradient are NaN, the other rows are as they were."""
    logits, targets = draw(3, 40, dtype)
    expected = ours(logits, targets)[1]
    for place in (0, 17, 39, int(targets[1])):
        broken = logits.clone()
        broken[1, place] = bad
        loss, grad = ours(broken, targets)
        assert loss.isnan()
        assert exact(broken, targets)[0].isnan()
        assert grad[1].isnan().all()
        assert torch.equal(grad[::2], expected[::2])


@pytest.mark.parametrize("dtype", DTYPES)
def test_minus_infinity_is_a_probability_of_zero(dtype: torch.dtype) -> None:
    logits, targets = draw(3, 40, dtype)
    logits[:, 5], targets[:] = -INF, 7
    loss, grad = ours(logits, targets)
    torch.testing.assert_close(loss.double(), exact(logits, targets)[0], rtol=1e-6, atol=0)
    assert not grad[:, 5].any()
    targets[1] = 5
    loss, grad = ours(logits, targets)
    assert loss == INF
    assert grad[1, 5] == -1
    assert ours(torch.full((1, 9), -INF, dtype=dtype), targets[:1])[0].isnan()


@pytest.mark.parametrize("dtype", DTYPES)
def test_ignored_rows_are_zero_whatever_they_hold(dtype: torch.dtype) -> None:
    logits, targets = draw(4, 30, dtype)
    expected = exact(logits[::2], targets[::2])
    targets[1::2], logits[1], logits[3, 4] = IGNORED, INF, NAN
    loss, grad = ours(logits, targets)
    torch.testing.assert_close(loss.double(), expected[0], rtol=1e-6, atol=0)
    check_gradient(grad[::2], expected[1], logits[::2])
    assert not grad[1::2].any()


def test_columns_past_the_vocabulary_neither_count_nor_survive() -> None:
    logits, targets = draw(3, 70)
    wide = F.pad(logits, (0, 5), value=NAN)
    targets[2] = IGNORED
    loss, grad = ours(wide, targets, 70)
    narrow_loss, narrow_grad = ours(logits, targets)
    assert loss == narrow_loss
    assert torch.equal(grad, F.pad(narrow_grad, (0, 5)))


def test_no_rows() -> None:
    loss, grad = ours(*draw(0, 9))
    assert loss == 0
    assert grad.shape == (0, 9)


def test_without_a_gradient_the_loss_is_the_same() -> None:
    for dtype in DTYPES:
        logits, targets = draw(3, 40, dtype)
        assert kernels.softmax_loss(logits.clone(), targets, 40, IGNORED, False)[0] == ours(logits, targets)[0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_stay_where_no_gradient_is_needed(dtype: torch.dtype) -> None:
    logits, targets = draw(3, 40, dtype)
    targets[1], targets[targets >= 37] = IGNORED, 0
    before = logits.clone()
    _, same = kernels.softmax_loss(logits, targets, 37, IGNORED, False)
    assert torch.equal(logits, before)
    assert torch.equal(same, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_takes_the_place_of_the_logits(dtype: torch.dtype) -> None:
    logits, targets = draw(3, 40, dtype)
    _, grad = kernels.softmax_loss(logits, targets, 40, IGNORED, True)
    assert grad.data_ptr() == logits.data_ptr()


def test_strides() -> None:
    logits, targets = draw(6, 20)
    expected = ours(logits, targets)
    for z, y in ((logits.T.contiguous().T, targets), (logits, targets.repeat_interleave(2)[::2])):
        loss, grad = kernels.softmax_loss(z.clone(), y, 20, IGNORED, True)
        assert loss == expected[0]
        assert torch.equal(grad, expected[1])


@pytest.mark.parametrize("outside", [40, 10**6, -1])
def test_a_target_outside_of_the_vocabulary_is_refused(outside: int) -> None:
    logits, targets = draw(3, 48)
    targets[1] = outside
    with pytest.raises(IndexError, match="outside of the vocabulary of 40"):
        ours(logits, targets, 40)


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "LEAST", 1)
    logits, targets = draw(37, 33)
    targets[::5] = IGNORED
    results = []
    for n in (1, 2, 3, 5):
        with threads(n):
            results.append(ours(logits, targets))
    for others in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], others, strict=True))


def test_threads_do_not_share_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    check_scratch(monkeypatch, kernels, "softmax_rows", "e", lambda: ours(*draw(6, 9)))


@pytest.mark.parametrize(("setting", "dtype", "used"), CHOICES)
def test_switch_and_dtype_choose(monkeypatch: pytest.MonkeyPatch, setting: str, dtype: torch.dtype, used: bool) -> None:
    """Plain torch alone needs memory for the gradient."""
    calls, memory = calls_of(monkeypatch, kernels, ["softmax_loss"], setting), []
    of_slice = cross_entropy._softmax_loss
    monkeypatch.setattr(cross_entropy, "_softmax_loss", lambda *args: memory.append(args[5]) or of_slice(*args))
    hidden, weight = torch.zeros(3, 2, dtype=dtype, requires_grad=True), torch.zeros(9, 2, dtype=dtype)
    linear_cross_entropy(hidden, weight, torch.zeros(3, dtype=torch.long)).backward()
    assert bool(calls) == used
    assert [own is None for own in memory] == [used]


@pytest.mark.parametrize("ignored", [False, True])
def test_kernel_and_plain_torch_give_the_same(monkeypatch: pytest.MonkeyPatch, ignored: bool) -> None:
    """Of the whole operator, in several slices."""
    monkeypatch.setattr(cross_entropy, "LOGITS_PER_SLICE", 200)
    rng = torch.Generator().manual_seed(0)
    hidden = torch.randn(20, 8, generator=rng).requires_grad_()
    weight = torch.randn(30, 8, generator=rng).requires_grad_()
    targets = torch.randint(30, (20,), generator=rng)
    if ignored:
        targets[3:12] = IGNORED
    results = []
    for setting in ("1", "0"):
        monkeypatch.setenv("EMATRACE_KERNELS", setting)
        loss = linear_cross_entropy(hidden, weight, targets)
        results.append([loss.detach(), *torch.autograd.grad(loss, (hidden, weight))])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [8192, 50257])
@pytest.mark.parametrize("scale", [0.0, 1.0, 8.0])
def test_many_classes(dtype: torch.dtype, vocabulary: int, scale: float) -> None:
    logits, targets = draw(3, vocabulary, dtype, scale)
    loss, grad = ours(logits, targets)
    expected_loss, expected_grad = exact(logits, targets)
    torch.testing.assert_close(loss.double(), expected_loss, rtol=1e-6, atol=0)
    check_gradient(grad, expected_grad, logits)
