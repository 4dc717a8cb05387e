"""How a trial may end."""

from __future__ import annotations

from dataclasses import dataclass

REFUSED = "refused"  # one line that names the file; exit code 2, or ValueError or OSError
HARMLESS = "harmless"  # the same output, bit for bit, as without the fault
RECOVERED = "recovered"  # the fault was noticed and repaired: the same output as without it
CHANGED = "changed"  # other output from a file without a checksum, such as a user's text
GOOD = (REFUSED, HARMLESS, RECOVERED, CHANGED)
SKIPPED = "skipped"  # this machine cannot make the fault: neither good nor a trial

UNCLEAR = "unclear"  # refused, but in several lines or without the name of the file
TRACEBACK = "traceback"  # any other exception, a crash, an unexpected exit code
HANG = "hang"
MEMORY = "memory"
SILENT = "silent"  # other output from a file that has a checksum
LOST = "lost"  # bytes or steps that were there before are gone
ORPHAN = "orphan"  # a process is left behind
FAILURES = (UNCLEAR, TRACEBACK, HANG, MEMORY, SILENT, LOST, ORPHAN)


@dataclass(frozen=True)
class Outcome:
    name: str
    detail: str = ""

    @property
    def failed(self) -> bool:
        return self.name in FAILURES


class Ended(Exception):
    """Raised inside a trial that knows its outcome."""

    def __init__(self, name: str, detail: str = "") -> None:
        super().__init__(name, detail)
        self.outcome = Outcome(name, detail)
