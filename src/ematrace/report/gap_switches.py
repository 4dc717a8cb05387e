"""Why attention over the inputs helps less as SPEN's predictor than as a mixer: for page and docs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ematrace.analysis.gap_switches import SMALLEST_EFFECT, SWITCHES, Switches, build_switches
from ematrace.analysis.plan import LEAST_SEEDS
from ematrace.report.data import ReportData
from ematrace.report.formatting import Rows, listed, number, plural, with_interval
from ematrace.report.gap import TEXT_NAMES, text_name

NAMES = {
    "query": "query from the input",
    "values": "values of unit scale",
    "residual": "context into the residual",
}
PARTS = {"recall": "on repeated pairs", "other": "on other tokens"}


@dataclass(frozen=True)
class SwitchTables:
    """What is gained is nats over the static predictor on the same path."""

    gains: Rows
    effects: Rows
    verdict: str


def switch_tables(data: ReportData) -> SwitchTables | None:
    """None where an arm is not recorded."""
    found = [one for text in TEXT_NAMES if (one := build_switches(data.table, text)) is not None]
    if not found:
        return None
    columns = {text_name(one.text): one for one in found}
    gains = Rows(["attention over the inputs", *columns], list(_gains(found)))
    for part, name in PARTS.items():
        if (one := build_switches(data.table, found[0].text, part=part)) is not None:
            columns[f"{text_name(found[0].text)}, {name}"] = one
    effects = [[name, *(with_interval(c.effects[key]) for c in columns.values())] for key, name in NAMES.items()]
    return SwitchTables(gains, Rows(["switch", *columns], effects), _verdict(found))


def _gains(found: Sequence[Switches]) -> Iterator[list[str]]:
    as_in_a_transformer = [on for _, on in SWITCHES.values()]
    for setting in found[0].gains:
        on = [n for n, is_, level in zip(NAMES.values(), setting, as_in_a_transformer, strict=True) if is_ == level]
        name = f"as a predictor, {listed(on)}" if on else "as a predictor, as in SPEN's block"
        yield [name, *(with_interval(one.gains[setting]) for one in found)]
    for path in found[0].mixers:
        name = f"as a mixer, {NAMES['residual']}" if path == "direct" else "as a mixer"
        yield [name, *(with_interval(one.mixers[path]) for one in found)]


def _verdict(found: Sequence[Switches]) -> str:
    seeds = min(len(one.seeds) for one in found)
    if seeds < LEAST_SEEDS:
        return f"{plural(seeds, 'seed')}: the plan judges the switches from {LEAST_SEEDS} on."
    names = {text_name(one.text): [NAMES[cause] for cause in one.causes] for one in found}
    causes = (f"on {text}, {listed(of_text) if of_text else 'none'}" for text, of_text in names.items())
    rule = f"effect above {number(SMALLEST_EFFECT, 2)} nats, interval without 0"
    return f"{seeds} seeds. Switches that count as a cause under the plan ({rule}): {'; '.join(causes)}."
