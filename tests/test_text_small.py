"""Corpora of hardly anything, and files with odd names: what cannot be split says so, the rest is read."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ematrace.text import open_source, pack, train_bpe

WORDS = "one two three four five "


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATRACE_CACHE", str(tmp_path / "cache"))


def test_one_document_cannot_be_split_and_the_message_says_what_helps(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text(WORDS * 100)
    with pytest.raises(ValueError, match=r"book\.txt: no document falls into the validation split .*--validation"):
        pack(str(path), train_bpe([WORDS], 260), split="validation")


def test_a_file_without_text_is_called_empty_whatever_split_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "empty.txt"
    path.touch()
    for split in ("all", "train", "validation"):
        with pytest.raises(ValueError, match=r"empty\.txt: empty corpus"):
            pack(str(path), train_bpe([WORDS], 260), split=split)


def test_a_text_shorter_than_a_sequence_is_named_by_its_file(tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text("hi")
    packed = pack(str(path), train_bpe([WORDS], 260))
    with pytest.raises(ValueError, match=r"short\.txt: a sequence of 64 tokens .* a corpus of 3 \(all split\)"):
        packed.n_windows(64)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_names_that_are_not_utf8_are_read_and_split(tmp_path: Path) -> None:
    for name in (b"caf\xe9.txt", b"th\xe9.txt"):
        (tmp_path / os.fsdecode(name)).write_text(WORDS)
    source = open_source(str(tmp_path / "*.txt"))
    assert [os.fsencode(document.id) for document in source.part("train")] == [b"caf\xe9.txt", b"th\xe9.txt"]
    assert pack(source, train_bpe([WORDS], 260), split="train").n_documents == 2
