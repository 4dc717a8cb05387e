"""How much each choice matters that the paper leaves open: one setting is changed at a time, and the figures of claims
are measured again.

Measured is what the claims' own experiments measure of SPCN, by their functions: C01 to C06, C08 to C15, C18, C42, and
SPCN's half of C43. The other side of a comparison (the BiGRU of C07 to C12 and C43, position, guesses) does not depend
on these settings; it is read from the claim's own cells. Of C07 and C17 only the comparison with SPCN changes. Left out
are C16, which is itself a choice (the rules for W_ff), C40, whose differences are those of other claims, and C41, which
is arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ematrace.experiments import dimension_control, distances, lag_decoding
from ematrace.experiments.ablations import probe_variants
from ematrace.experiments.base import Context, Experiment, Point, factorial
from ematrace.experiments.grammar_task import GRAMMAR, SETTINGS, GrammarTask, follow_from, grammar_task
from ematrace.experiments.shortcuts import spcn_metrics
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
    "upper levels twice as wide": {"widths": [512, 512, 256, 128]},
    "no reset between sentences": {"reset": "never"},
    "Foldiak's W_ff": {"ff_rule": "foldiak"},
    "Foldiak's W_ff, a third of the rate": {"ff_rule": "foldiak", "ff_eta": 0.03},
    "forward-forward W_ff": {"ff_rule": "forward_forward"},
    "forward-forward W_ff, a third of the rate": {"ff_rule": "forward_forward", "ff_eta": 0.1},
}
PROBES: dict[str, dict[str, Any]] = {
    "probe without intercept": {"fit_intercept": False},
    "ridge 1": {"ridge_lambda": 1.0},
}
LAGS = (1, 2, 3)  # of C18


def settings_of(point: Point, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    name = str(point.factors["choice"])
    changed = PROBES[name] if name in PROBES else {"spcn": CHOICES[name]}
    return {**follow_from(point, settings), **changed}


def measure(ctx: Context, grammar: str, choice: str) -> list[Row]:
    """The choice is also in the settings, where the task finds it."""
    task = grammar_task(ctx, grammar)
    rows = by_part(task)
    ctx.progress(0.5)
    rows += dimension_control.measure(ctx, grammar=grammar)
    ctx.progress(0.65)
    nouns_and_roles = lag_decoding.read_back(task, *lag_decoding.encode_forward(task), LAGS)
    rows += [row for row in nouns_and_roles if row.factors["reader"] == "probe" and "lag" in row.factors]
    ctx.progress(0.8)
    rows += [row for row in distances.measure(ctx, grammar=grammar) if row.factors["points"] != "contexts"]
    swapped = spcn_metrics(task)
    return rows + [Row({"input": name}, metrics) for (name, role), metrics in swapped.items() if not role]


def by_part(task: GrammarTask) -> list[Row]:
    """Of the parts that are taken away, of levels, and of the whole by role."""
    variants, levels = probe_variants(task)
    return [
        *(Row({"variant": name}, task.accuracies(found)) for name, found in variants.items()),
        *task.by_role(variants["full"], {"variant": "full"}),
        *(Row({"level": level}, task.accuracies(found)) for level, found in levels.items()),
    ]


EXPERIMENT = Experiment(
    "choices",
    "How much each open choice matters",
    grid=factorial(grammar=(GRAMMAR,), choice=(*CHOICES, *PROBES)),
    measure=measure,
    group="choices",
    settings=dict(SETTINGS),
    derived=settings_of,
    seconds=65,
)
