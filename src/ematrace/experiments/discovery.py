"""Finding experiments: a file of this package that defines EXPERIMENT, or a user's own file or module."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType

from ematrace.experiments.base import Experiment
from ematrace.names import did_you_mean

ATTRIBUTE = "EXPERIMENT"
_DEFINED = re.compile(rf"^{ATTRIBUTE}\b", re.MULTILINE)


class Catalogue(Mapping[str, Experiment]):
    """The package's own experiments by name, which is also the name of the file. Imported when first asked for."""

    def __init__(self) -> None:
        files = sorted(Path(__file__).parent.glob("[!_]*.py"))
        self._names = [file.stem for file in files if _DEFINED.search(file.read_text(encoding="utf-8"))]

    def __getitem__(self, name: str) -> Experiment:
        if name not in self._names:
            raise KeyError(name)
        found = getattr(importlib.import_module(f"ematrace.experiments.{name}"), ATTRIBUTE)
        assert isinstance(found, Experiment)
        assert found.name == name
        return found

    def __contains__(self, name: object) -> bool:  # Mapping's own would import the experiment
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


EXPERIMENTS: Mapping[str, Experiment] = Catalogue()


def is_own(reference: str) -> bool:
    """Whether it names a user's file (./mine.py) or module (package.mine, package.mine:NAME).

    >>> [is_own(text) for text in ("mine.py", "package.mine", "package.mine:GRID", "trace_probe", "C09")]
    [True, True, True, False, False]
    """
    return reference.endswith(".py") or bool(re.search(r"[./:\\]", reference))


def find_experiment(reference: str, folder: str | Path = ".") -> Experiment:
    """An experiment by its name in this package, by file or by module; both are looked for from `folder`.

    Naming a file or module is consent to run it.

    >>> find_experiment("position").title
    'Position alone'
    >>> find_experiment("positions")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    ValueError: unknown experiment 'positions'; known: ...; did you mean position?
    >>> find_experiment("mine.py")
    Traceback (most recent call last):
        ...
    FileNotFoundError: mine.py: no such file
    """
    if not is_own(reference):
        if reference not in EXPERIMENTS:
            hint = did_you_mean(reference, EXPERIMENTS)
            raise ValueError(f"unknown experiment '{reference}'; known: {', '.join(EXPERIMENTS)}{hint}")
        return EXPERIMENTS[reference]
    return _find_own(reference, folder)[1]


def own_source(reference: str, folder: str | Path = ".") -> str:
    """The source of a user's own `measure`.

    Where another module makes it, as `arm_experiment` does, with all of the user's file or module. Otherwise without,
    so that a longer grid does not repeat what was measured.
    """
    module, experiment = _find_own(reference, folder)
    measure = experiment.measure
    source = inspect.getsource(measure) if inspect.isfunction(measure) else ""
    return source if source and measure.__module__ == module.__name__ else source + inspect.getsource(module)


def _find_own(reference: str, folder: str | Path) -> tuple[ModuleType, Experiment]:
    folder = Path(folder).resolve()
    path, _, attribute = reference.partition(":") if not reference.endswith(".py") else (reference, "", "")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    if path.endswith(".py"):
        file = folder / Path(path).expanduser()
        if not file.is_file():
            raise FileNotFoundError(f"{path}: no such file")
        module = _import_file(file, file.stat().st_mtime_ns, path)
    else:
        module = _import_module(path)
    found = getattr(module, attribute or ATTRIBUTE, None)
    if not isinstance(found, Experiment):
        raise ValueError(f"{path}: {attribute or ATTRIBUTE} is {'missing' if found is None else 'not an Experiment'}")
    if found.name in EXPERIMENTS and found is not EXPERIMENTS[found.name]:
        raise ValueError(f"{path}: the name '{found.name}' is taken by an experiment of ematrace; choose another")
    return module, found


@cache
def _import_file(file: Path, changed: int, shown: str) -> ModuleType:
    """Once for each version of the file (`changed`), under a name that hides no other module."""
    spec = importlib.util.spec_from_file_location(f"ematrace_own_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{shown}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"{shown}: {describe_error(error, str(file))}") from error
    return module


def _import_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ValueError(f"{name}: no such module; it is looked for in the working directory, too") from None
        raise ValueError(f"{name}: {describe_error(error)}") from error
    except Exception as error:
        raise ValueError(f"{name}: {describe_error(error)}") from error


def describe_error(error: BaseException, file: str | None = None) -> str:
    """One line: the kind of error, its text, and where it was raised (in `file`, if it passed through it)."""
    text = " ".join(str(error).split())
    passed = list(traceback.extract_tb(error.__traceback__))
    frames = [frame for frame in passed if frame.filename == file] or passed
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    if isinstance(error, SyntaxError):  # whose text says where
        where = ""
    return f"{type(error).__name__}{': ' if text else ''}{text}{where}"
