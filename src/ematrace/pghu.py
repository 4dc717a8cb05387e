"""Settings of precision-gated Hebbian updates; `ematrace.spen.fast_weights` is the rule.

Apart from it, since the command line shows them in its help and should not wait for torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class PGHU:
    """Settings of the update; the defaults are the paper's "default parameters" where it names one.

    >>> PGHU(eta=0.01).pi_max
    100.0
    >>> PGHU(decay=2.0)
    Traceback (most recent call last):
        ...
    ValueError: PGHU.decay is 2.0; it must lie in [0, 1]
    """

    eta: float = 1e-3
    """Learning rate."""
    pi_max: float = 100.0
    """Largest precision."""
    pi_min: float = 0.01
    """Smallest precision."""
    decay: float = 1e-3
    """Share of the way back to the anchor at each token."""
    decay_to: Literal["base", "zero"] = "base"
    """Anchor of the decay: the weights that the stream began with, or zero."""
    variance_rate: float = 0.01
    """rho: how fast the error's variance is tracked."""
    base: Literal["predictor", "zero"] = "predictor"
    """Weights to begin with: the trained W_pred, or zero (the paper's failure case)."""

    def __post_init__(self) -> None:
        if not 0 <= self.eta < math.inf:
            raise ValueError(f"PGHU.eta is {self.eta}; it must be a number, not negative")
        if not 0 < self.pi_min <= self.pi_max < math.inf:
            raise ValueError(f"PGHU.pi_min is {self.pi_min} and pi_max {self.pi_max}; they need 0 < pi_min <= pi_max")
        for field in ("decay", "variance_rate"):
            if not 0 <= getattr(self, field) <= 1:
                raise ValueError(f"PGHU.{field} is {getattr(self, field)}; it must lie in [0, 1]")
        for field, allowed in (("decay_to", ("base", "zero")), ("base", ("predictor", "zero"))):
            if getattr(self, field) not in allowed:
                raise ValueError(f"PGHU.{field} is {getattr(self, field)!r}; it must be one of {', '.join(allowed)}")
