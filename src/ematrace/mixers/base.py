"""The interface of a context mechanism, and what one may do with its state without knowing what is in it.

A mixer is one file in this package, or a class of yours that `build_mixer("package.module:Class")` imports. It needs
the three methods of `Mixer`; `ematrace.mixers.conformance.check_mixer` says whether they do what they should.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

State = Any
"""None, or tensors in tuples, lists and dicts; dimension 0 of each tensor is the batch. Opaque to callers."""


class Mixer(nn.Module):
    """Mixes a sequence over time, causally: y_t depends on x_0 ... x_t.

    Options of a subclass are keyword arguments with defaults, plain JSON values, since configs hold them.

    >>> import torch
    >>> class Shift(Mixer):  # y is the token before
    ...     def forward(self, x, state=None, *, mask=None, cu_seqlens=None):
    ...         before = torch.zeros_like(x[:, :1]) if state is None else state
    ...         return torch.cat([before, x[:, :-1]], 1), x[:, -1:]
    ...     def state_size(self, seq_len):
    ...         return self.d_model
    >>> y, state = Shift(d_model=1)(torch.tensor([[[1.0], [2.0], [3.0]]]))
    >>> y.flatten().tolist(), state.flatten().tolist()
    ([0.0, 1.0, 2.0], [3.0])
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        check_positive("d_model", d_model)
        self.d_model = d_model

    def forward(
        self, x: Tensor, state: State = None, *, mask: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """x [B, T, D] to y [B, T, D] and the state after the last step.

        state       None at the start, else what an earlier call returned
        mask        [B, T] bool, False at padding, which lies before a row's first token; padding does not change the
                    state, and y is arbitrary but finite there
        cu_seqlens  [N+1], with B = 1: sequence n is x[0, cu_seqlens[n]:cu_seqlens[n+1]], and the state is that of N
                    sequences; the state of an empty one does not change

        A state is float32 or wider, whatever the dtype of x; a cache of past keys and values may be in that of x.
        """
        raise NotImplementedError

    def state_size(self, seq_len: int) -> int:
        """Floating-point numbers held per sequence after `seq_len` tokens; lengths and positions do not count."""
        raise NotImplementedError

    def flops(self, seq_len: int) -> float:
        """Operations per token in a forward pass over `seq_len` tokens, as torch's FlopCounterMode counts them.

        Two for each multiply-add of a matmul, the masked half of a causal one included, padding of the last chunk too;
        nothing for elementwise work: gates, norms, and recurrences that are no matmul.
        """
        raise NotImplementedError

    def check_call(self, x: Tensor, state: State, mask: Tensor | None, cu_seqlens: Tensor | None) -> None:
        """ValueError for arguments that do not fit each other."""
        if x.ndim != 3 or x.shape[2] != self.d_model:
            raise ValueError(f"x must be [B, T, {self.d_model}], got {list(x.shape)}")
        if mask is not None:
            if cu_seqlens is not None:
                raise ValueError("mask and cu_seqlens exclude each other: packed sequences have no padding")
            if mask.shape != x.shape[:2] or mask.dtype != torch.bool:
                raise ValueError(f"mask must be bool {list(x.shape[:2])}, got {mask.dtype} {list(mask.shape)}")
        n_sequences = x.shape[0] if cu_seqlens is None else check_packing(cu_seqlens, x)
        for t in state_tensors(state):
            if t.shape[0] != n_sequences:
                raise ValueError(f"state holds {t.shape[0]} sequences, the input {n_sequences}")


def check_packing(cu_seqlens: Tensor, x: Tensor) -> int:
    """The number of packed sequences. Offsets on a GPU are trusted: reading them would wait for it."""
    B, T, _ = x.shape
    if cu_seqlens.ndim != 1 or cu_seqlens.shape[0] < 2 or cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"cu_seqlens must be [N+1] int32 or int64, got {cu_seqlens.dtype} {list(cu_seqlens.shape)}")
    if B != 1:
        raise ValueError(f"cu_seqlens packs sequences along T and needs B = 1, got B = {B}")
    if cu_seqlens.device.type == "cpu" and not torch.compiler.is_compiling():
        offsets = cu_seqlens.tolist()
        if offsets[0] != 0 or offsets[-1] != T or offsets != sorted(offsets):
            raise ValueError(f"cu_seqlens must rise from 0 to T = {T} without falling, got {offsets[:8]}")
    return cu_seqlens.shape[0] - 1


def check_positive(name: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a positive integer, got {value!r}")


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def head_width(d_model: int, n_heads: int, name: str = "", share: float = 1.0) -> int:
    """Channels per head of share * d_model; `name` is the option that gave the share."""
    check_positive("n_heads", n_heads)
    if not is_number(share) or not share > 0:
        raise ValueError(f"{name} must be a positive number, got {share!r}")
    width = share * d_model
    if width % n_heads:
        times = f"{name} * " if name else ""
        raise ValueError(f"n_heads must divide {times}d_model, got {n_heads} heads for {width:g} channels")
    return int(width) // n_heads


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def accumulation_dtype(x: Tensor) -> torch.dtype:
    """What sums over time are computed and kept in: float32, or float64 for float64."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def rms_norm(u: Tensor) -> Tensor:
    """u / √(mean u² + 1e-6) over the last dimension. It has no weight: the matmul that follows could absorb it."""
    return F.rms_norm(u, u.shape[-1:], eps=1e-6)


def map_state(change: Callable[[Tensor], Tensor], state: State) -> State:
    """A state with `change` applied to each of its tensors, e.g. `lambda t: t.index_select(0, beams)`."""
    if state is None:
        return None
    if isinstance(state, Tensor):
        return change(state)
    if type(state) in (tuple, list):
        return type(state)(map_state(change, part) for part in state)
    if type(state) is dict:
        return {key: map_state(change, part) for key, part in state.items()}
    raise ValueError(f"a state is made of None, tensors, tuples, lists and dicts, got {type(state).__name__}")


def state_tensors(state: State) -> list[Tensor]:
    """The tensors of a state, in the order of `map_state`."""
    tensors: list[Tensor] = []
    map_state(lambda t: tensors.append(t) or t, state)  # type: ignore[func-returns-value]
    return tensors


def flatten_state(state: State) -> tuple[dict[str, Tensor], Any]:
    """Named tensors, as safetensors stores them, and a JSON value that says how they were put together.

    >>> tensors, form = flatten_state((torch.zeros(1, 2), {"n": torch.ones(1), "none": None}))
    >>> form
    {'tuple': ['0', {'dict': {'n': '1', 'none': None}}]}
    >>> unflatten_state(tensors, form)
    (tensor([[0., 0.]]), {'n': tensor([1.]), 'none': None})
    """
    tensors: dict[str, Tensor] = {}

    def form(part: State) -> Any:
        if part is None:
            return None
        if isinstance(part, Tensor):
            name = str(len(tensors))
            tensors[name] = part
            return name
        if type(part) in (tuple, list):
            return {type(part).__name__: [form(p) for p in part]}
        if type(part) is dict and all(isinstance(key, str) for key in part):
            return {"dict": {key: form(p) for key, p in part.items()}}
        raise ValueError(f"a state is made of None, tensors, tuples, lists and dicts, got {type(part).__name__}")

    return tensors, form(state)


def unflatten_state(tensors: dict[str, Tensor], form: Any) -> State:
    """The state that `flatten_state` took apart; ValueError when the two do not fit, since both are read from files."""
    if form is None:
        return None
    if isinstance(form, str) and form in tensors:
        return tensors[form]
    if isinstance(form, dict) and len(form) == 1:
        kind, parts = next(iter(form.items()))
        if kind in ("tuple", "list") and isinstance(parts, list):
            inner = [unflatten_state(tensors, part) for part in parts]
            return tuple(inner) if kind == "tuple" else inner
        if kind == "dict" and isinstance(parts, dict):
            return {key: unflatten_state(tensors, part) for key, part in parts.items()}
    raise ValueError(f"not the form of a state: {str(form)[:80]!r}")
