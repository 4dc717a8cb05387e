"""Context mechanisms: one file each, one interface (`Mixer`), found by file name, by dotted path or by entry point.

>>> sorted(MIXERS)
['attention', 'ema', 'ema_attention', 'ema_learned', 'gated_delta', 'gla', 'hgrn', 'linear_attention', 'none']
>>> mixer = build_mixer("ema", d_model=8, alphas=[0.5, 0.1])
>>> mixer.state_size(seq_len=100), mixer.flops(seq_len=100)
(16, 256.0)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ematrace.mixers._registry import MIXERS, build_mixer, register_mixer, registered_mixer

if TYPE_CHECKING:
    from ematrace.mixers.base import Mixer, State

__all__ = ["MIXERS", "Mixer", "State", "build_mixer", "register_mixer", "registered_mixer"]


def __getattr__(name: str) -> Any:
    """The base class, imported when first asked for, so that naming a mixer does not wait for torch."""
    if name not in ("Mixer", "State"):
        raise AttributeError(f"module 'ematrace.mixers' has no attribute {name!r}")
    from ematrace.mixers import base

    return getattr(base, name)
