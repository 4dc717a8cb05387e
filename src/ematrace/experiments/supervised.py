"""Table 2: a supervised BiGRU, role by role, under three codings of the words it never saw (C07 to C12)."""

from __future__ import annotations

from typing import Any, get_args

from ematrace.baselines.bigru import Unseen
from ematrace.experiments.base import Context
from ematrace.experiments.grammar_task import Probed, grammar_experiment, grammar_task, words_of
from ematrace.grammar import Sentence
from ematrace.probes import Scores, score_roles
from ematrace.results import Row


def measure(ctx: Context, **grammar: Any) -> list[Row]:
    task = grammar_task(ctx, **grammar)
    tagger = task.bigru(ctx.progress)

    def right(sentences: list[Sentence], unseen: Unseen) -> Scores:
        predicted = tagger.predict(words_of(sentences), unseen=unseen)
        return score_roles([r for roles in predicted for r in roles], [r for s in sentences for r in s.roles])

    within = right(task.within, "untrained")  # no unseen word occurs there
    rows = []
    for unseen in get_args(Unseen):
        probed = Probed(within, right(task.transfer, unseen))
        rows += [Row({"unseen": unseen}, task.accuracies(probed)), *task.by_role(probed, {"unseen": unseen})]
    return rows


EXPERIMENT = grammar_experiment("supervised", "Against supervision", measure, group="bigru", seconds=190)
