"""Both gradients before training: the experiment's rows against gradients that plain autograd has."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
import torch

from ematrace.analysis.gap_design import MASKED
from ematrace.experiments import gap_start
from ematrace.experiments.base import Context
from ematrace.experiments.gap_kept import KeptArm
from ematrace.experiments.gap_task import build_arm
from ematrace.experiments.gap_text import tokenizer_folder, training_text

SETTINGS = {"vocab_size": 300, "length": 16, "windows": 8}


def gradient(kind: str, units: int, k: int, seed: int) -> torch.Tensor:
    """Of the model's own loss in training mode, whatever the experiment does."""
    tokenizer = tokenizer_folder("builtin", SETTINGS["vocab_size"])
    text = training_text("builtin", "train", str(tokenizer))
    at = np.linspace(0, text.n_windows(16) - 1, 8).round().astype(int)
    ids = torch.from_numpy(text.windows(at, 16))
    torch.manual_seed(seed)
    model = build_arm(KeptArm(**asdict(MASKED), units=units, k=k), "2m", units, 300, 16)
    model.config.topk_grad = kind
    logits = model(ids[:, :-1]).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize(("units", "k", "seed"), [(64, 4, 0), (64, 32, 3)])
def test_rows_are_those_of_plain_gradients(units: int, k: int, seed: int) -> None:
    rows = gap_start.measure(Context(seed=seed, data="builtin", settings=SETTINGS), units=units, k=k)
    found = next(row.metrics for row in rows if row.factors == {"part": "all"})
    ste, true = (gradient(kind, units, k, seed) for kind in ("ste", "masked"))
    assert found["cosine"].value == pytest.approx(float(torch.cosine_similarity(ste, true, dim=0)), abs=1e-4)
    assert found["norm_ratio"].value == pytest.approx(float(ste.norm() / true.norm()), rel=1e-4)


def test_models_are_those_of_the_trained_ones() -> None:
    points = gap_start.EXPERIMENT.points("cpu", 3)
    assert {(p.factors["units"], p.factors["k"]) for p in points} == {
        (512, 31), (1536, 92), (3072, 184), (3072, 31), (512, 184)
    }  # fmt: skip
    assert len(points) == 15
