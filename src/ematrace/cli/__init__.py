"""The `ematrace` command: parse, call, show."""

from ematrace.cli.app import main

__all__ = ["main"]
