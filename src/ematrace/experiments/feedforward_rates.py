"""The learning rate of each Hebbian rule for W_ff (C16), swept on seeds that no published figure uses.

`scripts/choose_rates.py` chooses by `analysis.rates.best_rule_rates` and writes to `feedforward_rates.json` beside
this file, from which `feedforward_rules` takes the rates.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ematrace.analysis.rates import OF_RULE
from ematrace.experiments.base import Context, Experiment, Point, number
from ematrace.experiments.grammar_task import FULL, GRAMMAR, SETTINGS, GrammarTask, follow_from, grammar_task
from ematrace.probes import effective_rank, participation_ratio
from ematrace.results import Metric, Row
from ematrace.spcn.feedforward import DEFAULT_ETA

SEEDS = (1000, 1001)
FACTORS = (1 / 9, 1 / 3, 1.0, 3.0)  # of the default rate
CODED_SENTENCES = 1000


def grid(scale: str, seeds: int) -> Iterable[Point]:
    """However many seeds are asked for, those of the sweep."""
    return [Point({"grammar": GRAMMAR}, seed) for seed in SEEDS]


def measure(ctx: Context, **grammar: Any) -> list[Row]:
    task = grammar_task(ctx, **grammar)
    tried = [(rule, eta * factor) for rule, eta in DEFAULT_ETA.items() for factor in FACTORS]
    rows = [Row({"rule": "frozen", "rate": 0.0}, measure_rule(task, "frozen", None))]
    for done, (rule, rate) in enumerate(tried, start=1):
        try:
            rows.append(Row({"rule": rule, "rate": rate}, measure_rule(task, rule, rate)))
        except FloatingPointError:  # at this rate the weights are not finite
            rows.append(Row({"rule": rule, "rate": rate}, dict.fromkeys(OF_RULE, number(float("nan")))))
        ctx.progress(done / len(tried))
    return rows


def measure_rule(task: GrammarTask, rule: str, rate: float | None) -> dict[str, Metric]:
    """Accuracies of the full representation, and how many dimensions weights and codes have."""
    model = task.spcn(ff_rule=rule) if rate is None else task.spcn(ff_rule=rule, ff_eta=rate)
    seen = [i for i, word in enumerate(task.vocabulary) if word in set(task.A.words)]
    W = np.asarray(model.W_ff()[0])[:, seen].T  # one row per word that the rule could learn from
    codes = model.encode(task.within[:CODED_SENTENCES], "l0.activation@forward")
    return {
        **task.accuracies(task.probe([FULL], model)[FULL]),
        "weight_pr": number(participation_ratio(W)),
        "weight_rank": number(effective_rank(W)),
        "code_pr": number(participation_ratio(codes)),
        "code_rank": number(effective_rank(codes)),
    }


EXPERIMENT = Experiment(
    "feedforward_rates",
    "Learning rates of the feed-forward rules",
    grid=grid,
    measure=measure,
    group="rules",
    settings=dict(SETTINGS),
    derived=follow_from,
    seconds=300,
)
