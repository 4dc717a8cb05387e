"""Exponential moving averages whose rates are learned."""

from __future__ import annotations

from collections.abc import Sequence

from ematrace.mixers.ema import ALPHAS, EmaMixer
from ematrace.traces import EMATraces


class LearnedEmaMixer(EmaMixer):
    """h_t = (1 - α) h_{t-1} + α x_t with α = σ(λ), λ learned, and y_t = W_h [h_f; h_m; h_s].

    alphas       the rates to start from, between 0 and 1
    per_channel  a rate of its own for each channel, instead of one for all
    """

    def __init__(self, d_model: int, alphas: Sequence[float] = ALPHAS, per_channel: bool = True) -> None:
        super().__init__(d_model, alphas)
        self.traces = EMATraces(alphas, d_model if per_channel else None, learned=True)
