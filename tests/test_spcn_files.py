"""SPCN on disk: the same bits come back, broken files are named, a failed write leaves the old file, no pickle."""

from __future__ import annotations

import json
import os
import stat
import struct
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from ematrace.spcn import SPCN, storage

WIDTHS = (24, 12)


@pytest.fixture
def saved(tmp_path: Path, sentences: list[list[str]]) -> tuple[SPCN, Path]:
    path = tmp_path / "model.spcn"
    model = SPCN(widths=WIDTHS, random_state=3).fit(sentences)
    model.save(path)
    return model, path


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"directions": "forward", "dtype": "float64"},
        {"directions": "backward", "representation": "l1.traces", "alpha_fast": (0.4, 0.3)},
        {"spa": False, "topk_by": "magnitude", "rectify": False, "update": "synchronous", "precision_power": 1},
        {"ff_rule": "sanger", "unknown_words": "zero", "reset": "never", "n_jobs": 2, "decay": 0.3},
        {"vocabulary": [f"w{i}" for i in reversed(range(14))] + ["naïve", "語", '"quoted"']},
    ],
)
def test_round_trip(
    tmp_path: Path, sentences: list[list[str]], held_out: list[list[str]], settings: dict[str, Any]
) -> None:
    path = tmp_path / "model.spcn"
    model = SPCN(widths=WIDTHS, **settings).fit(sentences)
    model.save(path)
    loaded = SPCN.load(path)
    for given in (sentences, held_out, [], [[]]):
        expected = model.transform(given)
        features = loaded.transform(given)
        assert len(features) == len(expected)
        assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(features, expected, strict=True))
    assert loaded.vocabulary_ == model.vocabulary_
    assert loaded.n_tokens_seen_ == model.n_tokens_seen_
    for name, value in model.get_params().items():
        if name != "vocabulary":
            as_read = loaded.get_params()[name]
            assert as_read == (list(value) if isinstance(value, tuple) else value), name
    # It goes on learning where it was.
    loaded.partial_fit(held_out)
    model.partial_fit(held_out)
    assert np.array_equal(loaded.encode(sentences), model.encode(sentences))
    for side in model.directions_:
        assert all(np.array_equal(a, b) for a, b in zip(loaded.W_fb(side), model.W_fb(side), strict=True))
    # And again.
    loaded.save(path)
    assert np.array_equal(SPCN.load(path).encode(sentences), model.encode(sentences))


def test_the_file_is_plain_safetensors(saved: tuple[SPCN, Path]) -> None:
    """8 bytes of length, a JSON header, and numbers to the last byte: nothing that could be executed."""
    model, path = saved
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__")
    assert json.loads(metadata["config"])["format"] == "ematrace.spcn"
    assert {tensor["dtype"] for tensor in header.values()} == {"F32"}
    spans = sorted(tensor["data_offsets"] for tensor in header.values())
    assert spans[0][0] == 0
    assert all(end == start for (_, end), (start, _) in pairwise(spans))
    assert spans[-1][1] == len(data) - 8 - length
    with safe_open(path, framework="numpy") as file:
        assert set(file.keys()) == {
            f"{side}.{name}"
            for side in ("forward", "backward")
            for name in ("ff", "fb", "lat", "fb_scale", "variance", "precision")
        }
        assert np.array_equal(file.get_tensor("forward.lat"), model.weights_["forward"].lat)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.spcn"):
        SPCN.load(tmp_path / "nowhere.spcn")


def test_not_fitted(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not fitted"):
        SPCN().save(tmp_path / "model.spcn")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("share", [0.0, 0.0005, 0.1, 0.5, 0.99, 0.99999])
def test_a_file_cut_short_is_named(saved: tuple[SPCN, Path], share: float) -> None:
    _, path = saved
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(ValueError, match=r"model\.spcn"):
        SPCN.load(path)


@pytest.mark.parametrize("data", [b"", b"hello", b"\x80\x04N.", b"\xff" * 64, b"PK\x03\x04" + bytes(100)])
def test_another_kind_of_file_is_named(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "model.spcn"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"model\.spcn"):
        SPCN.load(path)


def tampered(path: Path, change: Callable[[dict[str, Any], dict[str, np.ndarray]], str | None]) -> None:
    """Rewrite a file with a changed header or changed tensors; a returned string replaces the whole config."""
    with safe_open(path, framework="numpy") as file:
        config = json.loads(file.metadata()["config"])
    tensors = load_file(path)
    text = change(config, tensors)
    text = json.dumps(config) if text is None else text
    metadata = {"config": text, "sha256": storage.checksum(text, tensors)}  # of whoever knows how it is made
    save_file(tensors, path, metadata=None if text == "" else metadata)


TAMPERINGS: dict[str, Callable[[dict[str, Any], dict[str, np.ndarray]], str | None]] = {
    "no header": lambda c, t: "",
    "header is not JSON": lambda c, t: "{",
    "header is not a table": lambda c, t: "[1, 2]",
    "another format": lambda c, t: c.update(format="someone.else"),
    "a later version": lambda c, t: c.update(version=3),
    "nested a thousand deep": lambda c, t: '{"format": ' + "[" * 1000 + "]" * 1000 + "}",
    "an integer of 5,000 digits": lambda c, t: '{"format": ' + "1" * 5000 + "}",
    "seen what cannot be": lambda c, t: c.update(seen=-1),
    "widths that would take terabytes": lambda c, t: c["params"].update(widths=[10**6, 10**6]),
    "widths of many digits": lambda c, t: c["params"].update(widths=[10**90, 10**90]),
    "a window that would take terabytes": lambda c, t: c["params"].update(spa_window=10**12),
    "widths that are no numbers of units": lambda c, t: c["params"].update(widths=[24.0, 12.0]),
    "weights that are not finite": lambda c, t: t["forward.ff"].__setitem__((0, 0, 0), np.nan),
    "a tensor too many": lambda c, t: t.update({"sideways.ff": np.zeros(3, np.float32)}),
    "no settings": lambda c, t: c.pop("params") and None,
    "unknown setting": lambda c, t: c["params"].update(temperature=1),
    "bad setting": lambda c, t: c["params"].update(k=7),
    "setting of another type": lambda c, t: c["params"].update(widths=3),
    "other widths": lambda c, t: c["params"].update(widths=[24, 13, 5]),
    "other dtype": lambda c, t: c["params"].update(dtype="float64"),
    "no vocabulary": lambda c, t: c["params"].update(vocabulary=None),
    "long vocabulary": lambda c, t: c["params"].update(vocabulary=[f"v{i}" for i in range(99)]),
    "missing tensor": lambda c, t: t.pop("forward.fb") is None or None,
    "missing direction": lambda c, t: [t.pop(name) for name in list(t) if name.startswith("backward")] and None,
    "tensor of another shape": lambda c, t: t.update({"backward.lat": np.zeros((2, 3, 3), np.float32)}),
    "tensor of another dtype": lambda c, t: t.update({"forward.ff": t["forward.ff"].astype(np.float64)}),
}


@pytest.mark.parametrize("change", TAMPERINGS.values(), ids=TAMPERINGS)
def test_a_file_that_contradicts_itself_is_named(saved: tuple[SPCN, Path], change: Any) -> None:
    _, path = saved
    tampered(path, change)
    with pytest.raises(ValueError, match=r"model\.spcn: not a readable SPCN model"):
        SPCN.load(path)


def test_nothing_is_allocated_for_a_file_that_is_refused(saved: tuple[SPCN, Path]) -> None:
    """Settings that ask for gigabytes, in a file of kilobytes."""
    _, path = saved
    tampered(path, lambda config, tensors: config["params"].update(widths=[20_000, 20_000]))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"tensor forward.ff is F32\[2, 24, 24\], not F32\[2, 20000, 20000\]"):
            SPCN.load(path)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("place", [0.02, 0.3, 0.6, 0.999])
def test_a_flipped_bit_is_noticed(saved: tuple[SPCN, Path], place: float) -> None:
    _, path = saved
    data = bytearray(path.read_bytes())
    data[int(place * len(data))] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"model\.spcn: not a readable SPCN model"):
        SPCN.load(path)


def test_a_file_of_version_0_1_has_no_checksum(saved: tuple[SPCN, Path], sentences: list[list[str]]) -> None:
    model, path = saved
    with safe_open(path, framework="numpy") as file:
        config = json.loads(file.metadata()["config"])
    save_file(load_file(path), path, metadata={"config": json.dumps(config | {"version": 1})})
    assert np.array_equal(SPCN.load(path).encode(sentences), model.encode(sentences))
    save_file(load_file(path), path, metadata={"config": json.dumps(config)})
    with pytest.raises(ValueError, match="'sha256' is missing"):
        SPCN.load(path)


def test_weights_without_a_checksum_that_overflow_are_refused(saved: tuple[SPCN, Path]) -> None:
    _, path = saved
    with safe_open(path, framework="numpy") as file:
        config = json.loads(file.metadata()["config"])
    tensors = load_file(path)
    tensors["forward.ff"] = np.full_like(tensors["forward.ff"], 3e38)
    save_file(tensors, path, metadata={"config": json.dumps(config | {"version": 1})})
    with pytest.raises(
        ValueError, match=r"model\.spcn: not a readable SPCN model \(its weights are too large: .* is not finite"
    ):
        SPCN.load(path)


def test_weights_begin_at_a_cache_line(saved: tuple[SPCN, Path]) -> None:
    """Also when they were read from a file, where tensors begin anywhere; SPCN is a tenth faster so."""
    model, path = saved
    for one in (model, SPCN.load(path)):
        weights = one.weights_["backward"]
        assert [getattr(weights, name).ctypes.data % 64 for name in ("ff", "fb", "lat", "variance")] == [0] * 4


def test_a_file_from_before_the_setting_is_of_the_locked_network(tmp_path: Path, sentences: list[list[str]]) -> None:
    """Its weights were drawn for unit length, whatever the default is by now."""
    model = SPCN(widths=WIDTHS, network="locked").fit(sentences)
    model.save(path := tmp_path / "model.spcn")
    tampered(path, lambda config, tensors: config["params"].pop("network") and None)
    assert SPCN.load(path).network == "locked"
    assert np.array_equal(SPCN.load(path).encode(sentences), model.encode(sentences))


def test_a_file_with_a_null_representation_is_named(saved: tuple[SPCN, Path]) -> None:
    _, path = saved
    tampered(path, lambda config, tensors: config["params"].update(representation=None))
    with pytest.raises(ValueError, match=r"model\.spcn: not a readable SPCN model"):
        SPCN.load(path)


@pytest.mark.parametrize("words", [["w0"], ["w0", "w0", "w1"], [1, 2, 3]], ids=repr)
def test_a_file_with_another_vocabulary_is_named(saved: tuple[SPCN, Path], words: list[Any]) -> None:
    _, path = saved
    tampered(path, lambda config, tensors: config["params"].update(vocabulary=words))
    with pytest.raises(ValueError, match=r"model\.spcn: not a readable SPCN model"):
        SPCN.load(path)


def fail(*args: object, **kwargs: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("broken", ["serialise", "flush to disk", "replace"])
def test_a_failed_write_leaves_the_old_file(
    saved: tuple[SPCN, Path], monkeypatch: pytest.MonkeyPatch, held_out: list[list[str]], broken: str
) -> None:
    model, path = saved
    before = path.read_bytes()
    model.partial_fit(held_out)
    with monkeypatch.context() as patch:
        if broken == "serialise":
            patch.setattr(storage, "save", fail)
        else:
            patch.setattr(os, "fsync" if broken == "flush to disk" else "replace", fail)
        with pytest.raises(OSError, match="No space left"):
            model.save(path)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    model.save(path)
    assert path.read_bytes() != before


def test_saving_where_there_is_no_folder(saved: tuple[SPCN, Path], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        saved[0].save(tmp_path / "no" / "folder.spcn")


def test_the_file_has_the_usual_permissions(saved: tuple[SPCN, Path], tmp_path: Path) -> None:
    usual = tmp_path / "usual"
    usual.touch()
    assert stat.S_IMODE(saved[1].stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)


@pytest.mark.parametrize(
    "settings", [{"random_state": np.int64(3)}, {"widths": tuple(np.array(WIDTHS))}, {"alpha": np.float32(1)}], ids=str
)
def test_numpy_numbers_in_settings_are_written(
    tmp_path: Path, sentences: list[list[str]], settings: dict[str, Any]
) -> None:
    model = SPCN(**{"widths": WIDTHS, **settings}).fit(sentences)
    model.save(tmp_path / "model.spcn")
    assert np.array_equal(SPCN.load(tmp_path / "model.spcn").encode(sentences), model.encode(sentences))
