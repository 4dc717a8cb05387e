"""What each part of the network adds: directions, SPA, slow traces (C13, C14), and levels (C15)."""

from __future__ import annotations

from ematrace.experiments.base import Experiment
from ematrace.experiments.workbench import FULL, Figures, Workbench

PARTS = {
    "full": "l0+traces",
    "forward_only": "l0@forward+traces@forward",
    "backward_only": "l0@backward+traces@backward",
    "fast_only": "l0+fast",
    "slow_only": "l0+slow",
    "level0": "traces",
}


def measure(bench: Workbench) -> Figures:
    figures: Figures = {}
    probed = bench.probe(tuple(PARTS.values()))
    for name, part in PARTS.items():
        figures |= bench.accuracies(name, probed[part])
    # The paper does not say what "trace projections" are, so that part of C14 has nothing to remove.
    without_spa = bench.probe((FULL, "l0+fast"), bench.spcn(spa=False))
    figures |= bench.accuracies("no_spa", without_spa[FULL])
    figures |= bench.accuracies("no_spa_no_slow", without_spa["l0+fast"])
    higher = {f"level{level}": f"l{level}.traces" for level in range(1, len(bench.spcn().widths))}
    by_level = bench.probe(tuple(higher.values()), bench.spcn(), "+".join(higher.values()))
    for name, part in higher.items():
        figures |= bench.accuracies(name, by_level[part])
    return figures


EXPERIMENT = Experiment("ablations", "Ablations and levels", measure)
