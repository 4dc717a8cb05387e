"""What the page opens with: the gap between SPEN and a transformer, step by step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

from ematrace.analysis.gap import (
    DEFINITIONS,
    SMALLEST_GAP,
    Chain,
    Outcome,
    Ratio,
    RecallShare,
    Shares,
    build_chain,
    build_recall,
    build_shares,
    doubts,
    factorial_arms,
    judge_traces,
    ratio,
)
from ematrace.analysis.gap_closure import Closure, build_closure
from ematrace.analysis.gap_design import ATTENTION, BETWEEN, CHAIN, EMA, END, LEARNED, START, TRUE_GRADIENT, Arm
from ematrace.analysis.gap_scores import EXPERIMENT, MAIN, TOY, Absence, GapScores, load_scores
from ematrace.analysis.gap_trend import GRADIENT, LARGEST, SIZE_SWEEP, WHOLE, build_trend
from ematrace.analysis.plan import LEAST_SEEDS, SEEDS, TEXTS
from ematrace.report.charts import Fall, RowChart, waterfall_chart
from ematrace.report.commands import Command
from ematrace.report.data import ReportData
from ematrace.report.formatting import listed, millions, number, over_seeds, plural, with_interval
from ematrace.results import Sample

TEXT_NAMES = {"validation": "held-out text", "wikitext2": "WikiText-2", "c4": "C4"}
PARTS = ("tokens that repeat a pair seen before in the window", "all other tokens")
HEADINGS: dict[Outcome, str] = {
    "for": "the gap is the traces: context makes up most of it, whatever the order of the changes.",
    "against": "most of the gap is not the traces.",
    "mixed": "how much of the gap is the traces is not settled.",
    "depends": "how much of the gap is the traces depends on the rest of the block.",
}
OUTCOMES: dict[Outcome, str] = {
    "for": "for",
    "against": "against",
    "mixed": "neither for nor against",
    "depends": "neither for nor against, since it depends on the rest of the block,",
}
OUR_READING = "if “straight-through” means what we take it to mean."
NOT_JUDGED = "At {size}, SPEN's block is {nats} nats behind GPT-2's on {texts}; the largest of {count} steps is {step}."
REVERSED = "At {size}, SPEN's block is not behind GPT-2's."
NO_GAP = "Trained alike, SPEN's block and GPT-2's are less than a tenth of a nat apart."
TOY_HEADING = "A toy, which shows that it runs, and nothing else."
CLAIM = "C25"
GPU_AND_TEXT = "a CUDA GPU and text of yours as SOURCE"
PAPERS_TEXT = "c4"
PAPERS_GAP = "8x on C4 and 25x on WikiText, with a GPT-2 that saw five times as many tokens"


@dataclass(frozen=True)
class GapData:
    """Everything that page and finding show of one size: the main one, or a toy where there is nothing else."""

    data: ReportData

    @cached_property
    def scores(self) -> GapScores:
        sizes = self.data.cells.values_of(EXPERIMENT, "size")
        return load_scores(self.data.cells, MAIN if MAIN in sizes or TOY not in sizes else TOY)

    @cached_property
    def chains(self) -> list[Chain]:
        return [chain for text in self.scores.texts if (chain := build_chain(self.scores, text)) is not None]

    @cached_property
    def shares(self) -> list[Shares]:
        return [found for text in self.scores.texts if (found := build_shares(self.scores, text)) is not None]

    @cached_property
    def shares_with_true_gradient(self) -> list[Shares]:
        """The same from the top-k with the true gradient: what the paper's word may mean as well."""
        found = [build_shares(self.scores, text, BETWEEN) for text in self.scores.texts]
        return [shares for shares in found if shares is not None]

    @cached_property
    def recall(self) -> list[RecallShare]:
        return [
            found
            for text in self.scores.texts
            for attention in (ATTENTION, LEARNED)
            for definition in DEFINITIONS
            if (found := build_recall(self.scores, text, definition, attention)) is not None
        ]

    @cached_property
    def closures(self) -> list[Closure]:
        found = [build_closure(self.data.cells, self.scores, chain) for chain in self.chains]
        return [closure for closure in found if closure is not None]

    @cached_property
    def doubts(self) -> list[str]:
        return doubts(self.scores, self.shares, self.chains) if self.scores.texts else []

    @property
    def outcome(self) -> Outcome | None:
        """Is the whole gap the traces? Only of a real size, and of all texts that the plan names."""
        return self._judge(self.shares)

    @property
    def outcome_with_true_gradient(self) -> Outcome | None:
        """The same rule from there."""
        return self._judge(self.shares_with_true_gradient)

    def _judge(self, shares: Sequence[Shares]) -> Outcome | None:
        judged = [found for found in shares if found.text in TEXTS]
        return judge_traces(judged) if not self.scores.is_toy and len(judged) == len(TEXTS) else None

    @property
    def ordered_arms(self) -> list[Arm]:
        """Those that are there: the chain's from SPEN to GPT-2, then the others."""
        return [arm for arm in dict.fromkeys((*CHAIN, *self.scores.arms)) if arm in self.scores.arms]

    @property
    def absent(self) -> list[tuple[Arm, Absence]]:
        """Arms of the chain, of the factorial and of the recall shares that are not there, and why."""
        wanted = dict.fromkeys((*CHAIN, *(() if self.scores.is_toy else factorial_arms()), EMA, ATTENTION))
        of_chain = self.chains[0].missing if self.chains else {}
        found = [(arm, of_chain.get(arm) or self.scores.absence(arm)) for arm in wanted]
        return [(arm, absence) for arm, absence in found if absence is not None]

    @property
    def command(self) -> Command:
        return Command(f"ematrace reproduce {EXPERIMENT} --scale gpu --data SOURCE", GPU_AND_TEXT)

    def command_for_arm(self, arm: Arm, absence: Absence) -> str:
        """The command that makes an arm's cells, or sweeps its rates."""
        only = " ".join(f"{field.name}={_spelt(getattr(arm, field.name))}" for field in fields(arm))
        scale = "" if self.scores.is_toy else " --scale gpu --data SOURCE"
        return f"ematrace reproduce {absence.experiment}{scale} --only {only}"

    @property
    def papers_chain(self) -> Chain:
        """On the text of the paper's figure, or the first where it was not scored."""
        return next((chain for chain in self.chains if chain.text == PAPERS_TEXT), self.chains[0])

    @property
    def parameters(self) -> str:
        """`2M parameters`, of the first arm."""
        found = self.scores.model_metric(next(iter(self.scores.arms)), "parameters")
        return f"size {self.scores.size}" if found is None else f"{_parameters(found, 0)} parameters"

    @property
    def size(self) -> str:
        """`1.9M parameters, 62 tokens each`, of the first arm."""
        arm = next(iter(self.scores.arms))
        parameters, tokens = (self.scores.model_metric(arm, name) for name in ("parameters", "tokens_per_parameter"))
        if parameters is None:
            return f"size {self.scores.size}"
        each = f" and {number(tokens, 0)} tokens per parameter" if tokens is not None else ""
        return f"{_parameters(parameters, 1)} parameters{each}"


def _parameters(count: float, decimals: int) -> str:
    return millions(count, decimals) if count > 1e6 else f"{count / 1e3:.0f} thousand"


def _spelt(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def text_name(text: str) -> str:
    return TEXT_NAMES.get(text, text)


def chain_chart(chain: Chain, toy: bool) -> RowChart:
    falls = [
        Fall(step.name, (step.recall.mean, step.other.mean), over_seeds(step.nats), change_text(step.nats))
        for step in chain.steps
    ]
    caption = f"Nats per token on {text_name(chain.text)}, from SPEN to GPT-2"
    return waterfall_chart(
        f"TOY: {caption}" if toy else caption, (START, chain.start.mean), falls, END, "nats per token", PARTS
    )


def change_text(nats: Sample) -> str:
    """As the loss moves: down is negative."""
    return number(-nats.mean, 3, signed=True)


def nats_text(sample: Sample, signed: bool = False) -> str:
    """With an interval from as many seeds on as the plan has for one."""
    if len(sample.values) >= LEAST_SEEDS:
        return with_interval(sample, signed=signed)
    return number(sample.mean, 3, signed)


def share_text(found: Ratio) -> str:
    """`62.0% (58.1 to 66.2%)`; a dash where no share is given."""
    if found.share is None:
        return "–"
    low, high = (number(100 * end, 1) for end in found.interval or (math.nan, math.nan))
    ends = f" ({low} to {high}%)" if found.interval is not None else ""
    return f"{number(100 * found.share, 1)}%{ends}"


def averaged_values(shares: Shares) -> Mapping[str, Ratio]:
    """Over all orders, with the feed-forward layer in its two parts."""
    return {**shares.players, **shares.split}


def gap_heading(gap: GapData) -> str:
    if gap.scores.is_toy:
        return TOY_HEADING
    chain = gap.chains[0]
    whole = chain.whole.nats
    low, high = whole.interval or (whole.mean, whole.mean)
    if high < SMALLEST_GAP:
        return NO_GAP if low > -SMALLEST_GAP else REVERSED.format(size=gap.parameters)
    if gap.outcome is not None:
        heading = f"At {gap.parameters}, {HEADINGS[gap.outcome]}"
        other = gap.outcome_with_true_gradient
        return heading if other in (None, gap.outcome) else f"{heading.removesuffix('.')}, {OUR_READING}"
    largest = max(chain.steps, key=lambda step: step.nats.mean)
    same = [next((s for s in one.steps if s.name == largest.name), None) for one in gap.chains]
    step = f"“{largest.name}”, {listed([number(s.nats.mean, 2) for s in same if s is not None])}"
    behind = listed([number(one.whole.nats.mean, 2) for one in gap.chains])
    texts = listed([text_name(one.text) for one in gap.chains])
    return NOT_JUDGED.format(size=gap.parameters, nats=behind, texts=texts, count=len(chain.steps), step=step)


def gap_size(gap: GapData) -> str:
    """`at 2M parameters, a gap of .62 nats on C4 (1.86 times in perplexity), where the paper has ...`"""
    chain = gap.papers_chain
    nats = chain.whole.nats
    times = f"{number(math.exp(nats.mean), 2)} times in perplexity"
    return (
        f"at {gap.parameters}, a gap of {with_interval(nats)} nats on {text_name(chain.text)} ({times}), "
        f"where the paper has {PAPERS_GAP}"
    )


def toy_text(gap: GapData) -> str:
    return (
        f"{plural(len(gap.scores.arms), 'model')} with {gap.size}, trained for seconds on text that comes with "
        "Python: the picture shows what is computed, and nothing follows from its numbers. The real one:"
    )


def distance_sentence(gap: GapData) -> str:
    chain = gap.chains[0]
    missing = f" {plural(len(chain.missing), 'arm')} of the chain not measured yet: see below." if chain.missing else ""
    paper = "The paper says that the traces account for SPEN's distance to GPT-2."
    return f"{paper} Measured here: {gap_size(gap)}.{_in_the_chart(gap)} {seeds_text(chain)}{missing}"


def _in_the_chart(gap: GapData) -> str:
    """The same gap on the chart's text, where that is another one."""
    chain = gap.chains[0]
    if chain.text == gap.papers_chain.text:
        return ""
    return f" On {text_name(chain.text)}, as in the chart, it is {with_interval(chain.whole.nats)}."


def to_attention(gap: GapData, start: Arm) -> list[str] | None:
    """The distance from a block of the chain to attention with RoPE, what of it is left behind at the masked block, and
    what is traces against attention: on every text. None where there is no share on one."""
    arms = {"start": start, "masked": TRUE_GRADIENT, "ema": EMA, "rope": ATTENTION}
    if any(arm not in gap.scores.arms for arm in arms.values()):
        return None
    seeds = gap.scores.common_seeds(arms.values())
    rows = []
    for text in gap.scores.texts:
        nats = {name: gap.scores.nats(arm, text, "all", seeds) for name, arm in arms.items()}
        whole = nats["start"] - nats["rope"]
        top_k, traces = (ratio(part, whole) for part in (nats["start"] - nats["masked"], nats["ema"] - nats["rope"]))
        if traces.share is None:
            return None
        rows.append((with_interval(Sample(tuple(whole))), share_text(top_k), share_text(traces)))
    return [listed(column) for column in zip(*rows, strict=True)]


def other_reading(gap: GapData) -> list[str]:
    """What traces are of the distance if the paper's straight-through gradient is what is called the true one here."""
    if (found := to_attention(gap, TRUE_GRADIENT)) is None:
        return []
    whole, _, traces = found
    return [
        "If the paper's straight-through estimator is a mask that is held constant, its block is the one with the true "
        f"gradient. From there the distance to attention with RoPE is {whole} nats, and traces in place of attention "
        f"are {traces} of it.",
        *_in_all_orders(gap),
    ]


def _in_all_orders(gap: GapData) -> list[str]:
    outcome = gap.outcome_with_true_gradient
    if outcome is None:
        return []
    found = gap.shares_with_true_gradient
    averaged, first, last = (
        listed([share_text(of["context"]) for of in shares])
        for shares in ([s.players for s in found], [s.first for s in found], [s.last for s in found])
    )
    return [
        f"In the factorial from that gradient on they are {averaged} on average over the orders, {first} as the first "
        f"change and {last} as the last: {OUTCOMES[outcome]} “the whole gap is the traces” under the plan's rule."
    ]


def seeds_text(chain: Chain) -> str:
    """`5 seeds.`, and what the plan has where they are fewer."""
    found = plural(len(chain.seeds), "seed")
    return f"{found}." if len(chain.seeds) >= SEEDS else f"Only {found}, where the plan has {SEEDS}."


def shares_sentence(gap: GapData) -> str:
    """On all texts; the tables have the intervals. Empty where an arm is missing."""
    if gap.outcome is None:
        return ""
    of = {name: listed([percent(averaged_values(s)[name]) for s in gap.shares]) for name in ("gradient", "context")}
    texts = listed([text_name(s.text) for s in gap.shares])
    sentence = (
        "The gradient of SPEN's top-k layer is straight-through: we take this to mean that it ignores which units were "
        f"kept. Averaged over the orders in which things can be changed, it is {of['gradient']} of the distance to "
        f"attention with RoPE on {texts}, traces instead of attention {of['context']}."
    )
    if gap.outcome_with_true_gradient is not None:
        context = listed([percent(s.players["context"]) for s in gap.shares_with_true_gradient])
        sentence += f" If the paper means a mask held constant, traces are {context} of what is left."
    return sentence


def largest_sentence(gap: GapData) -> str:
    """What the same differences are at the paper's size; empty where neither is recorded."""
    found = [one for one in build_trend(gap.data.cells) if one.experiment == LARGEST and one.differences]
    if not found:
        return ""
    one = found[-1]  # with the most tokens
    said = []
    if (whole := one.differences.get(WHOLE)) is not None:
        said.append(f"SPEN's block is {_apart(whole)} nats {'behind' if whole.mean >= 0 else 'ahead of'} GPT-2's")
    if (gradient := one.differences.get(GRADIENT)) is not None:
        said.append(f"the true gradient of its top-k {'saves' if gradient.mean >= 0 else 'costs'} {_apart(gradient)}")
    if not said:
        return ""
    seeds = min(len(sample.values) for sample in (whole, gradient) if sample is not None)
    swept = one.size in gap.data.cells.values_of(SIZE_SWEEP, "size")
    rates = "" if swept else f", rates carried over from {gap.parameters}"
    return (
        f"At {millions(one.parameters)} parameters, after {number(one.tokens_per_parameter, 1)} tokens per parameter, "
        f"{' and '.join(said)} on held-out text ({plural(seeds, 'seed')}{rates})."
    )


def _apart(sample: Sample) -> str:
    """Without its sign, which words have."""
    return nats_text(-sample if sample.mean < 0 else sample)


def percent(found: Ratio) -> str:
    return "–" if found.share is None else f"{100 * found.share:.0f}%"


def attention_name(arm: Arm) -> str:
    return f"attention with {'RoPE' if arm == ATTENTION else 'learned positions'}"


def recall_text(found: Mapping[str, RecallShare]) -> str:
    """Where the gap lies, in nats: a share would be above 100% where attention is worse on the rest.

    `found` has the shares of one text by definition.
    """
    text, retrieval = pair_text(found["pair"]), found.get("retrieval")
    if retrieval is None:
        return text
    with_misses = f"{_part(retrieval)} with those where a copy would have been wrong"
    return f"{text}, or {with_misses} and {_rest(retrieval)} on the rest"


def pair_text(pair: RecallShare) -> str:
    return f"{_part(pair)} on tokens that repeat a pair ({pair.tokens:.0%} of all) and {_rest(pair)} on the others"


def _part(found: RecallShare) -> str:
    return with_interval(found.recall.part)


def _rest(found: RecallShare) -> str:
    return with_interval(found.gap - found.recall.part)


def mixers_sentence(gap: GapData) -> str:
    """EMA against attention, everything else equal: how much of it is recall."""
    if not gap.recall:
        return ""
    first = gap.recall[0]
    of_first = {r.definition: r for r in gap.recall if (r.text, r.attention) == (first.text, first.attention)}
    change, name = with_interval(of_first["pair"].gap), attention_name(first.attention)
    return (
        f"With a dense layer and as many parameters, EMA traces are {change} nats behind {name}: "
        f"{pair_text(of_first['pair'])}."
    )
