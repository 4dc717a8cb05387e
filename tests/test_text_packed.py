"""Packed tokens against the documents they were made of; what is refused; what a failed pack leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ematrace.text import Document, PackedTokens, Source, open_source, pack, train_bpe
from ematrace.text.corpora import BuiltinSource
from ematrace.text.documents import in_split
from ematrace.text.packing import batches, cache_folder


class Listed(Source):
    """Documents from a list."""

    def __init__(self, texts: list[str], fails_after: int | None = None) -> None:
        self.spec = "listed"
        self.all = [Document(text, f"id-{i}", f"domain-{i % 2}") for i, text in enumerate(texts)]
        self.fails_after = fails_after
        self.failure: BaseException = KeyboardInterrupt()

    def __iter__(self) -> Iterator[Document]:
        for i, document in enumerate(self.all):
            if i == self.fails_after:
                raise self.failure
            yield document

    def identity(self) -> dict[str, Any]:
        return {"texts": [d.text for d in self.all]}


@pytest.fixture(scope="module")
def bpe() -> Any:
    return train_bpe(BuiltinSource(100_000), 400)


def one_row(tokenizer: Any, texts: list[str]) -> list[int]:
    """The oracle: each text through transformers' own call, end-of-text after each."""
    row: list[int] = []
    for text in texts:
        row += tokenizer(text, split_special_tokens=True)["input_ids"] + [tokenizer.eos_token_id]
    return row


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


texts_strategy = st.lists(
    st.text(st.sampled_from("ab c\n<|endoftext|>é"), min_size=1, max_size=30), min_size=1, max_size=9
)


@given(texts=texts_strategy, shard=st.integers(1, 40), length=st.integers(1, 12))
@settings(max_examples=60)
def test_windows_are_cuts_of_one_row(bpe: Any, texts: list[str], shard: int, length: int) -> None:
    row = one_row(bpe, texts)
    with tempfile.TemporaryDirectory() as folder, mock.patch("ematrace.text.packing.SHARD_TOKENS", shard):
        packed = pack(Listed(texts), bpe, folder)
        assert (packed.n_documents, packed.n_tokens) == (len(texts), len(row))
        assert len(packed.index["shards"]) == -(-len(row) // shard)
        np.testing.assert_array_equal(packed.counts(), np.bincount(row, minlength=400))

        begins = {0} | {i + 1 for i, token in enumerate(row) if token == bpe.eos_token_id}
        if length < len(row):
            assert packed.n_windows(length) == (len(row) - 1) // length
            for i in range(packed.n_windows(length)):
                window = packed.window(i, length)
                assert window.dtype == np.int64
                assert window.tolist() == row[i * length : (i + 1) * length + 1]
                expected = [p for p in range(length) if i * length + p in begins]
                assert packed.document_starts(i, length).tolist() == expected


def test_batches_keep_order_and_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ematrace.text.packing._BATCH_CHARACTERS", 10)
    documents = Listed(["x" * (1 + i % 7) for i in range(50)]).all
    groups = list(batches(documents))
    assert [d for group in groups for d in group] == documents
    assert len(groups) > 10


def test_a_large_vocabulary_takes_four_bytes(tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    words = {"<|endoftext|>": 0} | {f"w{i}": i for i in range(1, 2**16 + 1)}
    backend = Tokenizer(WordLevel(words, unk_token="<|endoftext|>"))
    backend.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|endoftext|>")
    packed = pack(Listed(["w65536 w1"]), tokenizer, tmp_path)
    assert packed.index["dtype"] == "<u4"
    assert packed.tokens(0, 3).tolist() == [65536, 1, 0]


def test_split_depends_on_the_id_alone(bpe: Any, tmp_path: Path) -> None:
    source = Listed([f"text {i}" for i in range(400)])
    source.validation_share = 0.2
    parts = {s: {d.id for d in source.part(s)} for s in ("train", "validation", "all")}
    assert parts["train"] | parts["validation"] == parts["all"]
    assert not parts["train"] & parts["validation"]
    assert 50 < len(parts["validation"]) < 110  # 80 expected, standard deviation 8
    assert all(in_split(id, "validation", 0.2) for id in parts["validation"])
    assert not any(in_split(id, "validation", 0) for id in parts["all"])
    # the same ones on any machine, in any process
    assert [i for i in range(40) if f"id-{i}" in parts["validation"]] == [9, 18, 23, 27, 30, 33, 37, 39]
    assert all(in_split(id, "validation", 1) for id in parts["all"])
    for split in ("train", "validation"):
        texts = [d.text for d in source.all if d.id in parts[split]]
        packed = pack(source, bpe, tmp_path / split, split)
        assert packed.tokens(0, packed.n_tokens).tolist() == one_row(bpe, texts)


def test_counts_over_several_chunks(bpe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ematrace.text.packed._CHUNK", 7)
    monkeypatch.setattr("ematrace.text.packing.SHARD_TOKENS", 5)
    texts = ["some words", "and some more words than before"]
    packed = pack(Listed(texts), bpe, tmp_path)
    assert packed.n_tokens > 14
    np.testing.assert_array_equal(packed.counts(), np.bincount(one_row(bpe, texts), minlength=400))


def test_packed_once_per_text_tokenizer_and_split(bpe: Any, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("some text")
    packs: list[str] = []

    def packed(tokenizer: Any = bpe, split: str = "all", share: float = 0.01) -> PackedTokens:
        source = open_source(str(corpus))
        source.validation_share = share
        found = pack(source, tokenizer, tmp_path / "pack", split)
        (data,) = (tmp_path / "pack").glob("data-*")  # a new one for each writing
        if data.name not in packs:
            packs.append(data.name)
        return found

    first = packed()
    assert packed().fingerprint == first.fingerprint
    assert len(packs) == 1  # reused
    packed(train_bpe(["other text"], 300))
    assert len(packs) == 2
    packed(split="validation", share=1.0)
    packed(split="validation", share=0.999999)
    assert len(packs) == 4
    assert packed().fingerprint == first.fingerprint
    corpus.write_text("some more")  # same size: the time of change tells
    os.utime(corpus, ns=(0, 12345))
    assert packed().fingerprint != first.fingerprint
    assert len(packs) == 6
    assert len(list((tmp_path / "pack").glob("data-*"))) == 1  # what was replaced is gone


def test_fingerprint_is_that_of_the_tokens_and_not_of_their_number(bpe: Any, tmp_path: Path) -> None:
    packs = [pack(Listed(texts), bpe, tmp_path / texts[0]) for texts in (["a", "b"], ["b", "a"])]
    assert packs[0].n_tokens == packs[1].n_tokens
    assert packs[0].fingerprint != packs[1].fingerprint
    assert pack(Listed(["a", "b"]), bpe, tmp_path / "again").fingerprint == packs[0].fingerprint


def test_default_folder_is_in_the_cache(bpe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATRACE_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    packed = pack(Listed(["a"]), bpe)
    assert packed.folder.parent == tmp_path / "packs"
    assert pack(Listed(["b"]), bpe).folder != packed.folder == pack(Listed(["a"]), bpe).folder


@pytest.mark.parametrize("kind", ["tokens-00001.bin", "offsets.bin"])
def test_a_wrong_checksum_is_refused_by_file_name(
    bpe: Any, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ematrace.text.packing.SHARD_TOKENS", 3)
    pack(Listed(["some text", "more"]), bpe, tmp_path)
    (path,) = tmp_path.glob(f"data-*/{kind}")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    for attempt in (
        lambda: PackedTokens.open(tmp_path, bpe),
        lambda: pack(Listed(["some text", "more"]), bpe, tmp_path),
    ):
        with pytest.raises(ValueError, match=f"{kind}: checksum"):
            attempt()
    path.write_bytes(content[:-1])
    with pytest.raises(ValueError, match=rf"{kind}: {len(content) - 1} bytes instead of {len(content)}"):
        PackedTokens.open(tmp_path, bpe)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"{kind}: missing"):
        PackedTokens.open(tmp_path, bpe)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"schema": 99}, "schema: 99 instead of 1"),
        ({"n_tokens": 3}, "n_tokens: 3 is not what the shards hold"),
        ({"n_documents": 7}, "n_documents: 7 is not what the offsets hold"),
        ({"dtype": "O"}, "dtype: 'O' is neither"),
        ({"shards": None}, "shards: missing or not list"),
        ({"offsets": {"file": "../x", "bytes": 1, "sha256": ""}}, "outside the folder"),
    ],
)
def test_a_broken_index_is_refused_by_field(bpe: Any, tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    pack(Listed(["some text"]), bpe, tmp_path)
    path = tmp_path / "index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=rf"index\.json: .*{complaint}"):
        PackedTokens.open(tmp_path, bpe)
    path.write_text("{")
    with pytest.raises(ValueError, match=r"index\.json: not JSON"):
        PackedTokens.open(tmp_path, bpe)


def test_vocabularies_that_disagree_are_refused_with_both_numbers(bpe: Any, tmp_path: Path) -> None:
    pack(Listed(["some text"]), bpe, tmp_path)
    assert PackedTokens.open(tmp_path, bpe).vocab_size == 400
    smaller = train_bpe(BuiltinSource(100_000), 300)
    with pytest.raises(ValueError, match=r"vocabulary of 400, but the tokenizer has 300"):
        PackedTokens.open(tmp_path, smaller)
    other = train_bpe(["zebra quagga okapi " * 50, *map(chr, range(0x4E00, 0x4F00))], 400)
    assert len(other) == 400
    with pytest.raises(ValueError, match=r"packed with tokenizer \w{16}, but this tokenizer is \w{16}"):
        PackedTokens.open(tmp_path, other)


def test_a_sequence_longer_than_the_corpus_is_refused_with_both_numbers(bpe: Any, tmp_path: Path) -> None:
    packed = pack(Listed(["some text"]), bpe, tmp_path)
    n = packed.n_tokens
    assert packed.n_windows(n - 1) == 1
    with pytest.raises(ValueError, match=rf"a sequence of {n} tokens .* a corpus of {n} "):
        packed.n_windows(n)
    with pytest.raises(IndexError, match="window 1 of 1"):
        packed.window(1, n - 1)


def test_an_empty_corpus_is_refused_and_leaves_no_folder(bpe: Any, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text('{"text": ""}\n')
    with pytest.raises(ValueError, match=r"empty\.jsonl: empty corpus"):
        pack(str(tmp_path / "empty.jsonl"), bpe, tmp_path / "pack")
    with pytest.raises(ValueError, match=r"listed: no document falls into the validation split .*0\.01"):
        pack(Listed(["a"]), bpe, tmp_path / "pack", "validation")
    assert not (tmp_path / "pack").exists()
    with pytest.raises(ValueError, match="split is 'test'"):
        pack(Listed(["a"]), bpe, tmp_path / "pack", "test")
    with pytest.raises(ValueError, match="split is 'test'"):
        Listed(["a"]).part("test")


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), ValueError("a.jsonl:3: not JSON")])
def test_a_failed_pack_leaves_everything_as_it_was(
    bpe: Any, tmp_path: Path, failure: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ematrace.text.packing._BATCH_DOCUMENTS", 2)
    old = pack(Listed(["old text"]), bpe, tmp_path / "pack")
    before = snapshot(tmp_path)
    broken = Listed(["new"] * 9, fails_after=5)
    broken.failure = failure
    for folder in ("pack", "fresh"):
        with pytest.raises(type(failure)):
            pack(broken, bpe, tmp_path / folder)
    assert snapshot(tmp_path) == before
    assert not (tmp_path / "fresh").exists()
    assert PackedTokens.open(tmp_path / "pack", bpe).fingerprint == old.fingerprint


def test_a_folder_with_other_things_in_it_is_not_touched(bpe: Any, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"holds thesis\.tex and no packed tokens"):
        pack(Listed(["a"]), bpe, tmp_path)
    (tmp_path / "index.json").write_text("{}")
    with pytest.raises(ValueError, match="schema: None"):
        pack(Listed(["a"]), bpe, tmp_path)
    assert snapshot(tmp_path) == {"thesis.tex": b"years of work", "index.json": b"{}"}
    with pytest.raises(NotADirectoryError, match=r"thesis\.tex: is a file"):
        pack(Listed(["a"]), bpe, tmp_path / "thesis.tex")


@pytest.mark.parametrize("damaged", ["index.json", "tokens-00000.bin", "offsets.bin"])
@pytest.mark.parametrize("content", [None, b"", b"[]"])
def test_a_damaged_pack_in_the_cache_is_made_again(
    bpe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: str, content: bytes | None
) -> None:
    monkeypatch.setenv("EMATRACE_CACHE", str(tmp_path))
    first = pack(Listed(["some text"]), bpe)
    (path,) = first.folder.rglob(damaged)
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    again = pack(Listed(["some text"]), bpe)
    assert again.fingerprint == first.fingerprint
    assert again.tokens(0, again.n_tokens).tolist() == [*bpe("some text").input_ids, bpe.eos_token_id]


def test_a_full_disk_while_packing_loses_nothing(bpe: Any, tmp_path: Path) -> None:
    """A limit on the size of files stands in for the full disk: the same error from the same call."""
    (tmp_path / "big.txt").write_text("many words in a row\n" * 20_000)
    (tmp_path / "small.txt").write_text("few words")
    bpe.save_pretrained(tmp_path / "tokenizer")
    old = pack(str(tmp_path / "small.txt"), bpe, tmp_path / "pack")
    before = snapshot(tmp_path)
    code = """
import resource, signal, sys
from ematrace.text import load_tokenizer, pack
root = sys.argv[1]
tokenizer = load_tokenizer(root + "/tokenizer")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
try:
    pack(root + "/big.txt", tokenizer, root + "/pack")
except OSError as error:
    print(error)
    sys.exit(7)
"""
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert run.returncode == 7, run.stderr
    assert f"File too large: '{tmp_path / 'pack'}" in run.stdout
    assert len(run.stdout.splitlines()) == 1
    assert "Traceback" not in run.stderr
    assert snapshot(tmp_path) == before
    assert PackedTokens.open(tmp_path / "pack", bpe).fingerprint == old.fingerprint


def test_of_several_who_want_the_same_pack_one_writes_it(bpe: Any, tmp_path: Path) -> None:
    readings = []

    class Slow(Listed):
        def __iter__(self) -> Iterator[Document]:
            readings.append(1)
            time.sleep(0.5)
            yield from super().__iter__()

    with ThreadPoolExecutor(3) as threads:
        packs = list(threads.map(lambda _: pack(Slow(["some words"]), bpe, tmp_path / "pack"), range(3)))
    assert len(readings) == 1
    assert len({packed.fingerprint for packed in packs}) == 1
