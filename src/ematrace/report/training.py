"""A training run in the terminal: one bar, and a line for each event."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from ematrace.names import parse_assignments
from ematrace.report.language import with_spread

if TYPE_CHECKING:
    from ematrace.evaluation import Evaluation
    from ematrace.train import TrainConfig, TrainSummary

LOG_SECONDS = 30.0


class TrainingBar:
    """Progress with loss, tokens per second, model FLOPs utilisation, memory and time left."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bar = Progress(
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
        )
        self._task: TaskID | None = None
        self._last_line = time.monotonic()
        self._validation = ""

    def on_start(self, total_steps: int) -> None:
        self._task = self._bar.add_task("step", total=total_steps, figures="")
        self._bar.start()

    def on_step(self, metrics: Mapping[str, Any]) -> None:
        if self._task is None:
            return
        if "validation_cross_entropy" in metrics:
            self._validation = f" held-out {metrics['validation_cross_entropy']:.3f}"
        shown = figures(metrics) + self._validation
        self._bar.update(self._task, completed=metrics["step"], figures=shown)
        if (
            not self.console.is_terminal and time.monotonic() - self._last_line > LOG_SECONDS
        ):  # a bar cannot move in a log
            self._last_line = time.monotonic()
            self.on_event(f"step {metrics['step']}: {shown}")

    def on_event(self, text: str) -> None:
        self.console.print(Text(text), soft_wrap=True)

    def close(self) -> None:
        if self._task is not None:  # stopping a bar that never started prints an empty line
            self._bar.stop()


def held_out_lines(summary: TrainSummary, result: Evaluation | None) -> list[str]:
    """The held-out loss beside that of the unigram, as `ematrace eval` has them, or else as the run validated."""
    if result is None:
        baseline = summary.unigram_cross_entropy
        beside = "" if baseline is None else f"; token frequencies alone: {baseline:.3f}"
        return [f"held-out loss: {summary.validation_cross_entropy:.3f} nats per token{beside}"]
    rows = {"this model": result.total, "token frequencies alone (unigram)": result.baselines["unigram"]}
    figures = {name: with_spread(score.cross_entropy, score.interval) for name, score in rows.items()}
    lines = [f"held-out loss in nats per token (± 95% over {result.total.interval_over})"]
    lines += [f"  {name:<34}{shown}" for name, shown in figures.items()]
    if result.total.cross_entropy >= result.baselines["unigram"].cross_entropy:
        lines.append("the model has not learned more than that: train longer (--tokens) or on more text")
    return lines


def next_commands(config: TrainConfig) -> list[str]:
    """What to type next, to be copied."""
    run, data = shlex.quote(str(config.out)), shlex.quote(config.validation or config.data)
    mixer = parse_assignments(config.overrides, "overrides").get("mixer", "")
    consent = f" --mixer {mixer}" if ":" in str(mixer) else ""
    lines = ["next:", f"  ematrace eval {run} --data {data}{consent}", f'  ematrace generate {run} "The"{consent}']
    if config.preset.startswith("spen"):
        lines.append(f'  echo "How surprising is this?" | ematrace stream {run}{consent}')
    return lines


def figures(metrics: Mapping[str, Any]) -> str:
    """The metrics of one step in a few words.

    >>> figures({"loss": 5.25, "tokens_per_second": 480_000.0, "mfu": 0.413, "memory_bytes": 3 * 2**30})
    'loss 5.250 480K tok/s MFU 41% 3.0 GiB'
    >>> figures({"loss": 5.25, "tokens_per_second": 480_000.0, "mfu": None, "memory_bytes": 3 * 2**30})
    'loss 5.250 480K tok/s MFU n/a 3.0 GiB'
    """
    rate = metrics["tokens_per_second"]
    speed = f"{rate / 1000:.0f}K" if rate >= 10_000 else f"{rate:.0f}"
    memory = f"{metrics['memory_bytes'] / 2**30:.1f} GiB"
    mfu = "n/a" if metrics["mfu"] is None else f"{metrics['mfu']:.0%}"
    return f"loss {metrics['loss']:.3f} {speed} tok/s MFU {mfu} {memory}"
