"""The runner: what runs, what is done already, what a failure costs."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from typing import Any

from defects.planting import constant, defect, replaced, with_arguments, with_result, wrap


@defect("experiments.runner.plan", "test_runner.py", "second_run")
def finished_units_run_again(plan: Any) -> None:
    """A resumed grid measures everything once more."""
    with_result(plan, "_is_there", lambda there: False)


@defect("experiments.runner.plan", "test_runner.py", "changed_settings")
def file_of_other_settings_counts(plan: Any) -> None:
    """A resumed grid keeps what was measured with other settings."""
    replaced(plan, "_is_there", lambda unit, out: (out / unit.experiment / unit.file_name).exists())


@defect("experiments.runner.units", "test_runner_plan.py", "exact_partition")
def shards_overlap(units: Any) -> None:
    """Part 2 of 2 does what part 1 does, too."""
    wrap(units, "shard_of", lambda original: lambda found, index, count: original(found, 0, 1))


@defect("experiments.runner.local", "test_runner.py", "killed_is_named_and_run_again")
def killed_unit_is_given_up(local: Any) -> None:
    """A unit whose process was killed once is never run again."""
    constant(local, "MOST_LOSSES", lambda most: 1)


@defect("experiments.runner.local", "test_runner.py", "loses_no_other_of_its_group")
def failure_loses_the_rest_of_its_job(local: Any) -> None:
    """Units after one that failed are never run, and nobody is told."""

    def give_up(original: Any) -> Any:
        def collect(self: Any) -> Any:
            for event in original(self):
                if isinstance(event, local.Failed):
                    self._left.clear()
                yield event

        return collect

    wrap(local.Slot, "collect", give_up)


@defect("experiments.runner.worker", "test_memory.py", "worker")
def worker_gives_memory_back(worker: Any) -> None:
    """Every step of a training asks the system for its memory again."""
    wrap(worker, "kept_memory", lambda original: nullcontext)


@defect("experiments.gap_gradients", "test_gap_gradients.py", "loss_function or below_a_selection")
def straight_through_gradient_is_compared_with_itself(gap_gradients: Any) -> None:
    """The "true" gradient is the straight-through one as well: every cosine is 1."""
    with_arguments(gap_gradients, "gradient", topk_grad=lambda kind: "ste")


@defect("experiments.gap_gradients", "test_gap_gradients.py", "while_it_trains")
def every_step_is_the_last(gap_gradients: Any) -> None:
    """The model at the end of the training is measured at all steps."""

    def final(original: Any) -> Any:
        return lambda step, trained: original(trained.summary.steps, trained)

    wrap(gap_gradients, "model_after", final)


@defect("experiments.gap_sparsity", "test_gap_predictors.py", "keeps_what_it_says")
def sparsity_is_always_the_papers(gap_sparsity: Any) -> None:
    """Six per cent of the units are kept, whatever the factor says."""
    with_arguments(gap_sparsity.SparseArm, "overrides", self=lambda arm: dataclasses.replace(arm, kept=0.06))
