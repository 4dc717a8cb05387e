"""Files are written whole or not at all; JSON is read with one-line errors that name the file."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from ematrace.files import parse_json, read_json, write_atomically


def test_content_arrives_byte_for_byte_and_the_path_is_returned(tmp_path):
    content = bytes(range(256)) * 100 + b"\r\n\0"
    path = write_atomically(str(tmp_path / "a.bin"), content)
    assert path == tmp_path / "a.bin"
    assert path.read_bytes() == content


def test_an_old_file_is_replaced_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b"old and longer")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("failing", ["fsync", "replace"])
@pytest.mark.parametrize("old", [b"old", None])
def test_a_failure_leaves_the_old_file_and_no_temporary_one(tmp_path, monkeypatch, failing, old):
    path = tmp_path / "a.json"
    if old is not None:
        path.write_bytes(old)
    if failing == "fsync":
        monkeypatch.setattr(os, "fsync", full_disk)
    else:
        monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomically(path, b"new")
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(path)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == ([] if old is None else [("a.json", old)])


def test_ctrl_c_while_writing_leaves_the_old_file_and_no_temporary_one(tmp_path, monkeypatch):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "a.json"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("a.json", b"old")]


def test_content_is_on_disk_before_it_takes_the_name(tmp_path, monkeypatch):
    path, seen = tmp_path / "a.json", []
    path.write_bytes(b"old")
    real = os.fsync

    def spy(descriptor: int) -> None:
        seen.append((path.read_bytes(), os.fstat(descriptor).st_size))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", spy)
    write_atomically(path, b"brand new")
    assert seen == [(b"old", len(b"brand new"))]


def test_a_device_or_pipe_is_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match="pipe: not a file"):
        write_atomically(pipe, b"text")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_missing_folder_is_an_error_and_is_not_made(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        write_atomically(tmp_path / "none" / "a.json", b"new")
    assert str(caught.value) == f"[Errno 2] No such file or directory: '{tmp_path / 'none' / 'a.json'}'"
    assert list(tmp_path.iterdir()) == []


def test_permissions_are_those_of_any_other_file(tmp_path):
    """A temporary file of `tempfile` would be readable by its owner alone, and the page could not be shared."""
    (tmp_path / "usual").write_bytes(b"")
    path = write_atomically(tmp_path / "ours", b"")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "usual").stat().st_mode)


DAMAGED = {
    "nothing": (b"", "empty"),
    "blanks": (b" \n\t ", "empty"),
    "no UTF-8": (b'{"a": "\xff"}', "not UTF-8 text: .* at byte 7"),
    "cut short": (b'{"a": [1, 2', "not JSON: .* line 1 column 12"),
    "trailing garbage": (b'{"a": 1} {"b"', "not JSON: Extra data: line 1 column 10"),
    "an array": (b"[1]", "holds a JSON array, not a JSON object"),
    "null": (b"null", "holds null, not a JSON object"),
    "too deep": (b'{"a":' + b"[" * 100 + b"]" * 100 + b"}", "nested more than 100 levels deep"),
    "a nesting bomb": (b'{"a":' * 100_000, "nested more than 100 levels deep"),
    "a long integer": (b'{"a": ' + b"1" * 5000 + b"}", "an integer of 5000 digits"),
    "a long negative integer": (b'{"a": -' + b"1" * 101 + b"}", "an integer of 102 digits"),
    "NaN": (b'{"a": NaN}', "NaN is not a finite number"),
    "infinity": (b'{"a": [-Infinity]}', "-Infinity is not a finite number"),
    "overflow": (b'{"a": 1e999}', "1e999 is not a finite number"),
    "a key twice": (b'{"b": {"a": 1, "a": 2}}', "field 'a' is given twice"),
    "half a surrogate pair": (b'{"a": "\\ud800"}', "half of a surrogate pair"),
}


@pytest.mark.parametrize(("content", "message"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_json_file_is_one_line_that_names_it(tmp_path, content, message):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_json(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'\xef\xbb\xbf{"a": 1}\r\n', {"a": 1}),  # as editors on Windows save it
        ('{"a": [-0.5, 1e300, "\\ud83d\\ude00", null, true]}', {"a": [-0.5, 1e300, "\U0001f600", None, True]}),
        ('{"a": ' + "[" * 99 + "]" * 99 + "}", None),
        ('{"a": ' + "9" * 100 + "}", {"a": 10**100 - 1}),
    ],
)
def test_json_that_is_fine_is_read_as_it_stands(text, value):
    found = parse_json(text, "config.json")
    assert found == value or value is None


def test_the_kind_is_the_callers_and_true_is_no_number():
    assert parse_json("[]", "x", list) == []
    assert parse_json("null", "x", object) is None
    with pytest.raises(ValueError, match="x: holds true, not an integer"):
        parse_json("true", "x", int)
    assert repr(parse_json("[NaN, 1e999]", "x", list, allow_nan=True)) == "[nan, inf]"


def test_what_is_no_file_is_named_and_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "/dev/zero"):
        with pytest.raises(ValueError, match="not a file") as caught:
            read_json(tmp_path / name)
        assert str(caught.value).startswith(str(tmp_path / name))
    for name, kind in (("none.json", FileNotFoundError), (".", IsADirectoryError)):
        with pytest.raises(kind) as named:
            read_json(tmp_path / name)
        assert named.value.filename == str(tmp_path / name)
