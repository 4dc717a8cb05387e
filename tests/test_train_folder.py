"""A run's folder: one process at a time, nothing left over from one that was killed, and times that cover a step."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from ematrace.train import TrainConfig, train
from train_support import as_json, curve, finish, start, tiny_config, write_text


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


def test_a_folder_that_another_process_trains_in_is_refused(config: TrainConfig, tmp_path: Path) -> None:
    def also_train() -> None:
        (config.out / "config.json").rename(tmp_path / "aside")  # as if the other run had only just begun
        code, _, err = finish(start("train_worker.py", as_json(config)))
        (tmp_path / "aside").rename(config.out / "config.json")
        assert code != 0
        assert f"{config.out}: another process is training in this folder" in err

    train(config, display=Meanwhile(also_train))
    assert [step for (step,) in curve(config.out, "step")] == [1, 2, 3]


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
