"""The Triton kernels at the borders of their tiles, and on zeros, ties and numbers that are not finite.

Against plain torch in float64 on the CPU. The kernels run on a GPU where there is one, else under Triton's interpreter.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ematrace.kernels import gpu_kernels_are_on
from ematrace.ops import cross_entropy, gelu_topk, gelu_topk_balanced, topk
from ematrace.traces import ema_traces, operator

triton_scan = pytest.importorskip("ematrace.traces.triton_scan")
topk_triton = pytest.importorskip("ematrace.ops.topk_triton")
softmax_loss = pytest.importorskip("ematrace.ops.cross_entropy_triton").softmax_loss
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAN, INF = math.nan, math.inf
GUARD = 4096  # numbers on either side of what a kernel writes
pytestmark = [
    pytest.mark.skipif(DEVICE == "cpu" and not triton_scan.INTERPRETED, reason="no GPU and no TRITON_INTERPRET=1"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # numpy, behind the interpreter, on infinities
]


@pytest.fixture(autouse=True)
def _guards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a kernel should write but does not is NaN, and what it writes outside of its tensors is found."""
    around: list[Tensor] = []
    allocate = Tensor.new_empty

    def guarded(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
        fresh = torch.full((2 * GUARD + shape.numel(),), NAN, dtype=dtype, device=device)
        around.extend([fresh[:GUARD], fresh[GUARD + shape.numel() :]])
        return fresh[GUARD : GUARD + shape.numel()].view(shape)

    def new_empty(self: Tensor, *size: Any, dtype: torch.dtype | None = None, **other: Any) -> Tensor:
        if other:  # not for us: the interpreter's own
            return allocate(self, *size, **other)
        shape = torch.Size(size[0] if size and not isinstance(size[0], int) else size)
        return guarded(shape, dtype or self.dtype, self.device)

    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "new_empty", new_empty)
        patch.setattr(torch, "empty_like", lambda t, **_: guarded(t.shape, t.dtype, t.device))
        yield
    assert all(t.isnan().all() for t in around)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def close(ours: Tensor, expected: Tensor, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Not finite at the same places (infinity or NaN, which of the two is left to the backend), close elsewhere."""
    ours, expected = ours.detach().cpu().double(), expected.detach().double()
    assert torch.equal(ours.isfinite(), expected.isfinite())
    torch.testing.assert_close(*(torch.where(t.isfinite(), t, 0.0) for t in (ours, expected)), rtol=rtol, atol=atol)


# Traces


def traces_of(backend: str, x: Tensor, alphas: Tensor, state: Tensor, learned: bool = False) -> Any:
    """Traces, last state, and the gradients of x, of the state and of learned rates."""
    place = {"device": DEVICE} if backend == "triton" else {"dtype": torch.float64}
    x, alphas, state = (t.clone().to(**place) for t in (x, alphas, state))
    leaves = [t.requires_grad_() for t in ((x, state, alphas) if learned else (x, state))]
    traces, last = ema_traces(x, alphas, state, backend=backend)
    weights = torch.linspace(-1, 1, traces.numel(), dtype=torch.float64).view(traces.shape).sin().to(traces)
    return traces, last, *torch.autograd.grad([traces, last], leaves, [weights, torch.ones_like(last)])


FIXED = ((1, 65), (16, 64), (31, 3), (32, 2), (33, 1), (49, 2), (65, 2))  # tiles of 32 steps, backward of 16
LEARNED = ((2, 1), (15, 63), (16, 64), (17, 65), (47, 5), (48, 1))  # tiles of 16 steps


@pytest.mark.parametrize(("T", "D", "learned"), [*((*e, False) for e in FIXED), *((*e, True) for e in LEARNED)])
def test_traces_at_the_borders_of_tiles(T: int, D: int, learned: bool) -> None:
    A, B = (1, 1) if D > 60 else (2, 2 if T < 20 else 1)
    arguments = (draw(B, T, D), torch.tensor([0.03, 0.7])[:A], draw(A, B, D), learned)
    for ours, expected in zip(traces_of("triton", *arguments), traces_of("reference", *arguments), strict=True):
        close(ours, expected, atol=2e-6 * max(1.0, expected.abs().max().item()))


@pytest.mark.parametrize("learned", [False, True])
def test_what_is_not_finite_stays_in_its_channel_and_its_future(learned: bool) -> None:
    """And a channel of zeros, the last one, stays zero beside it."""
    x, alphas, state = draw(1, 37, 9), torch.tensor([0.0, 0.3, 1.0]), draw(3, 1, 9)
    x[..., 8] = state[..., 8] = 0.0
    clean = traces_of("reference", x, alphas, state)
    touched = torch.zeros(3, 1, 37, 9, dtype=torch.bool)
    for channel, (step, bad) in enumerate(((0, INF), (15, -INF), (16, NAN), (31, INF), (32, -INF), (36, NAN))):
        x[0, step, channel] = bad
        touched[:, 0, step:, channel] = True
    state[:, 0, 7] = torch.tensor([INF, -INF, NAN])
    touched[..., 7] = True
    for backend in ("triton", "reference"):
        traces, last, *gradients = traces_of(backend, x, alphas, state, learned)
        close(traces, torch.where(touched, NAN, clean[0]))
        close(last, torch.where(touched[:, :, -1], NAN, clean[1]))
        assert not traces[..., 8].any()
        for ours, expected in zip(gradients[:2], clean[2:], strict=True):  # in which x and the state have no part
            assert ours.isfinite().all()
            close(ours, expected)


def test_strides_of_batch_and_time() -> None:
    """Channels lie side by side, so that nothing is copied first."""
    base, weights, state = draw(4, 66, 5), draw(2, 4, 66, 5), draw(2, 2, 3)
    results = []
    for backend, place in (("triton", {"device": DEVICE}), ("reference", {"dtype": torch.float64})):
        x, alphas = base.to(**place)[::2, ::2, 1:4].requires_grad_(), torch.tensor([0.1, 0.6]).to(**place)
        traces, _ = ema_traces(x, alphas.requires_grad_(), state.to(**place), backend=backend)
        results.append((traces, *torch.autograd.grad(traces, (x, alphas), weights.to(traces)[:, ::2, ::2, 1:4])))
    for ours, expected in zip(*results, strict=True):
        close(ours, expected, atol=1e-5)


def test_error_does_not_grow_with_the_number_of_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounded once more in each tile, 300 tiles would be off by 5e-7. Tiles of two steps spare the interpreter."""
    for steps in ("FORWARD_STEPS", "BACKWARD_STEPS"):
        monkeypatch.setattr(triton_scan, steps, 2)
    x = torch.zeros(1, 600, 1, device=DEVICE, requires_grad=True)
    decay = (1 - 1e-3) ** torch.arange(600, dtype=torch.float64)
    traces, last = ema_traces(x, 1e-3, torch.full((1, 1, 1), 1 / 0.999, device=DEVICE), backend="triton")
    close(traces.flatten(), decay, rtol=1.5e-7, atol=0)
    (grad,) = torch.autograd.grad(last.sum(), x)
    close(grad.flatten(), 1e-3 * decay.flip(0), rtol=2e-7, atol=0)


# Top-k of GELU


TINY, BROKEN = 4, 6


def hard_rows(n_units: int, k: int, dtype: torch.dtype) -> Tensor:
    """Normal numbers; all equal; k + 1 ties in front of smaller ones, or behind them; tiny, large and broken ones."""
    tiny, most = torch.finfo(dtype).smallest_normal, torch.finfo(dtype).max
    rows = draw(7, n_units).to(dtype)
    rows[1] = 7.0
    rows[2] = torch.where(torch.arange(n_units) <= k, 8.0, 7.0)
    rows[3] = torch.where(torch.arange(n_units) < n_units - k - 1, 7.0, 8.0)
    # Down to numbers below the smallest normal one, which the interpreter cannot read in bfloat16.
    rows[TINY] = torch.arange(n_units) % 64 * tiny * (2 if dtype == torch.bfloat16 else 1 / 64)
    rows[5] = torch.tensor([most, -most, most / 2, 6.0]).repeat(n_units)[:n_units]
    rows[BROKEN, [0, n_units // 2, n_units - 2, n_units - 1]] = torch.tensor([NAN, -INF, INF, NAN], dtype=dtype)
    return rows


TOPK = (
    *((1023, torch.float32, 1022), (1024, torch.float16, 64), (1025, torch.float32, 1), (1025, torch.bfloat16, 64)),
    *((2049, torch.bfloat16, 2048), (3072, torch.float32, 192)),
)


@pytest.mark.parametrize(("n_units", "dtype", "k"), TOPK)
def test_top_k_at_the_borders_of_tiles(n_units: int, dtype: torch.dtype, k: int) -> None:
    u = hard_rows(n_units, k, dtype)
    z, log_sum = (t.cpu() for t in topk_triton.gelu_topk_forward(u.to(DEVICE), k, True))
    kept = topk.topk_mask(topk.gelu_rank(u), k)
    expected = torch.where(kept, F.gelu(u.double()), 0.0)
    assert (kept.sum(-1) == k).all()
    rtol = max(2 * torch.finfo(dtype).eps, 3e-6)  # the interpreter cuts bfloat16 instead of rounding it
    close(z[TINY], expected[TINY], rtol, atol=torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps)
    others = torch.arange(len(u)) != TINY
    close(z[others], expected[others], rtol, atol=2e-6)
    assert ((z != 0).sum(-1) == k)[[0, 1, 2, 3, BROKEN]].all()
    close(log_sum[:BROKEN], u[:BROKEN].double().logsumexp(-1, keepdim=True))
    assert not log_sum[BROKEN].isfinite()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("masked", [False, True])
def test_gradient_of_top_k_at_the_borders_of_tiles(dtype: torch.dtype, masked: bool) -> None:
    u = hard_rows(1025, 64, dtype)
    grad = draw(*u.shape, seed=1).to(dtype)
    z = gelu_topk(u, 1000) if masked else None  # negative units are kept, too
    expected = topk._gelu_topk_backward(grad.double(), u.double(), z, None, None, None, None)
    ours = topk_triton.gelu_topk_backward(*(t if t is None else t.to(DEVICE) for t in (grad, u, z)))
    close(ours, expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-5 if dtype == torch.float16 else 1e-6)


# The load-balance loss with its top-k


@pytest.mark.parametrize("mask", [None, [True, False, True], [False, False, False]])
@pytest.mark.parametrize(("n", "n_units", "k", "grad"), [(6, 65, 4, "ste"), (6, 65, 4, "masked"), (1, 1025, 1, "ste")])
def test_balanced_top_k(monkeypatch: Any, mask: list[bool] | None, n: int, n_units: int, k: int, grad: Any) -> None:
    monkeypatch.setattr(topk, "_on_triton", lambda u: u.dtype != torch.float64)
    results = []
    for place in ({"device": DEVICE}, {"dtype": torch.float64}):
        u = (3 * draw(n, 1, n_units)).to(**place).requires_grad_()
        counted = None if mask is None else torch.tensor((mask * 2)[:n], device=u.device).view(n, 1)
        z, loss = gelu_topk_balanced(u, k, grad, counted)
        weights = draw(n, 1, n_units, seed=1).to(z)
        results.append((z, loss, *torch.autograd.grad((z * weights).sum() + 5 * loss, u)))
    for ours, expected in zip(*results, strict=True):
        close(ours, expected, atol=2e-6)
    assert (results[0][1] == 0) == (mask is not None and not any(mask))


# Softmax and cross-entropy


@pytest.mark.parametrize("vocabulary", [1, 63, 64, 65, 4095, 4096, 4097, 8191, 8193, 12289])
def test_softmax_loss_at_the_borders_of_tiles(vocabulary: int) -> None:
    """Some words have probability 0, one row ignores its target, and past the vocabulary there is rubbish."""
    width = -vocabulary // 64 * -64
    logits, targets = 3 * draw(3, width), torch.tensor([vocabulary - 1, -100, vocabulary // 2])
    logits[:, 1:vocabulary:7] = -INF
    logits[2, vocabulary // 2] = 1.0
    logits[0, vocabulary - 1] = -2.0
    logits[:, vocabulary:] = NAN
    exact = logits[:, :vocabulary].double().requires_grad_()
    expected = F.cross_entropy(exact, targets, reduction="sum")
    (gradient,) = torch.autograd.grad(expected, exact)
    loss, ours = softmax_loss(logits.to(DEVICE), targets.to(DEVICE), vocabulary, -100, True)
    close(loss, expected)
    close(ours, F.pad(gradient, (0, width - vocabulary)), atol=1e-7)


def both_losses(logits: Tensor, targets: Tensor, ignored: int = -100) -> Iterator[tuple[Tensor, Tensor]]:
    """Loss and gradient, of the kernel and of plain torch."""
    n = logits.shape[1]
    for loss, gradient in (
        softmax_loss(logits.clone().to(DEVICE), targets.to(DEVICE), n, ignored, True),
        cross_entropy._softmax_loss(logits.double(), targets, n, ignored, True),
    ):
        yield loss.cpu(), gradient.cpu()


@pytest.mark.parametrize("bad", [INF, NAN, -INF])
@pytest.mark.parametrize("where", [0, 64])
def test_a_loss_that_is_not_finite_shows_it(bad: float, where: int) -> None:
    for target in (0, 64):
        logits = draw(3, 65)
        logits[1, where] = bad
        for loss, gradient in both_losses(logits, torch.tensor([3, target, 5])):
            assert loss.isfinite() == (bad == -INF and where != target)
            assert gradient[[0, 2]].isfinite().all()
            assert gradient[1].isfinite().all() == (bad == -INF)
    for loss, _ in both_losses(torch.full((1, 65), -INF), torch.tensor([2])):
        assert loss.isnan()


@pytest.mark.parametrize("bad", [-INF, INF, NAN])
def test_ignored_rows_count_for_nothing_whatever_is_in_them(bad: float) -> None:
    logits = draw(3, 65)
    logits[1, 7] = bad
    pairs = (both_losses(logits, torch.tensor([3, i, 5]), i) for i in (-100, 9))  # 9 is a word, too
    for loss, gradient in itertools.chain.from_iterable(pairs):
        close(loss, F.cross_entropy(logits[[0, 2]].double(), torch.tensor([3, 5]), reduction="sum"))
        assert not gradient[1].any()
        assert gradient.isfinite().all()


# The switch


class OnGpu(Tensor):
    """Says that it lies on a GPU, to those who choose a kernel by that."""

    is_cuda = True


@pytest.mark.parametrize(("setting", "on"), [(None, True), ("1", True), ("", True), ("0", False)])
def test_the_switch_chooses_kernels_or_plain_torch(
    monkeypatch: pytest.MonkeyPatch, setting: str | None, on: bool
) -> None:
    monkeypatch.delenv("EMATRACE_KERNELS", raising=False)
    if setting is not None:
        monkeypatch.setenv("EMATRACE_KERNELS", setting)
    monkeypatch.setattr("ematrace.kernels.numba_compiles", lambda: True)
    assert gpu_kernels_are_on() == on
    calls: list[Any] = []
    monkeypatch.setattr("ematrace.ops.cross_entropy_triton.softmax_loss", lambda *args: calls.append(args))
    for dtype, device in itertools.product((torch.float32, torch.float64), (OnGpu, Tensor)):
        used = on and dtype == torch.float32 and device is OnGpu
        t = torch.zeros(1, 5, 3, dtype=dtype).as_subclass(device)
        assert topk._on_triton(t) == used
        assert operator._choose("auto", t, None) == ("triton" if used else "numba" if on else "chunked")
        calls.clear()
        cross_entropy._softmax_loss(t[0], torch.zeros(5, dtype=torch.long), 3, -100, False)
        assert bool(calls) == used


def test_without_triton_everything_is_plain_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EMATRACE_KERNELS", raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)
    assert not gpu_kernels_are_on()
