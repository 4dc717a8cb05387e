"""A cell, and the file that the cells of one run are written to."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from ematrace.files import parse_json, read_bytes, write_atomically
from ematrace.names import parse_value
from ematrace.results.provenance import Integer, Line, Provenance

SCHEMA = 2
SCALES = ("cpu", "gpu")
LONGEST_NAME = 120  # characters of a file name made from factors
DEEPEST = 50  # levels of nesting in settings
# Fourth powers of what lies between, and of their ratios, are ordinary floats: no interval overflows.
SMALLEST, LARGEST = 1e-30, 1e30

NAME = r"[A-Za-z_][A-Za-z0-9_.-]*"
Name = Annotated[str, msgspec.Meta(pattern=rf"\A{NAME}\Z", max_length=100)]
"""A plain name: it becomes part of a file name, a table head, a selector."""
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Factor: TypeAlias = Line | Integer | float | bool
Factors: TypeAlias = Mapping[str, Factor]


class ResultError(ValueError):
    """A result file that breaks the schema; the message is one line that names the file and the field.

    >>> read_file("nowhere/seed-0_cpu.json")
    Traceback (most recent call last):
        ...
    ematrace.results.schema.ResultError: nowhere/seed-0_cpu.json: No such file or directory
    """


class Metric(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, repr_omit_defaults=True):
    """One measured number.

    >>> Metric(0.79, unit="accuracy", n=21234)
    Metric(value=0.79, unit='accuracy', n=21234)
    """

    value: float | None
    """None where there was nothing to measure, such as a role that never occurs."""
    unit: Line = ""
    """"accuracy" (a share of `n`), "nats", "tokens/s", "s", "bytes", ..."""
    n: Count | None = None
    """How many items (tokens, sentences) the value was scored on: what an interval within one seed needs."""
    better: Literal["low", "high"] | None = None
    repetitions: tuple[float, ...] = ()
    """A timing, repeated on the same seed. `value` is their mean or median, and its interval is that of the same."""
    n_effective: Annotated[int, msgspec.Meta(ge=1, le=2**53)] | None = None
    """As many independent items would scatter as much: fewer than `n` where items come in groups, as tokens in
    sentences. An interval within one seed rests on it."""

    def __post_init__(self) -> None:
        for value in self.repetitions if self.value is None else (*self.repetitions, self.value):
            if SMALLEST <= abs(value) <= LARGEST or value == 0:  # nearly all of the thousands
                continue
            if not math.isfinite(number := float(value)):
                raise ValueError("not a finite number; a missing value is null")
            raise ValueError(f"{number} is neither 0 nor between {SMALLEST:g} and {LARGEST:g} in size")
        if self.unit == "accuracy" and self.value is not None and not 0.0 <= self.value <= 1.0:
            raise ValueError(f"an accuracy of {self.value} lies outside [0, 1]")
        if self.n_effective is not None and (self.n is None or self.n_effective > self.n):
            raise ValueError(f"n_effective {self.n_effective} is more than n")
        if self.n == 0 and self.value is not None:
            raise ValueError("a value scored on no items")


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Factors and metrics of one cell; what all cells of a run share stands once in its `CellFile`.

    >>> Row({"role": "subject"}, {"accuracy": Metric(0.5, unit="accuracy", n=8)}).factors
    {'role': 'subject'}
    """

    factors: dict[Name, Factor]
    metrics: dict[Name, Metric]


class CellFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one run of an experiment measured: one point of its grid on one seed.

    `factors` is that point of the grid; a row may add factors of its own (a representation, a role).

    >>> row = Row({"role": "agent"}, {"transfer": Metric(0.79, unit="accuracy", n=500)})
    >>> file = CellFile(2, "my_probe", "cpu", 3, {"width": 64}, {"k": 0.08}, collect_provenance(1.5), [row])
    >>> file.name
    'width-64_seed-3_cpu.json'
    >>> [cell.factors for cell in file.unpack()]
    [{'width': 64, 'role': 'agent'}]
    """

    schema: int
    experiment: Name
    scale: Literal["cpu", "gpu"]
    seed: Count
    factors: dict[Name, Factor]
    settings: dict[str, Any]
    provenance: Provenance
    cells: list[Row]

    def __post_init__(self) -> None:
        _check_settings(self.settings, DEEPEST)
        seen: set[frozenset[tuple[str, Factor, bool]]] = set()
        for row in self.cells:
            both = [name for name in row.factors if name in self.factors]
            if both:
                raise ValueError(f"factor '{both[0]}' stands in the file's factors and in a cell's")
            key = _key(row.factors)
            if key in seen:
                raise ValueError(f"two cells have the same factors {dict(row.factors)}")
            seen.add(key)

    @property
    def name(self) -> str:
        """The file's name, a function of scale, seed and point of the grid, so that a resumed grid finds it: see
        `file_name`."""
        return file_name(self.factors, self.seed, self.scale)

    def unpack(self) -> list[Cell]:
        """The cells, each with everything that is known of it."""
        return [
            Cell(
                experiment=self.experiment,
                factors={**self.factors, **row.factors},
                seed=self.seed,
                metrics=row.metrics,
                settings=self.settings,
                provenance=self.provenance,
                scale=self.scale,
            )
            for row in self.cells
        ]


@dataclass(frozen=True)
class Cell:
    """One measurement: what was varied, on which seed, what came out.

    >>> row = Row({"role": "agent"}, {"transfer": Metric(0.79, unit="accuracy", n=500)})
    >>> file = CellFile(2, "my_probe", "cpu", 3, {"width": 64}, {"k": 0.08}, collect_provenance(1.5), [row])
    >>> cell = file.unpack()[0]
    >>> cell.factors, cell.seed, cell.metrics["transfer"].value
    ({'width': 64, 'role': 'agent'}, 3, 0.79)
    """

    experiment: str
    factors: Factors
    seed: int
    metrics: Mapping[str, Metric]
    settings: Mapping[str, Any]
    provenance: Provenance
    scale: str = "cpu"


def file_name(factors: Factors, seed: int, scale: str) -> str:
    """A readable name, with a hash where it would be too long or could stand for other factors too.

    >>> file_name({"context": "ema", "ffn": "dense"}, seed=3, scale="gpu")
    'context-ema_ffn-dense_seed-3_gpu.json'
    """
    plain = _normalise(factors)
    text = "_".join(f"{name}-{_spell(plain[name])}" for name in sorted(plain))
    if len(text) > LONGEST_NAME or _FILE_TEXT.fullmatch(text) is None or _unspell(text) != plain:
        digest = hashlib.sha256(_canonical(factors).encode()).hexdigest()[:12]
        text = re.sub(r"[^A-Za-z0-9_.+-]", "-", text[: LONGEST_NAME - 13]) + f"-{digest}"
    return "_".join([*([text] if text else []), f"seed-{seed}", scale]) + ".json"


_FILE_TEXT = re.compile(r"[A-Za-z0-9_.+-]*")
_FILE_FACTOR = re.compile(r"(?:^|_)([A-Za-z_][A-Za-z0-9_.]*)-(.*?)(?=$|_[A-Za-z_][A-Za-z0-9_.]*-)")


def _spell(value: Factor) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _unspell(text: str) -> Factors:
    """The factors that a file name made of names and values is read as."""
    return {name: parse_factor(value) for name, value in _FILE_FACTOR.findall(text)}


@functools.lru_cache(maxsize=4096)  # a page reads the same few words 300,000 times
def parse_factor(text: str) -> Factor:
    """A number, true or false where the text is JSON for it, else the text itself; `"0.5"` in quotes is text."""
    value = parse_value(text)
    return value if isinstance(value, str | int | float | bool) else text


def _normalise(factors: Factors) -> dict[str, Factor]:
    """Plain Python values in which 1 and 1.0 are the same, as they are to a selector."""
    return {name: _normal(value) for name, value in factors.items()}


def _normal(value: Any) -> Factor:
    if type(value) is str:  # most are
        return value
    plain = value.tolist() if hasattr(value, "tolist") else value
    return int(plain) if isinstance(plain, float) and plain.is_integer() else plain


def _key(factors: Factors) -> frozenset[tuple[str, Factor, bool]]:
    """The same for the same factors. 1 and 1.0 are equal and True is not 1: to Python alone it would be."""
    return frozenset((k, v, v is True or v is False) for k, v in _normalise(factors).items())


def _canonical(factors: Factors) -> str:
    return json.dumps(_normalise(factors), sort_keys=True)


def plain_value(value: Any) -> Any:
    """Numbers and arrays of numpy and torch as plain Python ones."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be written to a result")


def _check_settings(value: Any, levels: int) -> None:
    if isinstance(value, dict | list | tuple):
        if levels == 0:
            raise ValueError(f"settings are nested more than {DEEPEST} levels deep")
        for part in (*value, *value.values()) if isinstance(value, dict) else value:
            _check_settings(part, levels - 1)
    elif isinstance(value, int) and abs(value) > 2**64:
        raise ValueError("settings hold an integer of more than 64 bits")
    elif isinstance(value, str) and _CONTROL.search(value):
        raise ValueError("settings hold control characters")


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tabs and line breaks


def encode_file(file: CellFile) -> bytes:
    """The file's text: a cell per line, for people and for git."""
    try:
        head = msgspec.to_builtins(file, enc_hook=plain_value)
        cells = head.pop("cells")
        lines = [f"  {json.dumps(key)}: {_dumps(value)}" for key, value in head.items()]
        rows = ",\n".join(f"    {_dumps(cell)}" for cell in cells)
        lines.append(f'  "cells": [\n{rows}\n  ]' if cells else '  "cells": []')
        data = ("{\n" + ",\n".join(lines) + "\n}\n").encode()
        decode_file(data)  # what cannot be read back is not written
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise ResultError(f"{file.experiment}: {one_line(error)}") from error
    return data


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def decode_file(data: bytes, source: str | Path = "result") -> CellFile:
    """Parse and check a file's bytes; `source` is the name used in errors.

    >>> decode_file(b"{}", "seed-0_cpu.json")
    Traceback (most recent call last):
    ...
    ematrace.results.schema.ResultError: seed-0_cpu.json: Object missing required field `schema`
    """
    try:
        parse_json(data, source)  # also refuses keys that are given twice, of which msgspec keeps the last
    except ValueError as error:
        raise ResultError(one_line(error)) from None
    try:
        return _decode(data)
    except (ValueError, RecursionError, OverflowError) as error:
        raise ResultError(f"{source}: {one_line(error)}") from error


class _Header(msgspec.Struct):
    schema: int


def _decode(data: bytes) -> CellFile:
    schema = msgspec.json.decode(data, type=_Header).schema
    if schema != SCHEMA:
        raise ValueError(f"schema {schema}, this program reads {SCHEMA}")
    return msgspec.json.decode(data, type=CellFile)


def one_line(error: Exception) -> str:
    """An error's text for a terminal: short, without line breaks and control characters that a file brought in."""
    text = " ".join(str(error).split())[:500]
    return "".join(c if c.isprintable() else "?" for c in text)


def read_file(path: str | Path) -> CellFile:
    """Read one result file; every problem is a `ResultError` that names it.

    >>> from tempfile import TemporaryDirectory
    >>> row = Row({"role": "agent"}, {"transfer": Metric(0.79, unit="accuracy", n=500)})
    >>> file = CellFile(2, "my_probe", "cpu", 0, {"width": 64}, {}, collect_provenance(1.5), [row])
    >>> with TemporaryDirectory() as folder:
    ...     read_file(write_file(file, folder)).cells[0].metrics["transfer"].value
    0.79
    """
    try:
        data = read_bytes(path)
    except OSError as error:
        raise ResultError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ResultError(str(error)) from None
    return decode_file(data, path)


def write_file(file: CellFile, folder: str | Path) -> Path:
    """Write `<folder>/<experiment>/<name>` whole or not at all.

    >>> from tempfile import TemporaryDirectory
    >>> row = Row({"role": "agent"}, {"transfer": Metric(0.79, unit="accuracy", n=500)})
    >>> file = CellFile(2, "my_probe", "cpu", 0, {"width": 64}, {}, collect_provenance(1.5), [row])
    >>> with TemporaryDirectory() as folder:
    ...     write_file(file, folder).relative_to(folder).as_posix()
    'my_probe/width-64_seed-0_cpu.json'
    """
    data = encode_file(file)
    target = Path(folder) / file.experiment
    target.mkdir(parents=True, exist_ok=True)
    return write_atomically(target / file.name, data)
