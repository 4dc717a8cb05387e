"""docs/gap-gradient.md: the straight-through gradient beside the true one, during training and by part of the model."""

from __future__ import annotations

from doc_tables.blocks import markdown_table, mean, seeds_of, select, table
from ematrace.analysis.gap_scores import MAIN
from ematrace.analysis.gap_straight_through import GRADIENTS
from ematrace.report.data import ReportData
from ematrace.report.sections.gap_controls import TRAINED
from ematrace.results import Factors

STEPS = 4  # shown of those measured: the first, the last, and two between them
DURING = {
    "cosine": "cosine to the true gradient",
    "norm_ratio": "length over the true one's",
    "ste_cosine_of_halves": "cosine between two halves of the text",
    "masked_cosine_of_halves": "the same of the true gradient",
    "dead_units": "units never on",
    "nats": "nats",
}
PARTS = ("block_0", "block_1", "block_2", "block_3", "W_up", "W_down", "W_h", "W_e", "W_pred", "embedding")


@table("straight-through-steps", GRADIENTS)
def during_training(data: ReportData, _: str) -> str:
    lines, used = [], []
    for ffn, weight, name in TRAINED:
        steps = _steps(data, ffn, weight)
        shown = sorted({steps[round(i * (len(steps) - 1) / (STEPS - 1))] for i in range(STEPS)}) if steps else []
        for step in shown:
            where = _where(ffn, weight, "all", step)
            lines.append((name, f"{step:,}", *(mean(data.table, GRADIENTS, metric, where) for metric in DURING)))
            used.append(select(data.table, GRADIENTS, "cosine", where))
    heads = ("trained with", "step", *DURING.values())
    return f"{markdown_table(heads, lines)}\n{seeds_of([found for found in used if found is not None])}\n"


@table("straight-through-parts", GRADIENTS)
def by_part(data: ReportData, _: str) -> str:
    """Length over the true one's, at the last step."""
    lines = []
    for ffn, weight, name in TRAINED:
        if steps := _steps(data, ffn, weight):
            places = [_where(ffn, weight, part, steps[-1]) for part in PARTS]
            lines.append((name, *(mean(data.table, GRADIENTS, "norm_ratio", where) for where in places)))
    return markdown_table(("trained with", *PARTS), lines)


def _steps(data: ReportData, ffn: str, weight: float) -> list[int]:
    found = data.table.values_of(GRADIENTS, "step", size=MAIN, ffn=ffn, load_balance=weight, part="all")
    return sorted(int(step) for step in found)


def _where(ffn: str, weight: float, part: str, step: int) -> Factors:
    return {"size": MAIN, "ffn": ffn, "load_balance": weight, "part": part, "step": step}
