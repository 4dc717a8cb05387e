"""The text a model was trained on, recorded in the model's folder so that evaluation can use held-out documents."""

from __future__ import annotations

import json
from pathlib import Path

from ematrace.text.documents import Source

TRAINING = "training.json"
"""File in a model's folder: the fingerprint of its training text, and whether its validation split was held out."""


def held_out_split(folder: Path, source: Source) -> str:
    """ "validation" if the model in `folder` was trained on the other documents of `source`, else "all"."""
    path = folder / TRAINING
    if not path.is_file():
        return "all"
    try:
        trained_on = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise ValueError(f"{path}: not JSON") from None
    if not isinstance(trained_on, dict):
        raise ValueError(f"{path}: not a JSON object")
    held_out = trained_on.get("held_out") and trained_on.get("text") == source.text_fingerprint()
    return "validation" if held_out else "all"
