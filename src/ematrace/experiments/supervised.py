"""Table 2: a supervised BiGRU, role by role, under three codings of the words it never saw (C07 to C12)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ematrace.baselines.bigru import BiGRUTagger, Unseen
from ematrace.experiments.base import Context
from ematrace.experiments.grammar_task import Codes, GrammarTask, grammar_experiment, grammar_task, words_of
from ematrace.grammar import Sentence
from ematrace.results import Row

UNSEEN: tuple[Unseen, ...] = ("untrained", "zero", "mean")  # codings that need no training of their own


def measure(ctx: Context, **grammar: Any) -> list[Row]:
    task = grammar_task(ctx, **grammar)
    return judge_tagger(task, task.bigru(ctx.progress), UNSEEN)


def judge_tagger(task: GrammarTask, tagger: BiGRUTagger, codings: tuple[Unseen, ...]) -> list[Row]:
    """Accuracies and roles under each coding of unseen words."""

    def predict(sentences: list[Sentence], unseen: Unseen) -> Codes:
        predicted = tagger.predict(words_of(sentences), unseen=unseen)
        return np.array([task.roles.index(role) for roles in predicted for role in roles])

    within = predict(task.within, "untrained")  # no unseen word occurs there
    rows = []
    for unseen in codings:
        probed = task.judge(within, predict(task.transfer, unseen))
        rows += [Row({"unseen": unseen}, task.accuracies(probed)), *task.by_role(probed, {"unseen": unseen})]
    return rows


EXPERIMENT = grammar_experiment("supervised", "Against supervision", measure, group="bigru", seconds=190)
