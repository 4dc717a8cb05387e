"""What a benchmark leaves behind: times, the floor they are held against, ratios to peers, and where they came from."""

from __future__ import annotations

import json
import math
import re
import shlex
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console

from ematrace.bench.measure import Timing
from ematrace.files import write_atomically
from ematrace.ledger.results import (
    Provenance,
    ResultError,
    _get,
    _list_of,
    _no_others,
    _one_line,
    _parse_provenance,
    _plain,
    _refuse_constant,
    _require,
    _unique_keys,
    checkout_root,
    collect_provenance,
)

FORMAT = 1
COPY, READ, MATMUL = "copy_bytes_per_second", "read_bytes_per_second", "matmul_flops_per_second"
# Whose versions matter to a ratio; fla-core is flash-linear-attention without its models.
PEERS = ("triton", "transformers", "flash-linear-attention", "fla-core", "reservoirpy")
OUTPUTS = ("--record", "--result")  # where files go is not part of what was measured
_BEGUN = time.monotonic()

Spread = tuple[float, float, float]


@dataclass(frozen=True)
class Row:
    """One contender: its times, and what one call moves and computes at the least; 0 where that does not apply."""

    name: str
    timing: Timing
    bytes: float = 0
    operations: float = 0
    tokens: float = 0
    note: str = ""

    def __post_init__(self) -> None:
        _require(bool(self.name), "name", "empty")
        for amount in ("bytes", "operations", "tokens"):
            _require(0 <= getattr(self, amount) < math.inf, amount, "not an amount")

    @property
    def bytes_per_second(self) -> float:
        return self.bytes / self.timing.median

    @property
    def operations_per_second(self) -> float:
        return self.operations / self.timing.median

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.timing.median


@dataclass(frozen=True)
class BenchmarkRecord:
    """One run of a script under `benchmarks/`.

    `ratios` go from a name to (median, lowest, highest) within repetitions. Above 1 means that ours is faster, so
    "ematrace against fla" is `ratio(fla, ours)`: how many times as long fla takes. `checks` say what was compared with
    the reference before anything was timed, and the error found.
    """

    benchmark: str
    title: str
    rows: tuple[Row, ...]
    ratios: Mapping[str, Spread] = field(default_factory=dict)
    ceilings: Mapping[str, float] = field(default_factory=dict)
    checks: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # The name becomes a file name.
        _require(re.fullmatch(r"\w[\w.-]*", self.benchmark) is not None, "benchmark", "not a plain name")
        names = [row.name for row in self.rows]
        for name in names:
            _require(names.count(name) == 1, "rows", f"{name!r} is there twice")
        for name, spread in self.ratios.items():
            found = len(spread) == 3 and all(map(math.isfinite, spread)) and spread[1] <= spread[0] <= spread[2]
            _require(found, f"ratios.{name}", "not a finite median, lowest and highest")
        for name, ceiling in self.ceilings.items():
            _require(0 < ceiling < math.inf, f"ceilings.{name}", "not a positive number")
        for name, figure in self.figures.items():
            _require(math.isfinite(figure), f"figures.{name}", "not a finite number")

    def shares(self, row: Row) -> dict[str, float]:
        """What part of the measured ceilings a row reaches: "copy" by its bytes, "matmul" by its operations.

        Work that mostly reads gives a ceiling for reads; then that is what its bytes are held against, as "read".
        """
        reached = {}
        if row.bytes and READ in self.ceilings:
            reached["read"] = row.bytes_per_second / self.ceilings[READ]
        elif row.bytes and COPY in self.ceilings:
            reached["copy"] = row.bytes_per_second / self.ceilings[COPY]
        if row.operations and MATMUL in self.ceilings:
            reached["matmul"] = row.operations_per_second / self.ceilings[MATMUL]
        return reached

    def share_of_ceiling(self, row: Row) -> tuple[str, float] | None:
        """The ceiling that a row is nearest to, which is what limits it, and the share of it."""
        return max(self.shares(row).items(), key=lambda item: item[1], default=None)


@dataclass(frozen=True)
class RecordFile:
    """A record with what its file says of where it came from."""

    record: BenchmarkRecord
    provenance: Provenance
    command: str

    def to_json(self) -> str:
        """One line of strict JSON."""
        return json.dumps(self._plain(), allow_nan=False, ensure_ascii=False)

    def to_text(self) -> str:
        """The same, a row and a ratio per line, for people and for git."""
        parts = []
        for key, value in self._plain().items():
            text = json.dumps(value, allow_nan=False, ensure_ascii=False)
            if key == "rows" and value:
                text = "[\n" + ",\n".join("    " + json.dumps(v, ensure_ascii=False) for v in value) + "\n  ]"
            elif key in ("ratios", "ceilings", "settings", "figures") and value:
                lines = (
                    f"    {json.dumps(k, ensure_ascii=False)}: {json.dumps(v, ensure_ascii=False)}"
                    for k, v in value.items()
                )
                text = "{\n" + ",\n".join(lines) + "\n  }"
            parts.append(f"  {json.dumps(key)}: {text}")
        return "{\n" + ",\n".join(parts) + "\n}\n"

    def _plain(self) -> dict[str, Any]:
        """Python's own types only; a type that JSON does not know (a dtype, a path) becomes its text."""
        record = self.record
        plain: dict[str, Any] = {
            "format": FORMAT,
            "benchmark": record.benchmark,
            "title": record.title,
            "command": self.command,
            "rows": [_row_json(row) for row in record.rows],
            "ratios": {name: [float(v) for v in spread] for name, spread in record.ratios.items()},
            "ceilings": {name: float(value) for name, value in record.ceilings.items()},
            "checks": list(record.checks),
            "settings": dict(record.settings),
            "figures": {name: float(value) for name, value in record.figures.items()},
            "provenance": asdict(self.provenance),
        }
        for key, value in plain.items():
            try:
                plain[key] = json.loads(json.dumps(value, allow_nan=False, default=_text_at_worst))
            except ValueError as error:
                raise ResultError(f"{record.benchmark}: field '{key}': {_one_line(error)}") from error
        return plain


def _row_json(row: Row) -> dict[str, Any]:
    amounts = {"bytes": float(row.bytes), "operations": float(row.operations), "tokens": float(row.tokens)}
    return {"name": row.name, "seconds": list(row.timing.seconds), **amounts, "note": row.note}


def _text_at_worst(value: object) -> object:
    try:
        return _plain(value)
    except TypeError:
        return str(value)


def ratio(over: Timing, under: Timing) -> Spread:
    """Median, lowest and highest of over / under within repetitions, so that a slow moment cancels.

    >>> ratio(Timing((4.0, 8.0, 6.0)), Timing((2.0, 4.0, 2.0)))
    (2.0, 2.0, 3.0)
    """
    if len(over.seconds) != len(under.seconds):
        raise ValueError(f"{len(over.seconds)} and {len(under.seconds)} repetitions: not of one run")
    values = [a / b for a, b in zip(over.seconds, under.seconds, strict=True)]
    return statistics.median(values), min(values), max(values)


def finish(record: BenchmarkRecord, to: Path | None) -> None:
    """Print the tables, write `<to>/<benchmark>.json` whole or not at all, and print the record as the last line."""
    from ematrace.bench.tables import at_least_wide, record_tables  # which import this module

    made = RecordFile(record, _provenance(), command_line(sys.argv))
    line, text = made.to_json(), made.to_text()
    console = at_least_wide(Console())
    console.print(record_tables(record))
    try:
        if to is not None:
            to.mkdir(parents=True, exist_ok=True)
            path = write_atomically(to / f"{record.benchmark}.json", text.encode())
            console.print(f"record: {path}", soft_wrap=True, markup=False, highlight=False)
    finally:
        print(line, flush=True)


def _provenance() -> Provenance:
    run = collect_provenance(time.monotonic() - _BEGUN)
    versions = dict(run.versions)
    for package in PEERS:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return replace(run, versions=versions)


def command_line(arguments: list[str]) -> str:
    """The command that measures this again: the script as seen from the checkout, without where its record went.

    >>> command_line(["/somewhere/spcn.py", "--quick", "--record", "there", "--result=elsewhere"])
    'python benchmarks/spcn.py --quick'
    """
    script = Path(arguments[0]).resolve()
    root = checkout_root()
    shown = (
        script.relative_to(root)
        if root is not None and script.is_relative_to(root)
        else Path("benchmarks", script.name)
    )
    kept: list[str] = []
    rest = iter(arguments[1:])
    for argument in rest:
        if argument in OUTPUTS:
            next(rest, None)
        elif not argument.startswith(tuple(f"{option}=" for option in OUTPUTS)):
            kept.append(argument)
    return shlex.join(["python", shown.as_posix(), *kept])


def read_records(folder: Path) -> list[tuple[Path, RecordFile]]:
    """Every record of a folder, by file name, without JSON objects of other kinds, which name no format."""
    return [(path, read_record(path)) for path in sorted(folder.glob("*.json")) if not _is_other(path)]


def _is_other(path: Path) -> bool:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False  # broken, which is for `read_record` to say
    return isinstance(found, dict) and "format" not in found


def read_record(path: str | Path) -> RecordFile:
    """Read one file; every problem is a `ResultError` of one line that names file and field."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ResultError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ResultError(f"{path}: not UTF-8 text") from error
    return parse_record(text, path)


def parse_record(text: str, source: str | Path = "record") -> RecordFile:
    """Parse and check a record's text; `source` is the name used in errors."""
    try:
        return _parse(text)
    except (ValueError, OverflowError, RecursionError) as error:
        raise ResultError(f"{source}: {_one_line(error)}") from error


def _parse(text: str) -> RecordFile:
    found = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)
    if not isinstance(found, dict):
        raise ResultError("not a JSON object")
    version = _get(found, "format", int)
    _require(version == FORMAT, "format", f"version {version}, this program reads {FORMAT}")
    _no_others(found, {"format", "command", "provenance"} | {f.name for f in fields(BenchmarkRecord)})
    rows = _list_of(found, "rows", dict)
    record = BenchmarkRecord(
        benchmark=_get(found, "benchmark", str),
        title=_get(found, "title", str),
        rows=tuple(_parse_row(row, f"rows[{i}].") for i, row in enumerate(rows)),
        ratios={name: _parse_ratio(found, name) for name in _get(found, "ratios", dict)},
        ceilings=_numbers(found, "ceilings"),
        checks=_list_of(found, "checks", str),
        settings=_get(found, "settings", dict),
        figures=_numbers(found, "figures"),
    )
    return RecordFile(record, _parse_provenance(_get(found, "provenance", dict)), _get(found, "command", str))


def _parse_row(found: Mapping[str, Any], prefix: str) -> Row:
    _no_others(found, {"name", "seconds", "bytes", "operations", "tokens", "note"}, prefix)
    amounts = {key: float(_get(found, key, (int, float), prefix)) for key in ("bytes", "operations", "tokens")}
    values = _get(found, "seconds", list, prefix)
    seconds = tuple(
        float(_get({f"seconds[{i}]": v}, f"seconds[{i}]", (int, float), prefix)) for i, v in enumerate(values)
    )
    name, note = _get(found, "name", str, prefix), _get(found, "note", str, prefix)
    try:
        return Row(name, Timing(seconds), note=note, **amounts)
    except ValueError as error:
        raise ResultError(f"field '{prefix.rstrip('.')}': {error}") from error


def _parse_ratio(found: Mapping[str, Any], name: str) -> Spread:
    spread = _get(found["ratios"], name, list, "ratios.")
    _require(len(spread) == 3, f"ratios.{name}", f"{len(spread)} numbers, expected median, lowest and highest")
    keys = (f"{name}[{i}]" for i in range(3))
    median, lowest, highest = (
        float(_get({key: value}, key, (int, float), "ratios.")) for key, value in zip(keys, spread, strict=True)
    )
    return median, lowest, highest


def _numbers(found: Mapping[str, Any], key: str) -> dict[str, float]:
    return {name: float(_get(found[key], name, (int, float), f"{key}.")) for name in _get(found, key, dict)}
