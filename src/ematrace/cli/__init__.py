"""The `ematrace` command: parse, call, show."""

from __future__ import annotations

import os
import sys

__all__ = ["main"]


def main() -> None:
    """Entry point. Exit codes: 0 success, 1 an experiment or check failed, 2 bad input or needs, 130 Ctrl-C.

    >>> from unittest.mock import patch
    >>> with patch("sys.argv", ["ematrace", "--version"]):
    ...     main()  # doctest: +ELLIPSIS
    ematrace ... (Python ..., torch ...)
    """
    try:
        try:
            from ematrace.cli.app import run  # here, as Ctrl-C may come while modules are imported

            run(sys.argv[1:])
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where an error still has a place to go
    except KeyboardInterrupt:
        print("\nstopped; what was finished is kept, nothing else was written", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:  # whoever read the output has seen enough
        discard_output()
        raise SystemExit(0) from None
    except OSError as error:  # a full disk
        discard_output()
        print(f"error: standard output: {error.strerror or error}", file=sys.stderr)
        raise SystemExit(2) from None


def discard_output() -> None:
    """From here on: what is still buffered would fail again when Python exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
