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


@table("readme-tokens", EXPERIMENT)
def readme_tokens(data: ReportData, _: str) -> str:
    """One sentence of the same cells."""

    def accuracies(where: Factors, *lags: int) -> str:
        found = [mean(data.table, EXPERIMENT, "accuracy", {**where, "lag": lag}) for lag in lags]
        return " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)

    topic = accuracies({**SPEN, "reader": "topic"}, 32)
    return (
        "In a trained SPEN of 2M parameters a reader of its first block's three traces names the token 1, 4 and 32 "
        f"steps back in {accuracies(read_from('traces'), 1, 4, 32)} of cases, one of the slow trace alone in "
        f"{accuracies(read_from('slow'), 1, 4, 32)}; knowing the window's other tokens but not their places gives "
        f"{topic} (C29). A reader of two neighbouring slow traces names the token between them in "
        f"{accuracies(read_from('sequence'), 1, 256)}, 1 and 256 steps back.\n"
    )
