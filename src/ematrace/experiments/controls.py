"""What simpler features carry: the rows that belong beside every SPCN figure."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from ematrace.baselines import onehot
from ematrace.baselines.bigru import BiGRUTagger
from ematrace.experiments.base import Context
from ematrace.experiments.grammar_task import (
    FULL,
    Codes,
    GrammarTask,
    Probed,
    grammar_experiment,
    grammar_task,
    words_of,
)
from ematrace.grammar import Sentence
from ematrace.results import Row

NETWORKS: dict[str, dict[str, Any]] = {
    "no_feedback": {"learn_feedback": False},
    "no_spa_no_lateral": {"spa": False, "gamma": 0.0},
    # learning without SPA harms transfer: what a network has that neither learned nor attends
    "no_feedback_no_spa": {"learn_feedback": False, "spa": False},
    "no_feedback_no_spa_no_lateral": {"learn_feedback": False, "spa": False, "gamma": 0.0},
}


def measure(ctx: Context, **grammar: Any) -> list[Row]:
    task = grammar_task(ctx, **grammar)
    vocabulary, merged = task.vocabulary, task.A.function_words
    untrained = BiGRUTagger.untrained(task.vocabulary, task.roles, random_state=task.seed)
    features = {
        "position": lambda s: onehot.position(words_of(s), max_length=20),
        "onehot": lambda s: onehot.current_token(words_of(s), vocabulary),
        "window1": lambda s: onehot.window(words_of(s), vocabulary, radius=1),
        "window2": lambda s: onehot.window(words_of(s), vocabulary, radius=2),
        "window3": lambda s: onehot.window(words_of(s), vocabulary, radius=3),
        "ema_onehot": lambda s: onehot.ema_of_onehots(words_of(s), vocabulary),
        "ema_merged": lambda s: onehot.merged_ema(words_of(s), vocabulary, merged),
        "untrained_bigru": lambda s: untrained.hidden_states(words_of(s)),
    }
    probed = {"majority": majority(task)}
    probed |= {name: task.probe_features(make) for name, make in features.items()}
    probed |= {name: task.probe([FULL], task.spcn(**changes))[FULL] for name, changes in NETWORKS.items()}
    return [Row({"features": name}, task.accuracies(found)) for name, found in probed.items()]


def majority(task: GrammarTask) -> Probed:
    """Always the most frequent role."""
    counts = Counter(role for s in task.train for role in s.roles)
    best = task.roles.index(counts.most_common(1)[0][0])

    def constant(sentences: list[Sentence]) -> Codes:
        return np.full(sum(len(s.words) for s in sentences), best)

    return task.judge(constant(task.within), constant(task.transfer))


EXPERIMENT = grammar_experiment("controls", "What simpler features carry", measure, seconds=24)
