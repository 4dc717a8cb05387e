"""docs/gap-predictors.md: predictors in SPEN's block."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from doc_tables.blocks import NOT_RECORDED, difference, markdown_table, mean, seeds_of, select, table
from ematrace.report.data import ReportData
from ematrace.report.formatting import number, plural
from ematrace.report.gap_predictions import BLOCKS, PREDICTORS
from ematrace.report.gap_switches import switch_tables
from ematrace.report.sections.gap_controls import HELD_OUT
from ematrace.results import Factors, Selection

EXPERIMENT = "gap_predictors"
LARGE = 1000
STATIC = ("static", "traces_now")
NOTHING = ("nothing", "nothing")  # x̂ = 0
COLUMNS = {  # of the feed-forward layer and its width
    f"{BLOCKS['topk_ste']}, matched": ("topk_ste", "matched"),
    "the same, d_ff as it is": ("topk_ste", "fixed"),
    f"{BLOCKS['topk_masked']}, matched": ("topk_masked", "matched"),
    f"{BLOCKS['dense']}, matched": ("dense", "matched"),
}


LATER = {  # of the feed-forward layer, its width, and the size
    "2M, dense, d_ff as it is": ("dense", "fixed", "2m"),
    "2M, dense, matched": ("dense", "matched", "2m"),
    "130M, Algorithm 1's block, matched, 500 steps": ("topk_ste", "matched", "130m"),
}


def of(predictor: tuple[str, str], ffn: str, width: str, size: str = "ablation") -> Factors:
    kind, reads = predictor
    context = "ema" if predictor == NOTHING else "ema_error"
    found: Factors = {"context": context, "ffn": ffn, "residual": "ffn", "width": width, "predictor": kind}
    return {**found, "reads": reads, "query": "slow_trace", "values": "as_read", "size": size, **HELD_OUT}


@table("gap-predictors", EXPERIMENT)
def predictors(data: ReportData, _: str) -> str:
    """After the paper's 500 steps: nats of the static predictor, and how much more or less the others have."""
    lines, used = _against_static(data, {name: (*block, "ablation") for name, block in COLUMNS.items()})
    unigram = mean(data.table, EXPERIMENT, "unigram_nats", of(STATIC, "topk_ste", "matched"))
    return f"{lines}\n{seeds_of(used)} The unigram has {unigram} nats.\n"


@table("gap-predictors-later", EXPERIMENT)
def predictors_later(data: ReportData, _: str) -> str:
    """The same after the whole budget, and at the paper's size; and a model that was trained without predictions."""
    lines, used = _against_static(data, LATER, {**PREDICTORS, NOTHING: "none, trained with x̂ = 0"})
    return f"{lines}\n{seeds_of(used)}\n"


@table("gap-left-over", EXPERIMENT)
def left_over(data: ReportData, _: str) -> str:
    """What predictions leave of the input, and what they add to the context: median, least and most, over blocks and
    seeds."""
    lines = []
    for name, (ffn, width, size) in {
        **LATER,
        **{f"500 steps, {n}": (*c, "ablation") for n, c in COLUMNS.items()},
    }.items():
        for predictor, label in PREDICTORS.items():
            if predictor == STATIC and width == "fixed":  # the static predictor's d_ff is the same in both
                continue
            where = {n: v for n, v in of(predictor, ffn, width, size).items() if n not in HELD_OUT}
            found = [_spread(data, where, metric) for metric in ("unexplained", "over_traces")]
            if all(found):
                lines.append((name, label, *found))
    return markdown_table(("block", "predictor", "of the input left over", "added, over the traces"), lines)


def _spread(data: ReportData, where: Factors, metric: str) -> str:
    layers = data.table.values_of(EXPERIMENT, "layer", **where)
    found = [select(data.table, EXPERIMENT, metric, {**where, "layer": layer}) for layer in layers]
    values = [value for selection in found if selection is not None for value in selection.sample.values]
    if not values:
        return ""
    middle, low, high = (
        number(v, 2) if v < LARGE else f"over {LARGE:,}" for v in (median(values), min(values), max(values))
    )
    return f"{middle} ({low} to {high})"


def _against_static(
    data: ReportData,
    columns: Mapping[str, tuple[str, str, str]],
    predictors: Mapping[tuple[str, str], str] = PREDICTORS,
) -> tuple[str, list[Selection | None]]:
    """A table with a column for each block; the static predictor has its width in all of them."""
    used: list[Selection | None] = []
    first = [
        mean(data.table, EXPERIMENT, "nats", of(STATIC, ffn, "matched", size)) for ffn, _, size in columns.values()
    ]
    lines = [(predictors[STATIC], *first)]
    for other in [predictor for predictor in predictors if predictor != STATIC]:
        cells = []
        for ffn, width, size in columns.values():
            if other == NOTHING and width == "matched":  # which is not planned
                cells.append("–")
                continue
            pair = [
                select(data.table, EXPERIMENT, "nats", of(one, ffn, its_width, size))
                for one, its_width in ((other, width), (STATIC, "matched"))
            ]
            cells.append(difference(*pair) + _fewer_seeds(*pair))
            used += pair
        lines.append((predictors[other], *cells))
    return markdown_table(("predictor", *columns), lines), used


def _fewer_seeds(one: Selection | None, static: Selection | None) -> str:
    """How many, where the other predictor has fewer than the static one."""
    if one is None or static is None:
        return ""
    shared = set(static.seeds) & set(one.seeds)
    return "" if len(shared) < 2 or shared == set(static.seeds) else f", {plural(len(shared), 'seed')}"


@table("gap-switches", EXPERIMENT)
def switches(data: ReportData, _: str) -> str:
    """Why attention over the inputs helps less as a predictor than as a mixer."""
    if (found := switch_tables(data)) is None:
        return f"The three switches are {NOT_RECORDED}.\n"
    return (
        f"Nats gained over the static predictor:\n\n{markdown_table(*found.gains)}\n"
        "What each switch adds to that gain, on average over the settings of the other two:\n\n"
        f"{markdown_table(*found.effects)}\n{found.verdict}\n"
    )
