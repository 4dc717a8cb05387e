"""Training: from a configuration to a folder with a model in it.

Update n = 1, 2, ... is a function of the weights, the optimiser's averages and (seed, n) alone. A checkpoint holds the
first two, so a run that was stopped and resumed goes through the same numbers as one that never was.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from ematrace.files import write_atomically
from ematrace.memory import kept_memory
from ematrace.models.flops import flops_per_token
from ematrace.results.provenance import commit_of_copy
from ematrace.sharing import shared_processors
from ematrace.text import open_source
from ematrace.text.held_out import HeldOut
from ematrace.train import checkpoints, metrics, state, summary
from ematrace.train.causality import refuse_leaks
from ematrace.train.compile_check import refuse_miscompiled
from ematrace.train.config import (
    Precision,
    Recipe,
    TrainConfig,
    adopt,
    as_plain,
    check_config,
    record_of,
    refuse_contradiction,
    resolve_recipe,
)
from ematrace.train.data import TrainingData, prepare
from ematrace.train.distributed import World, distribute, open_world
from ematrace.train.loss import LanguageModelLoss, refuse_packing
from ematrace.train.metrics import Display, Silent
from ematrace.train.models import build_model
from ematrace.train.optimiser import build_optimiser
from ematrace.train.resume import CONFIG, read_state, recorded_settings, starting_point
from ematrace.train.run import Run, Update, refuse_cuda_graphs, share_micro_batches
from ematrace.train.signals import stop_on_signals
from ematrace.train.step import Gradients
from ematrace.train.summary import TrainSummary

VOCABULARY_TO_TRY = 4096  # for a model without weights, before there is a tokenizer


def train(config: TrainConfig, *, display: Display | None = None) -> TrainSummary:
    """Train until the tokens are used up or a signal asks to stop; either way the last step has a checkpoint.

    On a CPU freed memory stays with the process meanwhile. Afterwards malloc's thresholds are fixed at glibc's largest,
    whatever the program had set; see `ematrace.memory.kept_memory`.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> short = {"tokenizer": "bpe", "tokens": 2560, "sequences": 2, "length": 64, "lr": 0.01}  # 20 steps
    >>> with TemporaryDirectory() as folder:
    ...     size = Path(folder, "tale.txt").write_text("the cat sees the dog " * 2000)
    ...     summary = train(TrainConfig(f"{folder}/tale.txt", out=Path(folder, "run"), **short))
    >>> summary.validation_cross_entropy < summary.unigram_cross_entropy
    True
    """
    check_config(config)
    recipe = resolve_recipe(config)
    with shared_processors(), open_world(config.device) as world, _memory_for(world.device):
        shown: Display = display if display is not None and world.first else Silent()
        try:
            _refuse_before_work(config, recipe, world)
            with _sole_writer(config.out, world):
                return _train(config, world, shown)
        finally:
            shown.close()


def _memory_for(device: torch.device) -> AbstractContextManager[None]:
    """A GPU's memory is torch's own, so there malloc is left as it is."""
    return kept_memory() if device.type == "cpu" else nullcontext()


def _refuse_before_work(config: TrainConfig, recipe: Recipe, world: World) -> None:
    """What cannot work is found out before text is read, a tokenizer trained and files written."""
    commit_of_copy()
    for spec in (config.data, config.validation):
        if spec is not None:
            open_source(spec)
    with torch.device("meta"):
        model = build_model(config.preset, VOCABULARY_TO_TRY, 0, config.overrides, length=recipe.length)
    if config.reset_at_documents:
        refuse_packing(LanguageModelLoss(model), config.preset)
    share_micro_batches(recipe, world)
    refuse_cuda_graphs(config, world)
    if config.tensorboard:
        metrics.import_tensorboard()


@contextmanager
def _sole_writer(out: Path, world: World) -> Iterator[None]:
    """Two runs in one folder would mix their checkpoints. The lock ends with the process, however that ends.

    A run that fails before it has begun leaves no folder behind.
    """
    if not world.first:
        yield
        return
    from filelock import FileLock, Timeout

    fresh = not out.exists()
    if out.is_file():
        raise ValueError(f"{out}: a file; --out is a folder")
    out.mkdir(parents=True, exist_ok=True)
    try:
        held = FileLock(out / ".lock").acquire(timeout=0)
    except Timeout:
        raise ValueError(f"{out}: another process is training in this folder") from None
    with held:
        try:
            yield
        finally:
            if fresh and not (out / CONFIG).exists():  # under the lock, or another run could have begun in it
                shutil.rmtree(out, ignore_errors=True)


def _train(config: TrainConfig, world: World, display: Display) -> TrainSummary:
    recorded, where = world.broadcast(recorded_settings(config) if world.first else None)
    held_out = None
    if recorded is not None:
        refuse_contradiction(recorded, as_plain(config), where)
        config = adopt(config, recorded, where)
        held_out = HeldOut.read(recorded, where, HeldOut.of(open_source(config.data)))
        if config.validation_share not in (None, held_out.share):
            raise ValueError(f"{where}: field 'validation_share': the run has {held_out.share}")
    precision: Precision = config.precision or ("bfloat16" if world.device.type == "cuda" else "float32")
    begun = world.broadcast((config.out / CONFIG).exists())
    asked = resolve_recipe(config)
    data = prepare(config, asked, world, begun=begun, notify=display.on_event, held_out=held_out)
    recipe = data.recipe
    record = record_of(config, recipe, precision)
    if config.validation is None:
        record |= data.held_out.record()
    with fast_matmul(world.device):
        run, start = _set_up(config, recipe, record, world, data, display)
        threads = torch.get_num_threads()
        peak = world.broadcast(metrics.matmul_ceiling(world.device, precision, threads) if world.first else None)
        if world.first:
            for folder in (config.out, run.checkpoint_folder):
                checkpoints.remove_parts(folder)
            if config.resume not in ("auto", "never"):
                checkpoints.prune(run.checkpoint_folder, step=run.step)
            write_atomically(config.out / CONFIG, json.dumps(record, indent=1).encode())
            if start is not None:
                display.on_event(f"resumed from {start}")
        speed = _Speed(flops_per_token(run.model, recipe.length), peak * world.size, display.on_event)
        stopped = _loop(run, speed, display)
        return _finish(run, data, speed, stopped, display)


def _set_up(
    config: TrainConfig,
    recipe: Recipe,
    record: Mapping[str, Any],
    world: World,
    data: TrainingData,
    display: Display,
) -> tuple[Run, Path | None]:
    """The run, and the checkpoint that it goes on from."""
    state.seed_everything(config.seed)
    entries, eos = len(data.tokenizer), data.tokenizer.eos_token_id
    model = build_model(config.preset, entries, eos, config.overrides, length=recipe.length)
    refuse_leaks(model)
    if model.config.vocab_size < entries:
        sizes = f"the model has {model.config.vocab_size} entries, the tokenizer {entries}"
        raise ValueError(f"field 'vocab_size': {sizes}")
    chosen = None
    if world.first:
        chosen = starting_point(config, record, data.fingerprints, recipe.steps, model, display.on_event)
    chosen = world.broadcast(None if chosen is None else str(chosen))
    start = None if chosen is None else Path(chosen)
    if start is not None:
        state.read_model(model, start)
    loss = LanguageModelLoss(model.to(world.device))
    loss.train()
    bfloat16 = record["precision"] == "bfloat16"
    compiled = config.compile
    if compiled is None:
        compiled = world.device.type == "cuda" and not config.reset_at_documents
    wrapped = distribute(loss, world, config.parallel, bfloat16=bfloat16, compiled=compiled)
    gradients = Gradients(
        wrapped, model, build_optimiser(model, config, world.device), config.clip, bfloat16=bfloat16, world=world
    )
    if compiled:
        refuse_miscompiled(gradients, recipe.micro_batch, recipe.length, entries)
    run = Run(
        config=config,
        recipe=recipe,
        record=record,
        world=world,
        model=model,
        loss=loss,
        gradients=gradients,
        batches=data.batches,
        validation=data.validation,
        tokenizer=data.tokenizer,
        fingerprints=data.fingerprints,
    )
    run.validation_windows()  # a validation text that is too short is found out now
    if start is not None:
        run.restore(start, read_state(start))
    return run, start


@contextmanager
def fast_matmul(device: torch.device) -> Iterator[None]:
    """TF32 in float32 matmuls on a GPU, inside the context."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class _Speed:
    """Tokens a second, and the model FLOPs utilisation: their share of the measured matmul rate."""

    def __init__(self, flops_per_token: float, peak: float, notify: Callable[[str], None]):
        self.flops_per_token, self.peak, self.notify = flops_per_token, peak, notify
        self._notified = False

    def figures(self, tokens: int, seconds: float) -> dict[str, float | None]:
        """MFU is None where it would be above 1: then the matmul rate was measured too low."""
        rate = tokens / seconds
        share = rate * self.flops_per_token / self.peak
        if share > 1 and not self._notified:
            self._notified = True
            self.notify("a step is faster than the matmul rate, which was measured while the machine was busy: no MFU")
        return {"tokens_per_second": rate, "mfu": share if share <= 1 else None}


def _loop(run: Run, speed: _Speed, display: Display) -> str | None:
    """Update until the end or a signal, whose name is returned."""
    config, recipe, first = run.config, run.recipe, run.world.first
    with ExitStack() as stack:
        stop_requested = stack.enter_context(stop_on_signals())
        lines = board = None
        if first:
            lines = metrics.MetricsFile(config.out / "metrics.jsonl", after_step=run.step, warn=display.on_event)
            stack.callback(lines.close)
            if config.tensorboard:
                board = metrics.open_tensorboard(config.out / "tensorboard", after_step=run.step)
                stack.callback(board.close)
        engine = run.build_step(display.on_event)
        display.on_start(recipe.steps)
        memory = metrics.PeakMemory(run.world.device)
        for update in stack.enter_context(closing(run.updates(engine, stop_requested))):
            last = update.step == recipe.steps
            line = _line(run, update, speed, memory)
            if run.validates_after(update.step):
                line["validation_cross_entropy"] = run.validate()
            if lines is not None:
                if last or update.stop or update.step % config.log_every == 0:
                    lines.write(line)
                    _plot(board, line)
                display.on_step(line)
            if update.stop or run.saves_after(update.step):
                run.save()
            if update.stop and not last:
                return signal.Signals(update.stop).name
    return None


def _line(run: Run, update: Update, speed: _Speed, memory: metrics.PeakMemory) -> dict[str, Any]:
    return {
        "step": update.step,
        "tokens": update.step * run.recipe.tokens_per_step,
        "loss": update.loss,
        "cross_entropy": update.cross_entropy,
        "lr": update.lr,
        "grad_norm": update.grad_norm,
        **speed.figures(run.recipe.tokens_per_step, update.seconds),
        "memory_bytes": memory.bytes(),
        "seconds": run.seconds,
    }


def _plot(board: Any, line: Mapping[str, Any]) -> None:
    if board is not None:
        for name, value in line.items():
            if name not in ("step", "tokens") and value is not None:
                board.add_scalar(f"train/{name}", value, line["step"])


def _finish(run: Run, data: TrainingData, speed: _Speed, stopped: str | None, display: Display) -> TrainSummary:
    """The model to load and the summary; a run that was stopped has neither yet."""
    baselines: dict[str, float | None] = {"unigram_cross_entropy": None, "uniform_cross_entropy": None}
    if stopped is None:
        baselines = summary.simple_baselines(data.train, run.validation_targets(), len(data.tokenizer))
        run.write_final_model(data.train)
    # Everyone's memory, and the first process's curve.
    memory = max(part[0] for part in run.world.gather([float(metrics.peak_memory_bytes(run.world.device))]))
    result = TrainSummary(
        out=run.config.out,
        step=run.step,
        steps=run.recipe.steps,
        tokens=run.step * run.recipe.tokens_per_step,
        parameters=sum(p.numel() for p in run.model.parameters()),
        stopped=stopped,
        **baselines,
        **summary.curve_figures(run.config.out / "metrics.jsonl"),
        flops_per_token=speed.flops_per_token,
        matmul_flops_per_second=speed.peak / run.world.size,
        peak_memory_bytes=int(memory),
        seconds=run.seconds,
        processes=run.world.size,
        device=str(run.world.device),
        settings=run.record,
        data_fingerprints=run.fingerprints,
        provenance=summary.provenance(run.seconds),
    )
    if stopped is not None:
        display.on_event(f"stopped at step {result.step} of {result.steps}; continue with --resume auto")
    elif run.world.first:
        result.write(run.config.out / "summary.json")
        display.on_event(f"model: {result.model}")
    return result
