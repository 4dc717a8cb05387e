"""Which documents a model may be judged on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ematrace.text import open_source
from ematrace.text.held_out import TRAINING, held_out_split


def test_held_out_documents_of_the_training_text_and_all_of_any_other(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(name)
    own, other = (open_source(str(tmp_path / f"{name}.txt")) for name in "ab")
    assert held_out_split(tmp_path, own) == "all"  # nothing recorded
    for held_out, split in ((True, "validation"), (False, "all")):
        trained_on = {"text": own.text_fingerprint(), "held_out": held_out}
        (tmp_path / TRAINING).write_text(json.dumps(trained_on))
        assert held_out_split(tmp_path, own) == split
        assert held_out_split(tmp_path, open_source(str(tmp_path / "a*.txt"))) == split  # the same file by a glob
        assert held_out_split(tmp_path, other) == "all"


def test_broken_records_are_named(tmp_path: Path) -> None:
    source = open_source("builtin")
    for content in ("{", "[]"):
        (tmp_path / TRAINING).write_text(content)
        with pytest.raises(ValueError, match=r"training\.json: not (JSON|a JSON object)$"):
            held_out_split(tmp_path, source)
    (tmp_path / TRAINING).write_text("{}")
    assert held_out_split(tmp_path, source) == "all"
