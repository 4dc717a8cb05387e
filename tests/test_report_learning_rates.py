"""Tables of learning rates, on sweeps made by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cells_support import make_table
from ematrace.analysis.gap_design import CHAIN
from ematrace.ledger import Claims
from ematrace.report.data import ReportData
from ematrace.report.formatting import Rows
from ematrace.report.learning_rates import sweep_rows
from ematrace.results import CellFile
from gap_support import run, sweep

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from doc_tables.gap_rows import best_rate_rows

SPEN, GPT2 = CHAIN[0], CHAIN[-1]
AGAIN = [run(SPEN, seed, 5.3, 4.0, lr=0.004, experiment="gap_rates") for seed in (1001, 1002)]  # 5.04 on all tokens
LARGER = sweep((GPT2,), rates=(0.001, 0.002), best=0.002, experiment="gap_size_rates", size="7m")


def best_rates(*files: CellFile) -> Rows | None:
    return best_rate_rows(ReportData(make_table(*files), Claims(()), ()))


def test_the_best_rate_and_those_beside_it() -> None:
    found = best_rates(*sweep((SPEN,)), *AGAIN, *LARGER)
    assert found is not None
    heads, rows = found
    assert heads[2:] == ["rates tried", "best rate", "nats at half of it", "nats at it", "nats at double"]
    assert [row[0] for row in rows] == ["2m", "7m"]
    # Nats on all tokens: .8 of 5 + .1 |ln(rate / best)|, .2 of 4. Over three seeds, the best one's mean is now 4.96.
    assert rows[0][2:] == ["0.001 to 0.016", "0.002, not settled", "4.911", "4.855", "4.960 (3 seeds)"]
    assert rows[1][2:] == ["0.001 to 0.002", "0.002, not settled", "4.855", "4.800", "\u2013"]


def test_a_neighbour_that_is_not_half_or_double_is_not_called_so() -> None:
    found = best_rates(*sweep((SPEN,), rates=(0.001, 0.004, 0.016)), *sweep((GPT2,), size="toy"))
    assert found is not None
    [row] = found[1]  # no toy
    assert row[3:] == ["0.004, not settled", "\u2013", "4.800", "\u2013"]


def test_every_rate_of_a_size() -> None:
    table = make_table(*sweep((SPEN,), rates=(0.002, 0.004, 0.008)), *sweep((GPT2,)), *LARGER)
    heads, rows = sweep_rows(table, "2m") or ([], [])
    assert heads == ["arm", "0.001", "0.002", "0.004", "0.008", "0.016", "best"]
    assert {row[0]: row[1] for row in rows}[SPEN.text] == "\u2013"
    assert {row[0]: row[-1].split(" ")[0] for row in rows} == {SPEN.text: "0.004", GPT2.text: "0.004"}
    heads, [row] = sweep_rows(table, "7m") or ([], [[]])
    assert heads == ["arm", "0.001", "0.002", "best"]
    assert row[1:] == ["4.855", "4.800", "0.002 (only 2 of its rates were tried)"]


@pytest.mark.parametrize("size", ["30m", "small"])
def test_nothing_where_nothing_was_swept(size: str) -> None:
    assert sweep_rows(make_table(*LARGER), size) is None
    assert best_rates() is None
