"""What does a context mechanism keep of the past, structure or content, and what does it cost?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ematrace.traces import EMATraces, ema_traces

__all__ = ["EMATraces", "__version__", "ema_traces"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """The operator and its module, imported when first asked for, so that `import ematrace` does not wait for torch."""
    if name not in __all__:
        raise AttributeError(f"module 'ematrace' has no attribute {name!r}")
    from ematrace import traces

    return getattr(traces, name)


def __dir__() -> list[str]:
    return sorted(__all__)
