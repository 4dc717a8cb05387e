"""A script in a fork of the test process: a process of its own, without the seconds of importing torch again."""

from __future__ import annotations

import io
import os
import random
import runpy
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import numpy as np


def run_forked(
    script: Path, *arguments: str, env: Mapping[str, str] = {}, timeout: float = 300
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `python script arguments`; negative if a signal ended it."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            _become(script, arguments, env, out.fileno(), err.fileno())
        end = time.monotonic() + timeout
        status = None
        try:
            while status is None and time.monotonic() < end:
                ended, found = os.waitpid(child, os.WNOHANG)
                status = found if ended else time.sleep(0.02)
        finally:
            if status is None:
                os.killpg(child, signal.SIGKILL)  # with what it started
                _, status = os.waitpid(child, 0)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    return os.waitstatus_to_exitcode(status), texts[0], texts[1]


def _become(script: Path, arguments: tuple[str, ...], env: Mapping[str, str], out: int, err: int) -> NoReturn:
    """What a new process would start with, as far as a script can see."""
    code = 1
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, file in ((1, out), (2, err)):
            os.dup2(file, number)
        sys.stdin, sys.stdout, sys.stderr = (
            io.TextIOWrapper(os.fdopen(number, mode, closefd=False), line_buffering=number == 2)
            for number, mode in ((0, "rb"), (1, "wb"), (2, "wb"))
        )
        signal.signal(signal.SIGINT, signal.default_int_handler)
        random.seed()  # else it would draw what the tests draw
        np.random.seed()  # noqa: NPY002
        os.environ.update(env)
        sys.argv = [str(script), *arguments]
        sys.path.insert(0, str(script.parent))
        try:
            runpy.run_path(str(script), run_name="__main__")
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
            if isinstance(ended.code, str):
                print(ended.code, file=sys.stderr)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)
