"""What the straight-through gradient costs, by the units kept and by size: for page and docs."""

from __future__ import annotations

from ematrace.analysis.gap_gradient import (
    KEPT,
    UNITS,
    GradientCost,
    UnitsVerdict,
    costs_by_size,
    costs_by_units,
    judge_units,
)
from ematrace.analysis.gap_scores import TEXTS
from ematrace.analysis.gap_trend import LEAST_SEEDS
from ematrace.report.data import ReportData
from ematrace.report.formatting import interval, number
from ematrace.report.gap import text_name, with_interval
from ematrace.results import Sample

OUTCOMES = {
    "units": "under the plan's rule, it is the number of units",
    "not units": "under the plan's rule, it is not the number of units",
    "undecided": "undecided under the plan's rule",
}
HEADS = ("parameters", "width", "units kept", "tokens per parameter")


def gradient_rows(data: ReportData) -> tuple[list[str], list[list[str]]] | None:
    """The models at one width, by their units, then larger ones: heads and rows; None where nothing is recorded."""
    texts = [text for text in TEXTS if _costs(data, text)]
    if not texts:
        return None
    rows = []
    by_text = [{_model(cost): cost for cost in _costs(data, text)} for text in texts]
    for model, cost in by_text[0].items():
        found = [of.get(model) for of in by_text]
        shown = ["–" if one is None else with_few_seeds(one.nats) for one in found]
        each = number(cost.tokens_per_parameter, 1 if cost.tokens_per_parameter < 10 else 0)
        of_model = [f"{cost.parameters / 1e6:.1f}M", str(cost.width), f"{cost.kept} of {cost.units:,}", each]
        rows.append([*of_model, *shown, str(len(cost.seeds))])
    return [*HEADS, *map(text_name, texts), "seeds"], rows


def gradient_sentence(data: ReportData, text: str = "validation") -> str:
    """How the cost changes with the units, and what the plan's rule says; empty where that is not recorded."""
    costs = costs_by_units(data.cells, text)
    verdict = judge_units(costs)
    if verdict is None:
        return ""
    by_units = ", ".join(f"{number(cost.nats.mean, 2)} nats with {cost.kept}" for cost in costs)
    larger = [
        f"{number(cost.nats.mean, 2)} at {cost.parameters / 1e6:.0f}M parameters, which keep {cost.kept}"
        for cost in costs_by_size(data.cells, text)
        if len(cost.seeds) >= LEAST_SEEDS
    ]
    also = f"; {'; '.join(larger)}" if larger else ""
    return (
        f"What the straight-through gradient costs falls with the number of units that the top-k keeps: {by_units}, at "
        f"one width{also} ({text_name(text)}, {len(verdict.most.seeds)} seeds)."
    )


def verdict_text(verdict: UnitsVerdict) -> str:
    """
    >>> few = GradientCost("gap_units", 2e6, 128, 512, 31, 60.0, Sample((0.8, 0.9, 1.0)), (0, 1, 2))
    >>> many = GradientCost("gap_units", 5e6, 128, 3072, 184, 26.0, Sample((0.2, 0.25, 0.2)), (0, 1, 2))
    >>> print(verdict_text(judge_units([few, many])).replace("; it", ";\\nit").replace(": u", ":\\nu"))
    from 31 to 184 units kept the cost falls by .683 (.425–.942) nats;
    it is .233 (.090–.377; unpaired .131–.336) below half of what it was:
    under the plan's rule, it is the number of units
    """
    paired, unpaired = (
        interval(ends, 3) for ends in (verdict.below_half.interval or verdict.unpaired, verdict.unpaired)
    )
    return (
        f"from {verdict.fewest.kept} to {verdict.most.kept} units kept the cost falls by {with_interval(verdict.fall)} "
        f"nats; it is {number(verdict.below_half.mean, 3)} ({paired}; unpaired {unpaired}) below half of what it was: "
        f"{OUTCOMES[verdict.outcome]}"
    )


def verdict_lines(data: ReportData) -> list[str]:
    """On every text."""
    found = [(text, judge_units(costs_by_units(data.cells, text))) for text in TEXTS]
    return [f"On {text_name(text)}, {verdict_text(verdict)}." for text, verdict in found if verdict is not None]


def with_few_seeds(sample: Sample) -> str:
    """With an interval from as many seeds on as the plan has for one."""
    return with_interval(sample) if len(sample.values) >= LEAST_SEEDS else number(sample.mean, 3)


def _costs(data: ReportData, text: str) -> list[GradientCost]:
    at_one_width = [cost for name in (UNITS, KEPT) for cost in costs_by_units(data.cells, text, name)]
    return [*at_one_width, *costs_by_size(data.cells, text)]


def _model(cost: GradientCost) -> tuple[str, int, int, int]:
    return cost.experiment, cost.width, cost.units, cost.kept
