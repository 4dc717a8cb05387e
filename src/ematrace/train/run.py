"""A run in progress: one update, one validation, one checkpoint at a time."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ematrace.baselines.language import Unigram
from ematrace.text import open_source
from ematrace.train import checkpoints, state
from ematrace.train.batches import Batches, Ids, MicroBatch, Windows, assemble
from ematrace.train.config import Recipe, TrainConfig
from ematrace.train.distributed import World, accumulating
from ematrace.train.loss import LanguageModelLoss
from ematrace.train.schedule import learning_rate

TRAINING = "training.json"
UNIGRAM = "unigram.safetensors"


@cache
def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in ("torch", "transformers", "safetensors", "numpy")}


class NonFiniteLoss(ValueError):
    """The loss or its gradient is not a number any more; the message names the step and the last good checkpoint."""


@dataclass(frozen=True)
class Update:
    """One step of the optimiser, over all processes."""

    loss: float
    cross_entropy: float
    grad_norm: float
    lr: float
    stop: int
    """Number of the signal that some process was sent, or 0."""
    seconds: float = math.nan


@dataclass
class Run:
    """Everything that an update touches."""

    config: TrainConfig
    recipe: Recipe
    record: Mapping[str, Any]
    world: World
    model: Any
    loss: LanguageModelLoss
    wrapped: nn.Module
    optimiser: torch.optim.Optimizer
    batches: Batches
    validation: Windows
    tokenizer: Any
    fingerprints: Mapping[str, str]
    bfloat16: bool
    step: int = 0
    elapsed_before: float = 0.0
    started: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        advice = "choose another micro_batch or number of processes"
        self.share = self.world.share(self.recipe.sequences // self.recipe.micro_batch, "micro-batches", advice)

    @property
    def checkpoint_folder(self) -> Path:
        return self.config.out / "checkpoints"

    @property
    def seconds(self) -> float:
        """Of all sessions together."""
        return self.elapsed_before + time.perf_counter() - self.started

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.world.device.type, torch.bfloat16) if self.bfloat16 else nullcontext()

    def update(self, stop_requested: Callable[[], int] = lambda: 0) -> Update:
        """Gradients of the mean over the global batch, clipped, and one step of AdamW; none if they are not finite."""
        start = time.perf_counter()
        n, recipe = self.step + 1, self.recipe
        lr = learning_rate(n, steps=recipe.steps, lr=recipe.lr, final_lr=recipe.final_lr, warmup=recipe.warmup)
        for group in self.optimiser.param_groups:
            group["lr"] = lr
        self.optimiser.zero_grad(set_to_none=True)
        measured = []
        for i, micro in enumerate(self.batches.micro_batches(self.step, self.share)):
            micro = micro.to(self.world.device)
            with accumulating(self.wrapped, last=i == len(self.share) - 1):
                with self._autocast():
                    loss, cross_entropy = self.wrapped(micro.ids, micro.cu_seqlens)
                # The mean over this process's share; the wrapper takes the mean over processes.
                (loss / len(self.share)).backward()
            measured.append(torch.stack((loss.detach(), cross_entropy.detach())).double())
        grad_norm = self._clip()
        mine = [*torch.stack(measured).flatten().tolist(), float(grad_norm), float(stop_requested())]
        everyone = self.world.gather(mine)
        # Summed in the order of the micro-batches: the logged loss does not depend on who computed which.
        losses, entropies = ([v for part in everyone for v in part[at:-2:2]] for at in (0, 1))
        result = Update(
            loss=math.fsum(losses) / len(losses),
            cross_entropy=math.fsum(entropies) / len(entropies),
            grad_norm=everyone[0][-2],
            lr=lr,
            stop=int(max(part[-1] for part in everyone)),
        )
        self._refuse_non_finite(result, n)
        self.optimiser.step()
        self.step = n
        return replace(result, seconds=time.perf_counter() - start)

    def _clip(self) -> Tensor:
        norm: Tensor = nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        whole: Any = getattr(norm, "full_tensor", None)
        return norm if whole is None else whole()

    def _refuse_non_finite(self, result: Update, n: int) -> None:
        for name, value in (("loss", result.loss), ("gradient norm", result.grad_norm)):
            if not math.isfinite(value):
                kept = checkpoints.list_checkpoints(self.checkpoint_folder)
                last = f"the last checkpoint is {kept[-1]}" if kept else "there is no checkpoint yet"
                raise NonFiniteLoss(f"step {n}: the {name} is {value}; stopped before the update, {last}")

    def validation_windows(self) -> list[int]:
        """Evenly spaced over the validation text, the same ones every time."""
        length = self.recipe.length
        available = self.validation.n_windows(length)  # refuses a text that is shorter
        count = min(available, self.recipe.validation_sequences)
        return [int(i) for i in np.linspace(0, available - 1, count).round()]

    def validation_targets(self) -> Ids:
        """The tokens that a validation predicts."""
        return np.concatenate([self.validation.window(i, self.recipe.length)[1:] for i in self.validation_windows()])

    def _validation_batches(self) -> Iterator[MicroBatch]:
        chosen, size, length = self.validation_windows(), self.recipe.micro_batch, self.recipe.length
        for at in range(0, len(chosen), size):
            part = chosen[at : at + size]
            starts = [self.validation.document_starts(i, length) for i in part]
            windows = [self.validation.window(i, length) for i in part]
            yield assemble(windows, starts if self.config.reset_at_documents else None)

    def validate(self) -> float:
        """Mean cross-entropy over the validation windows, each process its share."""
        batches = list(self._validation_batches())
        rounds = -(-len(batches) // self.world.size)
        mine: list[float] = []
        self.loss.eval()
        with torch.no_grad(), self._autocast():
            for i in range(self.world.rank * rounds, (self.world.rank + 1) * rounds):
                # Sharded weights are gathered together: a process that has nothing left repeats a batch.
                micro = batches[min(i, len(batches) - 1)].to(self.world.device)
                mine.append(float(self.loss(micro.ids, micro.cu_seqlens)[1]))
        self.loss.train()
        means = [mean for part in self.world.gather(mine) for mean in part][: len(batches)]
        weights = [len(batch.ids) for batch in batches]
        return math.fsum(m * w for m, w in zip(means, weights, strict=True)) / sum(weights)

    def save(self) -> Path:
        """A checkpoint of this step; the older ones go only once it stands."""
        folder = self.checkpoint_folder / checkpoints.checkpoint_name(self.step)
        weights = state.model_tensors(self.model)
        averages = state.optimiser_tensors(self.model, self.optimiser)
        if self.world.first:

            def fill(part: Path) -> None:
                state.write_model(self.model, weights, self.tokenizer, part)
                state.write_optimiser(averages, part)
                checkpoints.write_state(part, self._state())

            checkpoints.write_folder(folder, fill)
            checkpoints.prune(self.checkpoint_folder, step=self.step, keep=self.config.keep)
        self.world.wait()
        return folder

    def _state(self) -> dict[str, Any]:
        # The learning rate is a function of the step, so there is no state of a schedule.
        return {
            "step": self.step,
            "tokens": self.step * self.recipe.tokens_per_step,
            "data_position": self.batches.position(),
            "data_fingerprints": dict(self.fingerprints),
            "config": dict(self.record),
            "elapsed_seconds": self.seconds,
            "versions": _versions(),
            "random": state.random_state(self.world.device),
        }

    def restore(self, folder: Path, saved: Mapping[str, Any]) -> None:
        """Everything but the weights, which were read before they were sharded."""
        if dict(self.fingerprints) != saved["data_fingerprints"]:
            raise ValueError(f"{folder}: field 'data_fingerprints': the run was on other text than `data` is now")
        state.read_optimiser(self.model, self.optimiser, folder)
        self.batches.restore(saved["data_position"])
        state.restore_random_state(saved["random"], self.world.device)
        self.step = int(saved["step"])
        self.elapsed_before = float(saved["elapsed_seconds"])

    def write_final_model(self, train: Windows | None) -> Path:
        """out/model: the folder to load, share and evaluate, with what it takes to judge it fairly.

        That is the text it was trained on, by name, and how often each token is in it (unless it was streamed).
        """
        weights = state.model_tensors(self.model)
        target = self.config.out / "model"
        if self.world.first:

            def fill(part: Path) -> None:
                state.write_model(self.model, weights, self.tokenizer, part)
                text = open_source(self.config.data).text_fingerprint()
                trained_on = {"text": text, "held_out": self.config.validation is None}
                (part / TRAINING).write_text(json.dumps(trained_on | {"settings": dict(self.record)}, indent=1))
                if train is not None:
                    Unigram(train.counts()).save(part / UNIGRAM)

            checkpoints.write_folder(target, fill)
        self.world.wait()
        return target
