"""The command in the test's own process."""

from __future__ import annotations

import signal
import sys

import pytest

from ematrace import cli


def exit_status(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run `ematrace ARGUMENTS`; its exit status, as a shell would see it."""
    monkeypatch.setattr(sys, "argv", ["ematrace", *arguments])
    handler = signal.getsignal(signal.SIGTERM)
    try:
        cli.main()
    except SystemExit as stop:
        return 0 if stop.code is None else stop.code if isinstance(stop.code, int) else 1
    finally:
        signal.signal(signal.SIGTERM, handler)
    return 0
