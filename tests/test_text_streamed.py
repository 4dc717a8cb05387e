"""Streamed windows against packed ones, and resuming against never stopping."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ematrace.text import StreamedTokens, open_source, pack, train_bpe
from ematrace.text.corpora import BuiltinSource
from ematrace.text.streamed import starts_after

LENGTH = 23


@pytest.fixture(scope="module")
def bpe() -> Any:
    return train_bpe(BuiltinSource(100_000), 400)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files; documents from one character to many windows long."""
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("corpus")
    for name in ("a", "b"):
        texts = ["".join(rng.choice(list("abc \n"), n)) + name for n in rng.integers(0, 90, 70)]
        texts[5] = "word " * 300
        rows = [{"text": text, "id": f"{name}{i}"} for i, text in enumerate(texts)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(params=["files", "hf"])
def spec(request: pytest.FixtureRequest, corpus: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    return str(corpus / "*.jsonl") if request.param == "files" else f"hf:json:{corpus}/*.jsonl"


@pytest.mark.parametrize("split", ["all", "train", "validation"])
def test_streamed_windows_are_the_packed_ones(spec: str, bpe: Any, tmp_path: Path, split: str) -> None:
    source = open_source(spec)
    source.validation_share = 0.3
    packed = pack(source, bpe, tmp_path / "pack", split)
    streamed = StreamedTokens(source, bpe, LENGTH, split)
    windows = list(streamed)
    expected = [packed.window(i, LENGTH) for i in range(packed.n_windows(LENGTH))]
    np.testing.assert_array_equal(windows, expected)
    assert windows[0].dtype == np.int64
    np.testing.assert_array_equal(list(streamed), expected)  # a second time from the beginning
    for i, window in enumerate(windows):
        assert starts_after(window, bpe.eos_token_id).tolist() == [p for p in packed.document_starts(i, LENGTH) if p]


def test_resumed_anywhere_gives_exactly_the_rest(spec: str, bpe: Any) -> None:
    everything = list(StreamedTokens(spec, bpe, LENGTH))
    stream = StreamedTokens(spec, bpe, LENGTH)
    states = [stream.state_dict(), *(stream.state_dict() for _ in stream)]
    assert len(states) == len(everything) + 1
    for n in [0, 1, 2, len(everything) // 2, *range(40, len(everything), 37), len(everything) - 1]:
        resumed = StreamedTokens(spec, bpe, LENGTH)
        resumed.load_state_dict(json.loads(json.dumps(states[n])))
        assert resumed.state_dict() == states[n]
        np.testing.assert_array_equal(list(resumed), everything[n:])
    at_the_end = StreamedTokens(spec, bpe, LENGTH)
    at_the_end.load_state_dict(states[-1])
    assert list(at_the_end) == []
    assert len(list(at_the_end)) == len(everything)  # and then from the beginning


def test_a_resumed_hub_stream_does_not_read_from_the_beginning(corpus: Path, bpe: Any) -> None:
    stream = StreamedTokens(f"hf:json:{corpus}/*.jsonl", bpe, LENGTH)
    for _ in stream:
        pass
    cursor = stream.source.cursor()
    cursor.load_state_dict(stream.state_dict()["position"]["documents"])
    assert len(list(cursor)) < 10  # of 140


def test_a_state_of_another_stream_is_refused(corpus: Path, bpe: Any) -> None:
    state = StreamedTokens(str(corpus), bpe, 5).state_dict()
    with pytest.raises(ValueError, match=r"state of the stream: length: 5, but this stream has 6"):
        StreamedTokens(str(corpus), bpe, 6).load_state_dict(state)


def test_a_sequence_longer_than_the_corpus_is_refused_with_both_numbers(tmp_path: Path, bpe: Any) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ValueError, match=r"a sequence of 2 tokens .* a corpus of 2 "):
        list(StreamedTokens(str(tmp_path / "a.txt"), bpe, 2))
    assert [w.tolist() for w in StreamedTokens(str(tmp_path / "a.txt"), bpe, 1)] == [[bpe.encode("x")[0], 0]]


def test_an_unknown_split_is_refused(bpe: Any, corpus: Path) -> None:
    with pytest.raises(ValueError, match="split is 'test'"):
        StreamedTokens(str(corpus), bpe, LENGTH, "test")
