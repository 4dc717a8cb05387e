"""How much of an earlier input a trace can hold: the mutual information of a linear-Gaussian mixture, in closed form.

Inputs x_t are independent N(0, 1), a channel at a time. A trace of rate a is h_t = Σ_k a (1-a)^k x_{t-k}, and whoever
reads it sees h_t + n with n the error of rounding to a number format, taken as independent noise. All is Gaussian, so

    I(x_{t-k}; y) = -1/2 ln(1 - c' C^-1 c),    C = Cov(y, y),  c = Cov(y, x_{t-k})

in nats per channel. It does not depend on the scale of the inputs, since rounding is relative.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import erf

PRECISION = {"exact": None, "float32": 24, "bfloat16": 8}
"""Bits of the significand, by number format."""
BINADES = 64


def vector_information(rates: Sequence[float], lag: int, number_format: str) -> float:
    """I(x_{t-lag}; traces of these rates at t): what one vector holds of an input.

    >>> round(vector_information([0.02], lag=0, number_format="exact"), 4)  # -1/2 ln(1 - a (2 - a))
    0.0202
    """
    a = np.array(rates)
    covariance = np.outer(a, a) / (1 - np.outer(1 - a, 1 - a)) + np.diag([noise_of(r, number_format) for r in rates])
    with_input = a * (1 - a) ** lag
    return -0.5 * math.log1p(-with_input @ np.linalg.solve(covariance, with_input))


def pair_information(rate: float, number_format: str) -> float:
    """I(x_s; h_s and h_{s-1}): what a sequence of traces holds of an input, whatever came after it.

    Two neighbours are enough: without rounding x_s = (h_s - (1-a) h_{s-1}) / a, and the information is infinite. With
    noise of variance s, and v the variance of a trace, 1 - c' C^-1 c is s (2v + s - a²) / (a² v + 2 v s + s²).
    """
    noise, variance = noise_of(rate, number_format), rate / (2 - rate)
    if not noise:
        return math.inf
    left = noise * (2 * variance + noise - rate**2) / (rate**2 * variance + 2 * variance * noise + noise**2)
    return -0.5 * math.log(left)


def noise_of(rate: float, number_format: str) -> float:
    """Variance of what rounding adds to a trace of inputs of variance 1."""
    bits = PRECISION[number_format]
    return 0.0 if bits is None else rounding_variance(math.sqrt(rate / (2 - rate)), bits)


def rounding_variance(std: float, bits: int) -> float:
    """Variance of the error when N(0, std²) is rounded to `bits` of significand.

    A 12th of the squared spacing of numbers, which is 2^(e+1-bits) from 2^e to 2^(e+1).

    >>> rounding_variance(2.0, 8) / rounding_variance(1.0, 8)
    4.0
    """
    top = math.ceil(math.log2(std)) + 5  # beyond 16 standard deviations there is nothing
    exponent = np.arange(top - BINADES, top)
    edges = erf(2.0 ** np.append(exponent, top) / (std * math.sqrt(2)))
    return float(np.diff(edges) @ 4.0 ** (exponent + 1 - bits) / 12)
