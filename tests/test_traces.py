"""Exponential moving averages, against the closed form h_t = sum_s alpha (1 - alpha)^(t - s) x_s."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from ematrace.traces import ema

Array = NDArray[np.float64]
rates = st.floats(0.0, 1.0)
numbers = st.floats(-1e3, 1e3)


def sequences(min_length: int = 0) -> st.SearchStrategy[Array]:
    return arrays(np.float64, st.tuples(st.integers(min_length, 12), st.just(3)), elements=numbers)


def closed_form(x: Array, alpha: float) -> Array:
    t = np.arange(len(x))
    age = t[:, None] - t[None, :]
    weights = np.where(age >= 0, alpha * (1.0 - alpha) ** np.maximum(age, 0), 0.0)
    return np.asarray(np.einsum("ts,s...->t...", weights, x))


@pytest.mark.parametrize("alpha", [0.5, 0.075, 0.02, 1.0, 0.0])
@pytest.mark.parametrize("shape", [(1,), (40,), (40, 5), (40, 5, 2)])
def test_closed_form(alpha: float, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).normal(size=shape)
    np.testing.assert_allclose(ema(x, alpha), closed_form(x, alpha), rtol=1e-12, atol=1e-13)


def test_impulse_response() -> None:
    x = np.zeros(201)
    x[0] = 1.0
    h = ema(x, 0.02)
    # C28: what the slow trace keeps of one token, relative to how it came in.
    assert h[0] == pytest.approx(0.02)
    assert h[50] / h[0] == pytest.approx(0.98**50)
    assert h[200] / h[0] == pytest.approx(0.98**200)


def test_rate_one_is_identity_and_rate_zero_is_silence() -> None:
    x = np.random.default_rng(0).normal(size=(9, 4))
    np.testing.assert_array_equal(ema(x, 1.0), x)
    np.testing.assert_array_equal(ema(x, 0.0), np.zeros_like(x))


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_axis(axis: int) -> None:
    x = np.random.default_rng(0).normal(size=(4, 5, 6))
    expected = np.moveaxis(closed_form(np.moveaxis(x, axis, 0), 0.3), 0, axis)
    np.testing.assert_allclose(ema(x, 0.3, axis=axis), expected, atol=1e-13)


@pytest.mark.parametrize(("given_dtype", "returned"), [("f4", "f4"), ("f8", "f8"), ("i8", "f8"), ("?", "f8")])
def test_dtype(given_dtype: str, returned: str) -> None:
    x = np.array([1, 0, 1], dtype=given_dtype)
    h = ema(x, 0.5)
    assert h.dtype == np.dtype(returned)
    np.testing.assert_allclose(h, [0.5, 0.25, 0.625])


@pytest.mark.parametrize("shape", [(0,), (0, 7), (7, 0)])
def test_empty(shape: tuple[int, ...]) -> None:
    h = ema(np.zeros(shape, dtype=np.float32), 0.5)
    assert h.shape == shape
    assert h.dtype == np.float32


def test_input_is_left_alone() -> None:
    x = np.ones(3)
    ema(x, 0.5)
    np.testing.assert_array_equal(x, np.ones(3))


@pytest.mark.parametrize("alpha", [-0.1, 1.1, float("nan")])
def test_rate_outside_the_unit_interval(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha must lie in"):
        ema([1.0], alpha)


def test_scalar_is_no_sequence() -> None:
    with pytest.raises(ValueError, match="scalar"):
        ema(1.0, 0.5)


@given(x=sequences(), alpha=rates, a=numbers, seed=st.integers(0, 9))
def test_linear(x: Array, alpha: float, a: float, seed: int) -> None:
    y = np.random.default_rng(seed).normal(size=x.shape)
    np.testing.assert_allclose(ema(a * x + y, alpha), a * ema(x, alpha) + ema(y, alpha), rtol=1e-9, atol=1e-6)


@given(x=sequences(min_length=1), y=sequences(), alpha=rates)
def test_concatenation(x: Array, y: Array, alpha: float) -> None:
    """A trace carries on: after x, each step of y sees x's last trace decayed by 1 - alpha once more."""
    decay = (1.0 - alpha) ** np.arange(1, len(y) + 1)
    expected = np.concatenate([ema(x, alpha), ema(y, alpha) + decay[:, None] * ema(x, alpha)[-1]])
    np.testing.assert_allclose(ema(np.concatenate([x, y]), alpha), expected, rtol=1e-9, atol=1e-9)
