"""docs/gap.md: predictors in SPEN's block."""

from __future__ import annotations

from doc_tables.blocks import NOT_RECORDED, difference, mean, seeds_of, select, table
from ematrace.report.data import ReportData
from ematrace.report.formatting import markdown_table
from ematrace.report.sections.gap_controls import BLOCKS, HELD_OUT, PREDICTORS
from ematrace.report.switches import switch_tables
from ematrace.results import Factors

EXPERIMENT = "gap_predictors"
COLUMNS = {  # of the feed-forward layer and its width
    f"{BLOCKS['topk_ste']}, matched": ("topk_ste", "matched"),
    "the same, d_ff as it is": ("topk_ste", "fixed"),
    f"{BLOCKS['topk_masked']}, matched": ("topk_masked", "matched"),
    f"{BLOCKS['dense']}, matched": ("dense", "matched"),
}


def of(predictor: tuple[str, str], ffn: str, width: str) -> Factors:
    """An arm after the paper's 500 steps."""
    kind, reads = predictor
    found: Factors = {"context": "ema_error", "ffn": ffn, "residual": "ffn", "width": width, "predictor": kind}
    return {**found, "reads": reads, "query": "slow_trace", "values": "as_read", "size": "ablation", **HELD_OUT}


@table("gap-predictors", EXPERIMENT)
def predictors(data: ReportData, _: str) -> str:
    """After the paper's 500 steps: nats of the static predictor, and how much more or less the others have."""
    static, *others = PREDICTORS
    first = [mean(data.table, EXPERIMENT, "nats", of(static, ffn, "matched")) for ffn, _ in COLUMNS.values()]
    lines, used = [(PREDICTORS[static], *first)], []
    for other in others:
        cells = []
        for ffn, width in COLUMNS.values():
            pair = [
                select(data.table, EXPERIMENT, "nats", of(one, ffn, its_width))
                for one, its_width in ((other, width), (static, "matched"))
            ]
            cells.append(difference(*pair))
            used += pair
        lines.append((PREDICTORS[other], *cells))
    unigram = mean(data.table, EXPERIMENT, "unigram_nats", of(static, "topk_ste", "matched"))
    return markdown_table(("predictor", *COLUMNS), lines) + f"\n{seeds_of(used)} The unigram has {unigram} nats.\n"


@table("gap-switches", EXPERIMENT)
def switches(data: ReportData, _: str) -> str:
    """Why attention over the inputs helps less as a predictor than as a mixer."""
    if (found := switch_tables(data)) is None:
        return f"The three switches are {NOT_RECORDED}.\n"
    return (
        f"Nats gained over the static predictor:\n\n{markdown_table(found.gains[0], found.gains[1:])}\n"
        "What each switch adds to that gain, on average over the settings of the other two:\n\n"
        f"{markdown_table(found.effects[0], found.effects[1:])}\n{found.verdict}\n"
    )
