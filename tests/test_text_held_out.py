"""Which documents a model may be judged on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ematrace.text import Document, Source, open_source
from ematrace.text.held_out import LEAST_DOCUMENTS, TRAINING, HeldOut, choose_held_out, held_out_split


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
        with pytest.raises(ValueError, match=r"training\.json: (not JSON: .*|holds a JSON array, not a JSON object)$"):
            held_out_split(tmp_path, source)
    (tmp_path / TRAINING).write_text("{}")
    assert held_out_split(tmp_path, source) == "all"
    trained_on = {"text": source.text_fingerprint(), "held_out": True}
    for wrong in ({"validation_share": 3}, {"validation_share": "x"}, {"validation_share": 0.1, "held_out_tails": 1}):
        (tmp_path / TRAINING).write_text(json.dumps(trained_on | wrong))
        with pytest.raises(ValueError, match=r"training\.json: field '(validation_share|held_out_tails)'"):
            held_out_split(tmp_path, source)


class Listed(Source):
    spec = "listed"

    def __init__(self, sizes: list[int]) -> None:
        self.sizes, self.n_read = sizes, 0

    def __iter__(self) -> Iterator[Document]:
        for i, size in enumerate(self.sizes):
            self.n_read = i + 1
            yield Document(("word " * size)[:size], f"d{i}", "x")

    def identity(self) -> dict[str, Any]:
        return {"spec": self.spec}


def held_out(source: Source) -> tuple[int, int]:
    """Documents and bytes of the validation split, of a source whose splits make up the whole."""
    parts = {split: list(source.part(split)) for split in ("train", "validation")}
    assert sum(len(d.text) for part in parts.values() for d in part) == sum(len(d.text) for d in source)
    return len(parts["validation"]), sum(len(d.text) for d in parts["validation"])


def test_the_held_out_part_is_that_of_earlier_versions_where_it_is_large_enough() -> None:
    source = Listed([5000] * 20_000)
    assert choose_held_out(source) == HeldOut(0.01)
    assert source.n_read < 3000  # a large corpus is not read to its end
    assert HeldOut.read({}, Path("x"), HeldOut.of(source)) == HeldOut(0.01)


def test_more_documents_are_held_out_of_a_small_text() -> None:
    source = Listed([2000] * 150)
    assert len(list(source.part("validation"))) < LEAST_DOCUMENTS
    chosen = choose_held_out(source)
    before = {d.id for d in source.part("validation")}
    chosen.apply(source)
    assert not chosen.tails
    assert before < {d.id for d in source.part("validation")}
    documents, n_bytes = held_out(source)
    assert documents == 15
    assert n_bytes == 30_000


@pytest.mark.parametrize("sizes", [[30_000], [10_000] * 3, [200_000] + [100] * 150])
def test_few_documents_are_held_out_by_their_tails(sizes: list[int]) -> None:
    source = Listed(sizes)
    chosen = choose_held_out(source)
    assert chosen == HeldOut(0.1, tails=True)
    chosen.apply(source)
    documents, n_bytes = held_out(source)
    assert documents == len(sizes)
    assert n_bytes == pytest.approx(0.1 * sum(sizes), rel=0.05)
    text = next(source.part("validation")).text
    assert text.startswith("word")  # not in the middle of a word
    assert next(iter(source)).text.endswith(text)


def test_a_share_that_is_asked_for_is_kept() -> None:
    assert choose_held_out(Listed([2000] * 150), 0.3) == HeldOut(0.3)
    assert choose_held_out(Listed([2000] * 2), 0.3) == HeldOut(0.3, tails=True)


def test_documents_of_one_name_stay_together() -> None:
    class Same(Listed):
        def __iter__(self) -> Iterator[Document]:
            return (Document(d.text, "same", "x") for d in super().__iter__())

    assert choose_held_out(Same([2000] * 150)).tails


def test_what_was_recorded_is_held_out_again(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two three " * 100)
    source = open_source(str(tmp_path / "a.txt"))
    chosen = choose_held_out(source)
    record = {"text": source.text_fingerprint(), "held_out": True} | chosen.record()
    (tmp_path / TRAINING).write_text(json.dumps(record))
    assert held_out_split(tmp_path, source) == "validation"
    assert 0 < held_out(source)[1] < 0.2 * 1400


def test_too_little_text_is_refused_with_how_much_is_needed(tmp_path: Path) -> None:
    (tmp_path / "three.txt").write_text("abc")
    source = open_source(str(tmp_path / "three.txt"))
    with pytest.raises(ValueError, match=r"three\.txt: too little text: 3 bytes, and at least 170 are needed, .*10%"):
        choose_held_out(source, least_bytes=17)
    with pytest.raises(ValueError, match="at least 34 are needed, since 50% of them are held out"):
        choose_held_out(source, share=0.5, least_bytes=17)
    assert choose_held_out(Listed([170]), least_bytes=17).tails
