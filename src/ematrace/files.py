"""JSON that is read with care, and files that are written whole."""

from __future__ import annotations

import functools
import json
import math
import os
import stat
import uuid
from pathlib import Path
from typing import Any

DEEPEST = 100
LONGEST_INTEGER = 100  # digits; the longest that this package writes are numpy's random states, of 39
_KINDS = {dict: "a JSON object", list: "a JSON array", str: "a JSON string", int: "an integer", float: "a number"}


def read_json(path: str | Path, kind: type = dict, *, allow_nan: bool = False) -> Any:
    """What a JSON file holds; see `parse_json`. An `OSError` names the file."""
    return parse_json(read_bytes(path), path, kind, allow_nan=allow_nan)


def read_bytes(path: str | Path) -> bytes:
    """What a file holds. An `OSError` names it; a pipe or a device, which may have no end, is a `ValueError`."""
    path = Path(path)
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise ValueError(f"{path}: not a file")
        return path.read_bytes()
    except OSError as error:
        raise _naming(path, error) from None


def show_path(path: Path) -> str:
    """Relative to the working directory if the file is under it."""
    full, here = path.resolve(), Path.cwd().resolve()
    return full.relative_to(here).as_posix() if full.is_relative_to(here) else str(full)


def parse_json(text: str | bytes, name: str | Path, kind: type = dict, *, allow_nan: bool = False) -> Any:
    """What a JSON text holds, a value of type `kind` (`object`: any). Errors are one-line `ValueError`s about `name`.

    Refused are also what Python's parser accepts but its users trip over: the same key twice, NaN and numbers that
    overflow to infinity (unless `allow_nan`), nesting deeper than 100 levels, integers of more than 100 digits, and
    halves of surrogate pairs.

    >>> parse_json('{"seed": 3}', "config.json")
    {'seed': 3}
    >>> parse_json('{"seed": 3', "config.json")
    Traceback (most recent call last):
    ...
    ValueError: config.json: not JSON: Expecting ',' delimiter: line 1 column 11 (char 10)
    """
    try:
        value = _decode(text, allow_nan)
    except RecursionError:
        raise ValueError(f"{name}: nested more than {DEEPEST} levels deep") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8 text: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{name}: not JSON: {error}") from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if not isinstance(value, kind) or (isinstance(value, bool) and kind in (int, float)):
        raise ValueError(f"{name}: holds {_kind_of(value)}, not {_KINDS.get(kind, kind.__name__)}")
    return value


def _decode(text: str | bytes, allow_nan: bool) -> Any:
    if isinstance(text, bytes):
        text = text.decode("utf-8-sig")
    if not text.strip():
        raise ValueError("empty")
    value = json.loads(
        text,
        object_pairs_hook=_unique,
        parse_int=_integer,
        parse_float=functools.partial(_number, allow_nan),
        parse_constant=functools.partial(_number, allow_nan),
    )
    level = [value]
    for _ in range(DEEPEST + 1):  # level by level, not by recursion
        containers = [v for v in level if isinstance(v, (dict, list))]  # `dict | list` takes twice the time
        level = [part for v in containers for part in (v.values() if isinstance(v, dict) else v)]
    if containers:
        raise RecursionError
    if "\\u" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("holds half of a surrogate pair") from None
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"field {next(k for k in keys if keys.count(k) > 1)[:100]!r} is given twice")
    return found


def _integer(digits: str) -> int:
    if len(digits) > LONGEST_INTEGER:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def _number(allow_nan: bool, digits: str) -> float:
    number = float(digits)
    if not allow_nan and not math.isfinite(number):
        raise ValueError(f"{digits[:20]} is not a finite number")
    return number


def _kind_of(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return _KINDS[type(value)]


def write_atomically(path: str | Path, content: bytes) -> Path:
    """Write a temporary file and rename it to `path`: a crash, Ctrl-C or a full disk leaves the old file intact.

    An `OSError` names `path`, not the temporary file.
    """
    path = Path(path)
    if path.exists() and not (path.is_file() or path.is_dir()):  # a rename would put a file in place of /dev/null
        raise ValueError(f"{path}: not a file")
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise _naming(path, error) from None
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _naming(path: Path, error: OSError) -> OSError:
    """The same error, of the same class, about `path`."""
    return OSError(error.errno, error.strerror or str(error), str(path))
