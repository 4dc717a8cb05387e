"""The parameters of SPCN: their ranges and choices."""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING, Any

import numpy as np

from ematrace.spcn.feedforward import FF_RULES
from ematrace.spcn.representation import DIRECTIONS

if TYPE_CHECKING:
    from ematrace.spcn.model import SPCN

PAPER_RATES = (0.5, 0.2, 0.1, 0.05)
"""Rates of the fast traces, L0 first."""
NETWORKS = ("described", "locked")
DEFAULT_NETWORK = "described"
FIRST_NETWORK = "locked"
"""Of models that were stored before the setting existed."""
_CHOICES = {
    "network": NETWORKS,
    "directions": ("both", *DIRECTIONS),
    "unknown_words": ("error", "zero"),
    "topk_by": ("value", "magnitude"),
    "update": ("in_place", "synchronous"),
    "reset": ("sentence", "never"),
    "dtype": ("float32", "float64"),
    "precision_power": (1, 2),
    "ff_rule": ("frozen", *FF_RULES),
}
_LEAST = {"settle_steps": 1, "spa_window": 1, "spa_top": 1, "epochs": 0, "ff_epochs": 0, "random_state": 0}
_MOST = 2**32 - 1


def check_settings(model: SPCN) -> None:
    """ValueError names the first parameter that is wrong."""
    for name, allowed in _CHOICES.items():
        if getattr(model, name) not in allowed:
            raise ValueError(f"SPCN.{name} is {getattr(model, name)!r}; choose from {', '.join(map(repr, allowed))}")
    for name, least in _LEAST.items():
        number = getattr(model, name)
        if not isinstance(number, numbers.Integral) or not least <= int(number) <= _MOST:
            raise ValueError(f"SPCN.{name} is {number!r}; it must be a whole number from {least} to {_MOST}")
    for name in ("alpha", "beta", "gamma", "eta", "spa_gain", "init_gain"):
        if not np.isfinite(getattr(model, name)):
            raise ValueError(f"SPCN.{name} is {getattr(model, name)!r}; it must be finite")
    for name in ("eta", "ff_eta"):
        rate = getattr(model, name)
        if rate is not None and not 0 <= rate < np.inf:
            raise ValueError(f"SPCN.{name} is {rate!r}; a learning rate must not be negative")
    n_jobs: Any = model.n_jobs
    if n_jobs is not None and (not isinstance(n_jobs, numbers.Integral) or n_jobs == 0):
        raise ValueError(f"SPCN.n_jobs is {n_jobs!r}; it must be None or a whole number other than 0")
    if isinstance(model.vocabulary, str):
        raise ValueError("SPCN.vocabulary is one string; give a list of words")
    if not isinstance(model.representation, str):
        raise ValueError(f"SPCN.representation is {model.representation!r}; it must be a name")
    widths: Any = model.widths
    if not widths or not all(isinstance(d, numbers.Integral) and int(d) >= 1 for d in widths):
        raise ValueError(f"SPCN.widths is {model.widths!r}; every level needs at least one unit")
    if not 0 < model.k <= 1:
        raise ValueError(f"SPCN.k is {model.k}; it is a share in (0, 1]")
    if not 0 < model.pi_min <= model.pi_max:
        raise ValueError(f"SPCN.pi_min is {model.pi_min}, pi_max is {model.pi_max}; 0 < pi_min <= pi_max is needed")
    if not 0 <= model.decay < 1:
        raise ValueError(f"SPCN.decay is {model.decay}; it must lie in [0, 1)")
    _check_rates(model)
    model.blocks()  # the names in `representation`


def _check_rates(model: SPCN) -> None:
    # A network of fewer levels than the paper's uses the first of its rates.
    fewer_levels = tuple(model.alpha_fast) == PAPER_RATES and len(model.widths) < len(PAPER_RATES)
    if len(model.alpha_fast) != len(model.widths) and not fewer_levels:
        raise ValueError(f"SPCN.alpha_fast has {len(model.alpha_fast)} rates for {len(model.widths)} levels")
    rates = {
        "alpha_fast": model.alpha_fast,
        "variance_rate": [model.variance_rate],
        "slow_ratio": [model.slow_ratio * rate for rate in model.alpha_fast],
    }
    for name, values in rates.items():
        if not all(0 <= rate <= 1 for rate in values):
            raise ValueError(f"SPCN.{name} is {getattr(model, name)!r}; every rate must lie in [0, 1]")
