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
