"""numba with the options of this package's CPU kernels."""

# mypy: disallow-untyped-decorators=false, disallow-untyped-calls=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

SUMS = {"reassoc", "contract", "arcp", "nsz"}
"""`fastmath` flags that let sums vectorise. Not `nnan`: kernels check for NaN."""
# No reference counting (`_nrt`): kernels allocate nothing, and counting took 40% of SPCN's time.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}


def compiled(**options: Any) -> Callable[..., Any]:
    """Decorator for kernels; caches the machine code on disk if there is a writable folder.

    numba's cache looks only at the file of the kernel: after changing an `inlined` function, touch the files that
    use it.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            return numba.njit(cache=True, **_OPTIONS, **options)(function)
        except RuntimeError:  # "no locator available": a read-only installation without a home folder
            return numba.njit(**_OPTIONS, **options)(function)

    return decorate


def inlined(**options: Any) -> Callable[..., Any]:
    """Decorator for functions that are inlined into kernels."""
    return numba.njit(inline="always", **_OPTIONS, **options)  # type: ignore[no-any-return]
