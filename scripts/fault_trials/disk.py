"""A full disk: a small tmpfs in a mount namespace of the trial's own, which goes with its process."""

from __future__ import annotations

import ctypes
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from fault_trials.commands import Refused, run_command
from fault_trials.material import PROMPT, config_of, new_spcn, run_kernel, sentences
from fault_trials.outcomes import HARMLESS, LOST, RECOVERED, REFUSED, SILENT, SKIPPED, Ended, Outcome
from fault_trials.reading import expected_of, open_pack, run_digest
from fault_trials.sandbox import refusal, unexpected

KIND = "disk"
FULL = "small"
NEW_USER, NEW_MOUNTS, PRIVATE, REMOUNT = 0x10000000, 0x20000, 1 << 18 | 1 << 14, 32


def mount(size: int, flags: int = 0) -> None:
    """`small/` becomes a disk of `size` bytes."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not flags:
        if libc.unshare(NEW_MOUNTS) and libc.unshare(NEW_USER | NEW_MOUNTS):
            raise Ended(SKIPPED, "no mount namespace here")
        libc.mount(b"none", b"/", None, PRIVATE, None)
        Path(FULL).mkdir()
    if libc.mount(b"tmpfs", FULL.encode(), b"tmpfs", flags, f"size={size}".encode()):
        raise Ended(SKIPPED, f"no tmpfs here: {os.strerror(ctypes.get_errno())}")


def fill() -> None:
    """Leave no byte free."""
    try:
        with Path(FULL, "ballast").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    except OSError:
        pass


def train_into(root: Path, draw: random.Random) -> None:
    """Stops on the full disk; with room again it resumes and ends like any other."""
    from ematrace.train import train

    config = config_of(root, f"{FULL}/run")
    try:
        train(config)
    finally:
        mount(2**24, REMOUNT)
        train(config)
        if run_digest(Path(FULL, "run")) != (root / "expected" / "kill-train").read_text():
            raise Ended(SILENT, "other weights after a full disk")


def stream_into(root: Path, draw: random.Random) -> None:
    """`small/` has a state already, and no room for another."""
    state = Path(FULL, "state.safetensors")
    shutil.copy(root / "states" / "frozen" / "state.safetensors", state)
    before = state.read_bytes()
    fill()
    try:
        run_command(["stream", str(root / "run" / "model"), "--state", str(state), "--format", "tsv"], PROMPT.encode())
    finally:
        if state.read_bytes() != before:
            raise Ended(LOST, "the state from before is gone")


def save_spcn(root: Path, draw: random.Random) -> None:
    path = Path(FULL, "model.safetensors")
    shutil.copy(root / "spcn" / "model.safetensors", path)
    before = path.read_bytes()
    fill()
    try:
        new_spcn(1).fit(sentences(3)).save(path)
    finally:
        if path.read_bytes() != before:
            raise Ended(LOST, "the model from before is gone")


def pack_into(root: Path, draw: random.Random) -> None:
    """The tokens are the same on the full disk, if it opens there at all, and with room again."""
    os.environ["EMATRACE_CACHE"] = str(Path(FULL).absolute())
    expected = expected_of(root, "packed", "open")
    try:
        if open_pack(root) != expected:
            raise Ended(SILENT, "other tokens on a full disk")
    finally:
        mount(2**24, REMOUNT)
        if open_pack(root) != expected:
            raise Ended(SILENT, "other tokens after a full disk")


def report_into(root: Path, draw: random.Random) -> None:
    page = Path(FULL, "report.html")
    page.write_text("before")
    fill()
    try:
        run_command(["report", "--local", "none", "--recorded", str(root / "cells"), "--out", str(page)])
    finally:
        if page.read_text() != "before":
            raise Ended(LOST, "the page from before is gone")


def evaluate_into(root: Path, draw: random.Random) -> None:
    out = Path(FULL, "scores.json")
    fill()
    data = str(root / "text" / "validation.jsonl")
    run_command(["eval", str(root / "run" / "model"), "--data", data, "--out", str(out)])


def export_into(root: Path, draw: random.Random) -> None:
    """All or nothing."""
    out = Path(FULL, "mine")
    try:
        run_command(["export", str(root / "run" / "model"), "--out", str(out)])
    finally:
        if out.exists() and not (out / "manifest.json").is_file():
            raise Ended(LOST, f"half a model: {[p.name for p in out.iterdir()]}")


def compile_into(root: Path, draw: random.Random) -> None:
    """No room for the machine code: the function runs all the same."""
    shutil.copy(root / "kernels" / "kernel.py", FULL)
    fill()
    if run_kernel(Path(FULL)) != run_kernel(root / "kernels"):
        raise Ended(SILENT, "another result")


def print_to_full_device(root: Path, draw: random.Random) -> None:
    """Standard output on a full disk."""
    from fault_trials.commands import exit_code

    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
    os.dup2(os.open("stderr", os.O_WRONLY | os.O_CREAT), 2)
    if exit_code(["ledger", "--json", "--local", "none", "--recorded", str(root / "cells")]) == 2:
        raise Refused(Path("stderr").read_text())


# Bytes that suffice for none, some or nearly all of what is written.
DISKS: dict[str, tuple[Callable[[Path, random.Random], None], tuple[int, int]]] = {
    "train": (train_into, (4096, 800_000)),
    "stream_state": (stream_into, (60_000, 120_000)),
    "spcn_save": (save_spcn, (200_000, 400_000)),
    "pack": (pack_into, (4096, 30_000)),
    "report": (report_into, (8192, 200_000)),
    "eval": (evaluate_into, (8192, 50_000)),
    "export": (export_into, (8192, 200_000)),
    "machine_code": (compile_into, (8192, 8192)),
    "stdout": (print_to_full_device, (8192, 8192)),
}


def run_disk(name: str, root: Path, draw: random.Random) -> Outcome:
    use, (least, most) = DISKS[name]
    size = draw.randint(least, most) // 4096 * 4096
    mount(size)
    try:
        use(root, draw)
        outcome = Outcome(HARMLESS)
    except (Refused, OSError, ValueError) as error:
        outcome = refusal(str(error), (f"{FULL}/", "standard output"))
    except Ended as ended:
        outcome = ended.outcome
    except Exception as error:
        outcome = unexpected(error)
    if outcome.name in (REFUSED, RECOVERED) and (left := list(Path(FULL).rglob("*.part"))):
        outcome = Outcome(LOST, f"{left[0]} is left behind")
    return Outcome(outcome.name, f"{size} bytes: {outcome.detail}")
