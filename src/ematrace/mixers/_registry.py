"""Mixers by name: those of this package, and those that the user has named and thereby agreed to import."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematrace.names import did_you_mean

if TYPE_CHECKING:
    from ematrace.mixers.base import Mixer

ENTRY_POINTS = "ematrace.mixers"
REGISTERED_BY = {"spen": "ematrace.spen"}  # a package above this one
METHODS = ("forward", "state_size", "flops")


class _BuiltIn(Mapping[str, "type[Mixer]"]):
    """One entry for each file of this package that defines a `Mixer`, imported when it is asked for."""

    def __getitem__(self, name: str) -> type[Mixer]:
        cls = _defined_in(name) if name in _file_names() else None
        if cls is None:
            raise KeyError(name)
        return cls

    def __iter__(self) -> Iterator[str]:
        return (name for name in _file_names() if _defined_in(name) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"MIXERS({', '.join(self)})"


MIXERS: Mapping[str, type[Mixer]] = _BuiltIn()
"""The mixers of this package: a read-only mapping from name, which is that of the file, to class.

SPEN's is none of them: it predicts from its traces, is a part of `ematrace.spen`, and is known as "spen" once that is
imported.
"""

_registered: dict[str, type[Mixer]] = {}


def build_mixer(name: str, d_model: int, **options: Any) -> Mixer:
    """A mixer by name: built in, registered, an entry point (group "ematrace.mixers"), or "package.module:Class".

    Naming one that is not part of ematrace is consent to import it. ValueError when there is no such mixer or option.

    >>> build_mixer("attention", d_model=16, n_heads=2, positions="none").state_size(seq_len=10)
    320
    >>> build_mixer("hgrn", d_model=16, heads=2)
    Traceback (most recent call last):
    ValueError: mixer 'hgrn' has no option 'heads'; it has: lower_bound
    """
    cls = _known(name) or register_mixer(name)
    options_there = _options(cls)
    if options_there is not None:
        for option in options:
            if option not in options_there:
                there = ", ".join(options_there) or "none"
                raise ValueError(f"mixer {name!r} has no option {option!r}; it has: {there}")
    return cls(d_model, **options)


def register_mixer(name: str, cls: type[Mixer] | None = None) -> type[Mixer]:
    """Make a mixer from outside the package known, so that a saved model may name it; returns its class.

    Without `cls` the name must be an entry point or "package.module:Class", and is imported, with the working directory
    on sys.path.

    >>> class Nothing(Mixer):
    ...     def forward(self, x, state=None, *, mask=None, cu_seqlens=None):
    ...         return 0 * x, None
    ...     def state_size(self, seq_len):
    ...         return 0
    ...     def flops(self, seq_len):
    ...         return 0.0
    >>> cls = register_mixer("nothing", Nothing)
    >>> build_mixer("nothing", d_model=8).state_size(seq_len=100)
    0
    """
    if name in MIXERS:
        raise ValueError(f"mixer {name!r} is part of ematrace; register yours under another name")
    if cls is None:
        cls = _imported(name)
    check_class(name, cls)
    _registered[name] = cls
    return cls


def registered_mixer(name: str) -> type[Mixer]:
    """The class of a built-in or registered mixer. Imports nothing else: the name may come from a downloaded config.

    >>> registered_mixer("ema").__name__
    'EmaMixer'
    >>> registered_mixer("mine.mixers:Shift")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    ValueError: mixer 'mine.mixers:Shift' is not part of ematrace; if you trust it, name it: ...
    """
    cls = _known(name)
    if cls is None and name in REGISTERED_BY:
        raise ValueError(f"mixer {name!r} comes with {REGISTERED_BY[name]}; import that first")
    if cls is None:
        raise ValueError(
            f"mixer {name!r} is not part of ematrace; if you trust it, name it: --mixer {name}, "
            f"or ematrace.mixers.register_mixer({name!r})"
        )
    return cls


def _known(name: str) -> type[Mixer] | None:
    if not isinstance(name, str):
        raise ValueError(f"the name of a mixer must be a string, got {name!r}")
    return MIXERS.get(name) or _registered.get(name)


@cache
def _file_names() -> tuple[str, ...]:
    """Public files of this package; some may define no mixer."""
    package = importlib.import_module(__package__)
    return tuple(sorted(m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_")))


@cache
def _defined_in(file_name: str) -> type[Mixer] | None:
    """The subclass of `Mixer` that a file defines, if it does; imported ones do not count."""
    from ematrace.mixers.base import Mixer

    module = importlib.import_module(f"{__package__}.{file_name}")
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, Mixer) and value.__module__ == module.__name__:
            return None if value is Mixer else value
    return None


def _imported(name: str) -> Any:
    """ValueError, in one line, when the name is none of a mixer or its import fails."""
    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name == name:
            return _load(name, entry.value)
    if ":" in name:
        return _load(name, name)
    there = sorted({*MIXERS, *_registered, *(entry.name for entry in entry_points(group=ENTRY_POINTS))})
    hint = did_you_mean(name, there)
    raise ValueError(f"no mixer {name!r}; there are: {', '.join(there)}, and yours as package.module:Class{hint}")


def _load(name: str, path: str) -> Any:
    module_name, _, class_name = path.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), class_name)):
        raise ValueError(f"mixer {name!r}: a path must be package.module:Class")
    try:
        with _working_directory_on_path():
            module = importlib.import_module(module_name)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"mixer {name!r}: cannot import {module_name}: {reason}") from error
    if not hasattr(module, class_name):
        raise ValueError(f"mixer {name!r}: {module_name} has no class {class_name}")
    return getattr(module, class_name)


@contextmanager
def _working_directory_on_path() -> Iterator[None]:
    """As `python -m` does. A console script like `ematrace` has its own folder there instead."""
    here = str(Path.cwd())
    importlib.invalidate_caches()  # the file may have been written a moment ago
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def check_class(name: str, cls: Any) -> None:
    from torch import nn

    from ematrace.mixers.base import Mixer

    if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
        raise ValueError(f"mixer {name!r} must be a class derived from ematrace.mixers.Mixer, got {cls!r}")
    inherited = (None, nn.Module.forward, *(getattr(Mixer, method) for method in METHODS))
    missing = [method for method in METHODS if getattr(cls, method, None) in inherited]
    if missing:
        raise ValueError(f"mixer {name!r}: class {cls.__name__} lacks {', '.join(missing)}")


def _options(cls: type[Mixer]) -> list[str] | None:
    """Names of the keyword arguments besides d_model; None when the class takes any."""
    parameters = list(inspect.signature(cls).parameters.values())[1:]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return [p.name for p in parameters]
