"""The gap between SPEN and a transformer: chain, shares, recall, and everything that they rest on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import median

from markupsafe import Markup

from ematrace.analysis.gap import Chain, Outcome, Ratio, RecallShare, Step
from ematrace.analysis.gap_closure import Closure
from ematrace.analysis.gap_design import (
    ATTENTION,
    EMA,
    GPT2,
    JOINED_NAME,
    LEARNED,
    PLAYER_NAMES,
    SIZES,
    SPEN,
    SPLIT_NAMES,
    Arm,
)
from ematrace.analysis.gap_scores import EXPERIMENT, TOY
from ematrace.analysis.plan import MARGIN, TEXTS
from ematrace.report.data import ReportData
from ematrace.report.formatting import interval, listed, number, over_seeds, p_value, plural, with_interval
from ematrace.report.gap import (
    GapData,
    attention_name,
    averaged_values,
    chain_chart,
    gap_size,
    other_reading,
    share_text,
    text_name,
)
from ematrace.report.gap_context import (
    context_rows,
    context_share_rows,
    recall_part_rows,
    recall_saved_rows,
)
from ematrace.report.gap_recall_beyond import beyond_count_rows, beyond_distance_rows, beyond_rows, together_rows
from ematrace.report.gap_second import second_rows
from ematrace.report.gradient_cost import gradient_rows, gradient_share_rows, verdict_lines
from ematrace.report.learning_rates import sweep_rows, sweeps_at
from ematrace.report.parts import Block, Content, DataTable, Fold, Paragraph, code, plain_table
from ematrace.report.sections.gap_trend import trend
from ematrace.report.tables import Header, measure_table
from ematrace.results import Sample

DEFINITION_NAMES = {
    "pair": "seen before",
    "retrieval": "seen before, and misses",
    "rare": "rare, at most 1,250 times",
    "rare_here": "rare in proportion",
}
DEFINITIONS = (
    "Recall tokens complete a pair of tokens that was seen before in the window. Misses: the token before was seen, "
    "with another one after it. Rare: the pair occurs at most 1,250 times in the training text, as Zoology counts, or "
    "as rarely in proportion to the tokens trained on."
)
FACTORS = {
    "context": PLAYER_NAMES["context"],
    "ffn": PLAYER_NAMES["ffn"],
    "gradient": SPLIT_NAMES["gradient"],
    "selection": SPLIT_NAMES["selection"],
    "residual": PLAYER_NAMES["residual"],
}
"""By their share's name, with the parts of the feed-forward layer below it."""
VERDICTS: Mapping[Outcome | None, str] = {
    "for": "for",
    "against": "against",
    "mixed": "mixed",
    "depends": "mixed, it depends on the rest",
    None: "not judged",
}
# Not ours: Arora et al. 2023, arXiv 2312.04927, models of 360M parameters trained on 10B tokens of the Pile.
ZOOLOGY_SOURCE = (
    "Published elsewhere, not measured here: Zoology (Arora et al. 2023, arXiv 2312.04927), 360M parameters, "
)
ZOOLOGY_SOURCE += (
    "10B tokens of the Pile. Perplexity, and the share of the gap to attention that lies on recall tokens."
)
ZOOLOGY: Mapping[str, Sequence[str]] = {
    "attention": ("9.44", "1.98", "10.62", "–"),
    "long convolution": ("13.13", "13.27", "13.12", "40.5%"),
    "H3": ("–", "–", "–", "65.8%"),
    "Hyena": ("–", "–", "–", "98.2%"),
    "RWKV": ("–", "–", "–", "100%"),
}
RANGES = {
    "distance": {"recall_nats_by_distance": "tokens that repeat a pair, by distance to its last occurrence"},
    "pair_count": {
        "recall_nats_by_count": "tokens that repeat a pair, by the pair's count in the training text",
        "other_nats_by_count": "all other tokens, by the pair's count in the training text",
    },
}
UNITS = {"distance": "back", "pair_count": "times"}
BEYOND = (
    "nats saved over no context per token that repeats a pair, less those per token that repeats none, with the same "
    "counts of their pairs in training"
)
CLOSES = (
    f"The chain closes where the difference's 95% interval (Welch) lies within ±{number(MARGIN)} nats, and does not "
    "close where it excludes 0 and is not within."
)
TOY_NOTE = (
    "These are toys: models of a few thousand parameters, trained for seconds, at a learning rate that was not swept. "
    "They show that the chain and the recall slice are computed. Nothing follows from their numbers, and no verdict "
    "rests on them."
)


def gap_parts(data: ReportData) -> Sequence[Content | None]:
    gap = data.derived(GapData)
    parts: list[Content | None] = [*_notes(gap)]
    if gap.scores.arms:
        toy = gap.scores.is_toy
        parts += [Block([chain_chart(chain, toy) for chain in gap.chains], "panels") if gap.chains else None]
        parts += [Fold(f"The steps on {text_name(chain.text)}", [chain_table(chain)]) for chain in gap.chains]
        parts += [*_closing(gap.closures, gap.chains), *_shares(gap), *_context(data), *_recall(gap)]
        parts += [_arms(gap), *_slices(gap)]
    return [*parts, *_gradient(data), *trend(data.cells), second_table(gap), *_rates(data)]


def _gradient(data: ReportData) -> Iterator[Content]:
    """What the straight-through gradient costs, by the units kept and by size."""
    if (found := gradient_rows(data)) is None:
        return
    caption = "Nats by which SPEN's block is worse with the straight-through gradient than with the true one"
    yield plain_table(*found, caption)
    yield from (Paragraph(line) for line in verdict_lines(data))
    if (found := gradient_share_rows(data)) is not None:
        yield plain_table(*found, "The straight-through gradient's part of the distance from SPEN's block to GPT-2's")


def _notes(gap: GapData) -> Iterator[Content]:
    """How large, how many seeds, what is missing, what is to be doubted."""
    if gap.scores.is_toy:
        yield Paragraph(Markup("<strong>{}</strong>").format(TOY_NOTE), "note")
    if gap.scores.arms:
        seeds = sorted({seed for runs in gap.scores.arms.values() for seed in runs})
        yield Paragraph(f"{plural(len(gap.scores.arms), 'arm')} with {gap.size}; {plural(len(seeds), 'seed')}.")
    if gap.absent:
        lines = [
            Paragraph(
                Markup("{}: {}. {}").format(arm.text, found.why, code(gap.command_for_arm(arm, found))), "missing"
            )
            for arm, found in gap.absent
        ]
        summary = f"{plural(len(lines), 'arm')} not published, with the reason and the command"
        yield Fold(summary, lines)
    for line in gap.scores.dropped:
        yield Paragraph(f"Left out: {line}", "missing")
    if gap.doubts and not gap.scores.is_toy:
        yield Block([Paragraph(f"Reason to doubt: {doubt}") for doubt in gap.doubts], "note")


def chain_table(chain: Chain) -> DataTable:
    heads = [f"step, on {text_name(chain.text)}", "nats", "95%", "95%, other text too", "median"]
    heads += ["on repeated pairs", "on other tokens", "p (Holm)"]
    rows = [row for step in chain.steps for row in _step_rows(step, chain.halves)]
    rows.append([chain.whole.name, *_changes(chain.whole), ""])
    return plain_table(heads, rows, f"By how much each step lowers the loss on {text_name(chain.text)}")


def _step_rows(step: Step, halves: Sequence[Step]) -> Iterator[list[Content]]:
    """The step; under the joined one its halves, which are no steps of their own and have no p-value."""
    yield [step.name, *_changes(step), p_value(step.p_value)]
    if JOINED_NAME in step.name:
        for half in halves:
            yield [f"of which {half.name}", *_changes(half), ""]


def _changes(step: Step) -> tuple[str, ...]:
    over_text = "–" if step.over_text is None else interval(step.over_text, 3)
    middle = number(median(step.nats.values), 3)
    return (*_nats(step.nats), over_text, middle, number(step.recall.mean, 3), number(step.other.mean, 3))


def _closing(closures: Sequence[Closure], chains: Sequence[Chain]) -> Iterator[Content]:
    """Is the distance the same where it is measured again, by other runs?"""
    if not chains:
        return
    yield Paragraph(
        "Steps are differences of neighbouring arms on the same seeds, all scored on the same tokens: they add up to "
        "the whole distance by construction, and so do repeated pairs and other tokens to a step. What can fail is the "
        "distance measured again, by runs that no step uses: both ends on the seeds of the sweep of learning rates. "
        + (CLOSES if closures else "There are no such runs of both ends at the rates in use.")
    )
    if closures:
        heads = ["text", "sum of the steps", "distance, other runs", "their seeds", "difference", "95%", "the chain"]
        rows: list[list[Content]] = [
            [
                text_name(one.text),
                with_interval(one.steps),
                with_interval(one.distance),
                ", ".join(map(str, one.seeds)),
                number(one.difference, 3, signed=True),
                "–" if one.interval is None else interval(one.interval, 3),
                one.verdict,
            ]
            for one in closures
        ]
        yield plain_table(heads, rows, "The distance from SPEN to GPT-2 measured twice")


def _nats(sample: Sample) -> tuple[str, str]:
    ends = over_seeds(sample)
    return number(sample.mean, 3), interval(ends, 3) if ends else "–"


def _shares(gap: GapData) -> Iterator[Content]:
    if not gap.shares:
        return
    heads = ["factor", *(f"{text_name(s.text)}{what}" for s in gap.shares for what in (", nats", ", 95%", ", share"))]
    rows = [["whole distance", *(x for s in gap.shares for x in (*_nats(s.whole), ""))]]
    for key, name in FACTORS.items():
        rows.append([name, *(x for s in gap.shares for x in _ratio(averaged_values(s)[key]))])
    yield Paragraph(
        "Shares do not depend on the order of the changes: they are Shapley values over the six orders, from EMA with "
        "the straight-through top-k, its context behind the feed-forward layer, to attention with RoPE, dense and "
        "direct. Intervals of shares are Fieller's; of a distance below .1 nats no share is given."
    )
    yield plain_table(heads, rows, "Shapley values of three changes")
    yield Paragraph(
        "A Shapley value is a mean over orders and hides how far they are apart. Beside it: what context is worth as "
        "the first change, with SPEN's sparse layer and residual, and as the last one, dense and direct."
    )
    occasions = {
        "as the first change": [s.first for s in gap.shares],
        "averaged over orders": [s.players for s in gap.shares],
        "as the last": [s.last for s in gap.shares],
    }
    rows = [
        [f"context {when}", *(x for of in found for x in _ratio(of["context"]))] for when, found in occasions.items()
    ]
    yield plain_table(heads, rows, "Context, by when it changes")
    at = f"; {gap_size(gap)}" if gap.chains else ""
    yield Paragraph(
        f"“The whole gap is the traces”: {VERDICTS[gap.outcome]}{at}. For if the interval of context's share lies "
        f"above .75 and those as the first and as the last change above .5, on {listed([*map(text_name, TEXTS)])}; "
        "against if all three lie below .5."
    )
    yield Paragraph(" ".join(other_reading(gap)))


def _ratio(found: Ratio) -> tuple[str, str, str]:
    return (*_nats(found.part), share_text(found))


def _recall(gap: GapData) -> Iterator[Content]:
    if not gap.recall:
        return
    heads = ["recall tokens, by text", "of tokens", "gap, nats", "95%", "share of the gap"]
    heads += ["EMA on them", "attention", "EMA elsewhere", "attention", "seeds"]
    rows = [
        [
            f"{text_name(found.text)}, {attention_name(found.attention)}: {DEFINITION_NAMES[found.definition]}",
            f"{found.tokens:.1%}",
            *_nats(found.gap),
            share_text(found.recall) if found.tokens else "–",
            *_perplexities(found),
            str(len(found.seeds)),
        ]
        for found in gap.recall
    ]
    yield Paragraph(DEFINITIONS)
    yield plain_table(heads, rows, "EMA against attention on recall tokens; perplexity on them and elsewhere")
    columns = ["model", "overall", "recall tokens", "others", "share of the gap on recall tokens"]
    yield Paragraph(ZOOLOGY_SOURCE)
    yield plain_table(columns, [[name, *values] for name, values in ZOOLOGY.items()], "Zoology's table, published")


def _context(data: ReportData) -> Iterator[Content]:
    """What a context is worth by itself."""
    captions = {
        "Nats that a context saves over none, with as many parameters": context_rows(data),
        "The same as a share of what attention with RoPE saves on these tokens": context_share_rows(data),
        "Where on repeated pairs traces are behind attention with RoPE, in dense blocks": recall_part_rows(data),
        "What traces save over no context there, and its share of what attention saves": recall_saved_rows(data),
        f"Recall beyond ordinary context: {BEYOND}": beyond_rows(data),
        "The same by distance to the last occurrence": beyond_distance_rows(data),
        "The same by the pair's count in training": beyond_count_rows(data),
        "Traces and attention alone and together: nats, one seed of the sweeps of learning rates": together_rows(data),
    }
    for caption, rows in captions.items():
        if rows is not None:
            yield Paragraph(f"{caption}.")
            yield plain_table(*rows, caption)


def _perplexities(found: RecallShare) -> Iterator[str]:
    for samples in zip(*(found.nats[arm] for arm in ("EMA", "attention")), strict=True):
        yield from ("–" if sample is None else number(math.exp(sample.mean)) for sample in samples)


def _arms(gap: GapData) -> Content:
    """Every arm that is published: nats on every text, and how it was trained."""
    scores = gap.scores
    heads = ["arm", *(f"nats, {text_name(text)}" for text in scores.texts), "parameters", "d_ff", "rate", "seeds"]
    heads += ["of which diverged", f"median, {text_name(scores.texts[0])}"]
    rows = []
    for arm in gap.ordered_arms:
        runs = scores.arms[arm]
        seeds = sorted(runs)
        samples = [Sample(tuple(scores.nats(arm, text, "all", seeds))) for text in scores.texts]
        of_model = [number(scores.model_metric(arm, name)) for name in ("parameters", "d_ff")]
        rate = f"{next(iter(runs.values())).lr:g}"
        counts = [str(len(seeds)), str(len(scores.diverged(arm))), number(median(samples[0].values), 3)]
        rows.append([arm.text, *(with_interval(s) for s in samples), *of_model, rate, *counts])
    return Fold("Every arm", [plain_table(heads, rows, "Nats of every arm")])


def _slices(gap: GapData) -> Iterator[Content]:
    """On held-out text, of the ends of the chain and the arms that recall is judged by."""
    text = gap.scores.texts[0]
    arms = [arm for arm in gap.ordered_arms if arm in (SPEN, GPT2, EMA, ATTENTION, LEARNED)]
    parts: list[Content] = [_by_slice(gap, arms, text), *_ranges(gap, arms, text)]
    if others := len(gap.ordered_arms) - len(arms):
        more = Markup("{} more: {}").format(plural(others, "arm"), code(f"results/{EXPERIMENT}/"))
        parts.append(Paragraph(more, "tag"))
    yield Fold("By slice, distance to the last occurrence, and count in training", parts)


def _by_slice(gap: GapData, arms: Sequence[Arm], text: str) -> Content:
    slices = [part for of, part in next(iter(next(iter(gap.scores.arms.values())).values())).nats if of == text]
    shares = [f"{part} ({_share(gap, text, part):.1%})" for part in slices]
    rows = [[arm.text, *(_slice(gap, arm, text, part) for part in slices)] for arm in arms]
    return plain_table(["arm", *shares], rows, f"Nats by slice on {text_name(text)}, with the share of tokens in it")


def _ranges(gap: GapData, arms: Sequence[Arm], text: str) -> Iterator[Content]:
    """Recall tokens by how far back the pair was seen, and all tokens by how often the training text has the pair."""
    size = gap.scores.size
    rows = [
        Header(arm.text, EXPERIMENT, where={**asdict(arm), "size": size, "text": text, "lr": run.lr})
        for arm in arms
        for run in [next(iter(gap.scores.arms[arm].values()))]
    ]
    for factor, metrics in RANGES.items():
        for metric, label in metrics.items():
            levels = [str(level) for level in gap.data.table.values_of(EXPERIMENT, factor, size=size)]
            columns = [Header(f"{level} {UNITS[factor]}", metric=metric, where={factor: level}) for level in levels]
            if (table := measure_table(gap.data, rows, columns, f"Nats on {label}", "arm")) is not None:
                yield Paragraph(f"Nats on {label}, {text_name(text)}.")
                yield table


def _share(gap: GapData, text: str, part: str) -> float:
    arm, runs = next(iter(gap.scores.arms.items()))
    return gap.scores.share(arm, text, part, next(iter(runs)))


def _slice(gap: GapData, arm: Arm, text: str, part: str) -> str:
    seeds = sorted(gap.scores.arms[arm])
    if not gap.scores.share(arm, text, part, seeds[0]):
        return "–"
    return number(float(gap.scores.nats(arm, text, part, seeds).mean()), 3)


def second_table(gap: GapData) -> Content | None:
    """Do two implementations of an arm agree?"""
    found = second_rows(gap.data)
    return None if found is None else plain_table(*found, "Two implementations of the same arm")


def _rates(data: ReportData) -> Iterator[Content]:
    """The whole sweep, arm by arm."""
    for size in SIZES:
        if size == TOY or (found := sweep_rows(data.cells, size)) is None:
            continue
        settled = sum(sweep.obstacle is None for sweep in sweeps_at(data.cells, size).values())
        caption = "Nats by learning rate, on the half of the held-out text that rates are chosen on"
        summary = f"Learning rates at {size}: {plural(len(found.rows), 'arm')}, of {settled} the best rate is settled"
        yield Fold(summary, [plain_table(*found, f"{caption}, at {size}")])
