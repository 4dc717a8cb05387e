"""Can the position alone tell the role? (C17)"""

from __future__ import annotations

from ematrace.baselines import onehot
from ematrace.experiments.base import Experiment
from ematrace.experiments.workbench import Figures, Workbench, words_of
from ematrace.grammar import position_shares


def measure(bench: Workbench) -> Figures:
    shares = position_shares(bench.train, position=0)
    figures = bench.accuracies(
        "position_only", bench.probe_features(lambda s: onehot.position(words_of(s), max_length=20))
    )
    for role in ("det_agent", "det_patient"):
        figures[f"position0.{role}"] = (shares.get(role, 0.0), len(bench.train))
    return figures


EXPERIMENT = Experiment("position", "Position alone", measure)
