"""numba with the options of this package's CPU kernels, and a cache of machine code that survives damage."""

# mypy: disallow-untyped-decorators=false, disallow-untyped-calls=false
from __future__ import annotations

import hashlib
import inspect
import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile

SUMS = {"reassoc", "contract", "arcp", "nsz"}
"""`fastmath` flags that let sums vectorise. Not `nnan`: kernels check for NaN."""
# No reference counting (`_nrt`): kernels allocate nothing, and counting took 40% of SPCN's time.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}
_DIGEST = hashlib.sha256().digest_size


def compiled(**options: Any) -> Callable[..., Any]:
    """Decorator for kernels; caches the machine code on disk if there is a writable folder."""

    def decorate(function: Callable[..., Any]) -> Any:
        kernel = numba.njit(**_OPTIONS, **options)(function)
        if kernel is not function:  # NUMBA_DISABLE_JIT gives the function back
            with suppress(Exception):  # no writable folder, or a numba that keeps its cache otherwise
                kernel._cache = _Cache(function)
        return kernel

    return decorate


def inlined(**options: Any) -> Callable[..., Any]:
    """Decorator for functions that are inlined into kernels."""
    return numba.njit(inline="always", **_OPTIONS, **options)  # type: ignore[no-any-return]


class _Cache(FunctionCache):
    """numba's cache, except that a file that cannot be read is made anew, and one that cannot be written is not missed.

    numba itself fails on either, and runs machine code whose bits have changed, or of a source that has: it looks only
    at the file of the kernel, not at those that it takes functions from.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        files = self._cache_file
        self._cache_file = _CheckedFiles(
            self._cache_path, self._impl.filename_base, (files._source_stamp, _sources(function))
        )

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # whatever numba makes of a file of another numba
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(Exception):  # a full disk, a folder that may not be written, files of another numba
            super().save_overload(sig, data)


def _sources(function: Callable[..., Any]) -> list[tuple[str, int, int]]:
    """Time and size of the files that are compiled together: the kernel's own, all whose functions of numba it or they
    import by name, and this one, which has the options."""
    files = {__file__}
    left = [function]
    while left:
        one: Any = left.pop()
        file = one.__code__.co_filename
        if file not in files:
            files.add(file)
            compiled = (v for v in one.__globals__.values() if type(v).__module__.startswith("numba."))
            left += [v.__wrapped__ for v in compiled if inspect.isfunction(getattr(v, "__wrapped__", None))]
    found = ((Path(file).name, Path(file).stat()) for file in sorted(files))
    return [(name, of.st_mtime_ns, of.st_size) for name, of in found]


class _CheckedFiles(IndexDataCacheFile):
    """Its files begin with the sha256 of the rest. What does not fit it is not there."""

    def _dump(self, obj: Any) -> bytes:
        data: bytes = super()._dump(obj)
        return hashlib.sha256(data).digest() + data

    def _save_index(self, overloads: dict[Any, str]) -> None:
        with self._open_for_write(self._index_path) as file:
            file.write(self._dump((self._version, self._source_stamp, overloads)))

    def _load_index(self) -> dict[Any, str]:
        try:
            version, stamp, overloads = self._checked(self._index_path)
        except Exception:  # damaged, or of a numba whose classes are not there any more
            return {}
        return overloads if (version, stamp) == (self._version, self._source_stamp) else {}

    def _load_data(self, name: str) -> Any:
        return self._checked(self._data_path(name))

    @staticmethod
    def _checked(path: str) -> Any:
        content = Path(path).read_bytes()
        digest, data = content[:_DIGEST], content[_DIGEST:]
        if digest != hashlib.sha256(data).digest():
            raise OSError(f"{path}: damaged")  # which numba takes for a file that is gone
        return pickle.loads(data)
