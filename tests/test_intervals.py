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
    bootstrap_shares,
    crossed_interval,
    effective_trials,
    equivalence_p_value,
    holm_adjusted,
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


def test_newcombe_matches_statsmodels():
    proportion = pytest.importorskip("statsmodels.stats.proportion")
    for counts in [(56, 70, 48, 80), (5, 56, 0, 29), (3, 3, 1, 900), (640_000, 1_000_000, 639_000, 1_000_000)]:
        expected = proportion.confint_proportions_2indep(*counts, method="newcomb")
        assert newcombe_difference_interval(*counts) == pytest.approx(expected, abs=1e-9)


def test_holm_matches_statsmodels(monkeypatch):
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    monkeypatch.setattr("gc.collect", lambda: 0)  # called each time: 0.4 s where torch has been imported
    rng = np.random.default_rng(1)
    for _ in range(20):
        p = rng.random(9) ** 3
        assert holm_adjusted(p) == pytest.approx(multitest.multipletests(p, method="holm")[1])


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


def grouped_tokens(rng: np.random.Generator, sentences: int, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """Right answers and tokens of sentences, each with a share of its own around .7."""
    lengths = rng.integers(3, 12, sentences)
    shares = rng.beta(0.7 / spread, 0.3 / spread, sentences)
    return rng.binomial(lengths, shares), lengths


def test_bootstrap_of_sentences_is_scipys():
    right, tokens = grouped_tokens(np.random.default_rng(0), 300, spread=0.5)
    ours = bootstrap_shares(right, tokens, resamples=4000)

    def share(r, t, axis=-1):
        return r.sum(axis) / t.sum(axis)

    theirs = stats.bootstrap(
        (right, tokens), share, n_resamples=4000, paired=True, vectorized=True, method="percentile", rng=1
    )
    assert ours.std() == pytest.approx(theirs.standard_error, rel=0.06)
    assert tuple(np.quantile(ours, (0.025, 0.975))) == pytest.approx(tuple(theirs.confidence_interval), abs=0.004)


@pytest.mark.parametrize("spread", [0.2, 1.0])
def test_effective_trials_give_intervals_that_cover_where_wilsons_over_tokens_do_not(spread):
    rng = np.random.default_rng(1)
    covered = {"tokens": 0, "sentences": 0}
    runs = 300
    for _ in range(runs):
        right, tokens = grouped_tokens(rng, 250, spread)
        n, p = int(tokens.sum()), right.sum() / tokens.sum()
        for name, items in (("tokens", n), ("sentences", int(effective_trials(right, tokens)))):
            half = 1.96 * math.sqrt(p * (1 - p) / items)
            covered[name] += p - half <= 0.7 <= p + half
    assert covered["sentences"] / runs == pytest.approx(0.95, abs=0.035)
    assert covered["tokens"] / runs < 0.85


def test_effective_trials_of_independent_tokens_are_about_all_of_them():
    rng = np.random.default_rng(2)
    tokens = np.full(3000, 7)
    found = [int(effective_trials(rng.binomial(7, 0.7, 3000), tokens)) for _ in range(5)]
    assert np.mean(found) == pytest.approx(21000, rel=0.1)
    assert max(found) <= 21000


def test_effective_trials_by_column_and_without_scatter():
    right = np.array([[3, 0, 2], [5, 0, 1], [4, 0, 0], [2, 0, 2]])
    tokens = np.array([[3, 2, 2], [5, 0, 2], [4, 3, 0], [2, 1, 2]])
    every = effective_trials(right, tokens)
    assert every.tolist() == [int(effective_trials(right[:, i], tokens[:, i])) for i in range(3)]
    assert every[0] == 4, "all right: a sentence counts once"
    assert every[1] == 3, "all wrong, in three sentences"
    assert effective_trials(np.array([[0], [0]]), np.array([[0], [0]])).tolist() == [0]


@pytest.mark.parametrize("margin", [0.005, 0.01, 0.03])
def test_equivalence_is_statsmodels_tost(margin):
    ttost_paired = pytest.importorskip("statsmodels.stats.weightstats").ttost_paired
    rng = np.random.default_rng(3)
    a = rng.normal(0.97, 0.01, 20)
    b = a + rng.normal(0.002, 0.01, 20)
    assert equivalence_p_value(a, b, margin) == pytest.approx(ttost_paired(a, b, -margin, margin)[0], rel=1e-9)


def test_equivalence_agrees_with_the_90_percent_interval():
    rng = np.random.default_rng(4)
    outcomes = set()
    for _ in range(50):
        a, b = rng.normal(0, 1, 12), rng.normal(0, 1, 12)
        low, high = paired_difference_interval(a, b, confidence=0.9)
        inside = low > -1.0 and high < 1.0
        assert (equivalence_p_value(a, b, margin=1.0) < 0.05) == inside
        outcomes.add(inside)
    assert outcomes == {True, False}


def test_equivalence_edges():
    assert equivalence_p_value([0.5, 0.5], [0.5, 0.5], 0.01) == 0.0
    assert equivalence_p_value([0.6, 0.6], [0.5, 0.5], 0.01) == 1.0
    assert math.isnan(equivalence_p_value([0.5], [0.5], 0.01))
    for margin in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="margin"):
            equivalence_p_value([1.0, 2.0], [1.0, 2.5], margin)
    with pytest.raises(ValueError, match="equal length"):
        equivalence_p_value([1.0, 2.0], [1.0], 0.1)


@pytest.mark.parametrize(("rows", "columns"), [(0.01, 0.05), (0.05, 0.01)])
def test_crossed_interval_covers_the_mean_as_often_as_it_says(rows, columns):
    """Over other seeds and other text; Student's over seeds alone does not, where the text varies."""
    rng = np.random.default_rng(6)
    covered = seeds_alone = 0
    for _ in range(400):
        y = rng.normal(0, rows, (5, 1)) + rng.normal(0, columns, (1, 32)) + rng.normal(0, 0.01, (5, 32))
        low, high = crossed_interval(y)
        covered += low <= 0 <= high
        low, high = seed_interval(y.mean(1))
        seeds_alone += low <= 0 <= high
    assert stats.binomtest(covered, 400, 0.95, alternative="less").pvalue > 0.01
    assert (seeds_alone < 0.9 * 400) == (columns > rows)


def test_crossed_interval_is_never_narrower_than_that_of_the_rows():
    same = np.array([[0.1] * 4, [0.2] * 4, [0.4] * 4])
    assert crossed_interval(same) == pytest.approx(seed_interval([0.1, 0.2, 0.4]))
    assert np.isnan(crossed_interval(same[:1])).all()
    assert np.isnan(crossed_interval(same[:, :1])).all()
