"""Why attention over the inputs helps less as SPEN's predictor than as a mixer: for page and docs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ematrace.analysis.gap_causes import SMALLEST_EFFECT, SWITCHES, Switches, build_switches
from ematrace.analysis.gap_design import SIZES
from ematrace.report.data import ReportData
from ematrace.report.formatting import number
from ematrace.report.gap import TEXT_NAMES, listed, text_name, with_interval

NAMES = {
    "query": "query from the input",
    "values": "values of unit scale",
    "residual": "context into the residual",
}
LEVELS = {
    ("query", "slow_trace"): "slow trace",
    ("query", "input"): "input",
    ("values", "as_read"): "as read",
    ("values", "normalised"): "unit scale",
    ("residual", "ffn"): "through the feed-forward layer",
    ("residual", "direct"): "direct",
}
PARTS = {"recall": "on repeated pairs", "other": "on other tokens"}


@dataclass(frozen=True)
class SwitchTables:
    """Of one size, heads first; what is gained is nats over the static predictor on the same path."""

    size: str
    gains: list[list[str]]
    effects: list[list[str]]
    verdict: str


def switch_tables(data: ReportData) -> list[SwitchTables]:
    """By size, where every arm is recorded."""
    return [tables for size in SIZES if (tables := _tables(data, size)) is not None]


def _tables(data: ReportData, size: str) -> SwitchTables | None:
    found = [one for text in TEXT_NAMES if (one := build_switches(data.table, text, size)) is not None]
    if not found:
        return None
    columns = {text_name(one.text): one for one in found}
    heads = ["query", "values", "residual", *columns]
    gains = [heads, *_gains(found)]
    for part, name in PARTS.items():
        if (one := build_switches(data.table, found[0].text, size, part)) is not None:
            columns[f"{text_name(found[0].text)}, {name}"] = one
    effects = [["switch", *columns]]
    effects += [[name, *(with_interval(c.effects[key]) for c in columns.values())] for key, name in NAMES.items()]
    return SwitchTables(size, gains, effects, _verdict(found))


def _gains(found: Sequence[Switches]) -> Iterator[list[str]]:
    for setting in found[0].gains:
        levels = (LEVELS[pair] for pair in zip(SWITCHES, setting, strict=True))
        yield [*levels, *(with_interval(one.gains[setting]) for one in found)]
    for path in found[0].mixers:
        yield ["as a mixer", "", LEVELS["residual", path], *(with_interval(one.mixers[path]) for one in found)]


def _verdict(found: Iterable[Switches]) -> str:
    names = {text_name(one.text): [NAMES[cause] for cause in one.causes] for one in found}
    causes = (f"on {text}, {listed(of_text) if of_text else 'none'}" for text, of_text in names.items())
    rule = f"effect above {number(SMALLEST_EFFECT, 2)} nats, interval without 0"
    return f"Switches that count as a cause under the plan ({rule}): {'; '.join(causes)}."
