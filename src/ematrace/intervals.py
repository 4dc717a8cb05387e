"""Confidence intervals of proportions (over tokens or sentences) and of means (over seeds), tests of differences and of
equivalence.

scipy.stats is imported inside the functions: it takes most of a second, and most commands need no interval.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

Values = Sequence[float] | NDArray[np.floating]
Floats = NDArray[np.float64]
Interval = tuple[float, float]
Counts = NDArray[np.integer]
RESAMPLES = 1000


def wilson_interval(k: int, n: int, confidence: float = 0.95) -> Interval:
    """Wilson score interval of a proportion, ``k`` successes in ``n`` trials; no trials give (0, 1).

    >>> tuple(round(end, 4) for end in wilson_interval(81, 263))
    (0.2553, 0.3662)
    """
    from scipy.stats import binomtest

    if not 0 <= k <= n:
        raise ValueError(f"counts must satisfy 0 <= k <= n, got k={k}, n={n}")
    _check_confidence(confidence)
    if n == 0:
        return 0.0, 1.0
    low, high = binomtest(k, n).proportion_ci(confidence, method="wilson")
    return float(low), float(high)


def newcombe_difference_interval(k1: int, n1: int, k2: int, n2: int) -> Interval:
    """95% score interval of p1 - p2 for two independent proportions (Newcombe 1998, method 10).

    d - sqrt((p1-l1)² + (u2-p2)²) to d + sqrt((u1-p1)² + (p2-l2)²), with d = p1 - p2 and (l, u) the Wilson
    intervals. No trials on either side give (-1, 1). Written out because statsmodels, which has it, imports pandas;
    the tests compare the two.
    """
    l1, u1 = wilson_interval(k1, n1)
    l2, u2 = wilson_interval(k2, n2)
    if n1 == 0 or n2 == 0:
        return -1.0, 1.0
    p1, p2 = k1 / n1, k2 / n2
    return p1 - p2 - math.hypot(p1 - l1, u2 - p2), p1 - p2 + math.hypot(u1 - p1, p2 - l2)


def bootstrap_shares(successes: Counts, trials: Counts, resamples: int = RESAMPLES) -> Floats:
    """The share of successes in each of `resamples` draws of whole groups, such as sentences, with replacement.

    `successes` and `trials` have a number per group; several columns give as many shares, over the same groups. A draw
    without trials gives nan. What is drawn depends on the number of groups alone.

    >>> shares = bootstrap_shares(np.array([0, 2, 3, 5]), np.array([2, 2, 5, 5]))
    >>> shares.shape, round(float(shares.mean()), 2)
    ((1000,), 0.71)
    """
    times = _times_drawn(len(trials), resamples)
    with np.errstate(invalid="ignore"):
        return np.asarray((times @ successes.astype(np.float32)) / (times @ trials.astype(np.float32)), np.float64)


@cache
def _times_drawn(groups: int, resamples: int) -> NDArray[np.float32]:
    """[resamples, groups] how often each group is drawn; the same for all shares of one set of sentences."""
    drawn = np.random.default_rng(0).integers(groups, size=(resamples, groups))
    rows = np.arange(resamples)[:, None] * groups
    return np.bincount((drawn + rows).ravel(), minlength=resamples * groups).reshape(resamples, -1).astype(np.float32)


def effective_trials(successes: Counts, trials: Counts) -> NDArray[np.int64]:
    """How many independent trials would scatter as much as these, which come in groups: p (1 - p) / var(p).

    The variance is that of `bootstrap_shares`; columns as there. Never more than there are trials. Where all succeed or
    all fail nothing scatters, and every group counts as one trial.

    >>> right, tokens = np.array([7, 0, 7, 7, 0, 7]), np.full(6, 7)  # all or nothing: a sentence is as good as a token
    >>> 4 <= effective_trials(right, tokens) <= 8
    np.True_
    """
    n, groups = trials.sum(0), (trials > 0).sum(0)
    p = successes.sum(0) / np.maximum(n, 1)
    squares = (bootstrap_shares(successes, trials) - p) ** 2
    variance = np.nansum(squares, axis=0) / np.maximum(np.isfinite(squares).sum(0), 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.floor(p * (1 - p) / variance)
    return np.asarray(np.where(variance > 0, np.clip(found, 1, n), groups), np.int64)


def seed_interval(values: Values, confidence: float = 0.95) -> Interval:
    """Student-t interval of the mean, mean ± t_{n-1} s / sqrt(n); a single value gives (nan, nan).

    >>> low, high = seed_interval([0.71, 0.74, 0.69])
    >>> round(low, 3), round(high, 3)
    (0.651, 0.776)
    """
    from scipy.special import stdtrit

    x = _check_values(values)
    _check_confidence(confidence)
    if x.size == 1:
        return math.nan, math.nan
    mean, standard_error = float(x.mean()), float(x.std(ddof=1) / math.sqrt(x.size))
    if standard_error == 0:
        return mean, mean
    # Bit for bit that of `stats.t.interval`, which takes thirty times as long; a report asks for thousands.
    low, high = (float(stdtrit(x.size - 1, tail)) for tail in ((1 - confidence) / 2, (1 + confidence) / 2))
    return low * standard_error + mean, high * standard_error + mean


def median_interval(values: Values, confidence: float = 0.95) -> Interval:
    """Interval of the median between two order statistics, whatever the distribution; (nan, nan) for too few values.

    The k-th smallest and the k-th largest, with the largest k for which each tail, P(Binomial(n, 1/2) < k), is at most
    (1 - confidence) / 2. For 95% it takes six values.

    >>> median_interval([5.0, 1.0, 2.0, 9.0, 3.0, 4.0])
    (1.0, 9.0)
    """
    x = np.sort(_check_values(values))
    _check_confidence(confidence)
    k, tail = 0, 0.0
    while tail + math.comb(x.size, k) / 2**x.size <= (1 - confidence) / 2:
        tail += math.comb(x.size, k) / 2**x.size
        k += 1
    return (float(x[k - 1]), float(x[-k])) if k else (math.nan, math.nan)


def paired_difference_interval(a: Values, b: Values, confidence: float = 0.95) -> Interval:
    """Student-t interval of the mean of a - b, where a[i] and b[i] come from the same seed."""
    x, y = _check_values(a), _check_values(b)
    if x.size != y.size:
        raise ValueError(f"paired values must have equal length, got {x.size} and {y.size}")
    return seed_interval(x - y, confidence)


def welch_difference_interval(a: Values, b: Values, confidence: float = 0.95) -> Interval:
    """Welch interval of mean(a) - mean(b), unpaired, unequal variances; a single value on a side gives (nan, nan)."""
    from scipy.stats import ttest_ind

    x, y = _check_values(a), _check_values(b)
    _check_confidence(confidence)
    if x.size == 1 or y.size == 1:
        return math.nan, math.nan
    difference = float(x.mean() - y.mean())
    if np.ptp(x) == np.ptp(y) == 0:
        return difference, difference
    with warnings.catch_warnings():
        # One side without spread is legitimate here (an accuracy of 1 on every seed).
        warnings.filterwarnings("ignore", "Precision loss", RuntimeWarning)
        low, high = ttest_ind(x, y, equal_var=False).confidence_interval(confidence)
    return float(low), float(high)


def crossed_interval(values: Floats) -> Interval:
    """95% Student-t interval of the mean of values [a, b] that vary by row and by column, such as by seed and by text.

    In y_ij = m + row_i + column_j + e_ij the mean has the variance (MS_rows + MS_columns - MS_error) / ab, with
    Satterthwaite's degrees of freedom. Never narrower than the rows alone give; (nan, nan) for one row or one column.

    >>> by_text = np.array([[0.1, 0.3, 0.2], [0.2, 0.4, 0.3]])
    >>> tuple(round(end, 2) for end in crossed_interval(by_text))
    (-0.39, 0.89)
    """
    from scipy.stats import t

    y = np.asarray(values, np.float64)
    a, b = y.shape
    if a == 1 or b == 1:
        return math.nan, math.nan
    mean, by_row, by_column = y.mean(), y.mean(1), y.mean(0)
    rest = y - by_row[:, None] - by_column[None, :] + mean
    rows, columns = b * by_row.var(ddof=1), a * by_column.var(ddof=1)
    error = (rest**2).sum() / ((a - 1) * (b - 1))
    total, df = rows + columns - error, rows**2 / (a - 1) + columns**2 / (b - 1) + error**2 / ((a - 1) * (b - 1))
    low, high = seed_interval(by_row)
    if total <= rows:
        return low, high
    half = float(t.ppf(0.975, total**2 / df)) * math.sqrt(total / (a * b))
    return min(low, float(mean) - half), max(high, float(mean) + half)


def fieller_interval(numerator: Values, denominator: Values, confidence: float = 0.95) -> Interval:
    """Fieller's interval of mean(numerator) / mean(denominator), where both have a value per seed.

    The ratios r for which the mean of a - r b does not differ from 0 by Student's test. (nan, nan) for a single seed,
    and where the denominator itself is not told from 0: the set is then no bounded interval.

    >>> tuple(round(end, 4) for end in fieller_interval([1.0, 1.1, 0.9], [2.0, 2.1, 2.0]))
    (0.3926, 0.5809)
    """
    from scipy.stats import t

    a, b = _check_values(numerator), _check_values(denominator)
    _check_confidence(confidence)
    if a.size != b.size:
        raise ValueError(f"paired values must have equal length, got {a.size} and {b.size}")
    if a.size == 1:
        return math.nan, math.nan
    square = float(t.ppf((1 + confidence) / 2, a.size - 1)) ** 2 / a.size
    (aa, ab), (_, bb) = np.outer((a.mean(), b.mean()), (a.mean(), b.mean())) - square * np.cov(a, b)
    if bb <= 0:
        return math.nan, math.nan
    half = math.sqrt(max(0.0, ab**2 - aa * bb))
    return float((ab - half) / bb), float((ab + half) / bb)


def mean_p_value(values: Values) -> float:
    """Two-sided p-value of Student's test that the mean is 0; without spread, 1 for a mean of 0 and else 0."""
    from scipy.stats import ttest_1samp

    x = _check_values(values)
    if x.size == 1:
        return math.nan
    if np.ptp(x) == 0:
        return 1.0 if x[0] == 0 else 0.0
    return float(ttest_1samp(x, 0.0).pvalue)


def holm_adjusted(p_values: Values) -> list[float]:
    """Holm's step-down p-values: below 0.05 where a difference is told from 0 with all the others tested too.

    >>> holm_adjusted([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    p = _check_values(p_values)
    order = np.argsort(p)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1)))
    return [float(value) for value in adjusted]


def equivalence_p_value(a: Values, b: Values, margin: float) -> float:
    """p-value of the paired TOST: below 0.05 where the mean of a - b is shown to lie within ± margin.

    The larger p-value of the two one-sided Student tests; a[i] and b[i] come from the same seed.

    >>> round(equivalence_p_value([0.97, 0.98, 0.96], [0.98, 0.97, 0.97], margin=0.03), 3)
    0.029
    """
    from scipy.stats import ttest_1samp

    x, y = _check_values(a), _check_values(b)
    if x.size != y.size:
        raise ValueError(f"paired values must have equal length, got {x.size} and {y.size}")
    if not margin > 0:
        raise ValueError(f"margin must be above 0, got {margin}")
    difference = x - y
    if x.size == 1:
        return math.nan
    if np.ptp(difference) == 0:
        return 0.0 if abs(difference[0]) < margin else 1.0
    lower = ttest_1samp(difference, -margin, alternative="greater").pvalue
    upper = ttest_1samp(difference, margin, alternative="less").pvalue
    return float(max(lower, upper))


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")


def _check_values(values: Values) -> NDArray[np.float64]:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or x.size == 0 or not np.isfinite(x).all():
        raise ValueError("values must be a non-empty one-dimensional sequence of finite numbers")
    return x
