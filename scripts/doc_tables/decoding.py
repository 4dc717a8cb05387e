"""docs/gap-content.md: which token stood k steps back, read from what a trained model holds."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from doc_tables.blocks import NOT_RECORDED, markdown_table, mean, seeds_of, select, table
from ematrace.report.data import ReportData
from ematrace.report.formatting import TINY, number
from ematrace.report.sections.trace_tokens import BASELINES, EXPERIMENT, READERS, REPRESENTATIONS, SEQUENCES
from ematrace.results import Factors, Selection

LAGS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SPEN: Factors = {"context": "ema_error", "size": "2m"}
HELD = ("slow", "traces", "state", "sequence")


def read_by(data: ReportData, held: str, metric: str, lag: int) -> Iterator[Selection]:
    """Every reader of it in float32: linear and with a hidden layer, alone and told what the baseline says."""
    for given, reader in product(("nothing",) if held in SEQUENCES else ("nothing", "topic"), READERS):
        where: Factors = {**SPEN, "representation": held, "number_format": "float32", "given": given}
        if (found := select(data.table, EXPERIMENT, metric, {**where, "reader": reader, "lag": lag})) is not None:
            yield found


def best(data: ReportData, held: str, metric: str, lag: int) -> str:
    """The highest mean of these readers: what can be read is at least that."""
    found = [selection.sample.mean for selection in read_by(data, held, metric, lag)]
    if not found:
        return NOT_RECORDED
    highest = max(found)
    return number(highest, decimals=3 if abs(highest) < TINY else None)


def baseline(data: ReportData, reader: str, lag: int) -> str:
    return mean(data.table, EXPERIMENT, "accuracy", {**SPEN, "reader": reader, "lag": lag})


def by_itself(data: ReportData, lag: int) -> str:
    """What the better reader of the slow trace alone has over token frequencies, the topic included."""
    where: Factors = {**SPEN, "representation": "slow", "number_format": "float32", "given": "nothing", "lag": lag}
    unigram = select(data.table, EXPERIMENT, "nats", {**SPEN, "reader": "unigram", "lag": lag})
    found = [select(data.table, EXPERIMENT, "nats", {**where, "reader": reader}) for reader in READERS]
    nats = [one.sample.mean for one in found if one is not None and unigram is not None and one.seeds == unigram.seeds]
    return number(unigram.sample.mean - min(nats)) if unigram is not None and nats else NOT_RECORDED


@table("trace-decoding", EXPERIMENT)
def trace_decoding(data: ReportData, _: str) -> str:
    """SPEN: accuracy and, behind the stroke, the gain in nats over the window's other tokens."""
    lines = [(f"*{label}*", *(baseline(data, reader, lag) for lag in LAGS)) for reader, label in BASELINES.items()]
    for held in HELD:
        found = [" / ".join(best(data, held, metric, lag) for metric in ("accuracy", "gain_nats")) for lag in LAGS]
        lines.append((REPRESENTATIONS[held], *found))
    lines.append(("slow trace by itself, nats over the unigram", *(by_itself(data, lag) for lag in LAGS)))
    used = [selection for held in HELD for selection in read_by(data, held, "accuracy", LAGS[0])]
    return markdown_table(("read from", *(f"{lag} back" for lag in LAGS)), lines) + f"\n{seeds_of(used)}\n"


@table("gap-tokens", EXPERIMENT)
def gap_tokens(data: ReportData, _: str) -> str:
    """One sentence of the same cells."""
    traces, slow = ([best(data, held, "accuracy", lag) for lag in (1, 8, 32)] for held in ("traces", "slow"))
    pair, topic = [best(data, "sequence", "accuracy", lag) for lag in (1, 256)], baseline(data, "topic", 32)
    return (
        "In a trained SPEN with 2M parameters, our best reader names the token 1, 8 and 32 steps back in "
        f"{traces[0]}, {traces[1]} and {traces[2]} of cases from the three traces of the first block, in {slow[0]}, "
        f"{slow[1]} and {slow[2]} from the slow one alone; a guess from the window's other tokens is right in {topic} "
        f"(C29). From two neighbouring slow traces it names the token between them in {pair[0]} of cases, and in "
        f"{pair[1]} when that was 256 steps ago.\n"
    )
