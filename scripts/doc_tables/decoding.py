"""docs/gap.md: which token stood k steps back, read from what a trained model holds."""

from __future__ import annotations

from doc_tables.blocks import markdown, mean, seeds_of, select, table
from ematrace.report.data import ReportData
from ematrace.report.sections.trace_tokens import BASELINES, BEST, EXPERIMENT, REPRESENTATIONS, SEQUENCES
from ematrace.results import Factors

LAGS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SPEN: Factors = {"context": "ema_error", "size": "2m"}
HELD = ("slow", "traces", "state", "sequence")


def read_from(held: str) -> Factors:
    """In float32, by the reader with a hidden layer; one vector's is also told what the window's other tokens tell."""
    given = "nothing" if held in SEQUENCES else "topic"
    return {**SPEN, "representation": held, "number_format": "float32", "given": given, "reader": BEST}


@table("trace-decoding", EXPERIMENT)
def trace_decoding(data: ReportData, _: str) -> str:
    """SPEN: accuracy and, behind the stroke, the gain in nats over the window's other tokens."""

    def by_lag(where: Factors, *metrics: str) -> list[str]:
        found = [[mean(data.table, EXPERIMENT, metric, {**where, "lag": lag}) for metric in metrics] for lag in LAGS]
        return [" / ".join(cells) for cells in found]

    lines = [(f"*{label}*", *by_lag({**SPEN, "reader": reader}, "accuracy")) for reader, label in BASELINES.items()]
    lines += [(REPRESENTATIONS[held], *by_lag(read_from(held), "accuracy", "gain_nats")) for held in HELD]
    used = [select(data.table, EXPERIMENT, "accuracy", {**read_from(held), "lag": 1}) for held in HELD]
    return markdown(("read from", *(f"{lag} back" for lag in LAGS)), lines) + f"\n{seeds_of(used)}\n"
