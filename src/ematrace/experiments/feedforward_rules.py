"""Four Hebbian rules for W_ff against frozen random weights: accuracy and collapse (C16)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ematrace.experiments.base import Context, number
from ematrace.experiments.grammar_task import FULL, grammar_experiment, grammar_task
from ematrace.probes import effective_rank, participation_ratio
from ematrace.results import Row
from ematrace.spcn.feedforward import FF_RULES

RULES = ("frozen", *FF_RULES)
CODED_SENTENCES = 1000


def measure(ctx: Context, **grammar: Any) -> list[Row]:
    task = grammar_task(ctx, **grammar)
    seen = [i for i, word in enumerate(task.vocabulary) if word in set(task.A.words)]
    rows = []
    for done, rule in enumerate(RULES, start=1):
        model = task.spcn(ff_rule=rule)
        W = np.asarray(model.W_ff()[0])[:, seen].T  # one row per word that the rule could learn from
        codes = model.encode(task.within[:CODED_SENTENCES], "l0.activation@forward")
        metrics = {
            **task.accuracies(task.probe([FULL], model)[FULL]),
            "weight_pr": number(participation_ratio(W)),
            "weight_rank": number(effective_rank(W)),
            "code_pr": number(participation_ratio(codes)),
            "code_rank": number(effective_rank(codes)),
        }
        rows.append(Row({"rule": rule}, metrics))
        ctx.progress(done / len(RULES))
    return rows


EXPERIMENT = grammar_experiment(
    "feedforward_rules", "Learning the feed-forward weights", measure, group="rules", seconds=90
)
