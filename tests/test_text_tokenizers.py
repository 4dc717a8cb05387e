"""Tokenizers: GPT-2's files in every form against each other, and a BPE trained on the spot."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ematrace.text import Document, load_tokenizer, train_bpe
from ematrace.text.corpora import BuiltinSource
from ematrace.text.tokenizers import END_OF_TEXT, DocumentEncoder, local_gpt2, tokenizer_fingerprint

GPT2 = Path(__file__).parents[1] / "../shared/data/tokenizer"
needs_gpt2 = pytest.mark.skipif(
    not (GPT2 / "encoder.json").is_file(), reason="GPT-2's files are not beside the checkout"
)
unicode = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


@pytest.fixture(scope="module")
def bpe() -> Any:
    return train_bpe(BuiltinSource(300_000), 700)


@pytest.fixture(autouse=True)
def nothing_at_hand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """GPT-2 is found only where a test puts it."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "no-tiktoken"))
    monkeypatch.delenv("EMATRACE_GPT2", raising=False)


def test_special_tokens_and_alphabet(bpe: Any) -> None:
    assert len(bpe) == 700
    assert bpe.eos_token == bpe.bos_token == bpe.pad_token == END_OF_TEXT
    assert bpe.eos_token_id == bpe.pad_token_id == 0
    assert bpe(["a", "a b c"], padding=True)["attention_mask"][0][-1] == 0


@given(text=unicode)
def test_any_text_survives(bpe: Any, text: str) -> None:
    (ids,) = DocumentEncoder(bpe).encode([text])
    assert ids[-1] == bpe.eos_token_id
    assert bpe.decode(ids[:-1]) == text


@given(before=unicode, after=unicode)
def test_text_that_spells_the_special_token_stays_text(bpe: Any, before: str, after: str) -> None:
    text = before + END_OF_TEXT + after
    (ids,) = DocumentEncoder(bpe).encode([text])
    assert (ids == bpe.eos_token_id).sum() == 1
    assert bpe.decode(ids[:-1]) == text
    assert bpe(END_OF_TEXT)["input_ids"] == [bpe.eos_token_id]  # the caller's tokenizer is as it was


CUTTABLE = "ab'sé 1.\n\t\r\u3000\u0301"


@pytest.fixture(scope="module")
def whitespace_bpe() -> Any:
    """Knows all kinds of runs of whitespace, so that a cut inside one would show."""
    rng = np.random.default_rng(0)
    return train_bpe(["".join(rng.choice(list(CUTTABLE + "  \n\n"), 200)) for _ in range(300)], 1500)


@given(text=st.text(st.sampled_from(CUTTABLE), max_size=300), piece=st.integers(1, 40))
@settings(max_examples=300)
def test_long_text_encoded_in_pieces_gives_the_same_tokens(whitespace_bpe: Any, text: str, piece: int) -> None:
    encoder = DocumentEncoder(whitespace_bpe)
    encoder._PIECE = piece
    whole = whitespace_bpe.backend_tokenizer.encode(text).ids
    assert encoder.encode([text])[0][:-1].tolist() == whole


def test_pieces_are_really_cut(bpe: Any) -> None:
    encoder = DocumentEncoder(bpe)
    encoder._PIECE = 10
    assert len(list(encoder._cut("word\n" * 20))) > 5


def test_same_text_same_vocabulary_in_any_process(bpe: Any, tmp_path: Path) -> None:
    code = """
from ematrace.text.corpora import BuiltinSource
from ematrace.text.tokenizers import tokenizer_fingerprint, train_bpe
print(tokenizer_fingerprint(train_bpe(BuiltinSource(300_000), 700)))
"""
    environment = os.environ | {"PYTHONHASHSEED": "7", "TOKENIZERS_PARALLELISM": "false"}
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    assert run.stdout.strip() == tokenizer_fingerprint(bpe)


def test_saved_with_a_model_and_loaded_again(bpe: Any, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    bpe(["a", "b c"], padding=True, truncation=True, max_length=2)  # leaves its mark in the backend
    bpe.save_pretrained(tmp_path)
    text = "def f(x):  return 'ů'\n\n .  don't"
    for loaded in (
        load_tokenizer(tmp_path),
        load_tokenizer(tmp_path / "tokenizer.json"),
        AutoTokenizer.from_pretrained(tmp_path),
    ):
        assert tokenizer_fingerprint(loaded) == tokenizer_fingerprint(bpe)
        assert loaded.encode(text) == bpe.encode(text)
        assert loaded.decode(loaded.encode(text)) == text
        assert loaded.eos_token_id == loaded.pad_token_id == 0


def test_another_eos_token_is_taken_from_the_config(tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    Tokenizer(WordLevel({"</s>": 0, "a": 1}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match=r"tokenizer\.json: no end-of-text token"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "</s>"}}))
    assert load_tokenizer(tmp_path).eos_token_id == 0


def test_bad_requests(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"vocab_size is 256"):
        train_bpe([Document("a", "a", "a")], 256)
    with pytest.raises(ValueError, match="no documents"):
        train_bpe([], 300)
    with pytest.raises(FileNotFoundError, match=r"no tokenizer\.json in this folder"):
        load_tokenizer(tmp_path)
    with pytest.raises(FileNotFoundError, match="no such tokenizer"):
        load_tokenizer(tmp_path / "missing" / "tokenizer.json")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json: not a tokenizer file"):
        load_tokenizer(tmp_path)
    (tmp_path / "x.tiktoken").write_bytes(b"IQ== 0\nIg==\n")
    with pytest.raises(ValueError, match=r"x\.tiktoken:2: not a token"):
        load_tokenizer(tmp_path / "x.tiktoken")


def test_gpt2_nowhere_says_what_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATRACE_GPT2", str(tmp_path / "nothing-here"))
    with pytest.raises(FileNotFoundError, match=r"no-tiktoken.*openai-community/gpt2.*EMATRACE_GPT2") as error:
        load_tokenizer("gpt2")
    assert str(tmp_path / "nothing-here") in str(error.value)
    assert "Train one on your text with --tokenizer bpe" in str(error.value)
    assert "\n" not in str(error.value)
    assert local_gpt2() is None


def test_a_wrong_file_is_not_taken_for_gpt2(bpe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bpe.save_pretrained(tmp_path)
    monkeypatch.setenv("EMATRACE_GPT2", str(tmp_path))
    with pytest.raises(ValueError, match=r"not GPT-2's tokenizer: 700 entries instead of 50257") as error:
        load_tokenizer("gpt2")
    assert str(tmp_path) in str(error.value)


@needs_gpt2
def test_swapped_entries_are_not_taken_for_gpt2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATRACE_GPT2", str(tmp_path))
    vocab = json.loads((GPT2 / "encoder.json").read_text())
    vocab["Hello"], vocab["Ġworld"] = vocab["Ġworld"], vocab["Hello"]
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    shutil.copyfile(GPT2 / "vocab.bpe", tmp_path / "merges.txt")
    with pytest.raises(ValueError, match=r"becomes \[995, 15496\] instead of \[15496, 995\]"):
        load_tokenizer("gpt2")


@needs_gpt2
def test_gpt2_is_the_same_from_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def folder(name: str, files: dict[str, str]) -> Path:
        (tmp_path / name).mkdir(parents=True)
        for source, target in files.items():
            shutil.copyfile(GPT2 / source, tmp_path / name / target)
        return tmp_path / name

    def from_environment(place: Path) -> Any:
        with monkeypatch.context() as context:
            context.setenv("EMATRACE_GPT2", str(place))
            return load_tokenizer("gpt2")

    gpt2 = from_environment(GPT2)
    assert (len(gpt2), gpt2.eos_token_id, gpt2.pad_token_id) == (50257, 50256, 50256)
    assert gpt2.encode("Hello world") == [15496, 995]
    gpt2.save_pretrained(tmp_path / "saved")

    found = {"saved": from_environment(tmp_path / "saved"), "file": from_environment(GPT2 / "encoder.json")}
    found["ranks"] = from_environment(folder("ranks", {"gpt2.tiktoken": "gpt2.tiktoken"}))
    found["hub names"] = load_tokenizer(folder("hub", {"encoder.json": "vocab.json", "vocab.bpe": "merges.txt"}))
    names = {
        "vocab.bpe": "6d1cbeee0f20b3d9449abfede4726ed8212e3aee",
        "encoder.json": "6c7ea1a7e38e3a7f062df639a5b80947f075ffe6",
    }
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(folder("tiktoken", names)))
    found["tiktoken's cache"] = load_tokenizer("gpt2")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    package = folder("site/whisper/assets", {"gpt2.tiktoken": "gpt2.tiktoken"}).parent
    (package / "__init__.py").write_text("raise RuntimeError('looked at, not imported')")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    found["package"] = load_tokenizer("gpt2")

    expected = tokenizer_fingerprint(gpt2)
    for way, tokenizer in found.items():
        assert tokenizer_fingerprint(tokenizer) == expected, way


@needs_gpt2
@given(text=unicode)
@settings(max_examples=50)
def test_gpt2_agrees_with_tiktoken(text: str) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    load = pytest.importorskip("tiktoken.load")
    ranks = load.data_gym_to_mergeable_bpe_ranks(str(GPT2 / "vocab.bpe"), str(GPT2 / "encoder.json"))
    pattern = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
    theirs = tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens={END_OF_TEXT: 50256})
    (ours,) = DocumentEncoder(load_tokenizer(GPT2)).encode([text])
    np.testing.assert_array_equal(ours[:-1], theirs.encode_ordinary(text))


def test_two_tokens_of_one_id_are_refused(tmp_path: Path) -> None:
    """The library reads such a file, and a copy of it loses one of the two, or fails: by chance."""
    train_bpe(["a b a b a b"] * 9, 258).save_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    vocabulary["Å"] = vocabulary["".join(content["model"]["merges"][0])]
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match=r"tokenizer\.json: two tokens have the same id"):
        load_tokenizer(tmp_path)
