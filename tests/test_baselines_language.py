"""Models without context against closed forms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file
from scipy.special import logsumexp
from scipy.stats import entropy

from ematrace.baselines.language import Uniform, Unigram

ids_strategy = st.lists(st.integers(0, 9), min_size=1, max_size=60).map(np.array)


@given(ids=ids_strategy)
def test_unsmoothed_on_its_own_text_gives_the_empirical_entropy(ids: np.ndarray) -> None:
    counts = np.bincount(ids, minlength=10)
    model = Unigram(counts, smoothing=0)
    assert model.nll(ids) / len(ids) == pytest.approx(entropy(counts), abs=1e-12)


@given(ids=ids_strategy, smoothing=st.floats(1e-3, 1e3))
def test_smoothed_is_a_distribution_with_the_ratios_it_says(ids: np.ndarray, smoothing: float) -> None:
    counts = np.bincount(ids, minlength=10)
    model = Unigram(counts, smoothing)
    assert model.log_probs.dtype == np.float64
    assert logsumexp(model.log_probs) == pytest.approx(0, abs=1e-12)
    expected = (counts + smoothing) / (len(ids) + 10 * smoothing)
    np.testing.assert_allclose(np.exp(model.log_probs), expected)
    assert model.nll(ids) == pytest.approx(-np.log(expected)[ids].sum())


def test_uniform_is_log_of_the_vocabulary_size() -> None:
    model = Uniform(50257)
    ids = np.arange(100).reshape(4, 25)
    assert model.nll(ids) == pytest.approx(100 * np.log(50257))
    assert model.nll(np.array([], dtype=np.int64)) == 0


def test_a_token_never_seen_costs_everything_unless_smoothed() -> None:
    assert Unigram(np.array([3, 0]), smoothing=0).nll(np.array([0, 1])) == np.inf
    assert Unigram(np.array([3, 0]), smoothing=1).nll(np.array([1])) == pytest.approx(np.log(5))


def test_saved_and_loaded(tmp_path: Path) -> None:
    model = Unigram(np.array([5, 0, 2]), smoothing=0.1)
    again = Unigram.load(model.save(tmp_path / "unigram.safetensors"))
    np.testing.assert_array_equal(again.log_probs, model.log_probs)
    for name, tensors, metadata in [
        ("no metadata", {"counts": model.counts}, None),
        ("no counts", {"weights": model.counts}, {"smoothing": "1.0"}),
        ("negative", {"counts": -model.counts}, {"smoothing": "1.0"}),
    ]:
        save_file(tensors, tmp_path / name, metadata)
        with pytest.raises(ValueError, match=f"{name}: "):
            Unigram.load(tmp_path / name)
    (tmp_path / "cut").write_bytes((tmp_path / "unigram.safetensors").read_bytes()[:-3])
    with pytest.raises(ValueError, match=r"cut: "):
        Unigram.load(tmp_path / "cut")
    with pytest.raises(FileNotFoundError, match="none: no such file"):
        Unigram.load(tmp_path / "none")


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="token 0 or 3 is not in a vocabulary of 3"):
        Uniform(3).nll(np.array([0, 3]))
    with pytest.raises(ValueError, match="all zero"):
        Unigram(np.zeros(3, dtype=int), smoothing=0)
    with pytest.raises(ValueError, match="smoothing is -1"):
        Unigram(np.ones(3, dtype=int), smoothing=-1)
    with pytest.raises(ValueError, match="non-negative"):
        Unigram(np.array([1, -1]))
