"""What each part of the network adds: directions, SPA, slow traces (C13, C14), and levels (C15)."""

from __future__ import annotations

from typing import Any

from ematrace.experiments.base import Context
from ematrace.experiments.grammar_task import FULL, GrammarTask, Probed, grammar_experiment, grammar_task
from ematrace.results import Row

VARIANTS = {
    "full": FULL,
    "activation": "l0",
    "traces": "traces",
    "forward_only": "l0@forward+traces@forward",
    "backward_only": "l0@backward+traces@backward",
    "fast_only": "l0+fast",
    "slow_only": "l0+slow",
}


def measure(ctx: Context, **grammar: Any) -> list[Row]:
    task = grammar_task(ctx, **grammar)
    variants, levels = probe_variants(task)
    return [
        *(Row({"variant": name}, task.accuracies(found)) for name, found in variants.items()),
        *(Row({"level": level}, task.accuracies(found)) for level, found in levels.items()),
    ]


def probe_variants(task: GrammarTask) -> tuple[dict[str, Probed], dict[int, Probed]]:
    """By variant and by level."""
    model = task.spcn()
    probed = task.probe(tuple(VARIANTS.values()))
    # The paper does not say what "trace projections" are, so that part of C14 has nothing to remove.
    without_spa = task.probe((FULL, "l0+fast"), task.spcn(spa=False))
    variants = {name: probed[part] for name, part in VARIANTS.items()}
    variants |= {"no_spa": without_spa[FULL], "no_spa_no_slow": without_spa["l0+fast"]}
    higher = {level: f"l{level}.traces" for level in range(1, len(model.widths))}
    by_level = task.probe(tuple(higher.values()), model, "+".join(higher.values()))
    return variants, {0: probed["traces"], **{level: by_level[part] for level, part in higher.items()}}


EXPERIMENT = grammar_experiment("ablations", "Ablations and levels", measure, seconds=40)
