"""Hebbian rules for W_ff: one batch by hand from each rule's equation, then what each rule is known to do.

The paper names the rules and gives no equations: the ones below are those of Sanger (1989), Foldiak (1990), the paper's
own Eq. 3 with a gate, and Hinton (2022), element by element.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ematrace.spcn import SPCN
from ematrace.spcn.feedforward import (
    FF_RULES,
    RuleState,
    foldiak,
    forward_forward,
    learn_feedforward,
    pghu,
    sanger,
)

RULES = ("sanger", "foldiak", "pghu", "forward_forward")
WIDTHS = (24, 12)
X = np.array([[1.0, 2.0, 0.0], [0.5, -1.0, 3.0]])  # two inputs of three units
W = np.array([[0.2, -0.1], [0.4, 0.3], [-0.3, 0.5]])  # [pre, post]
# y = x W: (1.0, 0.5) and (0.1 - 0.4 - 0.9, -0.05 - 0.3 + 1.5) = (-1.2, 1.15)
Y = np.array([[1.0, 0.5], [-1.2, 1.15]])


def state(k: int = 1) -> RuleState:
    return RuleState(k, np.random.default_rng(0))


def test_the_four_rules_of_the_paper() -> None:
    assert tuple(FF_RULES) == RULES


# By hand


def test_sanger_by_hand() -> None:
    """Δw_ij = η y_j (x_i − Σ_{m≤j} w_im y_m), averaged over the batch."""
    expected = W.copy()
    for x, y in zip(X, Y, strict=True):
        for i in range(3):
            expected[i, 0] += 0.1 * y[0] * (x[i] - W[i, 0] * y[0]) / 2
            expected[i, 1] += 0.1 * y[1] * (x[i] - W[i, 0] * y[0] - W[i, 1] * y[1]) / 2
    np.testing.assert_allclose(sanger(W, X, state(), 0.1), expected, rtol=1e-12)
    # One number written out: .2 + .05 (1·(1 - .2·1) - 1.2·(.5 + .2·1.2)) = .2 + .05 (.8 - .888)
    np.testing.assert_allclose(sanger(W, X, state(), 0.1)[0, 0], 0.1956, rtol=1e-12)


def test_foldiak_by_hand() -> None:
    """One of two units fires, p = 1/2. Unit 0 wins the first input (1 > .5), unit 1 the second (1.15 > -1.2)."""
    memory = state(k=1)
    learned = foldiak(W, X, memory, 0.1)
    # Δw_ij = η y_j (x_i − w_ij), averaged: each unit has seen one input of two.
    expected = W + 0.1 * np.stack([X[0] - W[:, 0], X[1] - W[:, 1]], axis=1) / 2
    np.testing.assert_allclose(learned, expected, rtol=1e-12)
    # ΔQ_01 = -η (<y_0 y_1> - p²) = +.025, but inhibition is never positive; both thresholds: η (1/2 - p) = 0.
    assert not memory.memory["Q"].any()
    assert not memory.memory["t"].any()
    # Both inputs the same: unit 0 fires always, unit 1 never.
    foldiak(W, X[[0, 0]], memory, 0.1)
    np.testing.assert_allclose(memory.memory["t"], [0.1 * 0.5, -0.1 * 0.5])
    # The threshold is part of the drive: raised far enough, unit 0 loses.
    memory.memory["t"][:] = 2.0, 0.0
    learned = foldiak(W, X[[0]], memory, 0.1)
    np.testing.assert_allclose(learned, W + 0.1 * np.stack([0 * X[0], X[0] - W[:, 1]], axis=1), rtol=1e-12)


def test_foldiak_inhibits_units_that_fire_together() -> None:
    """Two of three units fire together always, p = 2/3: ΔQ = -η (1 - 4/9) between them, none for the silent one."""
    memory = state(k=2)
    three = np.array([[1.0, 1.0, -1.0]])
    foldiak(three, np.array([[1.0]]), memory, 0.3)
    expected = np.zeros((3, 3))
    expected[0, 1] = expected[1, 0] = -0.3 * (1 - 4 / 9)
    np.testing.assert_allclose(memory.memory["Q"], expected, rtol=1e-12)
    # Inhibition decides who fires: unit 2 comes in when 0 and 1 silence each other.
    memory.memory["Q"][:] = [[0, -5, 0], [-5, 0, 0], [0, 0, 0]]
    memory.memory["t"][:] = 0
    foldiak(three, np.array([[1.0]]), memory, 0.3)
    assert memory.memory["t"][2] > 0


def test_pghu_by_hand() -> None:
    """Two batches of one input. The first meets ȳ = 0, var = 1 and no usual surprise: open, π = 1."""
    memory = state()
    first = pghu(W, X[[0]], memory, 0.1)
    # ΔW = η x (π² (y − ȳ))ᵀ − λ_d W
    np.testing.assert_allclose(first, 0.999 * W + 0.1 * np.outer(X[0], [1.0, 0.5]), rtol=1e-12)
    # ȳ = .01 y, var = 1 + .01 (y² - 1), usual surprise = .01 |y|² = .01 · 1.25
    expected_y, variance, usual = 0.01 * Y[0], 1 + 0.01 * (Y[0] ** 2 - 1), 0.0125
    error = Y[1] - expected_y
    assert (error**2).sum() > usual
    second = pghu(W, X[[1]], memory, 0.1)
    np.testing.assert_allclose(second, 0.999 * W + 0.1 * np.outer(X[1], error / variance**2), rtol=1e-12)
    # An input less surprising than usual changes nothing but the decay: here the mean itself.
    memory.memory["expected"][:] = Y[0]
    np.testing.assert_allclose(pghu(W, X[[0]], memory, 0.1), 0.999 * W, rtol=1e-12)


def test_pghu_precision_is_clipped() -> None:
    memory = state()
    pghu(W, X[[0]], memory, 0.0)
    memory.memory["variance"][:] = 1e-9, 1e9
    memory.memory["expected"][:] = 0
    step = (pghu(W, X[[0]], memory, 0.1) - 0.999 * W) / 0.1
    np.testing.assert_allclose(step, np.outer(X[0], [10.0**2 * 1.0, 0.1**2 * 0.5]), rtol=1e-12)


def test_forward_forward_by_hand() -> None:
    """ΔW = η (σ(θ − G⁺) x⁺ y⁺ᵀ − σ(G⁻ − θ) x⁻ y⁻ᵀ), y = relu(x W), θ = 1. Equal inputs are their own shuffle."""
    same = X[[0, 0]]
    G = 1.0**2 + 0.5**2
    factor = 1 / (1 + math.exp(G - 1)) - 1 / (1 + math.exp(1 - G))
    expected = W + 0.1 * factor * np.outer(X[0], Y[0])
    np.testing.assert_allclose(forward_forward(W, same, state(), 0.1), expected, rtol=1e-12)


def test_forward_forward_negatives_exchange_coordinates() -> None:
    """Two inputs leave two outcomes: the same two (perhaps in the other order), or (x_00, x_11) and (x_10, x_01)."""
    inputs = np.array([[1.0, 0.0], [0.0, 2.0]])
    weights = np.array([[0.5, -1.0], [0.3, 0.8]])

    def pull(rows: Any, sign: float) -> np.ndarray:
        total = np.zeros((2, 2))
        for x in np.array(rows):
            y = np.maximum(x @ weights, 0)
            total += sign * np.outer(x, y) / (1 + math.exp(sign * ((y**2).sum() - 1)))
        return total

    kept = weights + 0.1 * (pull(inputs, 1) + pull(inputs, -1)) / 2
    swapped = weights + 0.1 * (pull(inputs, 1) + pull([[1.0, 2.0], [0.0, 0.0]], -1)) / 2
    outcomes = []
    for seed in range(20):
        learned = forward_forward(weights, inputs, RuleState(1, np.random.default_rng(seed)), 0.1)
        outcomes.append([np.allclose(learned, kept), np.allclose(learned, swapped)])
    assert all(any(pair) for pair in outcomes)
    assert np.any(outcomes, axis=0).all()


def test_forward_forward_with_much_goodness() -> None:
    """The logistic function has no trouble there: 0 or 1."""
    learned = forward_forward(100 * W, 10 * X, state(), 0.1)
    assert np.isfinite(learned).all()


# What the rules are known to do


def test_sanger_finds_the_leading_components_in_order() -> None:
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    scales = np.sqrt([4.0, 2.0, 1.0, 0.5, 0.2, 0.1])
    samples = (rng.standard_normal((3000, 32, 6)) * scales) @ basis.T
    variances, components = np.linalg.eigh(np.cov(samples.reshape(-1, 6).T))
    leading = components[:, np.argsort(-variances)[:3]]
    learned = 0.1 * rng.standard_normal((6, 3))
    for i, batch in enumerate(samples):
        learned = sanger(learned, batch, state(), 0.02 / (1 + i / 300))
    overlap = np.abs(learned.T @ leading)
    np.testing.assert_allclose(overlap, np.eye(3), atol=0.05)


def test_foldiak_evens_out_firing() -> None:
    """Some units of a random projection hardly ever fire and some too often; thresholds bring all of them to p."""
    rng = np.random.default_rng(0)
    patterns = np.abs(rng.standard_normal((20, 15))) * np.linspace(0.1, 0.5, 20)[:, None]
    d, k, eta = 12, 3, 0.02
    weights, memory = rng.standard_normal((15, d)) / 4, RuleState(k, rng)

    def rates(weights: np.ndarray, batches: int) -> tuple[np.ndarray, np.ndarray]:
        """Weights after some batches, and how often each unit fired: a threshold moves by η (rate − p)."""
        before = memory.memory["t"].copy() if memory.memory else np.zeros(d)
        for _ in range(batches):
            inputs = patterns[rng.integers(0, 20, 32)] + 0.1 * rng.standard_normal((32, 15))
            weights = foldiak(weights, inputs, memory, eta)
        return weights, (memory.memory["t"] - before) / (eta * batches) + k / d

    weights, at_first = rates(weights, 5)
    assert at_first.min() < 0.05
    assert at_first.max() > 2 * k / d
    weights, _ = rates(weights, 300)
    _, at_last = rates(weights, 500)
    np.testing.assert_allclose([at_first.sum(), at_last.sum()], k)  # exactly k fire for each input
    np.testing.assert_allclose(at_last, k / d, atol=0.05)


def test_forward_forward_tells_real_from_shuffled() -> None:
    """Units of an input come in groups of three; shuffling breaks the groups. Goodness must come to tell them apart."""
    rng = np.random.default_rng(0)

    def real(n: int) -> np.ndarray:
        return np.abs(rng.standard_normal((n, 1))) * np.repeat(rng.integers(0, 2, (n, 5)), 3, axis=1)

    def goodness(x: np.ndarray, weights: np.ndarray) -> float:
        return float((np.maximum(x @ weights, 0) ** 2).sum(1).mean())

    positive = real(3000)
    negative = np.stack([rng.permutation(column) for column in positive.T], axis=1)
    start = rng.standard_normal((15, 10)) / 4
    weights, memory = start, RuleState(3, rng)
    for _ in range(1000):
        weights = forward_forward(weights, real(32), memory, 0.05)
    assert goodness(positive, weights) > 2 * goodness(negative, weights)
    assert goodness(positive, start) < 2 * goodness(negative, start)


# Level by level


def encoded(sentences: list[list[str]], words: list[str]) -> tuple[np.ndarray, np.ndarray]:
    index = {word: i for i, word in enumerate(words)}
    tokens = np.array([index[word] for s in sentences for word in s], np.int64)
    return tokens, np.cumsum([0, *map(len, sentences)])


def learn(rule: str, start: list[np.ndarray], sentences: list[list[str]], **changes: Any) -> list[np.ndarray]:
    tokens, starts = encoded(sentences, [f"w{i}" for i in range(14)])
    given: dict[str, Any] = {
        "ks": (3, 2), "backward": False, "eta": None, "epochs": 1, "alpha_fast": (0.5, 0.2), "seed": 0, **changes,
    }  # fmt: skip
    return learn_feedforward(rule, start, tokens, starts, **given)


@pytest.fixture(scope="module")
def start() -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.standard_normal((14, 24)) / 4, rng.standard_normal((24, 12)) / 5]


@pytest.mark.parametrize("backward", [False, True])
def test_level_0_learns_from_the_fast_trace_of_the_words(
    monkeypatch: pytest.MonkeyPatch, sentences: list[list[str]], start: list[np.ndarray], backward: bool
) -> None:
    """τ(t) = Σ α(1−α)^age · one_hot, from the start of the sentence or from its end; level 1 from sparse unit codes."""
    seen: list[np.ndarray] = []

    def spy(W_IO: np.ndarray, X_BI: np.ndarray, state: RuleState, eta: float) -> np.ndarray:
        seen.append(np.array(X_BI, np.float64))
        return W_IO

    monkeypatch.setitem(FF_RULES, "sanger", spy)
    learn("sanger", start, sentences, backward=backward)
    expected = []
    for words in sentences:
        for t in range(len(words)):
            trace = np.zeros(14)
            for s in range(t, len(words)) if backward else range(t + 1):
                trace[int(words[s][1:])] += 0.5 * 0.5 ** abs(t - s)
            expected.append(trace)
    level_0 = np.concatenate([x for x in seen if x.shape[1] == 14])
    level_1 = np.concatenate([x for x in seen if x.shape[1] == 24])
    assert len(level_0) == len(level_1) == len(expected)
    np.testing.assert_allclose(np.sort(level_0 @ np.arange(1.0, 15)), np.sort(np.array(expected) @ np.arange(1.0, 15)),
                               rtol=1e-6)  # fmt: skip
    assert (np.count_nonzero(level_1, axis=1) <= 3).all()
    assert (level_1 >= 0).all()
    np.testing.assert_allclose(np.linalg.norm(level_1, axis=1), 1, rtol=1e-5)
    codes = np.array(expected) @ start[0]
    third = np.sort(codes, axis=1)[:, -3, None]
    codes = np.where(codes >= third, np.maximum(codes, 0), 0)
    codes /= np.linalg.norm(codes, axis=1, keepdims=True)
    np.testing.assert_allclose(np.sort(level_1.max(1)), np.sort(codes.max(1)), rtol=1e-4)


@pytest.mark.parametrize("rule", RULES)
def test_rules_are_deterministic_and_follow_their_settings(
    rule: str, sentences: list[list[str]], start: list[np.ndarray]
) -> None:
    before = [W.copy() for W in start]
    sentences = sentences * 4  # several batches: within one, order is nothing
    learned = learn(rule, start, sentences)
    for W, again, old, kept in zip(learned, learn(rule, start, sentences), start, before, strict=True):
        assert (again == W).all()
        assert np.isfinite(W).all()
        assert (old != W).any()
        assert (old == kept).all()  # what came in is left alone
    for changes in ({"seed": 1}, {"epochs": 2}, {"eta": 1e-3}, {"backward": True}):
        assert (learn(rule, start, sentences, **changes)[0] != learned[0]).any(), changes
    for W, old in zip(learn(rule, start, sentences, epochs=0), start, strict=True):
        assert (old == W).all()


def test_a_rule_that_diverges_is_reported(sentences: list[list[str]], start: list[np.ndarray]) -> None:
    with np.errstate(all="ignore"), pytest.raises(FloatingPointError, match=r"'sanger'.*level 0.*ff_eta"):
        learn("sanger", start, sentences * 5, eta=1e6, epochs=40)


@pytest.mark.parametrize("network", ["described", "locked"])
@pytest.mark.parametrize("rule", RULES)
def test_the_network_uses_what_was_learned(rule: str, network: str, sentences: list[list[str]]) -> None:
    """A rule learns at variance 1 / fan-in in both networks, as drawn for the locked one."""
    words = [f"w{i}" for i in range(14)]
    settings: dict[str, Any] = {"widths": WIDTHS, "vocabulary": words, "dtype": "float64", "network": network}
    frozen = SPCN(**settings).fit(sentences)
    drawn = SPCN(**{**settings, "network": "locked"}).fit(sentences)
    model = SPCN(**settings, ff_rule=rule, ff_eta=0.02, ff_epochs=2).fit(sentences)
    active_inputs = (1, frozen.ks_[0])
    for side in ("forward", "backward"):
        learned = learn(
            rule, [W.T for W in drawn.W_ff(side)], sentences, ks=frozen.ks_, backward=side == "backward", eta=0.02,
            epochs=2,
        )  # fmt: skip
        for level in range(2):
            unit = np.sqrt(len(learned[level]) / active_inputs[level]) if network == "described" else 1.0
            np.testing.assert_allclose(model.W_ff(side)[level], unit * learned[level].T, rtol=1e-12)
            assert (model.W_ff(side)[level] != frozen.W_ff(side)[level]).any()
            assert (model.W_lat(side)[level] == frozen.W_lat(side)[level]).all()
    assert (model.encode(sentences) != frozen.encode(sentences)).any()
    # Frozen from then on: PGHU goes on with W_fb alone.
    before = [W.copy() for W in model.W_ff()]
    model.partial_fit(sentences)
    assert all((old == W).all() for W, old in zip(model.W_ff(), before, strict=True))
    again = SPCN(**settings, ff_rule=rule, ff_eta=0.02, ff_epochs=2).fit(sentences).partial_fit(sentences)
    assert (again.encode(sentences) == model.encode(sentences)).all()


def test_rules_meet_unknown_words() -> None:
    words = [f"w{i}" for i in range(14)]
    texts = [["w1", "unheard", "w2"], ["unheard"]]
    model = SPCN(widths=WIDTHS, vocabulary=words, unknown_words="zero", ff_rule="sanger").fit(texts)
    assert all(np.isfinite(W).all() for W in model.W_ff())
