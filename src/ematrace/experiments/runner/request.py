"""What to run, as a person asks for it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from ematrace.results.provenance import commit_of_copy
from ematrace.results.store import LOCAL

ROBUSTNESS = "robustness"


def _option(default: Any, help: str) -> Any:
    """A field with its help text, which both command lines show."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Request:
    """Experiments to run, and how."""

    names: tuple[str, ...] = _option(
        (), "Experiments (trace_probe, ...), your own (./mine.py, package.mine, package.mine:NAME), or robustness."
    )
    scale: Literal["cpu", "gpu"] = _option("cpu", "gpu also runs what needs a GPU.")
    device: Literal["cuda", "cpu"] = _option(
        "cuda", "Of --scale gpu: cpu trains the same models on cores, some hundred times slower."
    )
    seeds: int | None = _option(
        None,
        "Seeds of each experiment (default: each one's own, mostly 1 with intervals over tokens); for robustness, the "
        "number of drawn grammars (default: 4, and only the quick experiments).",
    )
    data: str | None = _option(
        None, "Text for experiments that read some: builtin, a path or glob, or hf:NAME[/CONFIG]."
    )
    only: tuple[str, ...] = _option(
        (),
        "Only units with these factors: seed=3 preset=spen-130m experiment=controls. A name given twice: either value.",
    )
    settings: tuple[str, ...] = _option((), "Changed settings, as result files name them: sentences.train=1000.")
    shard: str = _option("1/1", "i/n runs part i of n; the n parts together are the whole, also on several machines.")
    jobs: int | None = _option(None, "Processes at a time (default: one per core; --per-gpu for what runs on a GPU).")
    per_gpu: int | None = _option(
        None, "Processes that share a GPU (default: 1; on this machine, --jobs if it is given)."
    )
    engine: Literal["local", "ray"] = _option("local", "ray runs on the cluster of RAY_ADDRESS, else on this machine.")
    fresh: bool = _option(False, "Measure again what is there already.")
    out: Path = _option(LOCAL, "Folder of the result files.")  # noqa: RUF009 - a Path does not change
    dry_run: bool = _option(False, "Only list what would run, how long it would take and what is missing.")

    def check(self) -> None:
        """ValueError for what no request can mean, and for a commit that no result may carry."""
        for name in ("seeds", "jobs", "per_gpu"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name.replace('_', '-')} is {value}; it must be at least 1")
        _ = self.part
        commit_of_copy()  # now, not when hours of measuring are to be written

    def words(self) -> list[str]:
        """What a command line says to mean this request, but for --dry-run.

        >>> Request(("position",), seeds=3, only=("seed=1", "k=2"), fresh=True).words()
        ['position', '--seeds', '3', '--only', 'seed=1', 'k=2', '--fresh']
        """
        words = [*self.names]
        for option in fields(self):
            value = getattr(self, option.name)
            if option.name in ("names", "dry_run") or value == option.default:
                continue
            words.append(f"--{option.name.replace('_', '-')}")
            if isinstance(value, tuple):
                words += value
            elif not isinstance(value, bool):
                words.append(str(value))
        return words

    @property
    def part(self) -> tuple[int, int]:
        """The shard as (index from 0, count)."""
        match = re.fullmatch(r"([0-9]+)/([0-9]+)", self.shard)
        i, n = (int(match[1]), int(match[2])) if match else (0, 0)
        if not 1 <= i <= n:
            raise ValueError(f"--shard is {self.shard}; it must be i/n with 1 <= i <= n")
        return i - 1, n


def change_settings(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """Settings with the changes that apply to them, and the names of those that did.

    A dotted name reaches into a nested mapping. Into one that is empty by default, any name may be put.

    >>> change_settings({"tokens": 100, "texts": {}}, {"texts.c4": "c4.txt", "tokens": 1e6, "other": 1})[0]
    {'tokens': 1000000, 'texts': {'c4': 'c4.txt'}}
    """
    changed: dict[str, Any] = json.loads(json.dumps(settings))
    applied = set()
    for path, value in changes.items():
        *outer, last = path.split(".")
        inner, default = changed, settings
        for name in outer:
            found, known = inner.get(name), default.get(name)
            if not isinstance(found, dict) or not isinstance(known, Mapping):
                break
            inner, default = found, known
        else:
            if last in default or (outer and not default):
                inner[last] = _like(default.get(last), value, path)
                applied.add(path)
    return changed, applied


def setting_names(settings: Mapping[str, Any], outer: str = "") -> list[str]:
    """Every name that `change_settings` knows.

    >>> setting_names({"tokens": 100, "spcn": {"k": 0.08}})
    ['tokens', 'spcn', 'spcn.k']
    """
    names = []
    for name, value in settings.items():
        names.append(f"{outer}{name}")
        names += setting_names(value, f"{outer}{name}.") if isinstance(value, Mapping) else []
    return names


def _like(old: Any, new: Any, path: str) -> Any:
    """The new value, of the old one's type where that is a number, a list or a flag; 1e6 passes for a whole number."""
    if isinstance(old, bool) or old is None:
        fits = old is None or isinstance(new, bool)
    elif isinstance(old, int):
        fits = isinstance(new, int | float) and not isinstance(new, bool) and float(new).is_integer()
        new = int(new) if fits else new
    elif isinstance(old, float):
        fits = isinstance(new, int | float) and not isinstance(new, bool)
    elif isinstance(old, str):
        new, fits = str(new), True
    else:
        fits = isinstance(new, list if isinstance(old, list | tuple) else dict)
    if not fits:
        raise ValueError(f"--settings: {path} is {json.dumps(new)}; it must be like {json.dumps(old)}")
    return new
