"""The first steps of SPEN's block under both gradients, on the schedule of the whole budget: losses and nothing else.

Runs on cores (`--device cpu`) may stand beside recorded ones of a GPU only if they are the same experiment. A whole run
would take hours there; its first steps take minutes, and their losses can be laid beside the recorded ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from ematrace.analysis.gap_design import MASKED, SPEN, Arm
from ematrace.experiments.base import Context, Experiment, Point, cross_entropy
from ematrace.experiments.gap_task import CURVE, SETTINGS, TRAINING, arm_points, budget_of, train_arm
from ematrace.experiments.language_task import metrics_lines
from ematrace.results import Row

STEPS = {"toy": 8, "2m": CURVE}  # as many as the first point of a recorded curve is the mean of


class _EnoughError(Exception):
    """The steps that were asked for are done."""


def grid(scale: str, seeds: int) -> Iterable[Point]:
    """Without a GPU, unless cores are to stand in for it, one toy, which shows that it runs."""
    if scale != "gpu":
        yield from arm_points((MASKED,), "toy", 0)
        return
    for seed in range(seeds):
        yield from arm_points((SPEN, MASKED), "2m", seed)


def measure(ctx: Context, *, size: str, lr: float, **arm: Any) -> list[Row]:
    steps = ctx.settings["steps"]
    with TemporaryDirectory(dir=ctx.scratch) as folder:
        out = Path(folder) / "run"
        with suppress(_EnoughError):
            train_arm(replace(ctx, progress=_stop_after(steps, ctx.progress)), Arm(**arm), size, lr, out)
        lines = metrics_lines(out)
    if len(lines) < steps:
        raise ValueError(f"settings: steps: {steps}, and the run has {len(lines)}")
    nats = fmean(line["cross_entropy"] for line in lines[:steps])
    return [Row({"step": steps}, {"train_nats": cross_entropy(nats)})]


def _stop_after(steps: int, progress: Callable[[float], None]) -> Callable[[float], None]:
    """Training reports its progress once after each step."""
    done = 0

    def report(share: float) -> None:
        nonlocal done
        done += 1
        progress(TRAINING * done / steps)
        if done == steps:
            raise _EnoughError

    return report


def budget(point: Point, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    found = budget_of(point, settings)
    return found if settings["steps"] is not None else {**found, "steps": STEPS[str(point.factors["size"])]}


EXPERIMENT = Experiment(
    "gap_first_steps",
    "The first steps of training, to compare devices",
    grid=grid,
    measure=measure,
    needs="any",
    data="builtin",
    settings={**SETTINGS, "steps": None},
    derived=budget,
    seeds=3,
    seconds=3,
)
