"""Four Hebbian rules for W_ff against frozen random weights: accuracy and collapse (C16)."""

from __future__ import annotations

import numpy as np

from ematrace.experiments.base import Experiment
from ematrace.experiments.workbench import FULL, Figures, Workbench
from ematrace.probes import effective_rank, participation_ratio
from ematrace.spcn.feedforward import FF_RULES


def measure(bench: Workbench) -> Figures:
    figures: Figures = {}
    seen = [i for i, word in enumerate(bench.vocabulary) if word in set(bench.A.words)]
    for rule in ("frozen", *FF_RULES):
        model = bench.spcn(ff_rule=rule)
        figures |= bench.accuracies(rule, bench.probe([FULL], model)[FULL])
        W = np.asarray(model.W_ff()[0])[:, seen].T  # one row per word that the rule could learn from
        codes = model.encode(bench.within[:1000], "l0.activation@forward")
        figures[f"{rule}.weight_pr"] = (participation_ratio(W), None)
        figures[f"{rule}.weight_rank"] = (effective_rank(W), None)
        figures[f"{rule}.code_pr"] = (participation_ratio(codes), None)
        figures[f"{rule}.code_rank"] = (effective_rank(codes), None)
    return figures


EXPERIMENT = Experiment("feedforward_rules", "Learning the feed-forward weights", measure, group="rules")
