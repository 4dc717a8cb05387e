"""torch.compile(fullgraph=True) on every path: no graph break, and the same numbers and gradients as without it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from ematrace.traces import EMATraces, ema_traces, operator


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def skip_without(backend: str) -> None:
    if backend == "triton" and (operator.triton_scan is None or not operator.triton_scan.INTERPRETED):
        pytest.skip("needs Triton's interpreter")


def outcome(function: Callable[..., Any], inputs: tuple[Tensor | None, ...]) -> list[Tensor]:
    """Outputs and gradients."""
    given = [None if t is None else t.detach().requires_grad_(t.is_floating_point()) for t in inputs]
    traces, last = function(*given)
    total = (traces * torch.linspace(0, 1, traces.shape[2])[:, None]).sum() + last.sum()
    return [traces, last, *torch.autograd.grad(total, [t for t in given if t is not None and t.requires_grad])]


def compare(function: Callable[..., Any], inputs: tuple[Tensor | None, ...], compiler: str, **options: Any) -> None:
    compiled = torch.compile(function, backend=compiler, fullgraph=True, **options)
    for ours, expected in zip(outcome(compiled, inputs), outcome(function, inputs), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("backend", "per_channel", "packed"),
    [  # the loop reads the offsets of packed sequences, which no graph can hold
        ("reference", False, False),
        ("chunked", False, False),
        ("chunked", False, True),
        ("chunked", True, True),
        ("numba", True, False),
        ("numba", False, True),
        ("triton", True, False),
        ("triton", False, True),
    ],
)
def test_whole_graph(backend: str, per_channel: bool, packed: bool) -> None:
    skip_without(backend)
    T = 5 if backend == "reference" else 35
    x, alphas = torch.randn(1, T, 2), torch.rand((2, 2) if per_channel else (2,))
    cu = torch.tensor([0, 4, 4, T]) if packed else None
    state = torch.randn(2, 3 if packed else 1, 2)
    run = lambda x, alphas, state, cu: ema_traces(x, alphas, state, cu, backend)  # noqa: E731
    compare(run, (x, alphas, state, cu), "aot_eager")


@pytest.mark.parametrize("backend", ["chunked", "numba", "triton"])
def test_numbers_as_rates_and_lengths_that_change(backend: str) -> None:
    skip_without(backend)
    compiled = torch.compile(lambda x: ema_traces(x, (0.5, 0.02), backend=backend), backend="aot_eager", fullgraph=True)
    for T in (40, 33):
        x = torch.randn(2, T, 2)
        torch.testing.assert_close(compiled(x), ema_traces(x, (0.5, 0.02), backend=backend), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["chunked", "numba", "triton"])
def test_bad_values_in_a_graph_give_nan(backend: str) -> None:
    """A graph has no values to refuse: what is not defined is NaN, never memory that happened to be there."""
    skip_without(backend)
    run = torch.compile(
        lambda x, alphas, cu: ema_traces(x, alphas, cu_seqlens=cu, backend=backend), backend="aot_eager", fullgraph=True
    )
    x, good = torch.randn(1, 9, 2), torch.tensor([0, 3, 3, 9])
    for offsets in (
        [0, 3, 3, 8],
        [1, 3, 3, 9],
        [0, 5, 3, 9],
        [-4, 3, 3, 9],
        [0, 3, 3, 10**9],
        [9, 9, 9, 9],
        [9, 5, 2, 0],
    ):
        traces, _ = run(x, torch.tensor([0.5, 0.1]), torch.tensor(offsets))
        assert traces.isnan().all(), offsets
    for rate in (1.5, -0.1, float("nan"), float("inf")):
        traces, last = run(x, torch.tensor([0.5, rate]), good)
        assert traces[1].isnan().all(), rate
        assert last[1, [0, 2]].isnan().all()
        torch.testing.assert_close(traces[0], ema_traces(x, 0.5, cu_seqlens=good)[0][0])
    torch.testing.assert_close(run(x, torch.tensor([0.5, 1.0]), good), ema_traces(x, [0.5, 1.0], cu_seqlens=good))


def test_autocast_outside_the_graph() -> None:
    x = torch.randn(2, 40, 3)
    for backend in ("chunked", "numba"):
        run = lambda x: ema_traces(x, 0.1, backend=backend)  # noqa: B023, E731
        compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.testing.assert_close(compiled(x), ema_traces(x, 0.1, backend="reference"), rtol=1e-5, atol=1e-6)


def test_forward_derivatives_by_auto() -> None:
    """The compiled CPU kernel has none, and torch would take the tangent for zero."""
    x = torch.randn(1, 9, 2)
    push = lambda x, backend: torch.func.jvp(lambda x: ema_traces(x, 0.3, backend=backend)[0], (x,), (x.cos(),))  # noqa: E731
    compiled = torch.compile(lambda x: push(x, "auto"), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), push(x, "reference"), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("learned", "with_state"), [(False, False), (True, True)])
def test_module_with_padding(learned: bool, with_state: bool) -> None:
    module = EMATraces([0.5, 0.1], learned=learned)
    mask = torch.ones(2, 20, dtype=torch.int64)
    mask[0, :7] = 0
    state = torch.randn(2, 2, 3) if with_state else None
    run = lambda x, state, mask: module(x, state=state, mask=mask)  # noqa: E731
    compare(run, (torch.randn(2, 20, 3), state, mask), "aot_eager")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.usefixtures("inductor")
def test_inductor() -> None:
    cu = torch.tensor([0, 4, 4, 70])
    run = lambda x, alphas, state, cu: ema_traces(x, alphas, state, cu, "chunked")  # noqa: E731
    compare(run, (torch.randn(1, 70, 3), torch.rand(2), torch.randn(2, 3, 3), cu), "inductor")
