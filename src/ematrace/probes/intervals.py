"""Confidence intervals of proportions (over tokens) and of means (over seeds)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Values = Sequence[float] | NDArray[np.floating]
Interval = tuple[float, float]


def wilson_interval(k: int, n: int, confidence: float = 0.95) -> Interval:
    """Wilson score interval of a proportion, ``k`` successes in ``n`` trials.

    (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n) with p = k/n. Nothing observed (n = 0) gives (0, 1).

    >>> tuple(round(end, 4) for end in wilson_interval(81, 263))
    (0.2553, 0.3662)
    """
    _check_counts(k, n)
    z = _normal_quantile(confidence)
    if n == 0:
        return 0.0, 1.0
    p = k / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    # The closed form gives exactly 0 at k = 0 and 1 at k = n; rounding does not.
    return (0.0 if k == 0 else centre - half), (1.0 if k == n else centre + half)


def newcombe_difference_interval(k1: int, n1: int, k2: int, n2: int, confidence: float = 0.95) -> Interval:
    """Score interval of p1 - p2 for two independent proportions (Newcombe 1998, method 10).

    d - sqrt((p1-l1)² + (u2-p2)²) to d + sqrt((u1-p1)² + (p2-l2)²), with d = p1 - p2 and (l, u) the Wilson
    intervals. No trials on either side give (-1, 1).
    """
    l1, u1 = wilson_interval(k1, n1, confidence)
    l2, u2 = wilson_interval(k2, n2, confidence)
    if n1 == 0 or n2 == 0:
        return -1.0, 1.0
    p1, p2 = k1 / n1, k2 / n2
    return p1 - p2 - math.hypot(p1 - l1, u2 - p2), p1 - p2 + math.hypot(u1 - p1, p2 - l2)


def seed_interval(values: Values, confidence: float = 0.95) -> Interval:
    """Student-t interval of the mean, mean ± t_{n-1} s / sqrt(n); one value shows no spread: (nan, nan)."""
    x = _check_values(values)
    _normal_quantile(confidence)
    if x.size == 1:
        return math.nan, math.nan
    return _t_interval(float(x.mean()), float(x.std(ddof=1)) / math.sqrt(x.size), x.size - 1.0, confidence)


def paired_difference_interval(a: Values, b: Values, confidence: float = 0.95) -> Interval:
    """Student-t interval of the mean of a - b, where a[i] and b[i] come from the same seed."""
    x, y = _check_values(a), _check_values(b)
    if x.size != y.size:
        raise ValueError(f"paired values must have equal length, got {x.size} and {y.size}")
    return seed_interval(x - y, confidence)


def welch_difference_interval(a: Values, b: Values, confidence: float = 0.95) -> Interval:
    """Welch interval of mean(a) - mean(b), unpaired, unequal variances; a side of one value: (nan, nan)."""
    x, y = _check_values(a), _check_values(b)
    _normal_quantile(confidence)
    if x.size == 1 or y.size == 1:
        return math.nan, math.nan
    vx, vy = float(x.var(ddof=1)) / x.size, float(y.var(ddof=1)) / y.size
    difference = float(x.mean() - y.mean())
    if vx + vy == 0:
        return difference, difference
    # Welch-Satterthwaite, on shares of the variance so that tiny variances do not underflow when squared.
    sx, sy = vx / (vx + vy), vy / (vx + vy)
    df = 1 / (sx**2 / (x.size - 1) + sy**2 / (y.size - 1))
    return _t_interval(difference, math.sqrt(vx + vy), df, confidence)


def _t_interval(mean: float, standard_error: float, df: float, confidence: float) -> Interval:
    half = float(stats.t.ppf(0.5 + confidence / 2, df)) * standard_error
    return mean - half, mean + half


def _normal_quantile(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    return float(stats.norm.ppf(0.5 + confidence / 2))


def _check_counts(k: int, n: int) -> None:
    if not 0 <= k <= n:
        raise ValueError(f"counts must satisfy 0 <= k <= n, got k={k}, n={n}")


def _check_values(values: Values) -> NDArray[np.float64]:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or x.size == 0 or not np.isfinite(x).all():
        raise ValueError("values must be a non-empty one-dimensional sequence of finite numbers")
    return x
