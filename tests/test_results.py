"""Cells as files: what is written comes back, everything else is refused in one line that names file and field."""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ematrace.results.provenance as provenance_module
import ematrace.results.store as store_module
from cells_support import DATE, make_file, make_provenance, make_row
from ematrace.results import CellFile, Metric, ResultError, Row, Store, collect_provenance, read_file, write_file
from ematrace.results.schema import decode_file, encode_file, file_name

ROOT = Path(__file__).resolve().parents[1]
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,8}", fullmatch=True)
LINES = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), max_size=12)
FACTORS = LINES | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.booleans()
NUMBERS = st.floats(1e-30, 1e30) | st.floats(-1e30, -1e-30) | st.just(0.0)
METRICS = st.builds(
    Metric,
    value=st.none() | NUMBERS,
    unit=st.sampled_from(["", "s", "nats"]),
    n=st.none() | st.integers(1, 2**53),
    better=st.sampled_from([None, "low", "high"]),
    repetitions=st.lists(NUMBERS, max_size=3).map(tuple),
)


def full_file() -> CellFile:
    return make_file(
        Row({"representation": "l0+traces"}, {"within": Metric(1 / 3, "accuracy", 21234), "loss": Metric(5.2, "nats")}),
        Row({"representation": "l0", "role": 'det "agent"'}, {"within": Metric(None, "accuracy", 0)}),
        Row({"lag": 3}, {"seconds": Metric(0.2, "s", better="low", repetitions=(0.1, 0.2, 0.3))}),
        factors={"grammar": "default", "k": 0.02, "projected": False},
    )


def record_with(*change: Any) -> bytes:
    """The full file's JSON with the value at a path (keys, then value) changed; `...` deletes it."""
    record = json.loads(encode_file(full_file()))
    *path, last, value = change
    place = record
    for key in path:
        place = place[key]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return json.dumps(record).encode()


def refusal(data: bytes) -> str:
    with pytest.raises(ResultError) as caught:
        decode_file(data, "f.json")
    message = str(caught.value)
    assert message.startswith("f.json: ")
    assert "\n" not in message
    assert len(message) < 600
    return message


class TestFile:
    def test_round_trip(self) -> None:
        assert decode_file(encode_file(full_file())) == full_file()

    def test_what_stands_on_disk(self) -> None:
        """The documented schema, a cell a line."""
        text = encode_file(full_file()).decode()
        record = json.loads(text)
        assert list(record) == ["schema", "experiment", "scale", "seed", "factors", "settings", "provenance", "cells"]
        assert record["schema"] == 2
        assert record["cells"][0]["metrics"]["within"] == {"value": 1 / 3, "unit": "accuracy", "n": 21234}
        assert record["cells"][1]["metrics"]["within"]["value"] is None
        assert sum(line.startswith('    {"factors"') for line in text.splitlines()) == 3

    @given(
        rows=st.lists(st.tuples(NAMES, FACTORS, st.dictionaries(NAMES, METRICS, max_size=2)), max_size=3),
        factors=st.dictionaries(NAMES, FACTORS, max_size=3),
        seed=st.integers(0, 2**53),
    )
    def test_whatever_can_be_built_comes_back(self, rows: Any, factors: dict[str, Any], seed: int) -> None:
        cells = {name: Row({name: value}, metrics) for name, value, metrics in rows if name not in factors}
        file = make_file(*cells.values(), factors=factors, seed=seed)
        again = decode_file(encode_file(file))
        assert again == file
        assert again.name == file.name

    def test_cells_know_everything_of_their_run(self) -> None:
        first, _, third = full_file().unpack()
        assert first.factors == {"grammar": "default", "k": 0.02, "projected": False, "representation": "l0+traces"}
        assert third.metrics["seconds"].repetitions == (0.1, 0.2, 0.3)
        assert (first.seed, first.scale, first.settings["k"], first.provenance.date) == (0, "cpu", 61, DATE)

    def test_numbers_of_numpy_are_written_as_plain_ones(self) -> None:
        row = Row({"lag": np.int64(3), "on": np.bool_(True)}, {"x": Metric(np.float32(0.5), n=np.int64(7))})
        file = make_file(
            row, factors={"k": np.float64(0.5)}, settings={"k": np.int64(3), "rates": np.array([0.5, 1.0])}
        )
        again = decode_file(encode_file(file))
        assert again.settings == {"k": 3, "rates": [0.5, 1.0]}
        assert again.cells == [Row({"lag": 3, "on": True}, {"x": Metric(0.5, n=7)})]
        assert again.name == file.name == "k-0.5_seed-0_cpu.json"

    @pytest.mark.parametrize(
        ("change", "named"),
        [
            (("schema", 1), "schema 1, this program reads 2"),
            (("schema", 3), "schema 3, this program reads 2"),
            (("schema", "2"), "$.schema"),
            (("experiment", "../x"), "$.experiment"),
            (("experiment", "a/b"), "$.experiment"),
            (("experiment", ""), "$.experiment"),
            (("experiment", "x\n"), "$.experiment"),
            (("experiment", "x" * 101), "$.experiment"),
            (("scale", "tpu"), "$.scale"),
            (("seed", -1), "$.seed"),
            (("seed", True), "$.seed"),
            (("seed", 0.5), "$.seed"),
            (("seed", 10**40), "$.seed"),
            (("settings", None), "$.settings"),
            (("settings", "k", 2**65), "settings"),
            (("settings", "k", ["a\x1b[2J"]), "control characters"),
            (("settings", "a\x00", 1), "control characters"),
            (("factors", "../x", 1), "$.factors"),
            (("factors", "k", [1]), "$.factors"),
            (("factors", "k", None), "$.factors"),
            (("factors", "k", "a\x1b[2J"), "$.factors"),
            (("factors", "k", "two\nlines"), "$.factors"),
            (("factors", "k", 10**40), "$.factors"),
            (("factors", "role", 1), "factor 'role'"),
            (("cells", 0, "factors", "k", 1), "factor 'k'"),
            (("cells", 0, "factors", {"lag": 3}), "{'lag': 3}"),
            (("cells", 0, "factors", {"lag": 3.0}), "{'lag': 3}"),
            (("cells", 0, "metrics", "within", 0.5), "$.cells[0].metrics"),
            (("cells", 0, "metrics", "within", "value", "0.5"), "value"),
            (("cells", 0, "metrics", "within", "value", True), "value"),
            (("cells", 0, "metrics", "within", "value", 1.3), "[0, 1]"),
            (("cells", 0, "metrics", "within", "value", -0.1), "[0, 1]"),
            (("cells", 0, "metrics", "within", "n", 0), "no items"),
            (("cells", 0, "metrics", "within", "n", -1), ".n`"),
            (("cells", 0, "metrics", "within", "n", 2**60), ".n`"),
            (("cells", 0, "metrics", "within", "sd", 0.1), "`sd`"),
            (("cells", 0, "metrics", "loss", "value", 1e31), "1e+31"),
            (("cells", 0, "metrics", "loss", "value", -1e-31), "-1e-31"),
            (("cells", 2, "metrics", "seconds", "repetitions", [0.1, None]), "repetitions"),
            (("cells", 2, "metrics", "seconds", "better", "fast"), "better"),
            (("cells", 0, "extra", 1), "`extra`"),
            (("extra", 1), "`extra`"),
            (("provenance", "date", "yesterday"), "'yesterday'"),
            (("provenance", "date", "2026-01-02T03:04:05"), "time zone"),
            (("provenance", "seconds", "1"), "$.provenance.seconds"),
            (("provenance", "seconds", -1), "$.provenance.seconds"),
            (("provenance", "hardware", {"cpu": ["x"]}), "$.provenance.hardware"),
            (("provenance", "command", "a\nb"), "$.provenance.command"),
            (("provenance", "host", "h"), "`host`"),
        ],
    )
    def test_wrong_field_is_named(self, change: tuple[Any, ...], named: str) -> None:
        assert named in refusal(record_with(*change))

    @pytest.mark.parametrize("field", json.loads(encode_file(full_file())))
    def test_missing_field_is_named(self, field: str) -> None:
        assert f"`{field}`" in refusal(record_with(field, ...))

    @pytest.mark.parametrize("bad", ["NaN", "Infinity", "-Infinity", "1e999", "1" + "0" * 400, "1" + "0" * 9999, "0x1"])
    @pytest.mark.parametrize("place", ['"value": 5.2', '"seed": 0', '"k": 0.02', '"k": 61'])
    def test_numbers_that_no_float_holds_are_refused(self, bad: str, place: str) -> None:
        text = encode_file(full_file()).decode()
        assert place in text
        refusal(text.replace(place, f"{place.split()[0]} {bad}").encode())

    @pytest.mark.parametrize(
        ("old", "new", "field"),
        [
            ('"loss": {', '"within": {', "within"),
            ('"lag": 3', '"lag": 3, "lag": 4', "lag"),
            ('"seed": 0', '"seed": 0, "seed": 1', "seed"),
            ('"schema": 2', '"schema": 2, "schema": 2', "schema"),
            ('"rates":', '"k":', "k"),
        ],
    )
    def test_a_key_given_twice_is_refused(self, old: str, new: str, field: str) -> None:
        text = encode_file(full_file()).decode()
        assert old in text
        assert f"'{field}' is given twice" in refusal(text.replace(old, new).encode())

    @pytest.mark.parametrize(
        "data",
        [
            *(b"", b" ", b"null", b"[]", b"{}", b"3", b"\xff\xfe\x00", b"\xef\xbb\xbf{}", b'"\\ud800"', b"\x00" * 9),
            encode_file(full_file())[:-10],
            encode_file(full_file()) + b"{}",
            encode_file(full_file()).replace(b"l0+traces", b"l0\xfftraces"),
            b"[" * 100_000,
            b'{"a":' * 100_000,
        ],
    )
    def test_what_is_no_result_is_refused(self, data: bytes) -> None:
        refusal(data)

    @pytest.mark.parametrize("depth", [60, 500, 5000, 100_000])
    def test_deep_nesting_is_refused(self, depth: int) -> None:
        text = encode_file(full_file()).decode()
        refusal(text.replace('"k": 61', '"k": ' + "[" * depth + "]" * depth).encode())

    def test_nesting_that_people_write_is_not(self) -> None:
        text = encode_file(full_file()).decode()
        assert decode_file(text.replace('"k": 61', '"k": ' + "[" * 40 + "]" * 40).encode()).seed == 0


class TestFileName:
    @pytest.mark.parametrize(
        ("factors", "name"),
        [
            ({}, "seed-3_cpu.json"),
            ({"grammar": "drawn", "k": 0.02}, "grammar-drawn_k-0.02_seed-3_cpu.json"),
            ({"k": 0.02, "grammar": "drawn"}, "grammar-drawn_k-0.02_seed-3_cpu.json"),
            ({"preset": "spen-130m"}, "preset-spen-130m_seed-3_cpu.json"),
            ({"mixer": "gated_delta"}, "mixer-gated_delta_seed-3_cpu.json"),
            ({"context": "ema", "topk_grad": "masked"}, "context-ema_topk_grad-masked_seed-3_cpu.json"),
            ({"projected": True}, "projected-true_seed-3_cpu.json"),
            ({"k": 1.0}, "k-1_seed-3_cpu.json"),
        ],
    )
    def test_readable(self, factors: dict[str, Any], name: str) -> None:
        assert file_name(factors, 3, "cpu") == name

    def test_text_that_is_no_file_name_keeps_its_readable_part(self) -> None:
        digest = hashlib.sha256(b'{"a": "../../b c"}').hexdigest()[:12]
        assert file_name({"a": "../../b c"}, 0, "cpu") == f"a-..-..-b-c-{digest}_seed-0_cpu.json"

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ({"a": 1}, {"a": "1"}),
            ({"a": True}, {"a": "true"}),
            ({"a": True}, {"a": 1}),
            ({"a": "x_b-y"}, {"a": "x", "b": "y"}),
            ({"a": "x y"}, {"a": "x-y"}),
            ({"a": "x/y"}, {"a": "x y"}),
            ({"a": "é"}, {"a": "-"}),
            ({"a-b": "c"}, {"a": "b-c"}),
            ({"a": "x" * 200}, {"a": "x" * 201}),
            ({}, {"seed": 0}),
        ],
    )
    def test_different_factors_never_meet(self, one: dict[str, Any], other: dict[str, Any]) -> None:
        assert file_name(one, 0, "cpu") != file_name(other, 0, "cpu")

    @given(st.lists(st.dictionaries(NAMES, FACTORS, max_size=3), min_size=2, max_size=6))
    def test_names_are_unique_stable_and_plain(self, points: list[dict[str, Any]]) -> None:
        names = {file_name(point, 0, "cpu") for point in points}
        # 1 and 1.0 are the same value to a selector; True is not 1.
        keyed = {frozenset((k, type(v) is bool, v) for k, v in point.items()) for point in points}
        assert len(names) == len(keyed)
        for name in names:
            assert name.isascii()
            assert "/" not in name
            assert len(name) < 200
        assert names == {file_name(dict(reversed(point.items())), 0, "cpu") for point in points}


class TestWriting:
    def test_path_and_content(self, tmp_path: Path) -> None:
        path = write_file(full_file(), tmp_path / "deep" / "folder")
        assert path == tmp_path / "deep" / "folder" / "one" / "grammar-default_k-0.02_projected-false_seed-0_cpu.json"
        assert read_file(path) == full_file()

    @pytest.mark.parametrize(
        "changes",
        [
            {"settings": {"x": object()}},
            {"settings": {"x": math.nan}},
            {"settings": {"x": {"y": math.inf}}},
            {"settings": {1: "a", "1": "b"}},
            {"settings": {"x": "\ud800"}},
            {"factors": {"k": math.nan}},
            {"factors": {"a b": 1}},
            {"experiment": "../one"},
            {"seed": -1},
            {"provenance": make_provenance(seconds="long")},
        ],
    )
    def test_what_cannot_be_read_back_is_not_written(self, tmp_path: Path, changes: dict[str, Any]) -> None:
        path = write_file(make_file(make_row({"x": 1.0})), tmp_path)
        before = path.read_bytes()
        with pytest.raises(ResultError):
            write_file(make_file(make_row({"x": 2.0}), **changes), tmp_path)
        assert path.read_bytes() == before
        assert list(tmp_path.rglob("*.*")) == [path]

    @pytest.mark.parametrize("step", ["fsync", "replace"])
    def test_failed_write_leaves_the_old_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
        path = write_file(full_file(), tmp_path)
        before = path.read_bytes()

        def fail(*_: Any) -> None:
            raise OSError("disk full")

        monkeypatch.setattr({"fsync": os, "replace": Path}[step], step, fail)
        with pytest.raises(OSError, match="disk full"):
            write_file(full_file(), tmp_path)
        assert path.read_bytes() == before
        assert list(path.parent.iterdir()) == [path]


class TestStore:
    @pytest.fixture(autouse=True)
    def no_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("EMATRACE_RESULTS", raising=False)

    def test_folders_and_marks(self, tmp_path: Path) -> None:
        """The local folder may lie inside the recorded one, as ./results/local does."""
        write_file(make_file(make_row({"x": 1.0}), experiment="b"), tmp_path)
        write_file(make_file(make_row({"x": 2.0}), make_row({"x": 2.5}, lag=1), experiment="a"), tmp_path)
        write_file(make_file(make_row({"x": 3.0}), experiment="a"), tmp_path / "local")
        (tmp_path / "README.json").write_text("not read")
        (tmp_path / "local" / "of_version_0_1.json").write_text("not read")
        (tmp_path / "a" / "notes.txt").write_text("not read")
        loaded = Store(tmp_path, tmp_path / "local").load()
        found = [(s.cell.experiment, s.cell.metrics["x"].value, s.local) for s in loaded]
        assert found == [("a", 2.0, False), ("a", 2.5, False), ("b", 1.0, False), ("a", 3.0, True)]
        assert loaded[-1].path == tmp_path / "local" / "a" / "seed-0_cpu.json"

    def test_one_folder_given_as_both_is_local(self, tmp_path: Path) -> None:
        write_file(make_file(make_row({"x": 1.0})), tmp_path)
        assert [s.local for s in Store(tmp_path, tmp_path / "one" / "..").load()] == [True]

    def test_nothing_there_is_nothing_loaded(self, tmp_path: Path) -> None:
        assert Store(None, tmp_path / "nowhere").load() == []

    @pytest.mark.parametrize("name", ["cut_short.json", "seed-0_cpu.json"])
    def test_broken_file_is_named(self, tmp_path: Path, name: str) -> None:
        path = write_file(make_file(make_row({"x": 1.0})), tmp_path)
        broken = path.with_name(name)
        broken.write_bytes(path.read_bytes()[:100])
        with pytest.raises(ResultError, match=f"^{broken}: "):
            Store(tmp_path, tmp_path / "local").load()

    def test_directory_in_place_of_a_file_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "one" / "x.json").mkdir(parents=True)
        with pytest.raises(ResultError, match=r"one/x\.json: Is a directory"):
            Store(tmp_path, tmp_path / "local").load()

    @pytest.mark.parametrize("place", ["one/copy.json", "two/seed-0_cpu.json", "one/seed-1_cpu.json"])
    def test_a_copy_in_another_place_is_refused(self, tmp_path: Path, place: str) -> None:
        """It would count as a second run."""
        path = write_file(make_file(make_row({"x": 1.0})), tmp_path)
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_bytes(path.read_bytes())
        with pytest.raises(ResultError, match=rf"{place}: holds what belongs in one/seed-0_cpu\.json"):
            Store(tmp_path, tmp_path / "local").load()

    def test_environment_and_path_override_the_checkout(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert Store.open() == Store(ROOT / "results", Path("results/local"))
        (tmp_path / "env").mkdir()
        (tmp_path / "given").mkdir()
        monkeypatch.setenv("EMATRACE_RESULTS", str(tmp_path / "env"))
        assert Store.open().recorded == tmp_path / "env"
        assert Store.open(tmp_path / "given", tmp_path / "mine") == Store(tmp_path / "given", tmp_path / "mine")
        with pytest.raises(ResultError, match=r"nowhere: no such results folder$"):
            Store.open(tmp_path / "nowhere")
        monkeypatch.setenv("EMATRACE_RESULTS", str(tmp_path / "gone"))
        with pytest.raises(ResultError, match=r"gone: no such results folder \(from EMATRACE_RESULTS\)$"):
            Store.open()

    def test_installed_wheel_has_no_recorded_results(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(store_module, "checkout_root", lambda: None)
        assert Store.open(local=tmp_path) == Store(None, tmp_path)


class TestProvenance:
    @pytest.fixture(autouse=True)
    def no_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("EMATRACE_COMMIT", raising=False)

    def test_this_machine_and_this_code(self) -> None:
        provenance = collect_provenance(2.5, command="ematrace reproduce one", packages=["pytest", "no-such-package"])
        assert (provenance.seconds, provenance.command) == (2.5, "ematrace reproduce one")
        assert provenance.date.endswith("+00:00")
        assert provenance.hardware["cores"] == len(os.sched_getaffinity(0))
        assert provenance.hardware["cpu"]
        assert provenance.versions["numpy"] == np.__version__
        assert provenance.versions["pytest"] == pytest.__version__
        assert provenance.versions["no-such-package"] is None
        assert provenance.peak_memory_mb is not None
        assert 10 < provenance.peak_memory_mb < 1e6
        assert decode_file(encode_file(make_file(provenance=provenance))).provenance == provenance

    def test_outside_a_checkout_there_is_no_commit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(provenance_module, "checkout_root", lambda: None)
        assert (collect_provenance(1.0).commit, collect_provenance(1.0).dirty) == (None, None)

    def test_variable_names_the_commit_of_a_copied_tree(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("EMATRACE_COMMIT", "0123abc")
        assert (collect_provenance(1.0).commit, collect_provenance(1.0).dirty) == ("0123abc", False)

    @pytest.mark.parametrize("typed", ["COMMIT", "$(git rev-parse HEAD)", "0123ab", "0123abc\n", "0123ABC", 41 * "a"])
    def test_variable_that_names_no_commit_is_refused_in_one_line(
        self, typed: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("EMATRACE_COMMIT", typed)
        with pytest.raises(ValueError, match=r"^EMATRACE_COMMIT is '.*'; it must be a commit, 7 to 40 .*\Z"):
            collect_provenance(1.0)

    def test_dirty_means_the_code_not_the_results(self, tmp_path: Path) -> None:
        git, state = provenance_module._git, provenance_module._git_state
        (tmp_path / "src").mkdir()
        (tmp_path / "src" / "code.py").write_text("x = 1\n")
        assert git(tmp_path, "init", "-q") is not None
        git(tmp_path, "add", "src")
        identity = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false")
        assert git(tmp_path, *identity, "commit", "-q", "-m", "first") is not None
        (tmp_path / "results").mkdir()
        (tmp_path / "results" / "one.json").write_text("{}")
        assert state(tmp_path) == (git(tmp_path, "rev-parse", "HEAD"), False)
        (tmp_path / "src" / "new.py").write_text("x = 2\n")
        assert state(tmp_path)[1] is True
