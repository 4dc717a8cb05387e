"""A run's folder: one process at a time, nothing left over from one that was killed, and times that cover a step."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock, Timeout

from ematrace.train import TrainConfig, loop, train
from ematrace.train.summary import curve_figures
from train_support import curve, tiny_config, write_text


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainConfig:
    monkeypatch.setenv("EMATRACE_CACHE", str(tmp_path / "cache"))
    return tiny_config(write_text(tmp_path), tmp_path / "run", tokens=3 * 4 * 16)


class Meanwhile:
    """A display that lets something happen during the first step."""

    def __init__(self, happen: Any):
        self.happen = happen
        self.events: list[str] = []

    def on_start(self, total_steps: int) -> None:
        pass

    def on_step(self, metrics: Any) -> None:
        if metrics["step"] == 1:
            self.happen()

    def on_event(self, text: str) -> None:
        self.events.append(text)

    def close(self) -> None:
        pass


def test_a_commit_that_no_result_may_carry_is_refused_before_training(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMATRACE_COMMIT", "HEAD")
    with pytest.raises(ValueError, match=r"^EMATRACE_COMMIT is 'HEAD'; it must be a commit"):
        train(config)
    assert not config.out.exists()


def test_a_folder_that_another_process_trains_in_is_refused(config: TrainConfig, tmp_path: Path) -> None:
    said = tmp_path / "said"

    def other() -> None:
        try:
            train(config)
        except ValueError as error:
            said.write_text(str(error))

    def also_train() -> None:
        (config.out / "config.json").rename(tmp_path / "aside")  # as if the other run had only just begun
        process = multiprocessing.get_context("fork").Process(target=other)  # it has imported all that it needs
        process.start()
        process.join(60)
        process.kill()  # if it trains
        (tmp_path / "aside").rename(config.out / "config.json")
        assert said.read_text() == f"{config.out}: another process is training in this folder"

    train(config, display=Meanwhile(also_train))
    assert [step for (step,) in curve(config.out, "step")] == [1, 2, 3]


def test_a_run_that_fails_removes_its_folder_before_another_can_begin_in_it(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed, locked = shutil.rmtree, []

    def spy(path: Path, **options: Any) -> None:
        if Path(path) == config.out:
            with pytest.raises(Timeout):
                FileLock(path / ".lock").acquire(timeout=0)
            locked.append(path)
        removed(path, **options)

    monkeypatch.setattr(shutil, "rmtree", spy)
    monkeypatch.setattr(loop, "prepare", lambda *_, **__: [][0])
    with pytest.raises(IndexError):
        train(config)
    assert locked == [config.out]
    assert not config.out.exists()


def test_a_run_that_is_stopped_says_how_to_go_on(config: TrainConfig) -> None:
    display = Meanwhile(lambda: signal.raise_signal(signal.SIGTERM))
    train(config, display=display)
    assert display.events[-1] == "stopped at step 2 of 3; continue with --resume auto"


def test_what_a_killed_process_left_half_written_is_removed(config: TrainConfig) -> None:
    left = [config.out / ".model.0.part", config.out / "checkpoints" / ".step-00000001.0.part"]
    for folder in left:
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"half")
    train(config)
    assert not any(folder.exists() for folder in left)


def test_the_time_of_a_step_covers_its_update(config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    step = torch.optim.AdamW.step

    def slow(*arguments: Any) -> Any:
        time.sleep(0.3)
        return step(*arguments)

    monkeypatch.setattr(torch.optim.AdamW, "step", slow)
    train(config)
    lines = [json.loads(line) for line in (config.out / "metrics.jsonl").read_text().splitlines()]
    assert all(line["tokens_per_second"] <= 4 * 16 / 0.3 for line in lines)


def test_mfu_above_the_measured_ceiling_is_unknown_and_leaves_the_ceiling_alone() -> None:
    told: list[str] = []
    speed = loop._Speed(10.0, 1000.0, told.append)
    found = [speed.figures(tokens, 1.0)["mfu"] for tokens in (50, 5000, 100, 200, 50)]
    assert found == [0.5, None, 1.0, None, 0.5]
    assert speed.peak == 1000.0
    (line,) = told
    assert "measured while the machine was busy" in line


@pytest.mark.parametrize(("busy", "known"), [(1.5, True), (1e-9, False)])
def test_a_ceiling_that_was_measured_too_low_stays_as_measured(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch, busy: float, known: bool
) -> None:
    """Through the file, TensorBoard and the summary."""
    ceiling = 1e15 * busy
    monkeypatch.setattr("ematrace.train.metrics.matmul_ceiling", lambda *_: ceiling)
    display = Meanwhile(lambda: None)
    result = train(replace(config, tensorboard=importlib.util.find_spec("tensorboard") is not None), display=display)
    assert result.matmul_flops_per_second == ceiling
    assert (result.mfu is not None) == known
    assert result.cross_entropy is not None
    assert sum("no MFU" in text for text in display.events) == (not known)


def test_the_median_mfu_counts_steps_above_the_ceiling(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for shares, expected in (([0.2, None, 0.4], 0.4), ([None, None, 0.4], None), ([0.2, 1.5, 3.0], None)):
        lines = [
            {"step": step, "loss": 1.0, "cross_entropy": 1.0, "tokens_per_second": 5.0, "mfu": share}
            for step, share in enumerate(shares, start=1)
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert curve_figures(path)["mfu"] == expected
