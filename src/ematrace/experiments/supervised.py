"""Table 2: a supervised BiGRU, role by role, under three codings of the words it never saw (C07 to C12)."""

from __future__ import annotations

from ematrace.baselines.bigru import Unseen
from ematrace.experiments.base import Experiment
from ematrace.experiments.workbench import Figures, Probed, Workbench, words_of
from ematrace.grammar import Sentence
from ematrace.probes import Scores, score_roles


def measure(bench: Workbench) -> Figures:
    tagger = bench.bigru

    def right(sentences: list[Sentence], unseen: Unseen) -> Scores:
        predicted = tagger.predict(words_of(sentences), unseen=unseen)
        return score_roles([r for roles in predicted for r in roles], [r for s in sentences for r in s.roles])

    figures: Figures = {}
    within = right(bench.within, "untrained")  # no unseen word occurs there
    codings: dict[str, Unseen] = {"bigru": "untrained", "bigru_zero": "zero", "bigru_mean": "mean"}
    for name, unseen in codings.items():
        probed = Probed(within, right(bench.transfer, unseen))
        figures |= bench.accuracies(name, probed) | bench.by_role(name, probed)
    return figures


EXPERIMENT = Experiment("supervised", "Against supervision", measure, group="bigru")
