"""SIGTERM and SIGINT end a run after the current step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class StopRequest:
    """The number of the first signal received, or 0."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self) -> int:
        return self.number

    def on_signal(self, number: int, frame: object) -> None:
        if self.number and number == signal.SIGINT:  # Ctrl-C a second time: now
            raise KeyboardInterrupt
        self.number = self.number or number


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Inside the context, SIGTERM and SIGINT only set a `StopRequest`. Does nothing outside of the main thread."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request.on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
