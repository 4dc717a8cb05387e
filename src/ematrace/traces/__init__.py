"""Exponential moving averages of sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.signal import lfilter

__all__ = ["ema"]


def ema(x: ArrayLike, alpha: float, axis: int = 0) -> NDArray[Any]:
    """h_t = (1 - alpha) h_{t-1} + alpha x_t along `axis`, with h_{-1} = 0.

    float32 in, float32 out; everything else is computed and returned in float64.

    >>> ema([1.0, 0.0, 0.0], alpha=0.5)
    array([0.5  , 0.25 , 0.125])
    """
    if not 0.0 <= alpha <= 1.0:  # also catches NaN
        raise ValueError(f"alpha must lie in [0, 1], got {alpha}")
    x = np.asarray(x)
    if x.dtype != np.float32:
        x = x.astype(np.float64)
    if x.ndim == 0:
        raise ValueError("ema needs a sequence, got a scalar")
    if x.size == 0:  # lfilter refuses an empty axis
        return x.copy()
    # Coefficients in x's dtype: float64 ones would silently promote a float32 sequence.
    b = np.array([alpha], dtype=x.dtype)
    a = np.array([1.0, alpha - 1.0], dtype=x.dtype)
    return np.asarray(lfilter(b, a, x, axis=axis))
