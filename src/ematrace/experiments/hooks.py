"""Forward hooks that last as long as a `with` block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

Hook = Callable[[nn.Module, Any, Any], Any]
"""Of module, inputs and output; what it returns, if it returns something, takes the output's place."""


@contextmanager
def hooked(hooks: Iterable[tuple[nn.Module, Hook]]) -> Iterator[None]:
    with ExitStack() as removing:
        for module, hook in hooks:
            removing.callback(module.register_forward_hook(hook).remove)
        yield


@contextmanager
def recorded(modules: Iterable[nn.Module]) -> Iterator[list[tuple[Any, Any]]]:
    """Inputs and output of each module, in the order of the modules: those of its last call."""
    watched = list(modules)
    calls: list[tuple[Any, Any]] = [((), None)] * len(watched)

    def keep(at: int) -> Hook:
        def hook(_: nn.Module, inputs: Any, output: Any) -> None:
            calls[at] = inputs, output

        return hook

    with hooked((module, keep(at)) for at, module in enumerate(watched)):
        yield calls
