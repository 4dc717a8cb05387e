"""Whether the package's own kernels are used: Triton's on GPUs, numba's on CPUs.

`EMATRACE_KERNELS=0` runs everything in plain torch: to compare, or where a kernel does not compile.
"""

from __future__ import annotations

import os
from functools import cache

import torch

SWITCH = "EMATRACE_KERNELS"


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def gpu_kernels_are_on() -> bool:
    if not _switched_on():
        return False
    try:
        import triton  # noqa: F401
    except ImportError:  # it comes with torch on GPU machines only
        return False
    return True


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def cpu_kernels_are_on() -> bool:
    return _switched_on() and numba_compiles()


@cache
def numba_compiles() -> bool:
    """Whether numba is installed and compiles (NUMBA_DISABLE_JIT makes it interpret)."""
    try:
        import numba
    except ImportError:  # also raised for a numpy that is too new for numba
        return False
    return not numba.config.DISABLE_JIT  # type: ignore[attr-defined]


def _switched_on() -> bool:
    return os.environ.get(SWITCH, "1") != "0"
