"""README.md and docs/training.md: the decisive arms at 130M parameters."""

from __future__ import annotations

from doc_tables.blocks import NOT_RECORDED, markdown, mean, seeds_of, select, table
from ematrace.report.data import ReportData
from ematrace.report.formatting import number
from ematrace.report.gap import listed
from ematrace.report.sections.spen import AT_130M, BUDGETS_130M
from ematrace.results import Factors

EXPERIMENT = "gap_130m"
TEXTS = {"validation": "held-out text", "wikitext2": "WikiText-2", "c4": "C4"}
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
                for text in TEXTS
            ]
            of_slices = [number(nats_of(data, arm, "validation", part), 3) for part in ("all", *SLICES)]
            passes = " / ".join(mean(data.table, EXPERIMENT, "pass_end_nats", {**arm, "pass": i}) for i in (1, 2))
            lines.append((f"{label}{note}", f"{tokens.sample.mean / 1e6:.1f}M", *cells, *of_slices, passes))
            used.append(tokens)
    unigram = [mean(data.table, EXPERIMENT, "unigram_perplexity", {**SPEN, "text": text}) for text in TEXTS]
    lines.append(("*unigram*", "", *unigram, *[""] * (len(SLICES) + 2)))
    heads = ("model", "tokens", *TEXTS.values(), "held-out nats", *SLICES.values(), "training nats")
    return markdown(heads, lines) + f"\n{seeds_of(used)}\n"


@table("readme-130m", EXPERIMENT)
def readme_130m(data: ReportData, _: str) -> str:
    """One sentence of the same cells: nats that an arm has more of than SPEN's block."""
    base = [nats_of(data, SPEN, text, "all") for text in TEXTS]

    def beside_spen(label: str, budget: str) -> str:
        found = [nats_of(data, {**AT_130M[label], "size": "130m", "budget": budget}, text, "all") for text in TEXTS]
        return listed([signed(a, b) for a, b in zip(found, base, strict=True)])

    return (
        f"In nats beside SPEN's block, on {listed(list(TEXTS.values()))}: the same with the true gradient "
        f"{beside_spen('SPEN, masked gradient', 'tokens')}; GPT-2's block {beside_spen(GPT2, 'tokens')} at equal "
        f"tokens and {beside_spen(GPT2, 'flops')} at equal FLOPs. "
        f"{seeds_of([select(data.table, EXPERIMENT, 'tokens', SPEN)])}\n"
    )


def nats_of(data: ReportData, arm: Factors, text: str, part: str) -> float | None:
    found = select(data.table, EXPERIMENT, "nats", {**arm, "text": text, "slice": part})
    return None if found is None else found.sample.mean


def signed(one: float | None, other: float | None) -> str:
    return NOT_RECORDED if one is None or other is None else number(one - other, 3, signed=True)
