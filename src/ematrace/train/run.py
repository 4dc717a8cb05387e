"""A run in progress: updates, validations, checkpoints."""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ematrace.baselines.language import Unigram
from ematrace.text import open_source
from ematrace.text.held_out import TRAINING
from ematrace.train import checkpoints, state
from ematrace.train.batches import Batches, Ids, MicroBatch, StepBatch, Windows, assemble, read_ahead
from ematrace.train.config import Recipe, TrainConfig
from ematrace.train.distributed import World
from ematrace.train.export import write_card
from ematrace.train.loss import LanguageModelLoss
from ematrace.train.schedule import learning_rate
from ematrace.train.step import Gradients, Step, StepResult, build_step, graph_obstacle

UNIGRAM = "unigram.safetensors"


@cache
def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in ("torch", "transformers", "safetensors", "numpy")}


class NonFiniteLoss(ValueError):
    """A loss or the gradient norm is NaN or infinite; the message names the step and the last good checkpoint.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     size = Path(folder, "tale.txt").write_text("the cat sees the dog " * 2000)
    ...     short = {"tokenizer": "bpe", "tokens": 640, "sequences": 2, "length": 64}
    ...     train(TrainConfig(f"{folder}/tale.txt", out=Path(folder, "run"), lr=1e30, **short))
    Traceback (most recent call last):
        ...
    ematrace.train.run.NonFiniteLoss: step 2: the loss is nan; stopped before the update, there is no checkpoint yet
    """


@dataclass(frozen=True)
class Update:
    """One step of the optimiser, over all processes."""

    step: int
    loss: float
    cross_entropy: float
    grad_norm: float
    lr: float
    stop: int
    """Number of the signal that some process received, or 0."""
    seconds: float


@dataclass(frozen=True)
class _Launched:
    """A step whose result has not been read."""

    step: int
    lr: float
    batch: StepBatch
    at: float
    """By the clock of `time.perf_counter`."""


def share_micro_batches(recipe: Recipe, world: World) -> range:
    """Numbers of this process's micro-batches in every step."""
    advice = "choose another micro_batch or number of processes"
    return world.share(recipe.sequences // recipe.micro_batch, "micro-batches", advice)


def refuse_cuda_graphs(config: TrainConfig, world: World) -> str | None:
    """Why steps cannot be CUDA graphs, if so; an error where they were asked for."""
    obstacle = graph_obstacle(world, packed=config.reset_at_documents)
    if config.cuda_graphs and obstacle is not None:
        raise ValueError(f"cuda_graphs: {obstacle}")
    return obstacle


@dataclass
class Run:
    """Everything that an update touches."""

    config: TrainConfig
    recipe: Recipe
    record: Mapping[str, Any]
    world: World
    model: Any
    loss: LanguageModelLoss
    gradients: Gradients
    batches: Batches
    validation: Windows
    tokenizer: Any
    fingerprints: Mapping[str, str]
    step: int = 0
    """Steps whose update is in the weights and whose result has been read."""
    elapsed_before: float = 0.0
    started: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.share = share_micro_batches(self.recipe, self.world)
        self.data_position: Mapping[str, Any] = self.batches.position()
        self.graph_obstacle = refuse_cuda_graphs(self.config, self.world)

    @property
    def checkpoint_folder(self) -> Path:
        return self.config.out / "checkpoints"

    @property
    def seconds(self) -> float:
        """Of all sessions together."""
        return self.elapsed_before + time.perf_counter() - self.started

    def validates_after(self, step: int) -> bool:
        return step == self.recipe.steps or step % self.recipe.validate_every == 0

    def saves_after(self, step: int) -> bool:
        return step == self.recipe.steps or step % self.recipe.checkpoint_every == 0

    def build_step(self, notify: Callable[[str], None]) -> Step:
        """Once weights and optimiser are those to start from: a CUDA graph keeps their addresses."""
        wanted = self.config.cuda_graphs
        shape = (len(self.share), self.recipe.micro_batch, self.recipe.length + 1)
        graphed = wanted is not False and self.graph_obstacle is None
        return build_step(self.gradients, shape, graphed=graphed, required=wanted is True, notify=notify)

    def updates(self, engine: Step, stop_requested: Callable[[], int] = lambda: 0) -> Generator[Update]:
        """All updates that are left, in order.

        Later steps may be queued on the device when an update is returned, but none past a step that is validated or
        saved, and none once a stop was requested: the update that carries it is the last one in the weights.
        """
        launched, finished_at = self.step, -math.inf
        queue: deque[_Launched] = deque()
        with ExitStack() as stack:
            stack.callback(engine.drain)  # nothing may run on memory that is freed next
            batches = read_ahead(self.batches, range(self.step, self.recipe.steps), self.share)
            stack.enter_context(closing(batches))
            while self.step < self.recipe.steps:
                while not queue or (len(queue) <= engine.ahead and not self._pauses(launched) and not stop_requested()):
                    launched += 1
                    queue.append(self._launch(engine, launched, batches))
                oldest = queue.popleft()
                result = engine.finish(0 if queue else stop_requested())
                self._refuse_non_finite(result, oldest.step)
                begun, finished_at = max(oldest.at, finished_at), time.perf_counter()
                self.step, self.data_position = oldest.step, oldest.batch.position
                # The CPU may read two steps at once that the device finished one after the other.
                yield _update(oldest, result, finished_at - begun if result.seconds is None else result.seconds)

    def _pauses(self, step: int) -> bool:
        """Whether the weights after this step are looked at before the next one is launched."""
        return self.validates_after(step) or self.saves_after(step)

    def _launch(self, engine: Step, n: int, batches: Iterator[StepBatch]) -> _Launched:
        at = time.perf_counter()  # a step that waits for its data takes longer
        recipe, batch = self.recipe, next(batches)
        lr = learning_rate(n, steps=recipe.steps, lr=recipe.lr, final_lr=recipe.final_lr, warmup=recipe.warmup)
        engine.launch(batch.micro_batches, lr)
        return _Launched(n, lr, batch, at)

    def _refuse_non_finite(self, result: StepResult, n: int) -> None:
        found = result.not_finite()
        if found is not None:
            kept = checkpoints.list_checkpoints(self.checkpoint_folder)
            last = f"the last checkpoint is {kept[-1]}" if kept else "there is no checkpoint yet"
            raise NonFiniteLoss(f"step {n}: the {found[0]} is {found[1]}; stopped before the update, {last}")

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
        """Mean cross-entropy over the validation windows, each process its share. Not compiled: that takes longer."""
        batches = list(self._validation_batches())
        rounds = -(-len(batches) // self.world.size)
        mine: list[float] = []
        self.loss.eval()
        with torch.no_grad(), self.gradients.autocast(), torch.compiler.set_stance("force_eager"):
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
        averages = state.optimiser_tensors(self.model, self.gradients.optimiser)
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
            "data_position": dict(self.data_position),
            "data_fingerprints": dict(self.fingerprints),
            "config": dict(self.record),
            "elapsed_seconds": self.seconds,
            "versions": _versions(),
            "random": state.random_state(self.world.device),
        }

    def restore(self, folder: Path, saved: Mapping[str, Any]) -> None:
        """Everything but the weights, which were read before they were sharded."""
        state.read_optimiser(self.model, self.gradients.optimiser, folder)
        self.batches.restore(saved["data_position"])
        self.data_position = saved["data_position"]
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
                write_card(self.model, self.record, part)
                text = open_source(self.config.data).text_fingerprint()
                part_held_out = {name: self.record.get(name) for name in ("validation_share", "held_out_tails")}
                trained_on = {"text": text, "held_out": self.config.validation is None} | part_held_out
                (part / TRAINING).write_text(json.dumps(trained_on | {"settings": dict(self.record)}, indent=1))
                if train is not None:
                    Unigram(train.counts()).save(part / UNIGRAM)

            checkpoints.write_folder(target, fill)
        self.world.wait()
        return target


def _update(launched: _Launched, result: StepResult, seconds: float) -> Update:
    return Update(
        step=launched.step,
        loss=math.fsum(result.losses) / len(result.losses),
        cross_entropy=math.fsum(result.cross_entropies) / len(result.cross_entropies),
        grad_norm=result.grad_norm,
        lr=launched.lr,
        stop=result.stop,
        seconds=seconds,
    )
