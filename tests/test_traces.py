"""ema_traces against scipy's filter: y_t = b x_t - a_1 y_{t-1} with b = alpha and a_1 = alpha - 1."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.signal import lfilter

from ematrace.traces import ema_traces

BACKENDS = ("reference", "chunked", "numba", "auto")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("T", [1, 4, 31, 32, 33, 500, 2049])
def test_is_the_filter_of_scipy(backend: str, T: int) -> None:
    alphas = (0.5, 0.075, 0.02, 1.0, 0.0)
    x = np.random.default_rng(T).normal(size=(3, T, 5))
    traces, state = ema_traces(torch.from_numpy(x), alphas, backend=backend)
    expected = np.stack([lfilter([a], [1.0, a - 1.0], x, axis=1) for a in alphas])
    np.testing.assert_allclose(traces.numpy(), expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(state.numpy(), expected[:, :, -1], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("backend", BACKENDS)
def test_impulse_response(backend: str) -> None:
    x = torch.zeros(1, 201, 1, dtype=torch.float64)
    x[0, 0] = 1.0
    h = ema_traces(x, 0.02, backend=backend)[0].flatten().tolist()
    # C28: what the slow trace keeps of one token, relative to how it came in.
    assert h[0] == pytest.approx(0.02)
    assert h[50] / h[0] == pytest.approx(0.98**50)
    assert h[200] / h[0] == pytest.approx(0.98**200)
