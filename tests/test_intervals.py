"""Confidence intervals against published values, scipy's tests and statsmodels."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ematrace.intervals import (
    median_interval,
    newcombe_difference_interval,
    paired_difference_interval,
    seed_interval,
    welch_difference_interval,
    wilson_interval,
)


@pytest.mark.parametrize(
    ("k", "n", "interval"),
    [
        (0, 10, (0.0, 0.2775)),
        (81, 263, (0.2553, 0.3662)),
        (15, 148, (0.0624, 0.1605)),
        (1, 29, (0.0061, 0.1718)),
    ],
)
def test_wilson_matches_published_values(k, n, interval):
    """Newcombe 1998, Statistics in Medicine 17:857, method 3."""
    assert wilson_interval(k, n) == pytest.approx(interval, abs=5e-5)


@given(st.integers(1, 10**6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.999))
def test_wilson_ends_are_where_the_score_test_rejects(counts, confidence):
    """Each end p solves |k/n - p| = z sqrt(p(1-p)/n); mirrored counts give mirrored ends."""
    k, n = counts
    lo, hi = wilson_interval(k, n, confidence)
    z = stats.norm.ppf(0.5 + confidence / 2)
    assert 0 <= lo <= k / n <= hi <= 1
    for end in (lo, hi):
        assert (k / n - end) ** 2 == pytest.approx(z**2 * end * (1 - end) / n, rel=1e-5, abs=1e-12)
    assert wilson_interval(n - k, n, confidence) == pytest.approx((1 - hi, 1 - lo), abs=1e-12)


def test_wilson_covers_as_often_as_it_says():
    n, p = 40, np.linspace(0.02, 0.98, 97)
    ends = np.array([wilson_interval(k, n) for k in range(n + 1)])
    covered = (ends[:, :1] <= p) & (p <= ends[:, 1:])
    coverage = (stats.binom.pmf(np.arange(n + 1)[:, None], n, p) * covered).sum(axis=0)
    assert coverage.mean() == pytest.approx(0.95, abs=0.01)
    assert coverage.min() > 0.83


def test_wilson_edges():
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert wilson_interval(0, 7)[0] == 0.0
    assert wilson_interval(7, 7)[1] == 1.0
    for k, n in [(3, 2), (-1, 2), (0, -1)]:
        with pytest.raises(ValueError, match="0 <= k <= n"):
            wilson_interval(k, n)
    with pytest.raises(ValueError, match="confidence"):
        wilson_interval(1, 2, 95)


@pytest.mark.parametrize(
    ("counts", "interval"),
    [
        ((56, 70, 48, 80), (0.0524, 0.3339)),
        ((9, 10, 3, 10), (0.1705, 0.8090)),
        ((6, 7, 2, 7), (0.0582, 0.8062)),
        ((5, 56, 0, 29), (-0.0381, 0.1926)),
    ],
)
def test_newcombe_matches_published_values(counts, interval):
    """Newcombe 1998, Statistics in Medicine 17:873, Table II, method 10."""
    assert newcombe_difference_interval(*counts) == pytest.approx(interval, abs=5e-5)
    k1, n1, k2, n2 = counts
    assert newcombe_difference_interval(k2, n2, k1, n1) == pytest.approx((-interval[1], -interval[0]), abs=5e-5)


def test_newcombe_without_trials_knows_nothing():
    assert newcombe_difference_interval(0, 0, 3, 5) == (-1.0, 1.0)


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_newcombe_matches_statsmodels(confidence):
    proportion = pytest.importorskip("statsmodels.stats.proportion")
    for counts in [(56, 70, 48, 80), (5, 56, 0, 29), (3, 3, 1, 900), (640_000, 1_000_000, 639_000, 1_000_000)]:
        expected = proportion.confint_proportions_2indep(*counts, method="newcomb", alpha=1 - confidence)
        assert newcombe_difference_interval(*counts, confidence) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_seed_intervals_match_their_tests(confidence):
    """A mean is inside its interval exactly when the t test of scipy does not reject it."""
    rng = np.random.default_rng(4)
    a, b, c = rng.normal(0.8, 0.05, 6), rng.normal(0.7, 0.05, 6), rng.normal(0.6, 0.2, 9)
    for end in seed_interval(a.tolist(), confidence):
        assert stats.ttest_1samp(a, end).pvalue == pytest.approx(1 - confidence, rel=1e-9)
    for end in paired_difference_interval(a, b, confidence):
        assert stats.ttest_rel(a - end, b).pvalue == pytest.approx(1 - confidence, rel=1e-9)
    for end in welch_difference_interval(a, c, confidence):
        assert stats.ttest_ind(a - end, c, equal_var=False).pvalue == pytest.approx(1 - confidence, rel=1e-9)


def test_welch_by_hand():
    """Equal sizes and variances: Student with 2n - 2 degrees of freedom; no spread on one side: n - 1 of the other."""
    a, b = [1.0, 2.0, 3.0], [5.0, 6.0, 7.0]
    half = stats.t.ppf(0.975, 4) * math.sqrt(1 / 3 + 1 / 3)
    assert welch_difference_interval(a, b) == pytest.approx((-4 - half, -4 + half), rel=1e-12)
    half = stats.t.ppf(0.975, 2) * math.sqrt(1 / 3)
    assert welch_difference_interval(a, [1.0] * 5) == pytest.approx((1 - half, 1 + half), rel=1e-12)


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.99])
def test_median_interval_is_the_narrowest_that_covers(confidence):
    """Coverage of order statistics is that of a coin: P(k <= heads <= n - k)."""
    for n in range(1, 41):
        values = list(range(n, 0, -1))
        low, high = median_interval(values, confidence)
        k = 0 if math.isnan(low) else int(low)
        covered = [stats.binom.cdf(n - j, n, 0.5) - stats.binom.cdf(j - 1, n, 0.5) for j in range(1, n // 2 + 1)]
        enough = [j for j, share in enumerate(covered, 1) if share >= confidence - 1e-12]
        assert k == max(enough, default=0)
        assert math.isnan(high) if not k else high == n + 1 - k


def test_seed_interval_edges():
    assert all(map(math.isnan, seed_interval([0.5])))
    assert all(map(math.isnan, welch_difference_interval([0.5], [0.1, 0.2])))
    assert all(map(math.isnan, paired_difference_interval([0.5], [0.1])))
    assert seed_interval([0.5, 0.5, 0.5]) == (0.5, 0.5)
    assert welch_difference_interval([0.75, 0.75], [0.5, 0.5]) == (0.25, 0.25)
    for values in ([], [0.1, math.nan], [[0.1, 0.2]]):
        with pytest.raises(ValueError, match="finite numbers"):
            seed_interval(values)
    with pytest.raises(ValueError, match="equal length"):
        paired_difference_interval([0.1, 0.2], [0.1, 0.2, 0.3])
    with pytest.raises(ValueError, match="confidence"):
        seed_interval([0.1, 0.2], 0.0)
    with pytest.raises(ValueError, match="confidence"):
        welch_difference_interval([0.1, 0.2], [0.1, 0.3], 1.0)


def test_importing_the_module_leaves_scipy_stats_alone():
    code = "import sys, ematrace.intervals; sys.exit('scipy.stats' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
