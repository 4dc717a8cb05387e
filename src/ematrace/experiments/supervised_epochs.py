"""The GRUs of `supervised_models` for the paper's 150 epochs; `supervised` has that of 64 dimensions (C07 to C12)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ematrace.experiments import supervised_models
from ematrace.experiments.base import Point

PAPER_EPOCHS = 150
IN_SUPERVISED = {"embedding": 64, "word_dropout": 0.0}


def points(scale: str, seeds: int) -> Iterable[Point]:
    for point in supervised_models.points(scale, seeds):
        if point.factors["model"] == "gru" and not IN_SUPERVISED.items() <= point.factors.items():
            yield point


EXPERIMENT = replace(
    supervised_models.EXPERIMENT,
    name="supervised_epochs",
    title="Supervised models after 150 epochs",
    grid=points,
    settings={**supervised_models.EXPERIMENT.settings, "epochs": PAPER_EPOCHS},
    seconds=190,
)
