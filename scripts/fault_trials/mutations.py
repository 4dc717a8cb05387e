"""Damage to a file: to its bytes, to its place in the folder, to the JSON in it."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

LONG = "1" * 5000  # an integer that Python refuses to parse
DEEP = "[" * 1000 + "]" * 1000
# Python makes neither of the last two, so they are put into the text.
HOSTILE: tuple[Any, ...] = (
    *(None, True, False, [], {}, "", "x", "../../x", "\ud800", 0, -1, 1, 2**31, 2**63, 10**12, 1e308, -0.5),
    *(float("nan"), float("inf"), [1], {"a": 1}, [[]], "@LONG@", "@DEEP@"),
)


def flip_bit(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :]


def overwrite(data: bytes, draw: random.Random) -> bytes:
    at, length = draw.randrange(len(data)), draw.randint(1, 64)
    return data[:at] + draw.randbytes(min(length, len(data) - at)) + data[at + length :]


def zero(data: bytes, draw: random.Random) -> bytes:
    at, length = draw.randrange(len(data)), draw.randint(1, 4096)
    return data[:at] + bytes(min(length, len(data) - at)) + data[at + length :]


def repeat(data: bytes, draw: random.Random) -> bytes:
    at, length = draw.randrange(len(data)), draw.randint(1, 64)
    return data[: at + length] + data[at:]


def bad_utf8(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data) + 1)
    return data[:at] + draw.choice((b"\xff", b"\xc3", b"\x80", b"\xed\xa0\x80", b"\0")) + data[at:]


BYTES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "one bit flipped": flip_bit,
    "bytes overwritten": overwrite,
    "bytes zeroed": zero,
    "bytes repeated": repeat,
    "bad UTF-8": bad_utf8,
    "cut short": lambda data, draw: data[: draw.randrange(len(data))],
    "garbage at the end": lambda data, draw: data + draw.randbytes(draw.randint(1, 100)),
    "empty": lambda data, draw: b"",
    "all garbage": lambda data, draw: draw.randbytes(len(data)),
    "other JSON": lambda data, draw: draw.choice((b"null", b"[]", b"{}", b"0", b'"x"', DEEP.encode(), LONG.encode())),
}


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def to_other_kind(path: Path) -> None:
    """A folder where a file was, a file where a folder was."""
    was_folder = path.is_dir()
    remove(path)
    path.write_text("x") if was_folder else path.mkdir()


def to_dangling_link(path: Path) -> None:
    remove(path)
    path.symlink_to("nowhere")


def to_loop(path: Path) -> None:
    remove(path)
    path.symlink_to(path.name)


def to_link(path: Path) -> None:
    """The same content, elsewhere."""
    moved = path.with_name(f"moved-{path.name}")
    path.rename(moved)
    path.symlink_to(moved.name)


DELETED = "deleted"
PLACES: dict[str, Callable[[Path], None]] = {
    DELETED: remove,
    "a folder or file instead": to_other_kind,
    "a dangling link instead": to_dangling_link,
    "a link to itself instead": to_loop,
    "a link to a copy instead": to_link,
}


def damage(path: Path, draw: random.Random) -> str:
    """Damage the file or folder in one of the ways that suit it, drawn; says which."""
    if path.is_dir():
        way = draw.choice([*PLACES])
        PLACES[way](path)
        return f"{path}: {way}"
    data = path.read_bytes()
    ways = [*BYTES] * bool(data) + [*PLACES]
    if has_json(path):
        ways += ["JSON"] * len(ways)
    way = draw.choice(ways)
    if way == "JSON":
        changed, what = change_json(path.suffix, data, draw)
        path.write_bytes(changed)
        return f"{path}: {what}"
    if way in PLACES:
        PLACES[way](path)
    else:
        path.write_bytes(BYTES[way](data, draw))
    return f"{path}: {way}"


def has_json(path: Path) -> bool:
    return path.suffix in (".json", ".jsonl", ".safetensors")


def change_json(suffix: str, data: bytes, draw: random.Random) -> tuple[bytes, str]:
    """One value of a JSON file, of one line of it, or of the header of a safetensors file."""
    if suffix == ".safetensors":
        size = int.from_bytes(data[:8], "little")
        header, what = change_value(data[8 : 8 + size], draw)
        header += b" " * (-len(header) % 8)
        return len(header).to_bytes(8, "little") + header + data[8 + size :], what
    if suffix == ".jsonl":
        lines = data.splitlines(keepends=True)
        at = draw.randrange(len(lines))
        changed, what = change_value(lines[at], draw)
        return b"".join((*lines[:at], changed + b"\n", *lines[at + 1 :])), f"line {at + 1}, {what}"
    return change_value(data, draw)


def change_value(data: bytes, draw: random.Random) -> tuple[bytes, str]:
    """Replace or remove one value, at any depth."""
    top = json.loads(data)
    places = list(_places(top, ()))
    inner = [place for place in places if _is_json(_value_at(top, place))]
    place = draw.choice(inner if inner and draw.random() < 0.5 else places) if places else ()
    value = draw.choice(HOSTILE)
    if not place:
        top, what = value, "the whole"
    else:
        inside = _value_at(top, place[:-1])
        what = ".".join(str(key)[:30] for key in place)
        if isinstance(inside, dict) and draw.random() < 0.2:
            del inside[place[-1]]
            return json.dumps(top).encode(), f"{what} removed"
        before = inside[place[-1]]
        if _is_json(before):
            changed, below = change_value(before.encode(), draw)
            inside[place[-1]] = changed.decode()
            return json.dumps(top).encode(), f"{what}: {below}"
        if isinstance(before, int | float) and not isinstance(before, bool) and draw.random() < 0.3:
            value = draw.choice((before + 1, before - 1, before * 2, -before, before / 2))
        inside[place[-1]] = value
    text = json.dumps(top).replace('"@LONG@"', LONG).replace('"@DEEP@"', DEEP)
    return text.encode(), f"{what} = {json.dumps(value)[:40]}"


def _value_at(top: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        top = top[key]
    return top


def _is_json(value: Any) -> bool:
    """Text that is JSON itself, as the header of a safetensors file has it."""
    return isinstance(value, str) and value.startswith("{") and value.endswith("}")


def _places(value: Any, at: tuple[Any, ...]) -> Any:
    """Of every value: a place deep down is as likely as one at the top, but long lists count as a few values."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:8]) if isinstance(value, list) else ()
    for key, inside in items:
        yield (*at, key)
        yield from _places(inside, (*at, key))
