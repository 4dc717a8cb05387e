"""Which half of the straight-through gradient does the harm, on cells made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from cells_support import make_table
from ematrace.analysis.gap_design import CHAIN
from ematrace.analysis.gap_halves import BOTH, THROUGH, TRUE, WEIGHTS, build_halves
from ematrace.ledger import build_ledger, load_claims
from ematrace.report.data import ReportData
from ematrace.report.gap_halves import halves_rows
from ematrace.report.page import render_report
from ematrace.results import CellFile, Metric
from gap_support import run

Costs = Mapping[str, Sequence[float]]
HARM_BELOW: Costs = {WEIGHTS: (0.1, 0.11, 0.1), THROUGH: (0.4, 0.41, 0.4), BOTH: (0.5, 0.5, 0.51)}


def runs(costs: Costs, size: str = "2m", **changes: Any) -> list[CellFile]:
    """All four arms on seeds 0, 1, ...; the nats are those of all tokens."""
    base = {TRUE: (0.0,) * len(costs[BOTH]), **costs}
    where = {"2m": ("gap_halves_2m", "gpu"), "toy": ("gap_halves_2m", "cpu"), "small": ("gap_halves", "cpu")}[size]
    changes = {**dict(zip(("experiment", "scale"), where, strict=True)), "size": size, **changes}
    return [
        run(replace(CHAIN[1], ffn=ffn), seed, 4.0 + 0.3 * seed + cost, 4.0 + 0.3 * seed + cost, **changes)
        for ffn, values in base.items()
        for seed, cost in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("costs", "outcome"),
    [
        (HARM_BELOW, "through"),
        ({WEIGHTS: HARM_BELOW[THROUGH], THROUGH: HARM_BELOW[WEIGHTS], BOTH: HARM_BELOW[BOTH]}, "weights"),
        ({WEIGHTS: (0.4, 0.41, 0.4), THROUGH: (0.45, 0.44, 0.45), BOTH: (0.5, 0.5, 0.51)}, "either"),
        ({WEIGHTS: (0.2, 0.21, 0.2), THROUGH: (0.2, 0.2, 0.21), BOTH: (0.5, 0.5, 0.51)}, "together"),
        ({WEIGHTS: (0.0, 0.0, 0.01), THROUGH: (-0.12, -0.12, -0.12), BOTH: (-0.1, -0.1, -0.1)}, "undecided"),  # no harm
        ({WEIGHTS: (-0.3, -0.3, -0.3), THROUGH: (-0.3, -0.3, -0.3), BOTH: (-0.1, -0.1, -0.1)}, "undecided"),
        ({WEIGHTS: (0.1, 0.3, 0.1), THROUGH: (0.1, 0.1, 0.3), BOTH: (0.5, 0.3, 0.4)}, "undecided"),
        ({name: values[:2] for name, values in HARM_BELOW.items()}, "too few seeds"),
    ],
)
def test_the_plans_rule(costs: Costs, outcome: str) -> None:
    [found] = build_halves(make_table(*runs(costs)))
    assert found.outcome == outcome
    assert [found.weights.values, found.through.values, found.both.values] == [
        pytest.approx(costs[name]) for name in (WEIGHTS, THROUGH, BOTH)
    ]
    rest = [both - one - other for one, other, both in zip(*(costs[n] for n in (WEIGHTS, THROUGH, BOTH)), strict=True)]
    assert found.beyond_sum.values == pytest.approx(rest)


def test_rates_sizes_and_settings_are_kept_apart() -> None:
    higher = {name: [2 * cost for cost in values] for name, values in HARM_BELOW.items()}
    small = {name: [3 * cost for cost in values[:2]] * 5 for name, values in HARM_BELOW.items()}  # more seeds
    files = [*runs(HARM_BELOW), *runs(higher, lr=0.016), *runs(small, size="small", parameters=3e5)]
    found = build_halves(make_table(*files))
    assert [(one.size, one.lr, round(one.both.mean, 2)) for one in found] == [
        ("small", 0.004, 1.50), ("2m", 0.004, 0.50), ("2m", 0.016, 1.01)
    ]  # fmt: skip
    shorter = [file for file in runs(HARM_BELOW, settings={"tokens": 1}) if file.factors["ffn"] == TRUE]
    others = [file for file in runs(HARM_BELOW) if file.factors["ffn"] != TRUE]
    assert build_halves(make_table(*shorter, *others)) == []
    assert build_halves(make_table(*runs(HARM_BELOW, size="toy"))) == []  # which shows only that it runs


def test_only_seeds_that_all_four_have_count() -> None:
    lacking = [file for file in runs(HARM_BELOW) if (file.factors["ffn"], file.seed) != (WEIGHTS, 1)]
    [found] = build_halves(make_table(*lacking))
    assert found.seeds == (0, 2)
    assert found.both.values == pytest.approx((0.5, 0.51))
    assert build_halves(make_table(*(f for f in lacking if f.factors["ffn"] != BOTH))) == []


def test_the_page_has_the_table() -> None:
    table, claims = make_table(*runs(HARM_BELOW)), load_claims()
    data = ReportData(table, claims, tuple(build_ledger(table, claims)))
    found = halves_rows(data)
    assert found is not None
    heads, [row] = found
    assert dict(zip(heads, row, strict=True)) == {
        "parameters": "1.9M",
        "learning rate": "0.004",
        "straight-through, nats": "4.803",  # 4 + .3 * seed + .5, .5, .51
        "into their own weights": ".103 (.089\u2013.118)",  # 4.303 * .00577 / 3 ** .5
        "through them": ".403 (.389\u2013.418)",
        "both": ".503 (.489\u2013.518)",
        "both less the sum": "\u2212.003 (\u2212.041 to .035)",  # 0, -.02 and .01: 4.303 * .01528 / 3 ** .5
        "the same, seeds 3 and up alone": "\u2013",
        "under the plan's rule": "the way through dropped units",
        "seeds": "3",
    }
    assert "the way through dropped units" in render_report(data)
    swapped = {WEIGHTS: HARM_BELOW[THROUGH], THROUGH: HARM_BELOW[WEIGHTS], BOTH: HARM_BELOW[BOTH]}
    other = make_table(*runs(swapped))
    found = halves_rows(ReportData(other, claims, tuple(build_ledger(other, claims))))
    assert found is not None
    assert found[1][0][-2] == "the weights of dropped units"
    assert halves_rows(ReportData(make_table(), claims, ())) is None


def test_seeds_that_were_added_stand_by_themselves() -> None:
    """The rule is applied to all; those that the plan added are shown beside it."""
    more = {WEIGHTS: (0.1,) * 5, THROUGH: (0.1,) * 5, BOTH: (0.2, 0.2, 0.2, 0.5, 0.7)}
    [found] = build_halves(make_table(*runs(more)))
    assert found.beyond_sum.values == pytest.approx((0, 0, 0, 0.3, 0.5))
    assert found.beyond_sum_added is not None
    assert found.beyond_sum_added.values == pytest.approx((0.3, 0.5))
    [known] = build_halves(make_table(*runs(HARM_BELOW)))
    assert known.beyond_sum_added is None


def test_a_run_whose_loss_is_not_known_is_no_seed() -> None:
    files = runs(HARM_BELOW)
    broken = next(file for file in files if (file.factors["ffn"], file.seed) == (BOTH, 2))
    for row in broken.cells:
        if "nats" in row.metrics:
            row.metrics["nats"] = Metric(None, "nats", 1000)
    [found] = build_halves(make_table(*files))
    assert found.seeds == (0, 1)
    assert found.outcome == "too few seeds"
