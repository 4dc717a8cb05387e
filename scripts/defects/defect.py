"""What a planted defect is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Defect:
    """`old`, which stands exactly once in src/ematrace/`file`, becomes `new`; tests/`tests` -k `select` should fail."""

    name: str
    file: str
    tests: str
    select: str
    old: str
    new: str
