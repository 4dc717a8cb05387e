"""What the straight-through gradient costs, by the units kept and by size: for page and docs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

from ematrace.analysis.gap_scores import EXPERIMENT
from ematrace.analysis.gap_trend import GRADIENT, build_trend
from ematrace.analysis.gradient_cost import (
    BY_KEPT,
    BY_UNITS,
    FIRST_STEPS,
    SAME_START,
    GradientCost,
    KeptVerdict,
    TrainingVerdict,
    UnitsVerdict,
    costs_at_one_width,
    costs_by_size,
    judge_kept,
    judge_training,
    judge_units,
)
from ematrace.analysis.plan import LEAST_SEEDS, TEXTS
from ematrace.report.data import ReportData
from ematrace.report.formatting import Rows, interval, listed, millions, number, plural, with_interval
from ematrace.report.gap import nats_text, share_text, text_name
from ematrace.results import Factors, Selector

OUTCOMES = {
    "units": "under the plan's rule, more units at the same width halve the cost",
    "not units": "under the plan's rule, more units at the same width do not halve the cost",
    "near": "too near the border of the plan's rule: rates have to be swept first",
    "undecided": "whether more units at the same width halve the cost is undecided under the plan's rule",
}
KEPT_OUTCOMES = {
    "matters": "under the plan's rule, {} matters",
    "does not matter": "under the plan's rule, {} does not matter",
    "undecided": "whether {} matters is undecided",
    "too few seeds": f"the plan judges it from {LEAST_SEEDS} seeds on",
}
TRAINING_OUTCOMES = {
    "training": "under the plan's rule, tokens per parameter explain why it costs less there after as many tokens",
    "size": "under the plan's rule, it costs less in a larger model at equal tokens per parameter as well",
    "undecided": "whether it costs less in a larger model at equal tokens per parameter is undecided",
    "another device": "trained on cores, which are not known to be the same, the shorter runs decide nothing",
}
WHAT_CHANGES = {"kept": "what is kept, at equal parameters and tokens,", "share": "the share kept, beside the number,"}
HELD_OUT = "validation"
START = "gap_start"
HEADS = ("parameters", "width", "units kept", "tokens per parameter")


@dataclass(frozen=True)
class GradientCosts:
    """By text, computed once for page, findings and docs: `data.derived(GradientCosts)`."""

    data: ReportData

    @cached_property
    def by_text(self) -> dict[str, list[GradientCost]]:
        """At one width, then larger models."""
        cells = self.data.cells
        found = {text: [*costs_at_one_width(cells, text), *costs_by_size(cells, text)] for text in TEXTS}
        return {text: costs for text, costs in found.items() if costs}

    @cached_property
    def of_kept(self) -> dict[str, dict[str, KeptVerdict]]:
        found = {text: judge_kept(costs) for text, costs in self.by_text.items()}
        return {text: verdicts for text, verdicts in found.items() if verdicts}

    @cached_property
    def verdicts(self) -> dict[str, UnitsVerdict]:
        found = {text: judge_units(costs) for text, costs in self.by_text.items()}
        return {text: verdict for text, verdict in found.items() if verdict is not None}

    @cached_property
    def of_training(self) -> dict[str, TrainingVerdict]:
        found = {text: judge_training(self.data.cells, text) for text in TEXTS}
        return {text: verdict for text, verdict in found.items() if verdict is not None}


def gradient_rows(data: ReportData) -> Rows | None:
    """The models at one width, by their units, then other sizes and budgets; None without any."""
    by_text = data.derived(GradientCosts).by_text
    if not by_text:
        return None
    of_model = {text: {cost.model: cost for cost in costs} for text, costs in by_text.items()}
    models = {cost.model: cost for costs in by_text.values() for cost in costs}
    rows = []
    for model, cost in models.items():
        found = [of_model[text].get(model) for text in by_text]
        nats = ["–" if one is None else nats_text(one.nats) for one in found]
        each = number(cost.tokens_per_parameter, 1 if cost.tokens_per_parameter < 10 else 0)
        about = [millions(cost.parameters), str(cost.width), f"{cost.kept} of {cost.units:,}", each]
        rows.append([*about, *nats, str(len(cost.seeds))])
    return Rows([*HEADS, *map(text_name, by_text), "seeds"], rows)


def share_sentence(data: ReportData) -> str:
    """How the gradient's share of the distance to GPT-2's block changes with the size, at the main size's tokens and
    vocabulary; empty with one size alone."""
    shares: dict[tuple[float, float], list[str]] = {}  # by parameters and tokens for each
    for text in TEXTS:
        found = build_trend(data.cells, text)
        budgets = {(one.tokens, one.vocabulary) for one in found if one.experiment == EXPERIMENT}
        for one in found:
            if one.gradient and one.gradient.share is not None and (one.tokens, one.vocabulary) in budgets:
                of_size = shares.setdefault((one.parameters, one.tokens_per_parameter), [])
                of_size.append(f"{one.gradient.share:.0%}")
    complete = {size: of for size, of in sorted(shares.items()) if len(of) == len(TEXTS)}
    if len(complete) < 2:
        return ""
    parts = [
        f"{listed(of)} at {millions(parameters)} parameters ({number(each, 0)} tokens for each)"
        for (parameters, each), of in complete.items()
    ]
    texts = listed([text_name(text) for text in TEXTS])
    return (
        "In SPEN's own block, at equal tokens, the straight-through gradient is "
        f"{'; '.join(parts)} of the distance to GPT-2's: {texts}."
    )


def gradient_sentence(data: ReportData) -> str:
    """On held-out text: the cost by units, the verdict of the plan's rule, other numbers kept, larger models; empty
    without a verdict."""
    costs = data.derived(GradientCosts)
    if (verdict := costs.verdicts.get(HELD_OUT)) is None:
        return ""
    found = costs.by_text[HELD_OUT]
    by_units = [cost for cost in found if cost.experiment == BY_UNITS]
    larger = [cost for cost in found if cost.width != verdict.most.width]
    sizes = [
        f"{number(cost.nats.mean, 2)} at {millions(cost.parameters, 0)} parameters, which keep {cost.kept}"
        for cost in larger
        if len(cost.seeds) >= LEAST_SEEDS
    ]
    nats = listed([number(c.nats.mean, 2) for c in by_units])
    kept = listed([f"{c.kept} of {c.units:,}" for c in by_units])
    others = [
        f"{number(c.nats.mean, 2)} with {c.kept} of {c.units:,} ({plural(len(c.seeds), 'seed')})"
        for c in found
        if c.experiment == BY_KEPT
    ]
    return (
        f"The straight-through gradient costs {nats} nats with {kept} units kept at one width "
        f"({OUTCOMES[verdict.outcome]}){''.join(f'; {other}' for other in (*others, *sizes))} ({text_name(HELD_OUT)})."
    )


def verdict_text(verdict: UnitsVerdict) -> str:
    """
    >>> from ematrace.results import Sample
    >>> few = GradientCost("gap_units", 2e6, 128, 512, 31, 60.0, Sample((0.8, 0.9, 1.0)), (0, 1, 2))
    >>> many = GradientCost("gap_units", 5e6, 128, 3072, 184, 26.0, Sample((0.2, 0.25, 0.2)), (0, 1, 2))
    >>> print(verdict_text(judge_units([few, many])).replace("; it", ";\\nit").replace(": u", ":\\nu"))
    from 31 to 184 units kept the cost falls by .683 (.425–.942) nats;
    it is .233 (.090–.377; unpaired .131–.336) below half of what it was:
    under the plan's rule, more units at the same width halve the cost
    """
    paired, unpaired = (interval(ends, 3) if ends else "–" for ends in (verdict.below_half.interval, verdict.unpaired))
    return (
        f"from {verdict.fewest.kept} to {verdict.most.kept} units kept the cost falls by {with_interval(verdict.fall)} "
        f"nats; it is {number(verdict.below_half.mean, 3)} ({paired}; unpaired {unpaired}) below half of what it was: "
        f"{OUTCOMES[verdict.outcome]}"
    )


def kept_text(name: str, verdict: KeptVerdict) -> str:
    """
    >>> from ematrace.results import Sample
    >>> usual = GradientCost("gap_units", 5e6, 128, 3072, 184, 26.0, Sample((0.2, 0.25, 0.2)), (0, 1, 2))
    >>> few = GradientCost("gap_kept", 5e6, 128, 3072, 31, 26.0, Sample((2.0, 2.25, 2.1)), (0, 1, 2))
    >>> print(kept_text("kept", judge_kept([usual, few])["kept"]).replace(": u", ":\\nu"))
    with 31 of 3,072 units kept the cost is 1.900 (1.652–2.148) nats higher than with 184 of 3,072:
    under the plan's rule, what is kept, at equal parameters and tokens, matters
    """
    by = -verdict.rise if verdict.rise.mean < 0 else verdict.rise
    changed, usual = (f"{cost.kept} of {cost.units:,}" for cost in (verdict.changed, verdict.usual))
    return (
        f"with {changed} units kept the cost is {nats_text(by)} nats {'lower' if verdict.rise.mean < 0 else 'higher'} "
        f"than with {usual}: {KEPT_OUTCOMES[verdict.outcome].format(WHAT_CHANGES[name])}"
    )


def training_text(verdict: TrainingVerdict) -> str:
    """The same cost at two sizes and about as many tokens for each parameter."""
    costs = [
        f"{nats_text(one.differences[GRADIENT])} nats at {millions(one.parameters)} parameters "
        f"({number(one.tokens_per_parameter, 0)} tokens for each)"
        for one in (verdict.shorter, verdict.larger)
    ]
    low, high = verdict.interval
    ends, word = ((low, high), "less") if verdict.excess >= 0 else ((-high, -low), "more")
    by = f"{number(abs(verdict.excess), 3)} ({interval(ends, 3)})"
    return f"the gradient costs {' and '.join(costs)}, {by} {word}: {TRAINING_OUTCOMES[verdict.outcome]}"


def device_text(verdict: TrainingVerdict) -> str:
    """Whether cores, on which the shorter runs were trained, make another experiment of them."""
    if verdict.start is None:
        return "The shorter runs were trained on cores, whose first steps were not compared with a GPU's"
    so = "" if verdict.start <= SAME_START else ", so that the shorter runs decide nothing"
    return (
        f"The shorter runs were trained on cores. On the schedule of the recorded runs, the first {FIRST_STEPS} steps "
        f"there and on a GPU differ by at most {number(verdict.start, 3)} nats of training loss, by arm and seed; the "
        f"plan allows {number(SAME_START, 2)}{so}"
    )


def verdict_lines(data: ReportData) -> list[str]:
    """On every text: more units, how many of them are kept, then size or training."""
    costs = data.derived(GradientCosts)
    lines = [f"On {text_name(text)}, {verdict_text(verdict)}." for text, verdict in costs.verdicts.items()]
    for text, verdicts in costs.of_kept.items():
        lines += [f"On {text_name(text)}, {kept_text(name, verdict)}." for name, verdict in verdicts.items()]
    lines += [f"On {text_name(text)}, {training_text(verdict)}." for text, verdict in costs.of_training.items()]
    on_cores = [verdict for verdict in costs.of_training.values() if verdict.on_cores]
    lines += [f"{device_text(verdict)}." for verdict in on_cores[:1]]
    return lines


def gradient_share_rows(data: ReportData) -> Rows | None:
    """By size, tokens and text, the distance from SPEN's block to GPT-2's and the part of it that is the gradient's."""
    rows: list[tuple[tuple[float, float], list[str]]] = []
    for text in TEXTS:
        for one in build_trend(data.cells, text):
            if (part := one.gradient) is None:
                continue
            about = [millions(one.parameters), f"{one.vocabulary:,}", number(one.tokens_per_parameter, 0)]
            about.append(text_name(text))
            row = [*about, *map(nats_text, (part.whole, part.part)), share_text(part)]
            row.append(nats_text(part.whole - part.part))
            row.append(str(len(part.part.values)))
            rows.append(((one.parameters, -one.tokens_per_parameter), row))
    heads = ["parameters", "vocabulary", "tokens per parameter", "text", "SPEN's block to GPT-2's"]
    heads += ["the gradient's cost", "share", "left with the true gradient", "seeds"]
    return Rows(heads, [row for _, row in sorted(rows, key=lambda found: found[0])]) if rows else None


def start_rows(data: ReportData) -> Rows | None:
    """By the share of units kept: the two gradients before training, and the cost after it on held-out text."""
    costs = data.derived(GradientCosts).by_text.get(HELD_OUT, [])
    cost_of = {(cost.units, cost.kept): cost for cost in costs if cost.experiment in (BY_UNITS, BY_KEPT)}
    found = []
    for units, k in itertools.product(data.table.values_of(START, "units"), data.table.values_of(START, "k")):
        where: Factors = {"units": units, "k": k, "part": "all"}
        samples = [data.sample(Selector(START, metric, where)) for metric in ("cosine", "norm_ratio")]
        if all(sample is not None and sample.known for sample in samples):
            found.append((int(k) / int(units), int(units), int(k), samples))
    rows = []
    for share, units, k, samples in sorted(found, key=lambda row: (round(row[0], 2), row[1])):
        shown = [with_interval(sample, places) for sample, places in zip(samples, (3, 2), strict=True) if sample]
        cost = cost_of.get((units, k))
        rows.append([f"{k} of {units:,}", f"{share:.0%}", *shown, "–" if cost is None else nats_text(cost.nats)])
    heads = ["units kept", "share", "cosine to the true gradient", "norm over the true one's", "cost after training"]
    return Rows(heads, rows) if rows else None
