"""How often a pair occurred in training: counted in the text that was trained on, without what was held out of it."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Callable
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ematrace.analysis.gap_design import SPEN
from ematrace.experiments import gap_text
from ematrace.experiments.base import Context
from ematrace.experiments.gap_task import measure_arm
from ematrace.experiments.recall import PairCounts
from ematrace.text import PackedTokens, pack, train_bpe
from test_gap import TINY


def test_counts_are_those_of_the_text_that_was_trained_on(tmp_path: Any) -> None:
    """Of a single document training holds out the end, whose word must count as never seen, in other texts as well."""
    data, other = tmp_path / "text.txt", tmp_path / "other.txt"
    data.write_text("the cat sat on the mat\n" * 300 + "zq zq zq zq\n" * 40)
    other.write_text("zq " * 200)
    tokenizer = str(gap_text.tokenizer_folder(str(data), 300))
    for source in (None, str(other)):
        assert not gap_text.scored_text(str(data), "train", source, tokenizer, 16, 4).count[-1].any()
    assert gap_text.scored_text(str(data), "all", str(other), tokenizer, 16, 4).count[-1].all()


@pytest.mark.parametrize("held_out", [True, False])
def test_an_arm_counts_in_all_of_its_text_only_with_a_validation_of_its_own(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, held_out: bool
) -> None:
    data = tmp_path / "text.txt"
    data.write_text("the cat sat on the mat while one dog ran after it\n" * 400)
    seen, scored = [], gap_text.scored_text
    monkeypatch.setattr(gap_text, "scored_text", lambda *given: seen.append(given[1]) or scored(*given))
    texts = {"texts": {"other": str(data)}, "validation": None if held_out else str(data)}
    measure_arm(Context(seed=0, data=str(data), settings=TINY | texts), SPEN, "toy", 3e-3)
    assert seen == ["train" if held_out else "all"] * 2


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackedTokens:
    """A text whose counts are in no cache yet, and which is counted in several stretches."""
    monkeypatch.setenv("EMATRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(gap_text, "COUNTED_AT_ONCE", 100)
    data = tmp_path / "text.txt"
    data.write_text(" ".join(f"the cat sat on mat {i} while {i * i} dogs ran" for i in range(100)))
    return pack(str(data), train_bpe([data.read_text()], 280))


def by_hand(text: PackedTokens) -> dict[int, int]:
    pairs = Counter(pairwise(text.tokens(0, text.n_tokens).tolist()))
    return {before * text.vocab_size + after: n for (before, after), n in sorted(pairs.items())}


def as_dict(pairs: PairCounts) -> dict[int, int]:
    return dict(zip(pairs.codes.tolist(), pairs.counts.tolist(), strict=True))


def kept_file(tmp_path: Path) -> Path:
    (path,) = (tmp_path / "cache" / "pairs").glob("*.npz")
    return path


def test_of_several_processes_one_counts_and_the_others_read(
    packed: PackedTokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, count = tmp_path / "log", PairCounts.of

    def counted(*given: Any) -> PairCounts:
        with log.open("a") as file:
            file.write("counted\n")
        time.sleep(0.3)  # in which the others begin, too
        return count(*given)

    monkeypatch.setattr(PairCounts, "of", counted)
    wanted = by_hand(packed)

    def work() -> None:
        found = gap_text.pairs_in(packed)
        assert list(as_dict(found).items()) == list(wanted.items())  # in order, too

    processes = [multiprocessing.get_context("fork").Process(target=work) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert log.read_text() == "counted\n"
    assert {path.suffix for path in kept_file(tmp_path).parent.iterdir()} <= {".npz", ".lock"}  # no part of a file


def test_texts_of_as_many_tokens_are_kept_apart(
    packed: PackedTokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bytes_alone = train_bpe(["abc"], 257)
    texts = []
    for name, word in (("one", "abc"), ("other", "acb")):
        (tmp_path / f"{name}.txt").write_text(word * 50)
        texts.append(pack(str(tmp_path / f"{name}.txt"), bytes_alone))
    assert texts[0].n_tokens == texts[1].n_tokens
    for text in texts:
        assert as_dict(gap_text.pairs_in(text)) == by_hand(text)
    monkeypatch.setattr(PairCounts, "of", None)  # from now on they are read
    for text in texts:
        assert as_dict(gap_text.pairs_in(text)) == by_hand(text)


def flip_bit(at: float) -> Callable[[bytes], bytes]:
    def damage(content: bytes) -> bytes:
        i = int(at * len(content))
        return content[:i] + bytes([content[i] ^ 1]) + content[i + 1 :]

    return damage


def of_another_text(content: bytes) -> bytes:
    file = BytesIO()
    np.savez(file, codes=np.array([3, 5]), counts=np.array([2, 2]))
    return file.getvalue()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "no zip": lambda content: b"x" * len(content),
    "a bit of the codes": flip_bit(0.25),
    "a bit of the counts": flip_bit(0.75),
    "another text": of_another_text,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_counted_again(
    packed: PackedTokens, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    gap_text.pairs_in(packed)
    path = kept_file(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert as_dict(gap_text.pairs_in(packed)) == by_hand(packed)
    assert path.read_bytes() == whole  # and mended


def test_a_full_disk_costs_the_file_alone(packed: PackedTokens, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, content: bytes) -> Path:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(gap_text, "write_atomically", refuse)
    assert as_dict(gap_text.pairs_in(packed)) == by_hand(packed)
