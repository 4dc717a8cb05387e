"""Can the position alone tell the role? (C17)"""

from __future__ import annotations

from typing import Any

from ematrace.baselines import onehot
from ematrace.experiments.base import Context, accuracy
from ematrace.experiments.grammar_task import QUICK_DRAWS, grammar_experiment, grammar_task, words_of
from ematrace.grammar import position_shares
from ematrace.results import Row


def measure(ctx: Context, **grammar: Any) -> list[Row]:
    task = grammar_task(ctx, **grammar)
    shares = position_shares(task.train, position=0)
    probed = task.probe_features(lambda s: onehot.position(words_of(s), max_length=20))
    return [
        Row({"features": "position"}, task.accuracies(probed)),
        *(
            Row({"role": role}, {"first_word_share": accuracy(shares.get(role, 0.0), len(task.train), better=None)})
            for role in ("det_agent", "det_patient")
        ),
    ]


EXPERIMENT = grammar_experiment("position", "Position alone", measure, quick_draws=QUICK_DRAWS, seconds=1)
