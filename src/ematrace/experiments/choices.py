"""How much each choice matters that the paper leaves open: one setting changed at a time, W, T and D again."""

from __future__ import annotations

from typing import Any

from ematrace.experiments.base import Experiment
from ematrace.experiments.workbench import FULL, LAMBDA, Figures, Workbench

# name -> what is changed from the default; docs/deviations.md explains each
CHOICES: dict[str, dict[str, Any]] = {
    "default": {},
    "precision once": {"precision_power": 1},
    "precision tracked 10x faster": {"variance_rate": 0.1},
    "no learned feedback": {"learn_feedback": False},
    "three epochs": {"epochs": 3},
    "top-k by magnitude": {"topk_by": "magnitude"},
    "no ReLU": {"rectify": False},
    "synchronous levels": {"update": "synchronous"},
    "SPA twice as strong": {"spa_gain": 2.0},
    "SPA half as strong": {"spa_gain": 0.5},
    "weights half as large": {"init_gain": 0.5},
    "weights twice as large": {"init_gain": 2.0},
    "k 4%": {"k": 0.04},
    "k 16%": {"k": 0.16},
    "upper levels twice as wide": {"widths": (512, 512, 256, 128)},
    "no reset between sentences": {"reset": "never"},
    "Foldiak's W_ff": {"ff_rule": "foldiak"},
    "Foldiak's W_ff, a third of the rate": {"ff_rule": "foldiak", "ff_eta": 0.03},
    "forward-forward W_ff": {"ff_rule": "forward_forward"},
    "forward-forward W_ff, a third of the rate": {"ff_rule": "forward_forward", "ff_eta": 0.1},
}
PROBES: dict[str, dict[str, Any]] = {"probe without intercept": {"fit_intercept": False}, "ridge 1": {"lam": 1.0}}


def measure(bench: Workbench) -> Figures:
    figures: Figures = {}
    for done, (name, changes) in enumerate(CHOICES.items()):
        figures |= bench.accuracies(name, bench.probe([FULL], bench.spcn(**changes))[FULL])
        bench.progress((done + 1) / (len(CHOICES) + 1))
    gram = bench.by_role_gram(bench.token_gram)
    readouts = {name: gram.solve(**{"lam": LAMBDA, **changes}) for name, changes in PROBES.items()}
    for name, probed in bench.score(readouts, bench.spcn()).items():
        figures |= bench.accuracies(name, probed)
    return figures


EXPERIMENT = Experiment("choices", "How much each open choice matters", measure, group="choices", by_name_only=True)
