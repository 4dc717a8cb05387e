"""Whether the Triton kernels are used where there is a GPU for them.

`EMATRACE_KERNELS=0` in the environment runs everything in plain torch: to compare, or where a kernel does not compile.
"""

from __future__ import annotations

import os

import torch

SWITCH = "EMATRACE_KERNELS"


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def kernels_are_on() -> bool:
    if os.environ.get(SWITCH, "1") == "0":
        return False
    try:
        import triton  # noqa: F401
    except ImportError:  # it comes with torch on GPU machines only
        return False
    return True
