"""The advantage is information, not dimensionality: traces projected to 1024 and 512 dimensions (C05, C06, C41)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ematrace.experiments.base import Context, accuracy, number
from ematrace.experiments.grammar_task import FULL, Probed, grammar_experiment, grammar_task
from ematrace.probes import gaussian_projection
from ematrace.results import Metric, Row
from ematrace.results.schema import Factor

PROJECTIONS = 5
CONDITIONS = (("l0", None), ("l0", 512), ("traces", 1024), ("traces", 512))  # None: as it is, not projected


def measure(ctx: Context, **grammar: Any) -> list[Row]:
    """Projected Gram matrices are PᵀGP, so no feature is computed twice. Accuracies average over five projections."""
    task = grammar_task(ctx, **grammar)
    model, gram = task.spcn(), task.by_role_gram(task.token_gram)
    readouts = {}
    for part, size in CONDITIONS:
        columns = model.columns(part, FULL)
        if size is None:
            readouts[f"{part} {size} 0"] = task.solve(gram, columns)
        else:
            for draw in range(PROJECTIONS):
                P = gaussian_projection(len(columns), size, seed=PROJECTIONS * task.seed + draw)
                readouts[f"{part} {size} {draw}"] = task.solve(gram, columns, P)
    scores = task.score(readouts, model)

    def mean(probed: list[Probed]) -> dict[str, Metric]:
        draws = [task.accuracies(p) for p in probed]
        return {
            name: accuracy(
                float(np.mean([draw[name].value or 0.0 for draw in draws])), m.n or 0, n_effective=m.n_effective
            )
            for name, m in draws[0].items()
        }

    rows = []
    for part, size in CONDITIONS:
        draws = range(1 if size is None else PROJECTIONS)
        metrics = mean([scores[f"{part} {size} {draw}"] for draw in draws])
        parameters = number(readouts[f"{part} {size} 0"].n_parameters, unit="parameters")
        dimensions = len(model.columns(part, FULL)) if size is None else size
        factors: dict[str, Factor] = {"representation": part, "dimensions": dimensions, "projected": size is not None}
        rows.append(Row(factors, {**metrics, "parameters": parameters}))
    return rows


EXPERIMENT = grammar_experiment("dimension_control", "Information, not dimensionality", measure, seconds=9)
