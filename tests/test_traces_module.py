"""EMATraces: padding anywhere equals the real steps alone, learned rates learn, half-lives halve."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ematrace.traces import EMATraces, ema_traces
from traces_oracle import closed_form


@st.composite
def padded(draw: st.DrawFn) -> dict[str, Any]:
    B, T, D = draw(st.integers(1, 3)), draw(st.integers(0, 50)), 2
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    where = draw(st.sampled_from(["left", "right", "anywhere", "nowhere", "everywhere"]))
    length = torch.randint(0, T + 1, (B, 1), generator=generator)
    t = torch.arange(T).expand(B, T)
    mask = {
        "left": t >= length,
        "right": t < length,
        "anywhere": torch.rand(B, T, generator=generator) < 0.6,
        "nowhere": t >= 0,
        "everywhere": t < 0,
    }[where]
    x = torch.randn(B, T, D, generator=generator, dtype=torch.float64)
    state = torch.randn(2, B, D, generator=generator, dtype=torch.float64) if draw(st.booleans()) else None
    return {"x": x.masked_fill(~mask[..., None], float("nan")), "mask": mask, "state": state}


@given(problem=padded(), learned=st.booleans(), per_channel=st.booleans())
def test_padding_is_as_if_it_were_not_there(problem: dict[str, Any], learned: bool, per_channel: bool) -> None:
    module = EMATraces([0.5, 0.02], 2 if per_channel and learned else None, learned).double()
    traces, last = module(**problem)
    x, mask, state = problem["x"], problem["mask"], problem["state"]
    assert torch.equal(traces[:, ~mask], torch.zeros_like(traces[:, ~mask]))
    for b in range(len(x)):
        row = None if state is None else state[:, b : b + 1]
        expected, expected_last = closed_form(x[b : b + 1, mask[b]], module.alphas, row)
        torch.testing.assert_close(traces[:, b, mask[b]], expected[:, 0], rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(last[:, b], expected_last[:, 0], rtol=1e-11, atol=1e-12)


@given(problem=padded())
@settings(max_examples=30)
def test_padded_bfloat16_is_rounded_once(problem: dict[str, Any]) -> None:
    problem["x"] = problem["x"].bfloat16()
    traces, last = EMATraces([0.5, 0.02])(**problem)
    expected, expected_last = EMATraces([0.5, 0.02])(**problem | {"x": problem["x"].double()})
    assert (traces.dtype, last.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(traces.double(), expected, rtol=2**-8, atol=1e-6)
    torch.testing.assert_close(last.double(), expected_last, rtol=1e-5, atol=1e-6)


def test_gradients_with_padding() -> None:
    module = EMATraces([0.4, 0.1], d_model=2, learned=True).double()
    mask = torch.tensor([[0, 1, 0, 1, 1], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0]])
    x = torch.randn(3, 5, 2, dtype=torch.float64, requires_grad=True)
    state = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)

    def run(x: torch.Tensor, state: torch.Tensor, logits: torch.Tensor) -> Any:
        return torch.func.functional_call(module, {"logits": logits}, (x, state), {"mask": mask})

    assert torch.autograd.gradcheck(run, (x, state, module.logits))


def test_without_padding_it_is_the_operator() -> None:
    x, state = torch.randn(1, 9, 3), torch.randn(2, 2, 3)
    cu = torch.tensor([0, 4, 9])
    for ours, expected in zip(EMATraces([0.5, 0.1])(x, state, cu), ema_traces(x, [0.5, 0.1], state, cu), strict=True):
        assert torch.equal(ours, expected)


def test_half_lives() -> None:
    module = EMATraces.from_half_life([1, 5, 400])
    torch.testing.assert_close(module.half_lives, torch.tensor([1.0, 5.0, 400.0], dtype=torch.float64))
    assert module.alphas[0].item() == pytest.approx(0.5)
    silence = torch.zeros(1, 400, 1, dtype=torch.float64)
    traces, _ = module(silence, torch.ones(3, 1, 1))
    halved = [traces[0, 0, 0], traces[1, 0, 4], traces[2, 0, 399]]
    assert [h.item() for h in halved] == pytest.approx([0.5] * 3, rel=1e-12)


@pytest.mark.parametrize("d_model", [None, 3])
def test_learned_rates_find_those_of_a_target(d_model: int | None) -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 60, 3)
    target = torch.tensor([0.9, 0.05]) if d_model is None else torch.tensor([[0.9, 0.5, 0.2], [0.05, 0.1, 0.3]])
    expected, _ = ema_traces(x, target)
    module = EMATraces([0.5, 0.3], d_model, learned=True)
    assert module.alphas.shape == target.shape
    assert torch.allclose(module.alphas[0], torch.tensor(0.5))
    optimiser = torch.optim.Adam(module.parameters(), lr=0.1)
    for _ in range(200):
        optimiser.zero_grad()
        loss = (module(x)[0] - expected).square().mean()
        loss.backward()
        optimiser.step()
    torch.testing.assert_close(module.alphas.detach(), target, rtol=0.01, atol=0.001)


def test_rates_survive_a_cast_of_the_model() -> None:
    module = EMATraces([0.02]).to(torch.bfloat16)
    assert module.alphas.tolist() == [0.02]
    assert not list(module.state_dict())
    x = torch.ones(1, 50, 1, dtype=torch.bfloat16)
    assert module(x)[1].item() == pytest.approx(1 - 0.98**50, rel=1e-5)


def test_repr_names_the_settings() -> None:
    assert repr(EMATraces([0.5, 0.02])) == "EMATraces(alphas=(0.5, 0.02), learned=False, backend='auto')"
    assert "d_model=4, learned=True" in repr(EMATraces(0.5, d_model=4, learned=True, backend="chunked"))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: EMATraces([]), "alphas must be a number"),
        (lambda: EMATraces([0.5, 1.5]), r"alphas must lie in \[0, 1\], got 1.5"),
        (lambda: EMATraces([1.0], learned=True), "between 0 and 1 to be learned, got 1.0"),
        (lambda: EMATraces([0.5], d_model=3), "needs learned=True"),
        (lambda: EMATraces.from_half_life([0.0]), "half_lives must be positive, got 0.0"),
        (lambda: EMATraces(0.5)(torch.zeros(1, 2, 3), mask=torch.ones(2, 2)), r"mask must be \[1, 2\], got \[2, 2\]"),
        (
            lambda: EMATraces(0.5)(torch.zeros(1, 2, 3), cu_seqlens=torch.tensor([0, 2]), mask=torch.ones(1, 2)),
            "mask and cu_seqlens exclude each other",
        ),
    ],
)
def test_bad_settings(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
