"""The order of windows: every epoch visits each once, and steps cut the sequence of positions into equal parts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ematrace.text.order import sequences_at, window_order

seeds = st.integers(0, 2**64)


@given(n=st.integers(1, 300), seed=seeds, epoch=st.integers(0, 1000))
def test_each_epoch_visits_every_window_once(n: int, seed: int, epoch: int) -> None:
    order = window_order(n, seed, epoch)
    np.testing.assert_array_equal(np.sort(order), np.arange(n))
    window_order.cache_clear()
    np.testing.assert_array_equal(order, window_order(n, seed, epoch))


def test_epochs_and_seeds_differ() -> None:
    orders = {tuple(window_order(50, seed, epoch)) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16


@given(n=st.integers(1, 40), per_step=st.integers(1, 100), seed=seeds, first=st.integers(0, 50))
def test_steps_partition_the_epochs_laid_end_to_end(n: int, per_step: int, seed: int, first: int) -> None:
    steps = np.concatenate([sequences_at(step, per_step, n, seed) for step in range(first, first + 4)])
    positions = np.arange(first * per_step, (first + 4) * per_step)
    epochs = range(positions[-1] // n + 1)
    everything = np.concatenate([window_order(n, seed, epoch) for epoch in epochs])
    np.testing.assert_array_equal(steps, everything[positions])


def test_the_order_cannot_be_changed_by_its_user() -> None:
    with pytest.raises(ValueError, match="read-only"):
        window_order(5, 0, 0)[0] = 3


def test_bad_numbers() -> None:
    with pytest.raises(ValueError, match="n_windows is 0"):
        window_order(0, 0, 0)
    with pytest.raises(ValueError, match="sequences_per_step is 0"):
        sequences_at(0, 0, 5, 0)
