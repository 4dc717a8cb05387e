"""`EMATraces`: the operator as a module, with fixed or learned rates and padding anywhere."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ematrace.traces.arguments import as_numbers, check_dense, rates_for
from ematrace.traces.chunked import powers
from ematrace.traces.operator import ema_traces


class EMATraces(nn.Module):
    """Exponential moving averages of x [B,T,D] at A rates: traces [A,B,T,D] and the state to carry on from.

    alphas   one rate or several, in [0, 1]
    d_model  with learned rates: a rate of its own for each of d_model channels, all starting from `alphas`
    learned  rates are parameters, kept in (0, 1) by learning their logits
    backend  see `ema_traces`

    Fixed rates are no buffers: casting the model to bfloat16 leaves them as they are, and checkpoints do not hold them.

    >>> import torch
    >>> traces = EMATraces.from_half_life([1, 10])
    >>> h, state = traces(torch.ones(1, 3, 1))
    >>> h[0, 0, :, 0]
    tensor([0.5000, 0.7500, 0.8750])
    >>> more, state = traces(torch.ones(1, 1, 1), state)
    >>> more[0].item()
    0.9375
    """

    def __init__(
        self,
        alphas: float | Sequence[float] | Tensor,
        d_model: int | None = None,
        learned: bool = False,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        self.rates = as_numbers(_listed(alphas), "alphas")
        self.d_model, self.learned, self.backend = d_model, learned, backend
        for rate in self.rates:
            if not 0.0 <= rate <= 1.0:
                raise ValueError(f"alphas must lie in [0, 1], got {rate}")
            if learned and rate in (0.0, 1.0):
                raise ValueError(f"alphas must lie between 0 and 1 to be learned, got {rate}")
        if d_model is not None and not learned:
            raise ValueError("d_model gives each channel a learned rate and needs learned=True")
        if learned:
            logits = torch.tensor(self.rates, dtype=torch.float64).logit().to(torch.get_default_dtype())
            self.logits = nn.Parameter(logits if d_model is None else logits.unsqueeze(1).repeat(1, d_model))

    @classmethod
    def from_half_life(
        cls,
        half_lives: float | Sequence[float] | Tensor,
        d_model: int | None = None,
        learned: bool = False,
        backend: str = "auto",
    ) -> EMATraces:
        """Rates at which a trace has halved after so many steps: a = 1 - 2^(-1 / half-life)."""
        numbers = as_numbers(_listed(half_lives), "half_lives")
        for half_life in numbers:
            if not half_life > 0:
                raise ValueError(f"half_lives must be positive, got {half_life}")
        return cls([-math.expm1(-math.log(2) / half_life) for half_life in numbers], d_model, learned, backend)

    @property
    def alphas(self) -> Tensor:
        """[A], or [A,D] with a rate for each channel."""
        if not self.learned:
            return torch.tensor(self.rates, dtype=torch.float64)
        return self.logits.to(torch.promote_types(self.logits.dtype, torch.float32)).sigmoid()

    @property
    def half_lives(self) -> Tensor:
        """Steps until a trace has halved, in the shape of `alphas`."""
        return -math.log(2) / torch.log1p(-self.alphas)

    def forward(
        self, x: Tensor, state: Tensor | None = None, cu_seqlens: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`mask` [B,T] is 1 (or True) at real steps: at others the state stays as it is and the traces are zero."""
        rates = self.alphas if self.learned else self.rates
        if mask is None:
            return ema_traces(x, rates, state, cu_seqlens, self.backend)
        if cu_seqlens is not None:
            raise ValueError("mask and cu_seqlens exclude each other")
        check_dense(mask, "mask")
        check_dense(x, "x")
        if mask.shape != x.shape[:2]:
            raise ValueError(f"mask must be {list(x.shape[:2])}, got {list(mask.shape)}")
        if mask.device != x.device:
            raise ValueError(f"mask must be on {x.device} as x, got {mask.device}")
        if x.shape[1] == 0:
            return ema_traces(x, rates, state, backend=self.backend)
        return _masked(x, rates, state, mask.bool(), self.backend)

    def extra_repr(self) -> str:
        rates = ", ".join(f"{rate:.4g}" for rate in self.rates)
        channels = "" if self.d_model is None else f", d_model={self.d_model}"
        return f"alphas=({rates}){channels}, learned={self.learned}, backend={self.backend!r}"


def _listed(values: float | Sequence[float] | Tensor) -> float | Sequence[float]:
    if not isinstance(values, Tensor):
        return values
    check_dense(values, "alphas")
    return values.tolist()


def _masked(
    x: Tensor, rates: tuple[float, ...] | Tensor, state: Tensor | None, mask_BT: Tensor, backend: str
) -> tuple[Tensor, Tensor]:
    """Padding moves to the front of each row, as zeros, where it changes nothing; the state's share is added apart."""
    order_BT = torch.argsort(mask_BT.to(torch.uint8), dim=1, stable=True)
    place_BT = torch.argsort(order_BT, dim=1)
    moved = torch.where(mask_BT.unsqueeze(-1), x, 0).take_along_dim(order_BT.unsqueeze(-1), dim=1)
    if state is not None and x.dtype != torch.float64:
        moved = moved.float()  # two summands: rounded after they are added, not before
    traces, last = ema_traces(moved, rates, backend=backend)
    traces = traces.take_along_dim(place_BT[None, :, :, None], dim=2)
    if state is not None:
        steps_BT = mask_BT.cumsum(1)
        decay_ABTG = (
            powers(1 - rates_for(rates, x), steps_BT.flatten())
            .transpose(1, 2)
            .unflatten(1, steps_BT.shape)
            .to(last.dtype)
        )
        traces = torch.addcmul(traces, decay_ABTG, state.to(last.dtype).unsqueeze(2))
        last = torch.addcmul(last, decay_ABTG[:, :, -1], state.to(last.dtype))
    return torch.where(mask_BT.unsqueeze(-1), traces, 0).to(x.dtype), last
