"""How much each choice matters that the paper leaves open: one setting changed at a time, and the figures of C01 to C03
and C13 to C15 again."""

from __future__ import annotations

from typing import Any

from ematrace.experiments.ablations import probe_variants
from ematrace.experiments.base import Context
from ematrace.experiments.grammar_task import grammar_experiment, grammar_task
from ematrace.results import Row

# name -> what is changed from the default; docs/deviations.md explains each
CHOICES: dict[str, dict[str, Any]] = {
    "default": {},
    "locked network": {"network": "locked"},
    "precision once": {"precision_power": 1},
    "precision tracked 10x faster": {"variance_rate": 0.1},
    "no learned feedback": {"learn_feedback": False},
    "three epochs": {"epochs": 3},
    "top-k by magnitude": {"topk_by": "magnitude"},
    "no ReLU": {"rectify": False},
    "synchronous levels": {"update": "synchronous"},
    "SPA twice as strong": {"spa_gain": 2.0},
    "SPA half as strong": {"spa_gain": 0.5},
    "weights half as large": {"init_gain": 0.5},
    "weights twice as large": {"init_gain": 2.0},
    "k 4%": {"k": 0.04},
    "k 16%": {"k": 0.16},
    "upper levels twice as wide": {"widths": (512, 512, 256, 128)},
    "no reset between sentences": {"reset": "never"},
    "Foldiak's W_ff": {"ff_rule": "foldiak"},
    "Foldiak's W_ff, a third of the rate": {"ff_rule": "foldiak", "ff_eta": 0.03},
    "forward-forward W_ff": {"ff_rule": "forward_forward"},
    "forward-forward W_ff, a third of the rate": {"ff_rule": "forward_forward", "ff_eta": 0.1},
}
PROBES: dict[str, dict[str, Any]] = {"probe without intercept": {"fit_intercept": False}, "ridge 1": {"lam": 1.0}}


def measure(ctx: Context, **grammar: Any) -> list[Row]:
    task = grammar_task(ctx, **grammar)
    rows = []
    for done, (name, changes) in enumerate(CHOICES.items(), start=1):
        variants, levels = probe_variants(task, **changes)
        rows += [Row({"choice": name, "variant": part}, task.accuracies(found)) for part, found in variants.items()]
        rows += [Row({"choice": name, "level": level}, task.accuracies(found)) for level, found in levels.items()]
        ctx.progress(done / (len(CHOICES) + 1))
    gram = task.by_role_gram(task.token_gram)
    readouts = {name: gram.solve(**{"lam": task.ridge_lambda, **changes}) for name, changes in PROBES.items()}
    probed = task.score(readouts, task.spcn())
    rows += [Row({"choice": name, "variant": "full"}, task.accuracies(found)) for name, found in probed.items()]
    return rows


EXPERIMENT = grammar_experiment(
    "choices", "How much each open choice matters", measure, group="choices", robustness=None, seconds=900
)
