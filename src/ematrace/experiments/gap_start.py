"""The straight-through gradient beside the true one before training, by the units and how many of them are kept.

Algorithm 1's block at the width and depth of `2m`, with its first weights, on windows of text: the cosine between the
two gradients and the ratio of their norms. `gap_units` and `gap_kept` train models with as many units, of which as many
are kept, on other text and with a larger vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

import numpy as np

from ematrace.analysis.gap_design import MASKED
from ematrace.experiments.base import Context, Experiment, Point
from ematrace.experiments.gap_gradients import compare_gradients
from ematrace.experiments.gap_kept import KeptArm
from ematrace.experiments.gap_task import build_arm
from ematrace.experiments.gap_text import tokenizer_folder, training_text
from ematrace.results import Row
from ematrace.text import load_tokenizer
from ematrace.train.state import seed_everything

SIZE = "2m"
UNITS_AND_KEPT = ((3072, 31), (512, 31), (1536, 92), (3072, 184), (512, 184))


def grid(scale: str, seeds: int) -> Iterable[Point]:
    for seed in range(seeds):
        for units, k in UNITS_AND_KEPT:
            yield Point({"units": units, "k": k}, seed)


def measure(ctx: Context, *, units: int, k: int) -> list[Row]:
    settings, data = ctx.settings, str(ctx.data)
    tokenizer = tokenizer_folder(data, settings["vocab_size"])
    text = training_text(data, "train", str(tokenizer))
    at = np.linspace(0, text.n_windows(settings["length"]) - 1, settings["windows"]).round().astype(int)
    seed_everything(ctx.seed)
    arm = KeptArm(**asdict(MASKED), units=units, k=k)
    model = build_arm(arm, SIZE, units, len(load_tokenizer(tokenizer)), settings["length"])
    return compare_gradients(model.eval(), text.windows(at, settings["length"]))


EXPERIMENT = Experiment(
    "gap_start",
    "The two gradients of the top-k before training",
    grid=grid,
    measure=measure,
    data="builtin",
    settings={"vocab_size": 1024, "length": 128, "windows": 64},
    seeds=3,
    seconds=8,
)
