"""The advantage is information, not dimensionality: traces projected to 1024 and 512 dimensions (C05, C06, C41)."""

from __future__ import annotations

import numpy as np

from ematrace.experiments.base import Experiment
from ematrace.experiments.workbench import FULL, LAMBDA, Figures, Workbench
from ematrace.probes import gaussian_projection

PROJECTION_SEEDS = 5
CONDITIONS = {"l0": ("l0", None), "l0_512": ("l0", 512), "traces_1024": ("traces", 1024), "traces_512": ("traces", 512)}


def measure(bench: Workbench) -> Figures:
    """Projected Gram matrices are PᵀGP, so no feature is computed twice. Accuracies average over five projections."""
    model, gram = bench.spcn(), bench.by_role_gram(bench.token_gram)
    readouts = {}
    for name, (part, size) in CONDITIONS.items():
        columns = model.columns(part, FULL)
        if size is None:
            readouts[f"{name} 0"] = gram.solve(LAMBDA, columns)
        else:
            for seed in range(PROJECTION_SEEDS):
                P = gaussian_projection(len(columns), size, seed=PROJECTION_SEEDS * bench.seed + seed)
                readouts[f"{name} {seed}"] = gram.solve(LAMBDA, columns, projection=P)
    probed = bench.score(readouts, model)
    figures: Figures = {}
    for name in CONDITIONS:
        draws = [bench.accuracies(name, scores) for key, scores in probed.items() if key.split()[0] == name]
        for figure, (_, n) in draws[0].items():
            figures[figure] = (float(np.mean([draw[figure][0] for draw in draws])), n)
        figures[f"{name}.parameters"] = (readouts[f"{name} 0"].n_parameters, None)
    return figures


EXPERIMENT = Experiment("dimension_control", "Information, not dimensionality", measure)
