"""Atomic file writes."""

from __future__ import annotations

import os
import uuid
from pathlib import Path


def write_atomically(path: str | Path, content: bytes) -> Path:
    """Write a temporary file and rename it to `path`: a crash, Ctrl-C or a full disk leaves the old file intact."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
