"""What a run leaves behind: figures over seeds, where they came from, and the folders they are kept in."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from ematrace.files import write_atomically
from ematrace.probes.intervals import seed_interval, wilson_interval

SCHEMA = 1
CONFIDENCE = 0.95
SCALES = ("cpu", "gpu")
RESULTS_VARIABLE = "EMATRACE_RESULTS"
COMMIT_VARIABLE = "EMATRACE_COMMIT"
PACKAGES = ("numpy", "scipy", "scikit-learn", "numba", "torch", "ematrace")

Interval = tuple[float, float]


class ResultError(ValueError):
    """A result that breaks the schema; the message is one line naming the file and the field."""


@dataclass(frozen=True)
class Figure:
    """One measured quantity: a value per seed, and the tokens each was scored on if it is an accuracy."""

    values: tuple[float, ...]
    n: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(float(v) for v in self.values))

    @property
    def known(self) -> bool:
        """False if any seed has no value: half a figure is not evidence."""
        return bool(self.values) and all(math.isfinite(v) for v in self.values)

    @property
    def mean(self) -> float:
        if not self.known:
            return math.nan
        # Identical values keep their exact mean, so that they still compare as equal.
        return self.values[0] if len(set(self.values)) == 1 else math.fsum(self.values) / len(self.values)

    @property
    def sd(self) -> float:
        """Standard deviation over seeds (m - 1); nan for fewer than two."""
        if not self.known or len(self.values) < 2:
            return math.nan
        m = self.mean
        return math.sqrt(math.fsum((v - m) ** 2 for v in self.values) / (len(self.values) - 1))

    @property
    def interval(self) -> Interval | None:
        """95%: Student over seeds; Wilson over tokens for a single seed; None where nothing is known."""
        if not self.known:
            return None
        if len(self.values) >= 2:
            if self.sd == 0.0:
                return (self.mean, self.mean)
            return seed_interval(self.values, CONFIDENCE)
        return wilson_interval(round(self.mean * self.n), self.n, CONFIDENCE) if self.n else None


@dataclass(frozen=True)
class Provenance:
    """When, from which code, on what machine, and at what cost a result was made."""

    date: str
    commit: str | None
    dirty: bool | None
    hardware: Mapping[str, Any]
    versions: Mapping[str, Any]
    seconds: float
    peak_memory_mb: float | None

    def __post_init__(self) -> None:
        try:
            moment = datetime.fromisoformat(self.date)
        except ValueError as error:
            raise ResultError(f"field 'provenance.date': {self.date!r} is not an ISO date") from error
        _require(moment.tzinfo is not None, "provenance.date", f"{self.date!r} names no time zone")
        _require(0.0 <= self.seconds < math.inf, "provenance.seconds", "not a duration")


@dataclass(frozen=True)
class Result:
    """One experiment run, as in `results/<experiment>.json`."""

    experiment: str
    title: str
    claims: tuple[str, ...]
    scale: str
    command: str
    settings: Mapping[str, Any]
    seeds: tuple[int, ...]
    figures: Mapping[str, Figure]
    provenance: Provenance
    conditions: tuple[Mapping[str, Any], ...] | None = None

    def __post_init__(self) -> None:
        # The experiment's name becomes a file name.
        _require(re.fullmatch(r"\w[\w.-]*", self.experiment) is not None, "experiment", "not a plain name")
        _require(self.scale in SCALES, "scale", f"{self.scale!r} is not one of {', '.join(SCALES)}")
        _require(bool(self.seeds), "seeds", "empty")
        _require(len(set(self.seeds)) == len(self.seeds), "seeds", "a seed is listed twice")
        rows = len(self.seeds) if self.conditions is None else len(self.conditions)
        unit = "seeds" if self.conditions is None else "conditions"
        for name, figure in self.figures.items():
            where = f"figures.{name}"
            _require(bool(name), "figures", "a figure has no name")
            # A single value beside several seeds is a figure that no model seed touches.
            _require(
                len(figure.values) in (1, rows),
                f"{where}.values",
                f"{len(figure.values)} values for {rows} {unit}",
            )
            _require(not any(math.isinf(v) for v in figure.values), f"{where}.values", "infinite value")
            if figure.n is not None:
                _require(figure.n >= 0, f"{where}.n", "negative")
                scored = figure.n > 0 or all(math.isnan(v) for v in figure.values)
                _require(scored, f"{where}.values", "a value scored on no tokens")
                _require(
                    all(0.0 <= v <= 1.0 for v in figure.values if not math.isnan(v)),
                    f"{where}.values",
                    "n is given, so this is an accuracy, but a value is outside [0, 1]",
                )

    def to_json(self) -> str:
        """The file's text: plain JSON, a missing value (nan) as null."""
        record = {
            "schema": SCHEMA,
            "experiment": self.experiment,
            "title": self.title,
            "claims": list(self.claims),
            "scale": self.scale,
            "command": self.command,
            "settings": self.settings,
            "seeds": list(self.seeds),
            "figures": {
                name: {"values": [None if math.isnan(v) else v for v in f.values], "n": f.n}
                for name, f in self.figures.items()
            },
            "conditions": None if self.conditions is None else list(self.conditions),
            "provenance": asdict(self.provenance),
        }
        parts = []
        for key, value in record.items():
            try:
                text = json.dumps(value, allow_nan=False, ensure_ascii=False, default=_plain)
            except (TypeError, ValueError) as error:
                raise ResultError(f"{self.experiment}: field '{key}': {_one_line(error)}") from error
            parts.append(f"  {json.dumps(key)}: {_spread(key, value, text)}")
        return "{\n" + ",\n".join(parts) + "\n}\n"

    @classmethod
    def from_json(cls, text: str, source: str | Path = "result") -> Result:
        """Parse and check a file's text; `source` is the name used in errors."""
        try:
            return _parse(text)
        except (ValueError, OverflowError) as error:
            raise ResultError(f"{source}: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _plain(value: object) -> object:
    """numpy numbers in settings become Python's; anything else is refused."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _spread(key: str, value: object, text: str) -> str:
    """One figure or condition per line: files are read by people and compared by git."""
    if key == "figures" and isinstance(value, dict) and value:
        lines = [f"    {json.dumps(k, ensure_ascii=False)}: {json.dumps(v)}" for k, v in value.items()]
        return "{\n" + ",\n".join(lines) + "\n  }"
    if key == "conditions" and isinstance(value, list) and value:
        lines = [f"    {json.dumps(v, ensure_ascii=False, default=_plain)}" for v in value]
        return "[\n" + ",\n".join(lines) + "\n  ]"
    return text


def _require(condition: bool, field: str, problem: str) -> None:
    if not condition:
        raise ResultError(f"field '{field}': {problem}")


def _refuse_constant(name: str) -> float:
    raise ResultError(f"{name} is not JSON; a missing value is null")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ResultError(f"field '{twice}': given twice")
    return record


def _get(record: Mapping[str, Any], key: str, kind: type | tuple[type, ...], prefix: str = "") -> Any:
    """A required field of a required type; a bool is not a number."""
    _require(key in record, prefix + key, "missing")
    value = record[key]
    kinds = kind if isinstance(kind, tuple) else (kind,)
    right = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
    names = " or ".join("null" if k is type(None) else k.__name__ for k in kinds)
    _require(right, prefix + key, f"expected {names}, found {type(value).__name__}")
    return value


def _list_of(record: Mapping[str, Any], key: str, kind: type) -> tuple[Any, ...]:
    items = _get(record, key, list)
    return tuple(_get({f"{key}[{i}]": item}, f"{key}[{i}]", kind) for i, item in enumerate(items))


def _no_others(record: Mapping[str, Any], known: set[str], prefix: str = "") -> None:
    for key in record:
        _require(key in known, prefix + key, "unknown field")


def _parse(text: str) -> Result:
    record = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)
    if not isinstance(record, dict):
        raise ResultError("not a JSON object")
    schema = _get(record, "schema", int)
    _require(schema == SCHEMA, "schema", f"version {schema}, this program reads {SCHEMA}")
    _no_others(record, {"schema"} | {f.name for f in fields(Result)})
    conditions = None
    if _get(record, "conditions", (list, type(None))) is not None:
        conditions = _list_of(record, "conditions", dict)
    return Result(
        experiment=_get(record, "experiment", str),
        title=_get(record, "title", str),
        claims=_list_of(record, "claims", str),
        scale=_get(record, "scale", str),
        command=_get(record, "command", str),
        settings=_get(record, "settings", dict),
        seeds=_list_of(record, "seeds", int),
        figures={
            name: _parse_figure(_get(record["figures"], name, dict, "figures."), f"figures.{name}.")
            for name in _get(record, "figures", dict)
        },
        provenance=_parse_provenance(_get(record, "provenance", dict)),
        conditions=conditions,
    )


def _parse_figure(record: Mapping[str, Any], prefix: str) -> Figure:
    _no_others(record, {"values", "n"}, prefix)
    values = _get(record, "values", list, prefix)
    for i, value in enumerate(values):
        _get({f"values[{i}]": value}, f"values[{i}]", (int, float, type(None)), prefix)
    n = _get(record, "n", (int, type(None)), prefix)
    return Figure(tuple(math.nan if v is None else float(v) for v in values), n)


def _parse_provenance(record: Mapping[str, Any]) -> Provenance:
    prefix = "provenance."
    _no_others(record, {f.name for f in fields(Provenance)}, prefix)
    memory = _get(record, "peak_memory_mb", (int, float, type(None)), prefix)
    return Provenance(
        date=_get(record, "date", str, prefix),
        commit=_get(record, "commit", (str, type(None)), prefix),
        dirty=_get(record, "dirty", (bool, type(None)), prefix),
        hardware=_get(record, "hardware", dict, prefix),
        versions=_get(record, "versions", dict, prefix),
        seconds=float(_get(record, "seconds", (int, float), prefix)),
        peak_memory_mb=None if memory is None else float(memory),
    )


def checkout_root() -> Path | None:
    """The repository this package is imported from, or None for an installed wheel."""
    root = Path(__file__).resolve().parents[3]
    inside = Path(__file__).resolve() == root / "src" / "ematrace" / "ledger" / "results.py"
    return root if inside and (root / "pyproject.toml").is_file() else None


def collect_provenance(seconds: float, *, date: datetime | None = None) -> Provenance:
    """This process, this machine and this code, for a run that took `seconds`."""
    commit, dirty = _git_state(checkout_root())
    return Provenance(
        date=(date or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="seconds"),
        commit=commit,
        dirty=dirty,
        hardware=_hardware(),
        versions=_versions(),
        seconds=round(float(seconds), 3),
        peak_memory_mb=_peak_memory_mb(),
    )


def _git_state(root: Path | None) -> tuple[str | None, bool | None]:
    if commit := os.environ.get(COMMIT_VARIABLE):  # a clean tree that was copied without its history
        return commit, False
    if root is None or not (root / ".git").exists():
        return None, None
    commit = _git(root, "rev-parse", "HEAD")
    # Only the code: a result written earlier in the same run must not mark the next one as dirty.
    status = _git(root, "status", "--porcelain", "--", "src", "pyproject.toml")
    if commit is None or status is None:
        return None, None
    return commit, bool(status)


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _hardware() -> dict[str, Any]:
    hardware: dict[str, Any] = {"cpu": _cpu_model(), "cores": _cores(), "memory_gib": _memory_gib()}
    # Only asked where torch is in use already: importing it takes longer than some experiments.
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_available():
        hardware["gpu"] = str(torch.cuda.get_device_name(torch.cuda.current_device()))
    return hardware


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, flags=re.MULTILINE)
    return match.group(1).strip() if match else platform.processor() or platform.machine()


def _cores() -> int:
    """Cores this process may use, not those of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def _peak_memory_mb() -> float | None:
    try:
        import resource  # Unix only
    except ImportError:
        return None
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    # Linux counts in KiB, macOS in bytes.
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)


def write_result(result: Result, directory: str | Path) -> Path:
    """Write `<directory>/<experiment>.json` whole or not at all."""
    text = result.to_json()
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    return write_atomically(folder / f"{result.experiment}.json", text.encode())


def read_result(path: str | Path) -> Result:
    """Read one result file; every problem is a `ResultError` that names it."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ResultError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ResultError(f"{path}: not UTF-8 text") from error
    return Result.from_json(text, path)


@dataclass(frozen=True)
class StoredResult:
    """A result, the file it was read from, and whether this machine made it."""

    path: Path
    result: Result
    local: bool


@dataclass(frozen=True)
class Store:
    """The recorded results that come with the code, and those made on this machine.

    `recorded` is None where there are none: an installed wheel brings no results.
    """

    recorded: Path | None
    local: Path

    @classmethod
    def open(cls, recorded: str | Path | None = None, local: str | Path | None = None) -> Store:
        """Recorded: the path given, else $EMATRACE_RESULTS, else the checkout's; local: `./results/local`."""
        folder: Path | None
        chosen = recorded or os.environ.get(RESULTS_VARIABLE)
        if chosen:
            folder = Path(chosen)
            if not folder.is_dir():
                name = "results folder" if recorded else f"results folder (from {RESULTS_VARIABLE})"
                raise ResultError(f"{folder}: no such {name}")
        else:
            root = checkout_root()
            folder = root / "results" if root is not None else None
        return cls(folder, Path(local) if local is not None else Path("results") / "local")

    def load(self) -> list[StoredResult]:
        """Every result of both folders (not of their subfolders), recorded first, by file name."""
        folders = [(self.local, True)]
        if self.recorded is not None and self.recorded.resolve() != self.local.resolve():
            folders.insert(0, (self.recorded, False))
        return [
            StoredResult(path, read_result(path), local)
            for folder, local in folders
            for path in sorted(folder.glob("*.json"))
        ]
