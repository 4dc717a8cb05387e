"""Checkpoint folders: written atomically, verified before they are read, without pickle.

`checkpoints/step-00000100/` holds the model as `save_pretrained` writes it (so `from_pretrained` reads the folder), the
optimiser's tensors, `state.json`, and last of all `manifest.json` with the size and SHA-256 of every other file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from ematrace.files import read_json

MANIFEST = "manifest.json"
STATE = "state.json"
OPTIMISER = "optimizer.safetensors"
_NAME = re.compile(r"step-(\d{8,})")
_PART = ".part"
_REFUSED = ".refused"


class DamagedCheckpoint(ValueError):
    """A checkpoint that differs from what was written; the message names the file.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     size = Path(folder, "tale.txt").write_text("the cat sees the dog " * 2000)
    ...     run = {"out": Path(folder, "run"), "tokenizer": "bpe", "tokens": 256, "sequences": 2, "length": 64}
    ...     summary = train(TrainConfig(f"{folder}/tale.txt", **run))
    ...     checkpoint = Path(folder, "run", "checkpoints", "step-00000002")
    ...     size = checkpoint.joinpath("model.safetensors").write_bytes(b"")
    ...     train(TrainConfig(f"{folder}/tale.txt", resume=str(checkpoint), **run))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    ematrace.train.checkpoints.DamagedCheckpoint: ...model.safetensors: 0 bytes, but ... were written
    """


def checkpoint_name(step: int) -> str:
    return f"step-{step:08d}"


def step_of(folder: Path) -> int:
    match = _NAME.fullmatch(folder.name)
    if match is None:
        raise ValueError(f"{folder}: not the name of a checkpoint (step-00000100)")
    return int(match.group(1))


def write_folder(target: Path, fill: Callable[[Path], None]) -> Path:
    """Let `fill` write files into a fresh sibling, list them in a manifest, and only then move it to `target`.

    After a crash or on a full disk, what was at `target` before is still there.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}{_PART}")
    try:
        temporary.mkdir()
        fill(temporary)
        entries = {str(p.relative_to(temporary)): _entry(p) for p in sorted(temporary.rglob("*")) if p.is_file()}
        _write_synced(temporary / MANIFEST, json.dumps({"files": entries}, indent=1).encode())
        _sync(temporary)
        _move_into_place(temporary, target)
    except OSError as error:
        raise _about_target(error, temporary, target) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _about_target(error: OSError, temporary: Path, target: Path) -> OSError:
    """A full disk does not say which file it was for, and the temporary folder is gone when the message is read."""
    if error.errno is None:
        return OSError(str(error).replace(str(temporary), str(target)))
    return OSError(error.errno, error.strerror, str(error.filename or target).replace(str(temporary), str(target)))


def _move_into_place(temporary: Path, target: Path) -> None:
    old = None
    if target.exists():  # a folder cannot be renamed onto another, unlike a file
        old = target.with_name(f".{target.name}.{uuid.uuid4().hex}{_PART}")
        target.rename(old)
    temporary.rename(target)
    _sync(target.parent)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def _entry(path: Path) -> dict[str, Any]:
    _sync(path)
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def verify(folder: Path) -> None:
    """The folder is as its manifest says, which lists what a checkpoint needs; else `DamagedCheckpoint`.

    A symbolic link is refused: what it points to can change or be shared with another run.
    """
    for path in (folder, *(folder.iterdir() if folder.is_dir() else ())):
        if path.is_symlink():
            raise DamagedCheckpoint(f"{path}: a symbolic link")
    try:
        listed = verify_manifest(folder)
    except OSError as error:  # a file that may not be read
        raise DamagedCheckpoint(f"{error.filename or folder}: {error.strerror or error}") from error
    if STATE not in listed or OPTIMISER not in listed:
        missing = STATE if STATE not in listed else OPTIMISER
        raise DamagedCheckpoint(f"{folder / MANIFEST}: field 'files': lists no {missing}")


def verify_manifest(folder: Path) -> set[str]:
    """Names of the files that the manifest lists; each is there, with its size and its SHA-256."""
    manifest = folder / MANIFEST
    try:
        files = read_json(manifest)["files"]
        listed = {str(name): (int(e["bytes"]), str(e["sha256"])) for name, e in files.items()}
    except OSError as error:
        raise DamagedCheckpoint(f"{manifest}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DamagedCheckpoint(f"{manifest}: not a manifest of files") from error
    for name, (size, digest) in listed.items():
        path = folder / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise DamagedCheckpoint(f"{manifest}: field 'files': {name!r} is outside the folder")
        if not path.is_file():
            raise DamagedCheckpoint(f"{path}: missing")
        if path.stat().st_size != size:
            raise DamagedCheckpoint(f"{path}: {path.stat().st_size} bytes, but {size} were written")
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise DamagedCheckpoint(f"{path}: its SHA-256 is not the one in {MANIFEST}")
    return set(listed)


def list_checkpoints(folder: Path) -> list[Path]:
    """Oldest first. Half-written ones have other names and are left out."""
    if not folder.is_dir():
        if folder.exists() or folder.is_symlink():
            raise NotADirectoryError(f"{folder}: not a folder, so the checkpoints of this run are not there")
        return []
    return sorted((p for p in folder.iterdir() if _NAME.fullmatch(p.name)), key=step_of)


def newest(folder: Path, check: Callable[[Path], None], warn: Callable[[str], None]) -> Path | None:
    """The newest checkpoint that passes `check`, None if there are none at all.

    Newer ones that do not pass are renamed, so that the run does not prune them as its abandoned future: a file that
    cannot be read now may be readable later. `warn` gets a line for each.
    """
    refused: dict[Path, DamagedCheckpoint] = {}
    for checkpoint in reversed(list_checkpoints(folder)):
        try:
            check(checkpoint)
        except DamagedCheckpoint as error:
            refused[checkpoint] = error
            continue
        for newer, reason in refused.items():
            warn(f"checkpoint refused, using {checkpoint.name}: {reason}; kept as {_set_aside(newer).name}")
        return checkpoint
    errors = list(refused.values())
    if errors and len({type(error) for error in errors}) == 1 and type(errors[0]) is not DamagedCheckpoint:
        raise errors[0]
    if errors:
        reasons = "; ".join(str(error) for error in errors)
        raise DamagedCheckpoint(f"{folder}: no intact checkpoint to resume from ({reasons})")
    return None


def _set_aside(checkpoint: Path) -> Path:
    """Renamed to the first free name `step-00000100.refused`, `step-00000100.2.refused`, ..."""
    names = (f"{checkpoint.name}{'' if n == 1 else f'.{n}'}{_REFUSED}" for n in count(1))
    return checkpoint.rename(next(free for name in names if not os.path.lexists(free := checkpoint.with_name(name))))


def prune(folder: Path, *, step: int, keep: int | None = None) -> None:
    """Remove checkpoints after `step`, the current one, and of the rest all but the newest `keep`."""
    present = list_checkpoints(folder)
    past = [checkpoint for checkpoint in present if step_of(checkpoint) > step]
    reached = present[: len(present) - len(past)]
    for checkpoint in past + ([] if keep is None else reached[:-keep]):
        # Renamed first: a folder that is half removed must not look like a checkpoint.
        doomed = checkpoint.with_name(f".{checkpoint.name}.{uuid.uuid4().hex}{_PART}")
        checkpoint.rename(doomed)
        _remove(doomed)


def remove_parts(folder: Path) -> None:
    """Remove what a killed process left half written or half removed."""
    if folder.is_dir():
        for part in folder.glob(f".*{_PART}"):
            _remove(part)


def _remove(path: Path) -> None:
    """A folder, a file, or a symbolic link, without what it points to."""
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


def write_state(folder: Path, state: Mapping[str, Any]) -> None:
    (folder / STATE).write_text(json.dumps(state, indent=1, allow_nan=False), encoding="utf-8")


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    except Exception as error:
        raise _as_os_error(error, path) from error


def read_tensors(paths: list[Path]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for path in paths:
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a mapping
        except Exception as error:
            raise DamagedCheckpoint(f"{path}: {error}") from error
    return tensors


def _as_os_error(error: Exception, path: Path) -> Exception:
    """safetensors reports a full disk with an error of its own class."""
    return OSError(f"{path}: not written: {' '.join(str(error).split())}") if not isinstance(error, OSError) else error
