"""Files are written whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from ematrace.files import write_atomically


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


def test_a_missing_folder_is_an_error_and_is_not_made(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "none" / "a.json", b"new")
    assert list(tmp_path.iterdir()) == []


def test_permissions_are_those_of_any_other_file(tmp_path):
    """A temporary file of `tempfile` would be readable by its owner alone, and the page could not be shared."""
    (tmp_path / "usual").write_bytes(b"")
    path = write_atomically(tmp_path / "ours", b"")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "usual").stat().st_mode)
