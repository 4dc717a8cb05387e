"""Training: what a step is, and what a checkpoint brings back."""

from __future__ import annotations

import shutil
from typing import Any

from defects.planting import defect, replaced, skipped, with_arguments, with_result

BITWISE = "bitwise_the_run and gpt2"


@defect("train.schedule", "test_train_parts.py", "schedule_is")
def schedule_off_by_one(schedule: Any) -> None:
    """Each update has the rate of the one before it."""
    with_arguments(schedule, "learning_rate", n=lambda n: n - 1)


@defect("train.optimiser", "test_train_parts.py", "decay_spares")
def norms_decay(optimiser: Any) -> None:
    """Weight decay pulls norms and biases to zero, too."""

    def everywhere(groups: Any) -> Any:
        return [{**group, "weight_decay": groups[0]["weight_decay"]} for group in groups]

    with_result(optimiser, "parameter_groups", everywhere)


@defect("train.step", "test_train_parts.py", "one_update")
def gradient_not_clipped(step: Any) -> None:
    """The setting for clipping is not used."""
    with_arguments(step.Gradients, "__init__", clip=lambda clip: float("inf"))


@defect("train.loss", "test_train_parts.py", "reset_keeps")
def documents_not_kept_apart(loss: Any) -> None:
    """A document sees those before it in its window."""
    with_arguments(
        loss.LanguageModelLoss,
        "forward",
        cu_seqlens=lambda offsets: None if offsets is None else offsets[[0, -1]],
    )


@defect("train.state", "test_train_resume.py", BITWISE)
def averages_forgotten(state: Any) -> None:
    """AdamW starts anew after a resume."""
    skipped(state, "read_optimiser")


@defect("train.state", "test_train_resume.py", "dropout")
def random_generators_forgotten(state: Any) -> None:
    """Dropout draws the first masks again after a resume."""
    skipped(state, "restore_random_state")


@defect("train.state", "test_train_history.py", "whole_but_wrong")
def checkpoint_of_another_model_accepted(state: Any) -> None:
    """Weights that are not finite, or of another shape, are found out when it is too late."""
    skipped(state, "check_tensors")


@defect("train.batches", "test_train_resume.py", "streamed")
def place_in_the_text_forgotten(batches: Any) -> None:
    """A resumed stream begins at its first document."""
    skipped(batches.StreamedBatches, "restore")


@defect("train.checkpoints", "test_train_resume.py", "damaged_checkpoint and tampered-model")
def damaged_checkpoint_believed(checkpoints: Any) -> None:
    """Files are not compared with their manifest."""
    skipped(checkpoints, "verify")


@defect("train.checkpoints", "test_train_resume.py", "whole_or_not")
def checkpoint_filled_in_its_place(checkpoints: Any) -> None:
    """A crash while saving leaves half a checkpoint under the name of a whole one."""

    def write_folder(target: Any, fill: Any) -> Any:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        fill(target)
        return target

    replaced(checkpoints, "write_folder", write_folder)
