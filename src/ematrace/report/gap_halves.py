"""Which half of the straight-through gradient does the harm: for page and docs."""

from __future__ import annotations

from ematrace.analysis.gap_halves import FIRST_ADDED, build_halves
from ematrace.report.data import ReportData
from ematrace.report.formatting import Rows, millions, number, with_interval

OUTCOMES = {
    "weights": "the weights of dropped units",
    "through": "the way through dropped units",
    "either": "either half is enough",
    "together": "both, and more than their sum",
    "undecided": "undecided",
    "too few seeds": "too few seeds",
}
HEADS = [
    *("parameters", "learning rate", "straight-through, nats", "into their own weights", "through them", "both"),
    *("both less the sum", f"the same, seeds {FIRST_ADDED} and up alone", "under the plan's rule", "seeds"),
]


def halves_rows(data: ReportData) -> Rows | None:
    """By size and learning rate, nats on held-out text; None where nothing is recorded."""
    rows = [
        [
            millions(one.parameters),
            f"{one.lr:g}",
            number(one.nats.mean, 3),
            *(with_interval(cost) for cost in (one.weights, one.through, one.both, one.beyond_sum)),
            "–" if one.beyond_sum_added is None else with_interval(one.beyond_sum_added),
            OUTCOMES[one.outcome],
            str(len(one.seeds)),
        ]
        for one in build_halves(data.cells)
    ]
    return Rows(HEADS, rows) if rows else None
