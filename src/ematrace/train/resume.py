"""Where a run goes on: its settings as recorded, and the newest checkpoint that can be used.

A checkpoint can be whole by its checksums and still be of no use: a state of another run, weights of another model,
numbers that are not finite. It is then refused like a damaged one, and the one before it is tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ematrace.files import read_json
from ematrace.train import checkpoints, state
from ematrace.train.checkpoints import DamagedCheckpoint
from ematrace.train.config import TrainConfig, refuse_contradiction

CONFIG = "config.json"
_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "config": dict,
    "data_fingerprints": dict,
    "data_position": dict,
    "elapsed_seconds": (int, float),
    "random": dict,
}


class OtherText(DamagedCheckpoint):
    """A checkpoint of a run on other text."""


def recorded_settings(config: TrainConfig) -> tuple[dict[str, Any] | None, str]:
    """Settings of the run in `config.out` or of the checkpoint to resume from, and their file; None for a fresh run.

    Refuses to mix two runs in one folder.
    """
    folder, settings = config.out / "checkpoints", config.out / CONFIG
    present = checkpoints.list_checkpoints(folder)
    begun = settings.exists() or bool(present)
    if config.resume == "never":
        if begun:
            raise ValueError(
                f"{config.out}: a run is in this folder; continue it with --resume auto, or choose another with --out"
            )
        return None, ""
    if config.resume != "auto":
        chosen = Path(config.resume)
        if not chosen.is_dir():
            raise ValueError(f"resume is {config.resume!r}: not auto, never or a checkpoint's folder")
        if begun and chosen.resolve().parent != folder.resolve():
            raise ValueError(f"{config.out}: another run is in this folder; choose one that is empty")
        present = [chosen]
    if settings.exists():
        return read_json(settings), str(settings)
    for checkpoint in reversed(present):
        try:
            return read_state(checkpoint)["config"], str(checkpoint / checkpoints.STATE)
        except DamagedCheckpoint:
            if config.resume != "auto":
                raise
    return None, ""


def starting_point(
    config: TrainConfig,
    record: Mapping[str, Any],
    fingerprints: Mapping[str, str],
    steps: int,
    model: nn.Module,
    warn: Callable[[str], None],
) -> Path | None:
    """The newest checkpoint that fits the run, or the one that was named; None for a fresh run."""
    if config.resume == "never":
        return None

    def check(checkpoint: Path) -> None:
        checkpoints.verify(checkpoint)
        saved = read_state(checkpoint)
        _check_state(checkpoint, saved, record, fingerprints, steps)
        state.check_tensors(model, checkpoint)

    if config.resume != "auto":
        check(Path(config.resume))
        return Path(config.resume)
    return checkpoints.newest(config.out / "checkpoints", check, warn)


def read_state(checkpoint: Path) -> dict[str, Any]:
    """state.json with every field there and of its type."""
    path = checkpoint / checkpoints.STATE
    try:
        saved: dict[str, Any] = read_json(path)
    except (ValueError, OSError) as error:
        raise DamagedCheckpoint(str(error)) from None
    if type(saved.get("step")) is not int:
        raise DamagedCheckpoint(f"{path}: field 'step': missing or not a number")
    for name, kind in _KINDS.items():
        if not isinstance(saved.get(name), kind) or isinstance(saved[name], bool):
            raise DamagedCheckpoint(f"{path}: field '{name}': missing or of another type")
    if not math.isfinite(saved["elapsed_seconds"]) or saved["elapsed_seconds"] < 0:
        raise DamagedCheckpoint(f"{path}: field 'elapsed_seconds': {saved['elapsed_seconds']}")
    return saved


def _check_state(
    checkpoint: Path,
    saved: Mapping[str, Any],
    record: Mapping[str, Any],
    fingerprints: Mapping[str, str],
    steps: int,
) -> None:
    path = checkpoint / checkpoints.STATE
    step, name = saved["step"], checkpoint.name
    if not 0 < step <= steps or (name.startswith("step-") and name != checkpoints.checkpoint_name(step)):
        raise DamagedCheckpoint(f"{path}: field 'step': {step} in {name} of a run of {steps} steps")
    try:
        refuse_contradiction(saved["config"], record, path)
    except ValueError as error:
        raise DamagedCheckpoint(str(error)) from None
    if dict(fingerprints) != saved["data_fingerprints"]:
        raise OtherText(
            f"{path}: field 'data_fingerprints': the run was on other text than `data` is now, or had another tokenizer"
        )
    state.check_random_state(saved["random"], path)
