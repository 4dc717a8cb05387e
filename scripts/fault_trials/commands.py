"""The command line inside a fork: the same code as in a shell, without the seconds of importing torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from fault_trials.outcomes import TRACEBACK, Ended


class Refused(Exception):
    """Exit code 2; the text is what stood on standard error."""


def run_command(arguments: Sequence[str], stdin: bytes = b"") -> bytes:
    """Standard output of `ematrace ARGUMENTS`; `Refused` for exit code 2, any other failure as it comes."""
    Path("stdin").write_bytes(stdin)
    os.dup2(os.open("stdin", os.O_RDONLY), 0)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  the parent's has a buffer of its own
    code = exit_code(arguments)
    errors = Path("stderr").read_text(encoding="utf-8", errors="replace")
    if code == 2:
        lines = errors.strip().splitlines()
        begun = next((i for i, line in enumerate(lines) if line.startswith("error: ")), 0)
        raise Refused("\n".join(lines[begun:]))
    if code != 0:
        raise Ended(TRACEBACK, f"exit code {code}: {errors.strip()[-160:]}")
    return Path("stdout").read_bytes()


def exit_code(arguments: Sequence[str]) -> int:
    """Of the command, run here and now."""
    from ematrace.cli import main

    sys.argv = ["ematrace", *arguments]
    try:
        main()
        code: object = 0
    except SystemExit as ended:
        code = ended.code
    for file in (sys.stdout, sys.stderr):
        if file is not None and not file.closed:
            file.flush()
    return 0 if code is None else code if isinstance(code, int) else 1
