"""Four Hebbian rules for W_ff against frozen random weights: accuracy and collapse (C16).

Each at the rate that `feedforward_rates` chose on other seeds, or at its default rate as long as there was no sweep
(`rates_swept` = 0).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ematrace.experiments.base import Context, number
from ematrace.experiments.chosen_rates import chosen_rule_rates
from ematrace.experiments.feedforward_rates import FACTORS, measure_rule
from ematrace.experiments.grammar_task import SETTINGS, grammar_experiment, grammar_task
from ematrace.results import Row
from ematrace.spcn.feedforward import DEFAULT_ETA

RULES = ("frozen", *DEFAULT_ETA)


def measure(ctx: Context, **grammar: Any) -> list[Row]:
    task, chosen = grammar_task(ctx, **grammar), chosen_rule_rates()
    rows = []
    for done, rule in enumerate(RULES, start=1):
        metrics = measure_rule(task, rule, chosen.get(rule))
        if rule in DEFAULT_ETA:
            metrics["rate"] = number(chosen.get(rule, DEFAULT_ETA[rule]))
            metrics["rates_swept"] = number(len(FACTORS) if rule in chosen else 0)
        rows.append(Row({"rule": rule}, metrics))
        ctx.progress(done / len(RULES))
    return rows


EXPERIMENT = grammar_experiment(
    "feedforward_rules", "Learning the feed-forward weights", measure, group="rules", seconds=90
)
if chosen_rule_rates():  # so that what was measured at other rates is measured again
    EXPERIMENT = replace(EXPERIMENT, settings={**SETTINGS, "ff_rates": dict(chosen_rule_rates())})
