"""The gap's chain as Markdown, for the README and docs/gap.md: every number is computed from the cells."""

from __future__ import annotations

from collections.abc import Iterator

from ematrace.analysis.gap import Chain, RecallShare, Step
from ematrace.report.data import ReportData
from ematrace.report.formatting import number
from ematrace.report.gap import (
    GapData,
    attention_name,
    pair_text,
    recall_text,
    seeds_text,
    share_text,
    text_name,
    with_interval,
)

NOT_RECORDED = "What the gap between SPEN and a transformer is made of is not recorded yet."
CLOSURES = {
    "closes": "within the margin",
    "does not close": "they differ",
    "undecided": "too few seeds to say within the margin",
    "not checked": "one seed, which checks nothing",
}


def findings(data: ReportData) -> str:
    """For the README: the distance, its steps as a table, and where traces fall behind attention."""
    gap = GapData(data)
    if gap.scores.is_toy or not gap.chains:
        return f"{NOT_RECORDED}\n"
    return "\n\n".join([_distance(gap), _steps(gap.chains[0]), *_mixers(gap)]) + "\n"


def details(data: ReportData) -> str:
    """For docs/gap.md, as items of a list: halves, recall on every text, checks and doubts."""
    gap = GapData(data)
    if gap.scores.is_toy or not gap.chains:
        return f"- {NOT_RECORDED}\n"
    return "\n".join([*_halves(gap.chains[0]), *_recall(gap), *_checks(gap)]) + "\n"


def _distance(gap: GapData) -> str:
    chain = gap.chains[0]
    whole = chain.whole.nats
    change = f"{'falls' if whole.mean > 0 else 'rises'} by {number(abs(whole.mean), 2)} nats"
    ends = f"from {number(chain.start.mean, 2)} to {number(chain.end.mean, 2)}"
    return (
        f"From SPEN's block to GPT-2's the loss {change} ({ends} on {text_name(chain.text)}; {gap.size}; "
        "as many parameters and the same tokens in every arm, each at its own swept learning rate). "
        f"{seeds_text(chain)} One change at a time:"
    )


def _steps(chain: Chain) -> str:
    """As a table. Repeated pairs: tokens that complete a pair which the window had before."""
    heads = ["change", "nats that it saves (95%)", "of them on repeated pairs", "on other tokens", "p (Holm)"]
    rows = [[step.name, *_cells_of(step)] for step in (*chain.steps, chain.whole)]
    lines = [heads, ["---"] * len(heads), *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    if not chain.missing:
        return table
    absent = "; ".join(f"{arm.text}: {absence.why}" for arm, absence in chain.missing.items())
    return f"{table}\n\nArms of the chain that are not there: {absent}."


def _cells_of(step: Step) -> list[str]:
    p = "" if step.p_value is None else "< .001" if step.p_value < 0.001 else number(step.p_value, 3)
    return [with_interval(step.nats), number(step.recall.mean, 3), number(step.other.mean, 3), p]


def _mixers(gap: GapData) -> Iterator[str]:
    """EMA against attention with all else equal, on the first text; the distance on the others."""
    by_text = {text: found for text, found in _recall_by_text(gap) if "pair" in found}
    if not by_text:
        return
    first, *others = by_text
    found = by_text[first]["pair"]
    elsewhere = "; ".join(f"{text_name(text)} {with_interval(by_text[text]['pair'].gap)}" for text in others)
    yield (
        f"With all else equal and dense, EMA traces are {with_interval(found.gap)} nats behind "
        f"{attention_name(found.attention)}: {pair_text(found)}{f' ({elsewhere} in all)' if elsewhere else ''}."
    )


def _recall_by_text(gap: GapData) -> Iterator[tuple[str, dict[str, RecallShare]]]:
    """Against the attention that is compared first."""
    for text in gap.scores.texts:
        found = [r for r in gap.recall if (r.text, r.attention) == (text, gap.recall[0].attention)]
        yield text, {r.definition: r for r in found}


def _halves(chain: Chain) -> Iterator[str]:
    if chain.halves:
        halves = "; ".join(f"{half.name} {with_interval(half.nats)}" for half in chain.halves)
        yield f"- The step to attention has two halves: {halves}. Without positions attention knows no order."


def _recall(gap: GapData) -> Iterator[str]:
    """Of the whole distance, and of EMA against attention, on every text."""
    whole = [(chain.text, chain.recall_share) for chain in gap.chains if chain.recall_share.share is not None]
    if whole:
        shown = "; ".join(f"{text_name(text)} {share_text(found)}" for text, found in whole)
        yield f"- Of the whole distance, on tokens that repeat a pair: {shown}."
    for text, found in _recall_by_text(gap):
        if pair := found.get("pair"):
            behind = f"{with_interval(pair.gap)} nats behind {attention_name(pair.attention)}"
            yield f"- EMA traces on {text_name(text)}, all else equal and dense: {behind}: {recall_text(found)}."


def _checks(gap: GapData) -> Iterator[str]:
    for one in gap.closures:
        yield (
            f"- Does the chain close on {text_name(one.text)}? Its steps add up to {number(one.steps.mean, 3)}; runs "
            f"of no step (seeds {', '.join(map(str, one.seeds))}) are {with_interval(one.distance)} apart: "
            f"{CLOSURES[one.verdict]}."
        )
    if gap.doubts:
        yield f"- Reasons to doubt: {' '.join(gap.doubts)}"


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
            row += _cells_of((*chain.steps, chain.whole)[i])
        rows.append(row)
    return heads, rows
