"""The gap's chain as Markdown, for the README and docs/gap.md: every number is computed from the cells."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ematrace.analysis.gap import Chain, Step
from ematrace.analysis.gap_design import JOINED_NAME
from ematrace.report.data import ReportData
from ematrace.report.formatting import number
from ematrace.report.gap import (
    GapData,
    attention_name,
    recall_text,
    seeds_text,
    share_text,
    text_name,
    with_interval,
)

NOT_RECORDED = "What the gap between SPEN and a transformer is made of is not recorded yet."
CLOSURES = {
    "closes": "the chain closes",
    "does not close": "the chain does not close",
    "undecided": "whether the chain closes is undecided",
    "not checked": "one seed, which checks nothing",
}
LEVEL = 0.05  # above this, after Holm's correction, a step is not told from 0


def findings(data: ReportData) -> str:
    """About ten lines, as items of a list: the distance, each step, where it lies, and what checks it."""
    gap = GapData(data)
    if gap.scores.is_toy or not gap.chains:
        return f"- {NOT_RECORDED}\n"
    return "\n".join([*_distance(gap), *_steps(gap.chains[0]), *_recall(gap), *_checks(gap)]) + "\n"


def _distance(gap: GapData) -> Iterator[str]:
    chain = gap.chains[0]
    whole = chain.whole.nats
    change = f"{'falls' if whole.mean > 0 else 'rises'} by {number(abs(whole.mean), 2)} nats"
    ends = f"from {number(chain.start.mean, 2)} to {number(chain.end.mean, 2)}"
    texts = "; ".join(f"{text_name(c.text)} {with_interval(c.whole.nats)}" for c in gap.chains)
    yield (
        f"- **From SPEN's block to GPT-2's the loss {change}** on {text_name(chain.text)}, {ends} "
        f"({number(math.exp(whole.mean), 2)} times in perplexity), with {gap.size}. Distances: {texts}. "
        f"{seeds_text(chain)} Every arm at its own swept learning rate, with as many parameters and the same tokens. "
        "One change at a time on this text, and what of it lies on tokens that repeat a pair seen before in a window:"
    )


def _steps(chain: Chain) -> Iterator[str]:
    for i, step in enumerate(chain.steps, 1):
        yield f"  {i}. {_step(step)}"
        if JOINED_NAME in step.name and chain.halves:
            halves = "; ".join(f"{half.name} {with_interval(half.nats)}" for half in chain.halves)
            yield f"     (its halves: {halves}; without positions attention knows no order)"
    if chain.missing:
        absent = "; ".join(f"{arm.text}: {absence.why}" for arm, absence in chain.missing.items())
        yield f"- Arms of the chain that are not there: {absent}."


def _step(step: Step) -> str:
    unclear = step.p_value is None or step.p_value >= LEVEL
    note = ", not told from 0" if unclear else ""
    return f"{step.name}: {with_interval(step.nats)}{note}; {number(step.recall.mean, 3)} on repeated pairs"


def _recall(gap: GapData) -> Iterator[str]:
    """Of the whole distance, and of EMA against attention, on every text."""
    whole = [(chain.text, chain.recall_share) for chain in gap.chains if chain.recall_share.share is not None]
    if whole:
        shown = "; ".join(f"{text_name(text)} {share_text(found)}" for text, found in whole)
        yield f"- Of the whole distance, on tokens that repeat a pair: {shown}."
    if not gap.recall:
        return
    attention = gap.recall[0].attention
    parts = []
    for text in gap.scores.texts:
        found = {r.definition: r for r in gap.recall if (r.text, r.attention) == (text, attention)}
        if "pair" in found:
            parts.append(f"{text_name(text)} {with_interval(found['pair'].gap)}: {recall_text(found)}")
    yield f"- EMA traces behind {attention_name(attention)}, all else equal and dense, in nats: {'; '.join(parts)}."


def _checks(gap: GapData) -> Iterator[str]:
    if gap.closures:
        shown = "; ".join(
            f"{text_name(one.text)} {with_interval(one.distance)}, {CLOSURES[one.verdict]}" for one in gap.closures
        )
        yield f"- The distance measured again by runs of no step (seeds {_seeds(gap)}): {shown}."
    if gap.doubts:
        yield f"- Reasons to doubt: {' '.join(gap.doubts)}"


def _seeds(gap: GapData) -> str:
    return ", ".join(map(str, gap.closures[0].seeds))


def chain_rows(data: ReportData) -> tuple[list[str], list[list[str]]] | None:
    """The steps on every text: heads and rows; None where there is no chain of a real size."""
    gap = GapData(data)
    if gap.scores.is_toy or not gap.chains:
        return None
    heads = ["step"]
    for chain in gap.chains:
        heads += [text_name(chain.text), "on repeated pairs", "on others", "p (Holm)"]
    names = [step.name for step in (*gap.chains[0].steps, gap.chains[0].whole)]
    rows = []
    for i, name in enumerate(names):
        row = [name]
        for chain in gap.chains:
            step = (*chain.steps, chain.whole)[i]
            p = "" if step.p_value is None else "< .001" if step.p_value < 0.001 else number(step.p_value, 3)
            row += [with_interval(step.nats), number(step.recall.mean, 3), number(step.other.mean, 3), p]
        rows.append(row)
    return heads, rows
