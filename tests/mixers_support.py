"""A mixer as plain as can be, and the same with one mistake each, for tests of the conformance checks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ematrace.mixers import Mixer

KEEP = 0.8


class Decay(Mixer):
    """h_t = 0.8 h_{t-1} + W_in x_t, y_t = W_o h_t, by loops over everything. It passes all checks."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.W_in = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)

    def forward(
        self, x: Tensor, state: Any = None, *, mask: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        u = self.W_in(x).to(torch.promote_types(x.dtype, torch.float32))
        if cu_seqlens is None:
            h0 = u.new_zeros(x.shape[0], self.d_model) if state is None else state
            h, last = self.walk(u, h0, mask)
        else:
            h0 = u.new_zeros(len(cu_seqlens) - 1, self.d_model) if state is None else state
            h, last = self.walk_packed(u, h0, cu_seqlens)
        return self.read(h).to(x.dtype), last

    def read(self, h: Tensor) -> Tensor:
        y: Tensor = self.W_o(h.to(self.W_o.weight.dtype))
        return y

    def walk(self, u: Tensor, h: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        steps = [u[:, :0]]
        for t in range(u.shape[1]):
            h = self.step(h, u[:, t], None if mask is None else mask[:, t : t + 1])
            steps.append(h.unsqueeze(1))
        return torch.cat(steps, 1), h

    def step(self, h: Tensor, u_t: Tensor, real: Tensor | None) -> Tensor:
        new = KEEP * h + u_t
        return new if real is None else torch.where(real, new, h)

    def walk_packed(self, u: Tensor, h: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
        parts, ends = [], []
        for n, (start, end) in enumerate(pairwise(cu_seqlens.tolist())):
            part, last = self.walk(u[:, start:end], h[n : n + 1], None)
            parts.append(part)
            ends.append(last)
        return torch.cat(parts, 1), torch.cat(ends)

    def state_size(self, seq_len: int) -> int:
        return self.d_model

    def flops(self, seq_len: int) -> float:
        return 4.0 * self.d_model**2


class ReturnsNoState(Decay):
    def forward(self, x: Tensor, state: Any = None, **kwargs: Any) -> Any:
        return super().forward(x, state, **kwargs)[0]


class WrongShape(Decay):
    def forward(self, x: Tensor, state: Any = None, **kwargs: Any) -> Any:
        y, state = super().forward(x, state, **kwargs)
        return y[:, -1], state


class BatchSecond(Decay):
    def forward(self, x: Tensor, state: Any = None, **kwargs: Any) -> Any:
        y, last = super().forward(x, None if state is None else state[0], **kwargs)
        return y, last.unsqueeze(0)


class Forgets(Decay):
    """Starts anew in each call."""

    def forward(self, x: Tensor, state: Any = None, **kwargs: Any) -> Any:
        return super().forward(x, None, **kwargs)


class StateOneStepLate(Decay):
    """After more than one step, the state of the last but one."""

    def walk(self, u: Tensor, h: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        steps, last = super().walk(u, h, mask)
        return steps, steps[:, -2].clone() if u.shape[1] > 1 else last


class LeaksAcrossPacked(Decay):
    """The next sequence goes on from the end of the one before."""

    def walk_packed(self, u: Tensor, h: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
        steps, _ = self.walk(u, h[:1], None)
        return steps, steps[0, (cu_seqlens[1:] - 1).clamp(min=0)]


class FirstStateForAll(Decay):
    """All packed sequences start from the state of the first."""

    def walk_packed(self, u: Tensor, h: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
        return super().walk_packed(u, h[:1].expand_as(h), cu_seqlens)


class EmptyIsZero(Decay):
    """The state of an empty packed sequence is lost."""

    def walk_packed(self, u: Tensor, h: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
        steps, ends = super().walk_packed(u, h, cu_seqlens)
        return steps, ends * (cu_seqlens.diff() > 0).unsqueeze(1)


class PaddingIsInput(Decay):
    """Padding gets into the state."""

    def step(self, h: Tensor, u_t: Tensor, real: Tensor | None) -> Tensor:
        return super().step(h, u_t, None)


class PaddingErases(Decay):
    """Padding sets the state to zero, which is noticed only if there was one."""

    def step(self, h: Tensor, u_t: Tensor, real: Tensor | None) -> Tensor:
        h = super().step(h, u_t, real)
        return h if real is None else h * real


class NanAtPadding(Decay):
    def forward(self, x: Tensor, state: Any = None, *, mask: Tensor | None = None, **kwargs: Any) -> Any:
        y, state = super().forward(x, state, mask=mask, **kwargs)
        return y if mask is None else y.masked_fill(~mask.unsqueeze(-1), torch.nan), state


class SeesTheFuture(Decay):
    def walk(self, u: Tensor, h: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        return super().walk(u + 1e-3 * u.roll(-1, 1), h, mask)


class SeesOtherRows(Decay):
    def walk(self, u: Tensor, h: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        return super().walk(u - 1e-3 * u.mean(0), h, mask)


class ChangesState(Decay):
    def forward(self, x: Tensor, state: Any = None, **kwargs: Any) -> Any:
        y, last = super().forward(x, state, **kwargs)
        if state is not None:
            state.copy_(last)
        return y, last


class ChangesInput(Decay):
    def forward(self, x: Tensor, state: Any = None, **kwargs: Any) -> Any:
        if x.grad_fn is None and not x.requires_grad:
            x.mul_(1.5)
        return super().forward(x, state, **kwargs)


class UnusedParameter(Decay):
    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.W_unused = nn.Linear(d_model, d_model, bias=False)


class Detached(Decay):
    def forward(self, x: Tensor, state: Any = None, **kwargs: Any) -> Any:
        y, last = super().forward(x, state, **kwargs)
        return y.detach(), last


class InfiniteGradient(Decay):
    """sqrt(0) has no derivative."""

    def read(self, h: Tensor) -> Tensor:
        return super().read(h) + (self.W_o.weight - self.W_o.weight).square().sum().sqrt()


class DetachedState(Decay):
    def forward(self, x: Tensor, state: Any = None, **kwargs: Any) -> Any:
        y, last = super().forward(x, state, **kwargs)
        return y, last.detach()


class DetachedGate(Decay):
    """One of two paths from x to y has no gradient."""

    def forward(self, x: Tensor, state: Any = None, **kwargs: Any) -> Any:
        y, last = super().forward(x, state, **kwargs)
        return y * x.detach().sigmoid(), last


class DividesByDecay(Decay):
    """h_t = a^t Σ_s u_s / a^s, which is right only as long as a^t is a number."""

    def walk(self, u: Tensor, h: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        if mask is not None:
            return super().walk(u, h, mask)
        decay = (torch.full((u.shape[1], 1), 0.05, dtype=u.dtype, device=u.device)).cumprod(0)
        steps = decay * (h.unsqueeze(1) + (u / decay).cumsum(1))
        return steps, steps[:, -1].clone() if u.shape[1] else h


class OutputInFloat32(Decay):
    def forward(self, x: Tensor, state: Any = None, **kwargs: Any) -> Any:
        y, last = super().forward(x, state, **kwargs)
        return (y.float() if x.dtype == torch.bfloat16 else y), last


class StateInBfloat16(Decay):
    """The state has the dtype of x."""

    def forward(self, x: Tensor, state: Any = None, **kwargs: Any) -> Any:
        y, last = super().forward(x, None if state is None else state.to(torch.float64), **kwargs)
        return y, last.to(x.dtype)


class StateInAutocast(Decay):
    """The state has the dtype of a matmul, bfloat16 under autocast."""

    def walk(self, u: Tensor, h: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        steps, last = super().walk(u, h, mask)
        return steps, last @ torch.eye(self.d_model, dtype=last.dtype) if last.dtype == torch.float32 else last


class ComputesInFloat32(Decay):
    def walk(self, u: Tensor, h: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        steps, last = super().walk(u.float(), h.float(), mask)
        return steps.to(u.dtype), last.to(h.dtype)


class KeepsItsPast(Decay):
    """The past is in the mixer, and the state only says that there is one."""

    past: Tensor | None = None

    def forward(self, x: Tensor, state: Any = None, **kwargs: Any) -> Any:
        y, self.past = super().forward(x, None if state is None else self.past, **kwargs)
        return y, self.past.sign()


class UnderstatesState(Decay):
    def state_size(self, seq_len: int) -> int:
        return self.d_model // 2


class KeepsAllInMemory(Decay):
    """The state is a slice of all states."""

    def walk(self, u: Tensor, h: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        steps, last = super().walk(u, h, mask)
        return steps, steps[:, -1] if u.shape[1] else last


class ForgetsAMatmul(Decay):
    def flops(self, seq_len: int) -> float:
        return 2.0 * self.d_model**2


class Raises(Decay):
    def forward(self, x: Tensor, state: Any = None, **kwargs: Any) -> Any:
        raise RuntimeError("something\nbroke")


MISTAKES: dict[str, list[type[Decay]]] = {
    "interface": [ReturnsNoState, WrongShape, BatchSecond, Raises],
    "steps": [Forgets, KeepsItsPast],
    "uneven_pieces": [Forgets, StateOneStepLate],
    "packed": [LeaksAcrossPacked],
    "packed_with_state": [LeaksAcrossPacked, FirstStateForAll, EmptyIsZero],
    "padded": [PaddingIsInput, NanAtPadding],
    "padded_with_state": [PaddingIsInput, PaddingErases],
    "causal": [SeesTheFuture],
    "rows_independent": [SeesOtherRows],
    "inputs_untouched": [ChangesState, ChangesInput],
    "gradients": [UnusedParameter, Detached, InfiniteGradient],
    "gradcheck": [Detached, DetachedState, DetachedGate, ComputesInFloat32],
    "float32": [DividesByDecay],
    "dtypes": [OutputInFloat32, StateInBfloat16, StateInAutocast],
    "saved_state": [KeepsItsPast],
    "state_size": [UnderstatesState, KeepsAllInMemory],
    "flops": [ForgetsAMatmul],
}
"""For each check, mixers that must not pass it."""


def mistakes() -> list[tuple[str, type[Decay]]]:
    return [(check, cls) for check, classes in MISTAKES.items() for cls in classes]
