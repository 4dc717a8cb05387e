"""The order of training windows: a pure function of the seed, so that a position in training is one number."""

from __future__ import annotations

from functools import lru_cache

import numpy as np


@lru_cache(maxsize=2)  # a step may span two epochs
def window_order(n_windows: int, seed: int, epoch: int) -> np.ndarray:
    """Permutation of 0 … n_windows-1 for one pass over the corpus; read-only."""
    if n_windows < 1:
        raise ValueError(f"n_windows is {n_windows}, must be positive")
    bits = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(epoch,)))
    order = np.random.Generator(bits).permutation(n_windows)
    order.flags.writeable = False
    return order


def sequences_at(step: int, sequences_per_step: int, n_windows: int, seed: int) -> np.ndarray:
    """Windows of one training step: positions step·S … step·S + S - 1 of all epochs laid end to end."""
    if sequences_per_step < 1:
        raise ValueError(f"sequences_per_step is {sequences_per_step}, must be positive")
    first = step * sequences_per_step
    epochs, places = np.divmod(np.arange(first, first + sequences_per_step), n_windows)
    windows = np.empty(sequences_per_step, dtype=np.int64)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        windows[here] = window_order(n_windows, seed, int(epoch))[places[here]]
    return windows
