"""Which network the straight-through gradient trains, on cells made by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cells_support import make_file, make_table
from ematrace.analysis.gap_all_units import all_on_difference, build_networks, build_turn, reading
from ematrace.ledger import build_ledger, load_claims
from ematrace.report.data import ReportData
from ematrace.report.gap_all_units import network_lines, network_rows
from ematrace.report.page import render_report
from ematrace.results import CellFile, Metric, Row, Table

STEPS = (0, 28, 56, 112, 224)


def runs(to_all_on: Sequence[Sequence[float]], ffn: str = "topk_ste", all_on: float = 4.0) -> list[CellFile]:
    """By seed and step; the cosine to the true gradient is .5 everywhere."""
    files = []
    for seed, cosines in enumerate(to_all_on):
        rows = [
            Row(
                {"step": step, "part": "all"},
                {
                    "to_true": Metric(0.5), "to_all_on": Metric(cosine), "true_to_all_on": Metric(0.1),
                    "nats": Metric(3.0 + seed - step / 1000), "nats_all_on": Metric(all_on + seed + 0.01 * seed * step),
                },
            )
            for step, cosine in zip(STEPS, cosines, strict=True)
        ]  # fmt: skip
        rows.append(Row({"step": STEPS[-1], "part": "W_up"}, {"to_true": Metric(0.9), "to_all_on": Metric(0.0)}))
        factors = {"ffn": ffn, "size": "small", "lr": 0.016}
        files.append(make_file(*rows, experiment="gap_all_units", seed=seed, factors=factors))
    return files


NEARER, FARTHER = (0.4, 0.6, 0.6, 0.6, 0.6), (0.6, 0.4, 0.4, 0.4, 0.4)  # at the start the other way round


@pytest.mark.parametrize(
    ("to_all_on", "expected"),
    [
        ([NEARER] * 3, "holds"),
        ([FARTHER] * 3, "contradicted"),
        ([NEARER, NEARER, FARTHER], "mixed"),
        ([NEARER, NEARER, (*NEARER[:-1], 0.4)], "mixed"),
        ([NEARER, NEARER, (*NEARER[:-1], 0.5)], "mixed"),  # not above
        ([NEARER] * 2, "too few steps or seeds"),
    ],
)
def test_the_plans_rule(to_all_on: Sequence[Sequence[float]], expected: str) -> None:
    steps = build_networks(make_table(*runs(to_all_on)), "topk_ste")
    assert [at.step for at in steps] == list(STEPS)
    assert [at.to_all_on.values for at in steps] == list(zip(*to_all_on, strict=True))
    assert reading(steps) == expected
    assert reading(steps[-3:]) == "too few steps or seeds"


def test_losses_with_all_units_on_are_paired_by_seed_at_the_end() -> None:
    straight, true = runs([NEARER] * 3, all_on=4.5), runs([NEARER] * 3, "topk_masked")
    found = all_on_difference(make_table(*straight, *true))
    assert found is not None
    assert found.values == pytest.approx([0.5] * 3)
    fewer = all_on_difference(make_table(*straight[1:], *true))
    assert fewer is not None
    assert fewer.values == pytest.approx([0.5] * 2)
    assert all_on_difference(make_table(*straight)) is None


@pytest.mark.parametrize(
    ("costs", "outcome"),
    [
        ((0.3, 0.31, 0.3), "harm by then"),  # of .4 at the end
        ((0.1, 0.11, 0.1), "harm after"),
        ((0.1, 0.2, 0.3), "undecided"),
    ],
)
def test_the_turn_is_where_the_gradient_is_nearer_to_the_true_one(costs: Sequence[float], outcome: str) -> None:
    """From step 112 on it is not nearer on one seed; that it is again at the end does not count."""
    cosines = [(0.6, 0.6, 0.6, 0.6, 0.6)] * 2 + [(0.6, 0.6, 0.6, 0.4, 0.6)]
    straight, true = runs(cosines), runs(cosines, "topk_masked")
    for file, cost in zip(straight, costs, strict=True):
        for step, row in zip(STEPS, file.cells, strict=False):
            base = row.metrics["nats"].value
            assert base is not None
            row.metrics["nats"] = Metric(base + {0: 0.0, 28: 9.0, 56: cost, 112: 9.0, 224: 0.4}[step])
    turn = build_turn(make_table(*straight, *true))
    assert turn is not None
    assert (turn.step, turn.outcome) == (56, outcome)
    assert turn.cost.values == pytest.approx(costs)
    assert turn.end.values == pytest.approx([0.4] * 3)
    assert build_turn(make_table(*straight, *true[1:])) is None  # a seed is missing
    assert build_turn(make_table(*runs([FARTHER] * 3), *true)) is not None  # nearer at the start alone
    assert build_turn(make_table(*runs([(0.4,) * 5] * 3), *true)) is None


def test_arms_are_compared_at_the_steps_of_both_and_only_with_the_same_last_one() -> None:
    straight, true = runs([NEARER] * 3, all_on=4.5), runs([NEARER] * 3, "topk_masked")
    for file in true:
        del file.cells[2]  # step 56
    table = make_table(*straight, *true)
    turn = build_turn(table)
    assert turn is None  # not nearer at the start
    difference = all_on_difference(table)
    assert difference is not None
    assert difference.values == pytest.approx([0.5] * 3)
    nearer = make_table(*runs([(0.6, 0.6, 0.6, 0.6, 0.4)] * 3), *true)
    turn = build_turn(nearer)
    assert turn is not None
    assert turn.step == STEPS[-2]
    for file in true:
        del file.cells[-2]  # the last step
    shorter = make_table(*straight, *true)
    assert build_networks(shorter, "topk_masked")[-1].step == STEPS[-2]
    assert build_turn(shorter) is None
    assert build_turn(make_table(*runs([(0.6,) * 5] * 3), *true)) is None
    assert all_on_difference(shorter) is None


def data_of(table: Table) -> ReportData:
    claims = load_claims()
    return ReportData(table, claims, tuple(build_ledger(table, claims)))


def test_page_and_docs_have_table_and_verdicts() -> None:
    true = runs([FARTHER] * 3, "topk_masked")
    for file in true[1:2]:
        file.cells[len(STEPS) - 1].metrics["nats_all_on"] = Metric(4.0 + 1 + 0.01 * STEPS[-1] - 0.03)
    data = data_of(make_table(*runs([NEARER] * 3, all_on=4.5), *true))
    found = network_rows(data)
    assert found is not None
    heads, rows = found
    assert len(rows) == 2 * len(STEPS)
    assert dict(zip(heads, rows[1], strict=True)) == {
        "trained with": "straight-through",
        "step": "28",
        "straight-through to the true gradient": ".500",
        "straight-through to that with all units on": ".600",
        "true to that with all units on": ".100",
        "nats": "3.972",
        "nats with all units on": "5.780",
        "seeds": "3",
    }
    nearer, difference = network_lines(data)
    assert nearer.endswith("the straight-through gradient is nearer to that of the network with all units on.")
    assert difference.endswith(
        "minus true-gradient training: +.510 (.467\u2013.553) nats."
    )  # .51 ± 4.303 * .0173 / 3 ** .5
    assert nearer in render_report(data)
    turned = data_of(make_table(*runs([FARTHER] * 3), *runs([FARTHER] * 3, "topk_masked")))
    _, turn, _ = network_lines(turned)
    assert turn.startswith("Up to step 0 straight-through training's gradient is nearer to that of the network")
    assert turn.endswith("under the plan's rule for early steps, undecided.")  # both arms are the same
    assert network_rows(data_of(make_table())) is None
    assert network_lines(data_of(make_table())) == []
