"""The gap's chain as Markdown, for the README and docs/gap.md: every number is computed from the cells."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from doc_tables.gap_rows import first_and_last
from ematrace.analysis.gap import Chain, RecallShare, Shares, ratio
from ematrace.analysis.gap_design import CHANGES as STEPS
from ematrace.analysis.gap_design import JOINED_NAME, SPEN, Arm
from ematrace.analysis.plan import MARGIN
from ematrace.report.data import ReportData
from ematrace.report.formatting import listed, number, with_interval
from ematrace.report.gap import (
    OUTCOMES,
    PAPERS_GAP,
    GapData,
    attention_name,
    averaged_values,
    other_reading,
    pair_text,
    percent,
    recall_text,
    seeds_text,
    share_text,
    text_name,
    to_attention,
)
from ematrace.results import Sample

NOT_RECORDED = "What the gap between SPEN and a transformer is made of is not recorded yet."
_STEPS = {(change.factor, change.value): change.name for change in STEPS}
GRADIENT_STEPS = (_STEPS["load_balance", 0.0], _STEPS["ffn", "topk_masked"])
PARTS = {
    "the load-balance loss and the straight-through gradient of the top-k": GRADIENT_STEPS,
    "traces in place of attention with learned positions": (JOINED_NAME,),
}
"""Steps of the chain by their names."""
CLOSURES = {
    "closes": f"within the margin of {MARGIN:g}",
    "does not close": "they differ",
    "undecided": f"with these seeds it is not decided whether they agree within {MARGIN:g}",
    "not checked": "one seed, which checks nothing",
}


def findings(data: ReportData) -> str:
    """For the README: the distance, and its steps on the paper's text as a picture."""
    gap = data.derived(GapData)
    if gap.scores.is_toy or not gap.chains:
        return f"{NOT_RECORDED}\n"
    return "\n\n".join([_distance(gap), *_picture(gap.papers_chain)]) + "\n"


def verdict_on_traces(data: ReportData) -> str:
    """For docs/gap.md: whether the whole gap is the traces, under either reading of straight-through."""
    gap = data.derived(GapData)
    found = [] if gap.scores.is_toy else [*_orders(gap), *_other_gradient(gap)]
    return "\n\n".join(found or [NOT_RECORDED]) + "\n"


def recall_finding(data: ReportData) -> str:
    """Where traces fall behind attention, everything else equal."""
    gap = data.derived(GapData)
    found = "" if gap.scores.is_toy else " ".join(_mixers(gap))
    return f"{found or NOT_RECORDED}\n"


def details(data: ReportData) -> str:
    """For docs/gap.md, as items of a list: shares in the chain's order, halves, recall by text, checks, doubts."""
    gap = data.derived(GapData)
    if gap.scores.is_toy or not gap.chains:
        return f"- {NOT_RECORDED}\n"
    shares = [f"- {text}" for text in (*_parts(gap), *_to_rope(gap), " ".join(other_reading(gap))) if text]
    return "\n".join([*_joined(gap), *shares, *_halves(gap.chains[0]), *_recall(gap), *_checks(gap)]) + "\n"


def _distance(gap: GapData) -> str:
    """How far apart the two blocks are on every text."""
    chain = gap.papers_chain
    texts = listed([text_name(chain.text) for chain in gap.chains])
    nats = listed([number(chain.whole.nats.mean, 2) for chain in gap.chains])
    times = listed([number(math.exp(chain.whole.nats.mean), 1) for chain in gap.chains])
    return (
        f"SPEN's block is {nats} nats per token behind GPT-2's on {texts}: {times} times in perplexity, where the "
        f"paper has {PAPERS_GAP}. Every arm has {gap.size} (within 1%), the same text and its own swept learning rate. "
        f"{seeds_text(chain)} One change at a time, on {text_name(chain.text)}:"
    )


def _parts(gap: GapData) -> Iterator[str]:
    """What two parts are of the chain's distance, on every text that has them."""
    shares = {what: [_share(c, names) for c in gap.chains] for what, names in PARTS.items()}
    known = {what: [share for share in found if share is not None] for what, found in shares.items()}
    parts = [f"{what}, {listed(known[what])}" for what, found in shares.items() if len(known[what]) == len(found)]
    if parts:
        yield f"Of the distance in nats, in this order of changes: {'; '.join(parts)}."


def _to_rope(gap: GapData) -> Iterator[str]:
    """The same two parts of the distance to attention with RoPE, which stands beside the chain."""
    found = to_attention(gap, SPEN)
    if found is None:
        return
    whole, top_k, traces = found
    yield (
        f"With attention with RoPE at the end instead, the distance is {whole} nats on these texts: the load-balance "
        f"loss and the gradient are {top_k} of it, traces in place of attention {traces}."
    )


def _orders(gap: GapData) -> Iterator[str]:
    """The plan's verdict on the traces' share, over the orders of the changes."""
    if gap.outcome is None:
        return
    first, last = first_and_last(gap)
    traces = [
        listed([share_text(of["context"]) for of in ends]) for ends in (map(averaged_values, gap.shares), first, last)
    ]
    average, as_first, as_last = traces
    whole = listed([number(shares.whole.mean, 2) for shares in gap.shares])
    yield (
        f"The two ends are {whole} nats apart. Traces are {average} of the distance on average, {as_first} as the "
        f"first change and {as_last} as the last (95% intervals over seeds). Under the rule that was written before "
        f"the runs, this counts {OUTCOMES[gap.outcome]} the claim that the whole gap is the traces: against it is a "
        "share below half on average, first and last, on all texts; for it, one above three quarters. On average over "
        f"the orders, the gradient costs {listed([*map(_gradient_over_traces, gap.shares)])} nats more than the traces."
    )


def _gradient_over_traces(shares: Shares) -> str:
    return with_interval(shares.split["gradient"].part - shares.players["context"].part)


def _other_gradient(gap: GapData) -> Iterator[str]:
    """The same from the true gradient on, in short."""
    outcome = gap.outcome_with_true_gradient
    if outcome is None:
        return
    found = gap.shares_with_true_gradient
    traces = listed([percent(shares.players["context"]) for shares in found])
    whole = listed([number(shares.whole.mean, 2) for shares in found])
    yield (
        "*Straight-through* is read here as a gradient that ignores the selection. If the paper means a mask that is "
        f"held constant, its gradient is the true one, the distance is smaller ({whole} nats) and traces are {traces} "
        f"of it: {OUTCOMES[outcome]} that claim."
    )


def _share(chain: Chain, names: Sequence[str]) -> str | None:
    """What these steps of the chain are of the whole; None where an arm beside one is missing, or the whole is too
    small for shares."""
    found = [np.array(step.nats.values) for step in chain.steps if step.name in names]
    if len(found) != len(names):
        return None
    share = ratio(np.sum(found, axis=0), np.array(chain.whole.nats.values))
    return None if share.share is None else share_text(share)


def _picture(chain: Chain) -> Iterator[str]:
    """scripts/write_tables.py draws it; docs/gap.md has the same steps as a table."""
    steps = "; ".join(f"{step.name} {number(step.nats.mean, 3)}" for step in chain.steps)
    yield f"![Nats that each change saves: {steps}](docs/gap-chain.svg)"
    if chain.missing:
        absent = "; ".join(f"{arm.text}: {absence.why}" for arm, absence in chain.missing.items())
        yield f"Arms of the chain that are not there: {absent}."


def _mixers(gap: GapData) -> Iterator[str]:
    """EMA against attention with all else equal: where the gap lies on the first text, and the gap on all."""
    if not gap.recall:
        return
    attention, *others = dict.fromkeys(found.attention for found in gap.recall)
    first = next(found for _, found in _recall_by_text(gap, attention) if "pair" in found)
    yield (
        f"With a dense layer and as many parameters, EMA traces are {_gaps(gap, attention)} nats behind "
        f"{attention_name(attention)}; on {text_name(first['pair'].text)}, {pair_text(first['pair'])}."
        + "".join(f" Behind {attention_name(other)} they are {_gaps(gap, other)}." for other in others)
    )


def _gaps(gap: GapData, attention: Arm) -> str:
    """On every text."""
    return listed([with_interval(f["pair"].gap) for _, f in _recall_by_text(gap, attention) if "pair" in f])


def _recall_by_text(gap: GapData, attention: Arm) -> Iterator[tuple[str, dict[str, RecallShare]]]:
    for text in gap.scores.texts:
        yield text, {r.definition: r for r in gap.recall if (r.text, r.attention) == (text, attention)}


def _joined(gap: GapData) -> Iterator[str]:
    """The first two steps, whose split depends on the rates."""
    found = []
    for chain in gap.chains:
        steps = [step.nats.values for step in chain.steps if step.name in GRADIENT_STEPS]
        if len(steps) == len(GRADIENT_STEPS):
            both = Sample(tuple(map(math.fsum, zip(*steps, strict=True))))
            found.append(f"{text_name(chain.text)} {with_interval(both)}")
    if found:
        names = " and ".join(f"“{name}”" for name in GRADIENT_STEPS)
        yield f"- {names} together: {'; '.join(found)}."


def _halves(chain: Chain) -> Iterator[str]:
    if chain.halves:
        halves = "; ".join(f"{half.name} {with_interval(half.nats)}" for half in chain.halves)
        order = "Without positions, attention can tell order from the causal mask alone."
        yield f"- The step to attention has two halves: {halves}. {order}"


def _recall(gap: GapData) -> Iterator[str]:
    """Of the whole distance, and of EMA against attention, on every text."""
    whole = [(chain.text, chain.recall_share) for chain in gap.chains if chain.recall_share.share is not None]
    if whole:
        shown = "; ".join(f"{text_name(text)} {share_text(found)}" for text, found in whole)
        yield f"- Of the whole distance, on tokens that repeat a pair: {shown}."
    for attention in dict.fromkeys(found.attention for found in gap.recall):
        for text, found in _recall_by_text(gap, attention):
            if pair := found.get("pair"):
                behind = f"{with_interval(pair.gap)} nats behind {attention_name(pair.attention)}"
                arms = f"EMA traces on {text_name(text)}, with a dense layer and as many parameters"
                yield f"- {arms}: {behind}: {recall_text(found)}."


def _checks(gap: GapData) -> Iterator[str]:
    for one in gap.closures:
        seeds = ", ".join(map(str, one.seeds))
        yield (
            f"- Does the chain close on {text_name(one.text)}? Its steps add up to {number(one.steps.mean, 3)}; runs "
            f"of no step (seeds {seeds}) put the two blocks {with_interval(one.distance)} apart, which differs by "
            f"{number(abs(one.difference), 3)}: {CLOSURES[one.verdict]}."
        )
    if gap.doubts:
        yield f"- Reasons to doubt: {' '.join(gap.doubts)}"
