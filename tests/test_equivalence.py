"""Equivalence by k on made-up cells whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from cells_support import make_file, make_table
from ematrace.analysis.equivalence import MARGIN, METRICS, compare, compare_by_k
from ematrace.ledger import Direction, check_direction
from ematrace.results import Metric, Row, Selector

SEEDS = 20
TRUE = {0.02: -0.2, 0.08: 0.001, 0.16: 0.03}  # SPCN minus the EMA


def cells(seeds: int = SEEDS, sd: float = 0.01, grammar: str = "half_passives"):
    rng = np.random.default_rng(0)
    values = {}
    for k, shift in TRUE.items():
        for metric in METRICS:
            common = rng.normal(0.6, 0.1, seeds)  # what a seed's sentences do to both
            values[k, metric] = (common + shift + rng.normal(0, sd, seeds), common + rng.normal(0, sd, seeds))
    files = []
    for seed in range(seeds):
        for k in TRUE:
            rows = [
                Row({"features": name}, {m: Metric(float(values[k, m][i][seed]), "accuracy", 100) for m in METRICS})
                for i, name in enumerate(("spcn", "ema_onehot"))
            ]
            factors = {"grammar": grammar, "k": k}
            settings = {"grammar": {"drawn_seed": None if grammar == "half_passives" else seed}}
            files.append(make_file(*rows, experiment="k_by_grammar", seed=seed, factors=factors, settings=settings))
    return make_table(*files), values


def test_outcomes_are_what_was_made():
    outcomes = {(c.where["k"], c.metric): c.outcome for c in compare_by_k(cells()[0])}
    assert len(outcomes) == 9
    assert {outcomes[0.02, m] for m in METRICS} == {"different"}
    assert {outcomes[0.08, m] for m in METRICS} == {"same"}
    assert "same" not in {outcomes[0.16, m] for m in METRICS}, "the truth is on the margin"


def test_p_values_are_those_of_statsmodels_with_holm():
    multipletests = pytest.importorskip("statsmodels.stats.multitest").multipletests
    ttost_paired = pytest.importorskip("statsmodels.stats.weightstats").ttost_paired
    table, values = cells()
    found = compare_by_k(table)
    pairs = [values[c.where["k"], c.metric] for c in found]
    tost = [ttost_paired(a, b, -MARGIN, MARGIN)[0] for a, b in pairs]
    student = [stats.ttest_rel(a, b).pvalue for a, b in pairs]
    for ours, raw in (([c.p_same for c in found], tost), ([c.p_different for c in found], student)):
        np.testing.assert_allclose(ours, multipletests(raw, method="holm")[1], rtol=1e-9)
    for c, (a, b) in zip(found, pairs, strict=True):
        assert c.difference == pytest.approx((a - b).mean())
        assert c.interval == pytest.approx(tuple(stats.ttest_rel(a, b).confidence_interval()))


@pytest.mark.parametrize("margin", [0.005, 0.0083, 0.01])
def test_the_same_is_what_the_ledger_calls_within(margin: float):
    """The 95% interval lies inside; at the second margin only that of 90% does. One comparison: nothing to correct."""
    differences = np.array([0.001, 0.006, -0.002, 0.009, 0.004])
    ends = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    files = []
    for seed, difference in enumerate(differences):
        rows = [Row({"system": name}, {"w": Metric(0.5 + d)}) for name, d in (("a", difference), ("b", 0.0))]
        files.append(make_file(*rows, experiment="e", seed=seed))
    table = make_table(*files)
    (found,) = compare(table, "e", ({"system": "a"}, {"system": "b"}), [{}], ["w"], margin)
    a, b = (Selector("e", "w", {"system": name}) for name in "ab")
    within = check_direction(Direction(a, "within", b, by=margin), table.select)
    assert (found.outcome == "same") is within.holds is bool(ends.high < margin)


def test_noise_shows_nothing_and_is_not_called_the_same():
    noisy = compare_by_k(cells(seeds=3, sd=0.08)[0])
    assert {c.outcome for c in noisy if c.where["k"] == 0.08} == {"undecided"}
    assert {c.seeds for c in noisy} == {3}


def test_without_seeds_there_is_nothing_to_compare():
    assert compare_by_k(cells(seeds=1)[0]) == []
    assert compare_by_k(cells()[0], grammar="fully_drawn") == []


def test_drawn_grammars_are_compared_over_draws_though_each_has_its_own_settings():
    drawn = compare_by_k(cells(grammar="fully_drawn")[0], grammar="fully_drawn")
    given = compare_by_k(cells()[0])
    assert [c.seeds for c in drawn] == [SEEDS] * 9
    assert [(c.metric, c.difference, c.p_same) for c in drawn] == [(c.metric, c.difference, c.p_same) for c in given]
