"""docs/gap-gradient.md and docs/training.md: the decisive arms at 130M parameters."""

from __future__ import annotations

import math

from doc_tables.blocks import NOT_RECORDED, markdown_table, mean, mean_text, seeds_of, select, table
from ematrace.report.data import ReportData
from ematrace.report.formatting import MINUS, listed, millions, number, plural
from ematrace.report.gap import TEXT_NAMES
from ematrace.report.sections.spen import AT_130M, BUDGETS_130M
from ematrace.results import Factors, Selection

EXPERIMENT = "gap_130m"
SLICES = {"recall": "repeated pairs", "other": "other tokens"}
SPEN: Factors = {**AT_130M["SPEN, Algorithm 1"], "size": "130m", "budget": "tokens"}
GPT2 = "GPT-2, SPEN's parameters"


@table("at-130m", EXPERIMENT)
def at_130m(data: ReportData, _: str) -> str:
    """Perplexities with the state reset and carried; nats of two slices. Only what is recorded has a line."""
    lines, used = [], []
    for budget, note in BUDGETS_130M.items():
        for label, where in AT_130M.items():
            arm: Factors = {**where, "size": "130m", "budget": budget}
            tokens = select(data.table, EXPERIMENT, "tokens", arm)
            if tokens is None:
                continue
            cells = [
                " / ".join(
                    mean(data.table, EXPERIMENT, "perplexity", {**arm, "text": text, "state": state})
                    for state in ("reset", "carried")
                )
                for text in TEXT_NAMES
            ]
            of_slices = [mean_text(of_text(data, arm, "validation", part), decimals=3) for part in ("all", *SLICES)]
            passes = " / ".join(mean(data.table, EXPERIMENT, "pass_end_nats", {**arm, "pass": i}) for i in (1, 2))
            lines.append((f"{label}{note}", millions(tokens.sample.mean), *cells, *of_slices, passes))
            used.append(tokens)
    unigram = [mean(data.table, EXPERIMENT, "unigram_perplexity", {**SPEN, "text": text}) for text in TEXT_NAMES]
    lines.append(("*unigram*", "", *unigram, *[""] * (len(SLICES) + 2)))
    heads = ("model", "tokens", *TEXT_NAMES.values(), "held-out nats", *SLICES.values(), "training nats")
    return markdown_table(heads, lines) + f"\n{seeds_of(used)}\n"


@table("gap-130m", EXPERIMENT)
def gap_130m(data: ReportData, _: str) -> str:
    """One sentence of the same cells: nats that an arm has more of than SPEN's block, on the seeds that both have."""
    counts: set[int] = set()

    def beside_spen(label: str, budget: str) -> str:
        arm: Factors = {**AT_130M[label], "size": "130m", "budget": budget}
        found = []
        for text in TEXT_NAMES:
            mean, seeds = more_nats(of_text(data, arm, text), of_text(data, SPEN, text))
            counts.update([seeds] if seeds else [])
            found.append(NOT_RECORDED if mean is None else number(mean, 3, signed=True))
        return listed(found)

    masked, tokens, flops = (
        beside_spen("SPEN, masked gradient", "tokens"), beside_spen(GPT2, "tokens"), beside_spen(GPT2, "flops")
    )  # fmt: skip
    few, *more = sorted(counts) or [0]
    texts = listed([*TEXT_NAMES.values()])
    return (
        f"At 130M parameters, nats more (+) or fewer ({MINUS}) than SPEN's block on {texts}: the "
        f"same with the true gradient {masked}; GPT-2's block {tokens} at equal tokens and {flops} at equal FLOPs. "
        f"{f'{few} to {more[-1]} seeds' if more else plural(few, 'seed')}.\n"
    )


def of_text(data: ReportData, arm: Factors, text: str, part: str = "all") -> Selection | None:
    return select(data.table, EXPERIMENT, "nats", {**arm, "text": text, "slice": part})


def more_nats(one: Selection | None, other: Selection | None) -> tuple[float | None, int]:
    """What the first has more of, and of how many seeds."""
    if one is None or other is None:
        return None, 0
    ours, theirs = one.by_seed, other.by_seed
    pairs = [ours[seed] - theirs[seed] for seed in ours.keys() & theirs.keys()]
    return (math.fsum(pairs) / len(pairs) if pairs else None), len(pairs)
