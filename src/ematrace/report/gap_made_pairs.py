"""What contexts recall in made-up text, and what SPEN's predictor needs to: for page and docs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ematrace.analysis.gap_made_pairs import (
    BESIDE,
    FOURTH,
    LONGER,
    ORDERED,
    PARTS,
    SMALLEST_EFFECT,
    TRACES,
    UNORDERED,
    Recall,
    SwitchRecall,
    build_contexts,
    build_switch_recall,
    fading,
    lack_of_attention,
    lack_of_traces,
)
from ematrace.analysis.gap_switches import SWITCHES
from ematrace.report.data import ReportData
from ematrace.report.formatting import Rows, listed, number, plural, with_interval
from ematrace.report.gap_switches import NAMES

CONTEXT_NAMES = {
    TRACES: "EMA traces",
    FOURTH: "EMA traces, with a fourth one that hardly fades",
    UNORDERED: "attention without positions",
    BESIDE: "traces and attention without positions, side by side",
}
LONGER_NAME = "four times the steps"
NOTHING_TO_ADD_TO = "But traces do not recall here, so that it had nothing to add to: this leaves fading open."
ENOUGH = "The first two answers say no more than that traces and attention side by side are enough"
HEADS = [
    *("recalled", "last seen 1 to 4 back", "5 to 16", "17 and more"),
    *("rate", "by the rule", "seeds", LONGER_NAME),
]


@dataclass(frozen=True)
class MadePairs:
    contexts: Rows
    rules: str
    """What each rule of the plan gives; empty where an arm of one is missing."""


def made_pairs(data: ReportData) -> MadePairs | None:
    """None where nothing is recorded."""
    if not (found := build_contexts(data.table)):
        return None
    longer = build_contexts(data.table, LONGER)
    rows = [[CONTEXT_NAMES.get(name, name), *_cells(one, longer.get(name))] for name, one in found.items()]
    rules = [_rules(found), f"With {LONGER_NAME}: {_rules(longer)}" if _rules(longer) else "", _ordered(found, longer)]
    return MadePairs(Rows(["context", *HEADS], rows), " ".join(rule for rule in rules if rule))


def _rules(found: Mapping[str, Recall]) -> str:
    """Empty where an arm of the first two rules is missing."""
    if not {TRACES, UNORDERED, BESIDE} <= set(found):
        return ""
    said = (
        f"Is selection what traces lack: {lack_of_traces(found)}. Is order what attention without positions lacks: "
        f"{lack_of_attention(found)}."
    )
    if FOURTH not in found:
        return said
    added, outcome = fading(found)
    idle = outcome != "for" and found[TRACES].outcome == "does not"
    nothing = f" {NOTHING_TO_ADD_TO}" if idle else ""
    return (
        f"{said} Is fading what traces lack: {outcome}; a fourth trace that hardly fades adds "
        f"{with_interval(added, signed=True)} to the share.{nothing}"
    )


def _ordered(found: Mapping[str, Recall], longer: Mapping[str, Recall]) -> str:
    """Attention that has both selection and order has to recall, or order is not shown to be what is lacking."""
    outcomes = {of[name].outcome for of in (found, longer) for name in ORDERED if name in of}
    if not outcomes or "recalls" in outcomes:
        return ""
    if outcomes == {"does not"}:
        return f"{ENOUGH}: attention with positions, which has selection and order, does not recall here."
    return f"{ENOUGH} as long as it is undecided whether attention with positions recalls here."


@dataclass(frozen=True)
class SwitchRecallTables:
    arms: Rows
    effects: Rows
    causes: str


def switch_recall_tables(data: ReportData) -> SwitchRecallTables | None:
    """None where a setting is not recorded with the fewer steps."""
    if (found := build_switch_recall(data.table)) is None or not found.effects:
        return None
    longer = build_switch_recall(data.table, LONGER)
    columns = {"added to the share": found} | ({LONGER_NAME: longer} if longer and longer.effects else {})
    effects = [
        [name, *(with_interval(of.effects[key], signed=True) for of in columns.values())] for key, name in NAMES.items()
    ]
    rule = f"adds more than {number(SMALLEST_EFFECT, 1)}, interval without 0"
    causes = f"Causes under the plan ({rule}): {_causes(found)}"
    causes += f"; {LONGER_NAME}: {_causes(longer)}." if longer and longer.effects else "."
    arms = Rows(["inside SPEN's block, dense", *HEADS], list(_arms(found, longer)))
    return SwitchRecallTables(arms, Rows(["switch", *columns], effects), causes)


def _causes(found: SwitchRecall) -> str:
    if found.causes is None:
        return "too few seeds"
    return listed([NAMES[name] for name in found.causes]) if found.causes else "none"


def _arms(found: SwitchRecall, longer: SwitchRecall | None) -> Iterator[list[str]]:
    later = longer.settings if longer else {}
    mixers_later = longer.mixers if longer else {}
    for path, one in found.static.items():
        yield [_named("static predictor", [NAMES["residual"]] * (path == "direct")), *_cells(one)]
    as_in_a_transformer = [on for _, on in SWITCHES.values()]
    for setting, one in found.settings.items():
        on = [n for n, is_, level in zip(NAMES.values(), setting, as_in_a_transformer, strict=True) if is_ == level]
        yield [_named("attention over the inputs", on), *_cells(one, later.get(setting))]
    for path, one in found.mixers.items():
        name = _named("attention as a mixer", [NAMES["residual"]] * (path == "direct"))
        yield [name, *_cells(one, mixers_later.get(path))]


def _named(name: str, switched: list[str]) -> str:
    return ", ".join([name, listed(switched)]) if switched else name


def _cells(one: Recall, longer: Recall | None = None) -> list[str]:
    near = [number(one.shares[part].mean, 2) for part in PARTS[1:]]
    at_end = ", an end" if one.at_end else ""
    later = "–" if longer is None else f"{with_interval(longer.shares['seen'], 2)}, {_later(one, longer)}"
    return [with_interval(one.shares["seen"], 2), *near, f"{one.lr:g}{at_end}", one.outcome, str(len(one.seeds)), later]


def _later(one: Recall, longer: Recall) -> str:
    """Slow, if it did not recall before and does with more steps."""
    if longer.outcome == "too few seeds":
        return plural(len(longer.seeds), "seed")
    slow = " (slow)" if longer.outcome == "recalls" != one.outcome else ""
    return f"{longer.outcome}{slow}, {plural(len(longer.seeds), 'seed')}"
