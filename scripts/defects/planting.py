"""What a planted defect is, and how it gets into a module.

A defect is a function that breaks a module right after it was imported, before anybody imports from it. It names what
the code is about (functions, classes, parameters, fields), never lines or local variables. Kernels can be broken in the
same way, since the tests run them interpreted: numba's with NUMBA_DISABLE_JIT=1, Triton's with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import functools
import inspect
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

PACKAGE = "ematrace"
Plant = Callable[[Any], None]
Function = Callable[..., Any]


class PlaceGoneError(Exception):
    """What a defect wants to break is not there any more."""


@dataclass(frozen=True)
class Defect:
    """`plant(module)` breaks the module; then at least one of tests/`tests` -k `select` should fail."""

    name: str
    what: str
    module: str
    tests: str
    select: str
    plant: Plant
    compiled: bool
    """Whether numba compiles its kernels: some have no interpreted form, and others would take minutes."""


DEFECTS: dict[str, Defect] = {}


def defect(module: str, tests: str, select: str, *, compiled: bool = False) -> Callable[[Plant], Plant]:
    """Decorator of a function that plants a defect in ematrace.`module`; its name and docstring say what is wrong."""

    def register(plant: Plant) -> Plant:
        subject = plant.__module__.rpartition(".")[2]
        name = f"{subject}: {plant.__name__.replace('_', ' ')}"
        if name in DEFECTS or not plant.__doc__:
            raise ValueError(f"defect {name!r} needs a name of its own and a docstring")
        DEFECTS[name] = Defect(name, plant.__doc__, f"{PACKAGE}.{module}", tests, select, plant, compiled)
        return plant

    return register


class Planter(MetaPathFinder):
    """Breaks the module of one defect when it is imported, and keeps account of what became of it."""

    current: Planter | None = None

    def __init__(self, planted: Defect) -> None:
        if planted.module in sys.modules:
            raise ValueError(f"{planted.module} is already imported")
        self.defect = planted
        self.planted = False
        self.calls = 0
        self.problem = ""
        Planter.current = self
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.defect.module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_break(module: ModuleType) -> None:
            load(module)
            try:
                self.defect.plant(module)
            except Exception as error:
                self.problem = f"{type(error).__name__}: {error}"
                raise
            self.planted = True

        spec.loader.exec_module = load_and_break  # type: ignore[method-assign]
        return spec


def wrap(owner: Any, name: str, make: Callable[[Function], Function]) -> None:
    """owner.name, a function, method or property, becomes make(original). Calls are counted."""
    found = _own(owner, name)
    if isinstance(found, (classmethod, staticmethod)):
        setattr(owner, name, type(found)(_counted(found.__func__, make)))
    elif isinstance(found, property):
        assert found.fget is not None
        setattr(owner, name, property(_counted(found.fget, make)))
    elif isinstance(found, functools.cached_property):
        cached = functools.cached_property(_counted(found.func, make))
        cached.__set_name__(owner, name)
        setattr(owner, name, cached)
    elif callable(found):
        setattr(owner, name, _counted(found, make))
    else:
        raise PlaceGoneError(f"{owner.__name__}.{name} is no function")


def with_arguments(owner: Any, name: str, **changes: Callable[[Any], Any]) -> None:
    """The function gets change(value) for each of these parameters."""

    def make(original: Function) -> Function:
        signature = inspect.signature(_in_python(original))
        if gone := sorted(set(changes) - set(signature.parameters)):
            raise PlaceGoneError(f"{owner.__name__}.{name} has no parameter {gone[0]}")

        def broken(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            for parameter, change in changes.items():
                bound.arguments[parameter] = change(bound.arguments[parameter])
            return original(*bound.args, **bound.kwargs)

        return broken

    wrap(owner, name, make)


def with_result(owner: Any, name: str, change: Callable[[Any], Any]) -> None:
    """The function returns change(result)."""
    wrap(owner, name, lambda original: lambda *args, **kwargs: change(original(*args, **kwargs)))


def replaced(owner: Any, name: str, function: Function) -> None:
    """Another function, with the same parameters, takes its place."""

    def make(original: Function) -> Function:
        ours, theirs = (list(inspect.signature(_in_python(f)).parameters) for f in (function, original))
        if ours != theirs:
            raise PlaceGoneError(f"{owner.__name__}.{name} takes {', '.join(theirs)}, not {', '.join(ours)}")
        return function

    wrap(owner, name, make)


def skipped(owner: Any, name: str, result: Any = None) -> None:
    """The function does nothing."""
    wrap(owner, name, lambda original: lambda *args, **kwargs: result)


def constant(owner: Any, name: str, change: Callable[[Any], Any]) -> None:
    """A constant of a module or class becomes change(value)."""
    setattr(owner, name, change(_own(owner, name)))
    if Planter.current is not None:
        Planter.current.calls += 1  # nobody can tell when it is read


def _own(owner: Any, name: str) -> Any:
    if name not in vars(owner):
        raise PlaceGoneError(f"{owner.__name__} has no {name}")
    return vars(owner)[name]


def _in_python(function: Any) -> Any:
    """The function that a kernel of Triton is made from."""
    return function if inspect.isroutine(function) else getattr(function, "fn", function)


def _counted(original: Function, make: Callable[[Function], Function]) -> Function:
    broken = make(original)

    @functools.wraps(_in_python(original))
    def call(*args: Any, **kwargs: Any) -> Any:
        planter = Planter.current
        if planter is not None:
            planter.calls += 1
        try:
            return broken(*args, **kwargs)
        except Exception as error:
            # A defect that cannot do its work must not pass for one that was noticed.
            if planter is not None and _is_ours(error):
                planter.problem = planter.problem or f"{type(error).__name__}: {error}"
            raise

    return call


def _is_ours(error: Exception) -> bool:
    """Whether a defect itself raised it, not the package or a test's stand-in that the defect called."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return not any(f"/src/{PACKAGE}/" in file or "/tests/" in file for file in files)
