"""Precision-gated Hebbian updates (PGHU) of the predictor while text streams through a frozen SPEN.

For each block and token, with h the normalised slow trace:

    x_hat = W h,  e = x - x_hat                       predict first, with the weights from before this token
    var <- (1 - rho) var + rho e^2,  pi = clip(1 / var, pi_min, pi_max)
    W <- W + eta (pi * e) h^T - decay (W - W_anchor)

The paper gives the idea, eta and pi_max only; the order, rho, pi_min, the decay and its anchor are settings here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ematrace.pghu import PGHU
from ematrace.spen.predictors import Past, unit


@dataclass
class FastWeights:
    """The adapted weights of one block, W = base_scale W_base + delta, for B streams at once."""

    base_scale: Tensor
    """[] how much of the base is left; stays 1 unless the decay pulls towards zero."""
    delta: Tensor
    """[B, D, D]"""
    variance: Tensor
    """[B, D], tracked variance of the error; starts at 1."""

    @classmethod
    def fresh(cls, rule: PGHU, W_base: Tensor, n_streams: int) -> FastWeights:
        d = W_base.shape[0]
        exact = torch.float64 if W_base.dtype == torch.float64 else torch.float32
        scale = torch.ones((), dtype=exact, device=W_base.device) * float(rule.base == "predictor")
        return cls(scale, scale.new_zeros(n_streams, d, d), scale.new_ones(n_streams, d))

    def predict(self, W_base: Tensor, h: Tensor) -> Tensor:
        """x_hat [B, D] from h [B, D]."""
        from_base = self.base_scale * (h @ W_base.to(h.dtype).T)
        return torch.baddbmm(from_base.unsqueeze(2), self.delta, h.unsqueeze(2)).squeeze(2)

    def update(self, rule: PGHU, e: Tensor, h: Tensor) -> FastWeights:
        variance = torch.lerp(self.variance, e.square(), rule.variance_rate)
        step = rule.eta * _precision(rule, variance) * e
        # One pass over the matrices: they are what a token costs, d^2 numbers of each block.
        delta = torch.baddbmm(self.delta, step.unsqueeze(2), h.unsqueeze(1), beta=1 - rule.decay)
        scale = self.base_scale if rule.decay_to == "base" else (1 - rule.decay) * self.base_scale
        return FastWeights(scale, delta, variance)

    def uncertainty(self, rule: PGHU) -> Tensor:
        """mean(1 / pi) over the dimensions, [B]."""
        return _precision(rule, self.variance).reciprocal().mean(-1)


@dataclass
class FastPredictor:
    """The predictor of one block under PGHU, in the place of its static one. It reads one token at a time."""

    rule: PGHU
    W_base: Tensor
    weights: FastWeights

    def __call__(
        self, x: Tensor, traces: Tensor, past: Past = None, mask: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, Past]:
        """x_hat [B, 1, D] with the weights from before this token; `weights` are those after it from then on."""
        exact = self.weights.delta.dtype
        h = unit(traces[-1, :, 0]).to(exact)
        x_hat = self.weights.predict(self.W_base, h)
        self.weights = self.weights.update(self.rule, x[:, 0].to(exact) - x_hat, h)
        return x_hat.to(x.dtype).unsqueeze(1), None


def _precision(rule: PGHU, variance: Tensor) -> Tensor:
    return variance.clamp(min=1 / rule.pi_max).reciprocal().clamp(min=rule.pi_min)
