"""Training: what a step is, and what a checkpoint brings back."""

from __future__ import annotations

import shutil
from typing import Any

from defects.planting import defect, replaced, skipped, with_arguments, with_result, wrap

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


@defect("train.step", "test_train_step.py", "leaves_the_weights_alone")
def update_with_a_loss_that_is_not_finite(step: Any) -> None:
    """NaN goes into the weights."""
    with_result(step.StepResult, "not_finite", lambda found: None)


@defect("train.loss", "test_train_parts.py", "reset_keeps")
def documents_not_kept_apart(loss: Any) -> None:
    """A document sees those before it in its window."""
    with_arguments(
        loss.LanguageModelLoss,
        "forward",
        cu_seqlens=lambda offsets: None if offsets is None else offsets[[0, -1]],
    )


@defect("train.loss", "test_train_parts.py", "validation_is")
def dropout_in_validation(loss: Any) -> None:
    """The model stays in training mode."""

    def training(original: Any) -> Any:
        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            self.train()
            return original(self, *args, **kwargs)

        return forward

    wrap(loss.LanguageModelLoss, "forward", training)


@defect("train.data", "test_train_parts.py", "held_out")
def validation_documents_trained_on(data: Any) -> None:
    """The training text is the whole text."""
    with_arguments(data, "pack", split=lambda split: "all" if split == "train" else split)


@defect("train.distributed", "test_train_parts.py", "batches_depend")
def processes_read_the_same(distributed: Any) -> None:
    """Every process takes the first share of the micro-batches."""
    with_result(distributed.World, "share", lambda part: range(len(part)))


@defect("train.state", "test_train_resume.py", BITWISE)
def averages_forgotten(state: Any) -> None:
    """AdamW starts anew after a resume."""
    skipped(state, "read_optimiser")


@defect("train.state", "test_train_resume.py", "dropout")
def random_generators_forgotten(state: Any) -> None:
    """Dropout draws the first masks again after a resume."""
    skipped(state, "restore_random_state")


@defect("train.batches", "test_train_resume.py", "streamed")
def place_in_the_text_forgotten(batches: Any) -> None:
    """A resumed stream begins at its first document."""
    skipped(batches.StreamedBatches, "restore")


@defect("train.checkpoints", "test_train_resume.py", "damaged_checkpoint and tampered")
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


@defect("train.config", "test_train_resume.py", "contradicting")
def resumed_with_other_settings(config: Any) -> None:
    """A run goes on with another learning rate, and nobody can tell from its record."""
    skipped(config, "refuse_contradiction")
