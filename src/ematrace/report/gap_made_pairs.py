"""What contexts recall in made-up text, and what SPEN's predictor needs to: for page and docs."""

from __future__ import annotations

from dataclasses import dataclass

from ematrace.analysis.gap_made_pairs import (
    BESIDE,
    FOURTH,
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
from ematrace.report.formatting import Rows, listed, number, with_interval
from ematrace.report.gap_switches import NAMES

CONTEXT_NAMES = {
    TRACES: "EMA traces",
    FOURTH: "EMA traces, with a fourth one that hardly fades",
    UNORDERED: "attention without positions",
    BESIDE: "traces and attention without positions, side by side",
}
HEADS = ["recalled", "last seen 1 to 4 back", "5 to 16", "17 and more", "rate", "by the rule", "seeds"]


@dataclass(frozen=True)
class MadePairs:
    contexts: Rows
    rules: str
    """What each rule of the plan gives; empty where an arm of one is missing."""


def made_pairs(data: ReportData) -> MadePairs | None:
    """None where nothing is recorded."""
    if not (found := build_contexts(data.table)):
        return None
    rows = [[CONTEXT_NAMES.get(name, name), *_cells(one)] for name, one in found.items()]
    return MadePairs(
        Rows(["context", *HEADS], rows), _rules(found) if {TRACES, FOURTH, UNORDERED, BESIDE} <= set(found) else ""
    )


def _rules(found: dict[str, Recall]) -> str:
    added, outcome = fading(found)
    return (
        f"Is selection what traces lack: {lack_of_traces(found)}. Is order what attention without positions lacks: "
        f"{lack_of_attention(found)}. Is fading what traces lack: {outcome}; a fourth trace that hardly fades adds "
        f"{with_interval(added, signed=True)} to the share."
    )


@dataclass(frozen=True)
class SwitchRecallTables:
    arms: Rows
    effects: Rows
    causes: str


def switch_recall_tables(data: ReportData) -> SwitchRecallTables | None:
    """None where an arm is not recorded."""
    if (found := build_switch_recall(data.table)) is None:
        return None
    effects = [[name, with_interval(found.effects[key], signed=True)] for key, name in NAMES.items()]
    causes = listed([NAMES[name] for name in found.causes]) if found.causes else "none"
    rule = f"adds more than {number(SMALLEST_EFFECT, 1)}, interval without 0"
    arms = Rows(["inside SPEN's block, dense", *HEADS], _arms(found))
    return SwitchRecallTables(
        arms, Rows(["switch", "added to the share"], effects), f"Causes under the plan ({rule}): {causes}."
    )


def _arms(found: SwitchRecall) -> list[list[str]]:
    direct = NAMES["residual"]
    rows = [
        [_named("static predictor", [direct] * (path == "direct")), *_cells(one)] for path, one in found.static.items()
    ]
    as_in_a_transformer = [on for _, on in SWITCHES.values()]
    for setting, one in found.settings.items():
        on = [n for n, is_, level in zip(NAMES.values(), setting, as_in_a_transformer, strict=True) if is_ == level]
        rows.append([_named("attention over the inputs", on), *_cells(one)])
    rows += [
        [_named("attention as a mixer", [direct] * (path == "direct")), *_cells(one)]
        for path, one in found.mixers.items()
    ]
    return rows


def _named(name: str, switched: list[str]) -> str:
    return ", ".join([name, listed(switched)]) if switched else name


def _cells(one: Recall) -> list[str]:
    near = [number(one.shares[part].mean, 2) for part in PARTS[1:]]
    at_end = ", an end" if one.at_end else ""
    return [with_interval(one.shares["seen"], 2), *near, f"{one.lr:g}{at_end}", one.outcome, str(len(one.seeds))]
