"""What simpler features carry: the rows that belong beside every SPCN figure."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from ematrace.baselines import onehot
from ematrace.baselines.bigru import BiGRUTagger
from ematrace.experiments.base import Experiment
from ematrace.experiments.workbench import FULL, Figures, Probed, Workbench, words_of


def measure(bench: Workbench) -> Figures:
    vocabulary, merged = bench.vocabulary, bench.A.function_words
    untrained = BiGRUTagger.untrained(bench.vocabulary, bench.roles, random_state=bench.seed)
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
    figures = bench.accuracies("majority", majority(bench))
    for name, make in features.items():
        figures |= bench.accuracies(name, bench.probe_features(make))
    networks: dict[str, dict[str, Any]] = {
        "no_feedback": {"learn_feedback": False},
        "no_spa_no_lateral": {"spa": False, "gamma": 0.0},
    }
    for name, changes in networks.items():
        figures |= bench.accuracies(name, bench.probe([FULL], bench.spcn(**changes))[FULL])
    return figures


def majority(bench: Workbench) -> Probed:
    """Always the most frequent role."""
    counts = Counter(role for s in bench.train for role in s.roles)
    best = bench.roles.index(counts.most_common(1)[0][0])

    def constant(sentences: list) -> np.ndarray:  # type: ignore[type-arg]
        return np.full(sum(len(s.words) for s in sentences), best)

    return Probed(
        bench.right(constant(bench.within), bench.within), bench.right(constant(bench.transfer), bench.transfer)
    )


EXPERIMENT = Experiment("controls", "What simpler features carry", measure)
