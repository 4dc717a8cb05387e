"""Where a result came from: code, machine, versions, time."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ematrace.sharing import available_cores

COMMIT_VARIABLE = "EMATRACE_COMMIT"
Line = Annotated[str, msgspec.Meta(pattern=r"\A[^\x00-\x1f\x7f-\x9f\u2028\u2029]*\Z", max_length=2000)]
"""Text without line breaks and control characters: it is shown in tables, errors and terminals."""
Integer = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
"""What a float holds exactly, too."""
PACKAGES = ("numpy", "scipy", "scikit-learn", "numba", "torch", "ematrace")


class Provenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`seconds` is the wall-clock time of the run, `command` what runs it again.

    >>> made = collect_provenance(1.5, command="python mine.py")
    >>> made.seconds, made.command, sorted(made.hardware)[:2], sorted(made.versions)[:3]
    (1.5, 'python mine.py', ['cores', 'cpu'], ['ematrace', 'numba', 'numpy'])
    """

    date: Line
    """ISO 8601, with a time zone."""
    commit: Line | None
    dirty: bool | None
    hardware: dict[Line, Line | Integer | float | bool | None]
    versions: dict[Line, Line | None]
    seconds: Annotated[float, msgspec.Meta(ge=0)]
    peak_memory_mb: float | None
    command: Line = ""

    def __post_init__(self) -> None:
        try:
            moment = datetime.fromisoformat(self.date)
        except ValueError as error:
            raise ValueError(f"date {self.date!r} is not ISO 8601") from error
        if moment.tzinfo is None:
            raise ValueError(f"date {self.date!r} names no time zone")


def checkout_root() -> Path | None:
    """The repository this package is imported from, or None for an installed wheel.

    >>> root = checkout_root()
    >>> root is None or (root / "pyproject.toml").is_file()
    True
    """
    here = Path(__file__).resolve()
    root = here.parents[3]
    inside = here == root / "src" / "ematrace" / "results" / "provenance.py"
    return root if inside and (root / "pyproject.toml").is_file() else None


def collect_provenance(seconds: float, *, command: str = "", packages: Sequence[str] = ()) -> Provenance:
    """This process, this machine and this code, for a run that took `seconds`; `packages` adds versions of peers.

    >>> made = collect_provenance(1.5, command="python mine.py", packages=["msgspec"])
    >>> made.seconds, made.command, made.versions["msgspec"] is not None
    (1.5, 'python mine.py', True)
    """
    commit, dirty = _git_state(checkout_root())
    return Provenance(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=commit,
        dirty=dirty,
        hardware=_hardware(),
        versions=_versions((*PACKAGES, *packages)),
        seconds=round(float(seconds), 3),
        peak_memory_mb=_peak_memory_mb(),
        command=command,
    )


def commit_of_copy() -> str | None:
    """What EMATRACE_COMMIT says of a clean tree that was copied without its history; ValueError if it is no commit."""
    commit = os.environ.get(COMMIT_VARIABLE)
    if commit and not re.fullmatch(r"[0-9a-f]{7,40}", commit):
        raise ValueError(f"{COMMIT_VARIABLE} is {commit!r}; it must be a commit, 7 to 40 of the digits 0-9 and a-f")
    return commit or None


def _git_state(root: Path | None) -> tuple[str | None, bool | None]:
    if commit := commit_of_copy():
        return commit, False
    if root is None or not (root / ".git").exists():
        return None, None
    commit = _git(root, "rev-parse", "HEAD")
    # Only the code: a result written earlier in the same run must not mark the next one as dirty.
    status = _git(root, "status", "--porcelain", "--", "src", "benchmarks", "pyproject.toml")
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
    hardware: dict[str, Any] = {"cpu": _cpu_model(), "cores": available_cores(), "memory_gib": _memory_gib()}
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


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None


def _versions(packages: Sequence[str]) -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in packages:
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
