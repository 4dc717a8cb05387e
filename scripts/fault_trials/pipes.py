"""Standard streams that are closed, or whose reader is gone, for every command."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from fault_trials.commands import exit_code
from fault_trials.material import MODEL, PROMPT
from fault_trials.outcomes import HARMLESS, LOST, REFUSED, TRACEBACK, Outcome
from fault_trials.sandbox import unexpected

KIND = "pipe"
WAYS = ("stdin closed", "stdout closed", "stderr closed", "reader gone", "all closed")
STATE = "state.safetensors"


def commands(root: Path) -> dict[str, list[str]]:
    model, text = str(root / "run" / "model"), str(root / "text" / "train.jsonl")
    cells = ["--local", "none", "--recorded", str(root / "cells")]
    sizes = ["--tokens", "128", "--sequences", "4", "--length", "16", "--device", "cpu"]
    return {
        "help": ["--help"],
        "ledger": ["ledger", *cells],
        "ledger_json": ["ledger", "--json", *cells],
        "report": ["report", *cells],
        "reproduce": ["reproduce", "C10", "--dry-run"],
        "eval": ["eval", model, "--data", text],
        "generate": ["generate", model, "the cat", "--max-new-tokens", "8"],
        "export": ["export", model, "--out", "mine"],
        "version": ["--version"],
        "bench": ["bench", "--help"],
        "stream": ["stream", model, "--state", STATE],
        "check": ["check", "none"],
        "train": [
            *("train", "--preset", "spen-tiny", "--data", text, "--validation", text, "--out", "run"),
            *("--tokenizer", str(root / "text" / "tokenizer"), "--overrides", *MODEL, *sizes),
        ],
    }


def close(way: str) -> None:
    """As the interpreter finds it: a stream that is closed when it starts is None."""
    if way in ("stdin closed", "all closed"):
        os.close(0)
        sys.stdin = None
    if way in ("stdout closed", "all closed"):
        os.close(1)
        sys.stdout = None
    if way in ("stderr closed", "all closed"):
        os.close(2)
        sys.stderr = None
    if way == "reader gone":
        reading, writing = os.pipe()
        os.close(reading)
        os.dup2(writing, 1)


def run_pipe(name: str, root: Path, draw: random.Random, index: int) -> Outcome:
    """In this process; every eighth trial in a process of its own, through the shell."""
    way, arguments = WAYS[index % len(WAYS)], commands(root)[name]
    os.environ["EMATRACE_CACHE"] = str(Path("cache").absolute())
    Path("stdin").write_text(PROMPT * 20)
    if index % 8 == 7:
        code, errors = through_shell(arguments, way)
        return judge(code, errors, name, f"{way}, in a shell")
    os.dup2(os.open("stdin", os.O_RDONLY), 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    os.dup2(os.open("stdout", os.O_WRONLY | os.O_CREAT), 1)
    os.dup2(os.open("stderr", os.O_WRONLY | os.O_CREAT), 2)
    close(way)
    try:
        code = exit_code(arguments)
    except Exception as error:
        outcome = unexpected(error)
        return Outcome(outcome.name, f"{way}: {outcome.detail}")
    return judge(code, Path("stderr").read_text(errors="replace"), name, way)


def through_shell(arguments: Sequence[str], way: str) -> tuple[int, str]:
    ends = {
        "stdin closed": "<&-",
        "stdout closed": ">&-",
        "stderr closed": "2>&-",
        "reader gone": "| true",
        "all closed": "<&- >&- 2>&-",
    }
    script = f'set -o pipefail; "$@" <stdin 2>stderr {ends[way]}'
    done = subprocess.run(
        ["bash", "-c", script, "bash", sys.executable, "-m", "ematrace", *arguments], capture_output=True, check=False
    )
    return done.returncode, Path("stderr").read_text(errors="replace")


def judge(code: int, errors: str, name: str, way: str) -> Outcome:
    if "Traceback" in errors or "Exception ignored" in errors or code not in (0, 2):
        return Outcome(TRACEBACK, f"{way}: exit code {code}: {' '.join(errors.split())[-160:]}")
    if name == "stream" and code == 0 and "stdin" not in way and "all" not in way and not Path(STATE).is_file():
        return Outcome(LOST, f"{way}: the state was not written")
    return Outcome(REFUSED if code else HARMLESS, way)
