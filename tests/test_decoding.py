"""Word decoding: targets by hand, and a decoder checked on traces built from the closed form."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from ematrace.probes import PeelingDecoder, lagged_words

V, D = 147, 512


def trace(words, codes, alpha, noise=0.0, seed=0):
    """h = Σ α(1-α)^i (x_i + noise) in float32, words [N, L] newest first; noise relative to a code's norm."""
    rng = np.random.default_rng(seed)
    x = codes[words].astype(np.float32)
    spread = noise * np.linalg.norm(codes, axis=1).mean() / np.sqrt(codes.shape[1])
    x = x + np.float32(spread) * rng.standard_normal(x.shape, dtype=np.float32)
    weights = (alpha * (1 - alpha) ** np.arange(words.shape[1])).astype(np.float32)
    return np.einsum("i,nid->nd", weights, x)


def sentences(n, length, seed=0, vocabulary=V):
    """Seven frequent words and a flat rest, so that words repeat within a sentence as determiners do."""
    rng = np.random.default_rng(seed)
    shares = np.r_[[0.25, 0.08], np.full(5, 0.03), np.full(vocabulary - 7, 0.52 / (vocabulary - 7))]
    return rng.choice(vocabulary, p=shares / shares.sum(), size=(n, length))


def gaussian_codes(seed=0):
    return np.random.default_rng(seed).standard_normal((V, D)) / np.sqrt(D)


def sparse_codes(k=41, seed=0):
    """Non-negative, k active units, unit length: what a top-k column gives."""
    codes = np.random.default_rng(seed).standard_normal((V, D))
    codes = np.where(codes >= np.sort(codes, axis=1)[:, [-k]], codes, 0)
    return codes / np.linalg.norm(codes, axis=1, keepdims=True)


@pytest.mark.parametrize("alpha", [0.5, 0.2, 0.075])
@pytest.mark.parametrize("length", [1, 2, 7, 14, 20])
def test_one_hot_prefixes_come_back_exactly(alpha, length):
    words = sentences(60, length)
    decoded = PeelingDecoder(alpha, np.eye(V)).decode_batch(trace(words, np.eye(V), alpha), [length] * 60)
    assert (decoded == words).all()


@pytest.mark.parametrize("length", [16, 20])
def test_one_hot_prefixes_of_few_words_come_back_exactly_at_one_half(length):
    """Five words in twenty positions: every word repeats, and α = 1/2 still leaves one reading."""
    words = np.random.default_rng(2).integers(0, 5, (60, length))
    decoded = PeelingDecoder(0.5, np.eye(5)).decode_batch(trace(words, np.eye(5), 0.5), [length] * 60)
    assert (decoded == words).all()


@pytest.mark.parametrize("alpha", [0.5, 0.075])
@pytest.mark.parametrize("codes", [gaussian_codes(), sparse_codes()], ids=["gaussian", "sparse"])
def test_dense_codes_come_back_exactly(alpha, codes):
    words = sentences(100, 14)
    decoded = PeelingDecoder(alpha, codes).decode_batch(trace(words, codes, alpha), [14] * 100)
    assert (decoded == words).all()


def test_a_repeated_word_that_outweighs_the_newest_is_not_taken_for_it():
    """α = .075: word 0 at positions 1 and 3 weighs .129, the newest word .075."""
    words = np.array([[5, 0, 3, 0, 2]])
    H = trace(words, np.eye(V), 0.075)
    assert H.argmax() == 0
    assert (PeelingDecoder(0.075, np.eye(V)).decode_batch(H, [5]) == words).all()


@pytest.mark.parametrize("alpha", [0.5, 0.075])
def test_noise_costs_accuracy_gradually(alpha):
    words = sentences(150, 7)
    codes = sparse_codes()
    decoder = PeelingDecoder(alpha, codes)
    accuracy = [
        (decoder.decode_batch(trace(words, codes, alpha, noise), [7] * 150) == words).mean()
        for noise in (0.0, 0.1, 0.3, 0.6, 3.0)
    ]
    assert accuracy[0] == 1.0
    assert accuracy[1] > 0.9
    assert 0.6 < accuracy[2] < 0.95
    assert 0.4 < accuracy[3] < 0.8
    assert accuracy[4] < accuracy[3] < accuracy[2] < accuracy[1]


def test_fast_trace_forgets_the_oldest_first_under_noise():
    """A weight's error is about .01 here: small beside 1/2, 1/4 and 1/8, larger than 1/256."""
    words, codes = sentences(200, 8), gaussian_codes()
    decoded = PeelingDecoder(0.5, codes).decode_batch(trace(words, codes, 0.5, noise=0.3), [8] * 200)
    by_lag = (decoded == words).mean(axis=0)
    assert (by_lag[:3] > 0.98).all()
    assert by_lag[-1] < 0.3


def test_a_beam_finds_what_one_path_misses():
    words, codes = sentences(200, 14), gaussian_codes()
    H = trace(words, codes, 0.075, noise=0.1)
    narrow, wide = (
        (PeelingDecoder(0.075, codes, beam=beam).decode_batch(H, [14] * 200) == words).mean() for beam in (1, 16)
    )
    assert wide > narrow + 0.2


@pytest.mark.parametrize("alpha", [0.5, 0.075])
def test_noisy_vectors_get_the_nearest_of_all_prefixes(alpha):
    """Exhaustive search over 6^4 prefixes is the oracle; the codes share a strong common part."""
    rng = np.random.default_rng(5)
    codes = rng.standard_normal((6, 30)) + 2 * rng.standard_normal(30)
    prefixes = np.array(list(product(range(6), repeat=4)))
    H = trace(rng.integers(0, 6, (200, 4)), codes, alpha, noise=0.3)
    distance = np.square(H[:, None] - trace(prefixes, codes, alpha)).sum(axis=2)
    decoded = PeelingDecoder(alpha, codes, beam=64).decode_batch(H, [4] * 200)
    assert (decoded == prefixes[distance.argmin(axis=1)]).all(axis=1).mean() > 0.97


def test_lengths_are_mixed_and_padded():
    codes = gaussian_codes()
    lengths = np.array([3, 0, 6, 1, 3])
    words = sentences(5, 6)
    H = np.stack([trace(words[[i], :n], codes, 0.5)[0] for i, n in enumerate(lengths)])
    decoder = PeelingDecoder(0.5, codes)
    decoded = decoder.decode_batch(H, lengths)
    assert decoded.shape == (5, 6)
    for row, n, truth in zip(decoded, lengths, words, strict=True):
        assert row[:n].tolist() == truth[:n].tolist()
        assert (row[n:] == -1).all()


def test_blocks_of_rows_do_not_matter(monkeypatch):
    words, codes = sentences(50, 5), gaussian_codes()
    H = trace(words, codes, 0.075, noise=0.5)
    whole = PeelingDecoder(0.075, codes).decode_batch(H, [5] * 50)
    monkeypatch.setattr("ematrace.probes.decoding.BLOCK_ROWS", 7)
    assert (PeelingDecoder(0.075, codes).decode_batch(H, [5] * 50) == whole).all()


def test_subset_tables_hold_every_sum_that_fits(monkeypatch):
    weights = 0.3 * 0.7 ** np.arange(6)
    masks = (np.arange(64)[:, None] >> np.arange(6)) & 1
    np.testing.assert_allclose(PeelingDecoder(0.3, np.eye(2))._subset_sums(6), np.sort(masks @ weights), atol=1e-15)
    monkeypatch.setattr("ematrace.probes.decoding.TABLE_SIZE", 25)
    small = np.sort((masks @ weights)[masks.sum(axis=1) <= 2])
    np.testing.assert_allclose(PeelingDecoder(0.3, np.eye(2))._subset_sums(6), small, atol=1e-15)


def test_bad_decoder_input_is_refused():
    with pytest.raises(ValueError, match="alpha"):
        PeelingDecoder(1.0, np.eye(3))
    with pytest.raises(ValueError, match="beam"):
        PeelingDecoder(0.5, np.eye(3), beam=0)
    with pytest.raises(ValueError, match="codebook"):
        PeelingDecoder(0.5, np.full((3, 3), np.nan))
    decoder = PeelingDecoder(0.5, np.eye(3))
    with pytest.raises(ValueError, match=r"\[N, 3\]"):
        decoder.decode_batch(np.zeros((2, 4)), [1, 1])
    with pytest.raises(ValueError, match="lengths must be 2"):
        decoder.decode_batch(np.zeros((2, 3)), [1])
    with pytest.raises(ValueError, match="none negative"):
        decoder.decode_batch(np.zeros((2, 3)), [1, -1])
    with pytest.raises(ValueError, match="NaN"):
        decoder.decode_batch(np.full((1, 3), np.nan), [1])


SENTENCES = [["the", "cat", "sees", "a", "dog"], ["it"], ["a", "bird", "sings"]]


@pytest.mark.parametrize(
    ("lag", "mask", "words"),
    [
        (0, [1, 1, 1, 1, 1, 1, 1, 1, 1], ["the", "cat", "sees", "a", "dog", "it", "a", "bird", "sings"]),
        (1, [0, 1, 1, 1, 1, 0, 0, 1, 1], ["the", "cat", "sees", "a", "a", "bird"]),
        (2, [0, 0, 1, 1, 1, 0, 0, 0, 1], ["the", "cat", "sees", "a"]),
        (4, [0, 0, 0, 0, 1, 0, 0, 0, 0], ["the"]),
        (5, [0] * 9, []),
        (-1, [1, 1, 1, 1, 0, 0, 1, 1, 0], ["cat", "sees", "a", "dog", "bird", "sings"]),
    ],
)
def test_lagged_words_by_hand(lag, mask, words):
    found, targets = lagged_words(SENTENCES, lag)
    assert found.dtype == np.bool_
    assert found.tolist() == [bool(m) for m in mask]
    assert targets.tolist() == words
