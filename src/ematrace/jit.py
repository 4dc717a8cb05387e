"""numba's compiler as the CPU kernels of this package use it."""

# mypy: disallow-untyped-decorators=false, disallow-untyped-calls=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

SUMS = {"reassoc", "contract", "arcp", "nsz"}
"""`fastmath` that lets sums vectorise. Not all of it: that assumes that there are no NaN, and kernels look for them."""
# No reference counting (`_nrt`): kernels allocate nothing, and the counting took 40% of SPCN's time.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}


def compiled(**options: Any) -> Callable[..., Any]:
    """Decorates a kernel. What is compiled is kept on disk, if there is a folder that can be written to.

    numba keeps compiled functions by the file that they are in: after a change, touch the files that use it.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            return numba.njit(cache=True, **_OPTIONS, **options)(function)
        except RuntimeError:  # "no locator available": a read-only installation and no home
            return numba.njit(**_OPTIONS, **options)(function)

    return decorate


def inlined(**options: Any) -> Callable[..., Any]:
    """Decorates a part of kernels, which is compiled as if it were written there."""
    return numba.njit(inline="always", **_OPTIONS, **options)  # type: ignore[no-any-return]
