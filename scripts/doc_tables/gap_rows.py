"""Tables of docs/gap*.md that the page does not have."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from ematrace.analysis.gap import Ratio, Step
from ematrace.analysis.gap_design import SIZES
from ematrace.analysis.gap_places import CHANGES as PLACES
from ematrace.analysis.gap_places import build_places, context_name
from ematrace.analysis.gap_scores import TOY
from ematrace.analysis.gap_second import steps_twice
from ematrace.analysis.rates import Sweep
from ematrace.report.data import ReportData
from ematrace.report.formatting import Rows, number, p_value, with_interval
from ematrace.report.gap import GapData, averaged_values, share_text, text_name
from ematrace.report.learning_rates import sweeps_at

_PLACES = {(factor, level): name for factor, level, name in PLACES}
CHANGES = {
    "context": _PLACES["context", 0],
    "gradient": _PLACES["ffn", 0],
    "selection": _PLACES["ffn", 1],
    "residual": _PLACES["residual", 0],
}
"""Changes of the factorial, by their share's name."""


def place_rows(data: ReportData) -> Rows | None:
    """Every change of the factorial wherever it was measured; None where there is none."""
    gap = data.derived(GapData)
    places = [] if gap.scores.is_toy else list(build_places(gap.scores))
    if not places:
        return None
    heads = ["change", "context", "feed-forward layer", "residual", *map(text_name, gap.scores.texts)]
    rows = []
    for place in places:
        of = {"context": context_name(place.where), "ffn": place.where.ffn, "residual": place.where.residual}
        of[place.factor] = ""  # it is what changes
        rows.append([place.change, *of.values(), *map(with_interval, place.nats.values())])
    return Rows(heads, rows)


def chain_rows(data: ReportData) -> Rows | None:
    """The steps on every text; None where there is no chain of a real size."""
    return _by_step(data, ("", ", p (Holm)"), lambda step: [with_interval(step.nats), p_value(step.p_value, "")])


def split_rows(data: ReportData) -> Rows | None:
    """Of every step, what lies on tokens that repeat a pair and on all others."""
    parts = (", repeated pairs", ", other tokens")
    return _by_step(data, parts, lambda step: [number(step.recall.mean, 3), number(step.other.mean, 3)])


def _by_step(data: ReportData, columns: Sequence[str], cells: Callable[[Step], list[str]]) -> Rows | None:
    gap = data.derived(GapData)
    if gap.scores.is_toy or not gap.chains:
        return None
    heads = ["step", *(f"{text_name(chain.text)}{column}" for chain in gap.chains for column in columns)]
    by_text = [(*chain.steps, chain.whole) for chain in gap.chains]
    rows = [[of[0].name, *(cell for step in of for cell in cells(step))] for of in zip(*by_text, strict=True)]
    return Rows(heads, rows)


def first_and_last(gap: GapData) -> tuple[list[Mapping[str, Ratio]], list[Mapping[str, Ratio]]]:
    return [shares.first for shares in gap.shares], [shares.last for shares in gap.shares]


def share_rows(data: ReportData) -> Rows | None:
    """Of every change on every text, nats and share in all orders; None where an arm is missing."""
    gap = data.derived(GapData)
    if gap.scores.is_toy or not gap.shares:
        return None
    heads = ["change", *(head for s in gap.shares for head in (text_name(s.text), "share"))]
    first, last = first_and_last(gap)
    averaged = [averaged_values(shares) for shares in gap.shares]
    rows = [[name, *_with_shares(averaged, change)] for change, name in CHANGES.items()]
    rows += [
        [f"{CHANGES['context']}, as the {at} change", *_with_shares(ends, "context")]
        for at, ends in (("first", first), ("last", last))
    ]
    rows.append(["the whole distance", *(cell for s in gap.shares for cell in (with_interval(s.whole), ""))])
    return Rows(heads, rows)


def _with_shares(by_text: Iterable[Mapping[str, Ratio]], change: str) -> list[str]:
    return [cell for of in by_text for cell in (with_interval(of[change].part), share_text(of[change]))]


def second_step_rows(data: ReportData) -> Rows | None:
    """What a change saves in either implementation, on the same seeds; None where there is none."""
    gap = data.derived(GapData)
    rows = []
    for text in gap.scores.texts:
        for step in steps_twice(data.table, gap.scores, text):
            nats = [with_interval(sample) for sample in (step.first, step.second)]
            difference = with_interval(step.difference, signed=True)
            rows.append([text_name(text), step.name, *nats, difference, str(len(step.first.values))])
    heads = ["text", "change", "nats saved, first", "second", "second minus first", "seeds"]
    return Rows(heads, rows) if rows else None


def best_rate_rows(data: ReportData) -> Rows | None:
    """For every size and arm the best rate, its nats, and those at half and double of it."""
    rows = []
    for size in SIZES:
        for arm, sweep in sweeps_at(data.cells, size).items() if size != TOY else ():
            best = f"{sweep.best:g}{'' if sweep.obstacle is None else ', not settled'}"
            nats = [_at(sweep, factor * sweep.best) for factor in (0.5, 1.0, 2.0)]
            rows.append([size, arm.text, f"{min(sweep.curve):g} to {max(sweep.curve):g}", best, *nats])
    heads = ["size", "arm", "rates tried", "best rate", "nats at half of it", "nats at it", "nats at double"]
    return Rows(heads, rows) if rows else None


def _at(sweep: Sweep, rate: float) -> str:
    """With the number of seeds where it is not one; rates are rounded to three digits, so that a half may be off."""
    tried = next((one for one in sweep.curve if math.isclose(one, rate, rel_tol=0.01)), None)
    if tried is None:
        return "–"
    seeds = len(sweep.curve[tried])
    return number(sweep.means[tried], 3) + (f" ({seeds} seeds)" if seeds > 1 else "")
