"""SPCN's dynamics: the kernels and the dense reference against arithmetic by hand, then against each other.

Every test of the first kind takes `play`, which is the compiled network once and the dense one once: so the two cannot
be wrong together. The equations are those of the paper's section "SPCN: Architecture".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ematrace.spcn import SPCN, kernels

# What is left of Eq. 1 is linear: x = α W_ff x_below. Each test turns on what it is about. In the locked network's
# unit, which changes no numbers; the other network is compared with the reference below.
PLAIN = {
    "network": "locked", "k": 1.0, "settle_steps": 1, "beta": 0.0, "gamma": 0.0, "spa": False, "rectify": False,
    "normalise": False, "directions": "forward", "dtype": "float64", "unknown_words": "zero", "vocabulary": ("a", "b"),
}  # fmt: skip
ALL = "l0.all+l1.all+l2.all"


def by_hand(widths: Sequence[int], W_ff: Sequence[Any], **settings: Any) -> SPCN:
    """A model that has learned nothing, with these feed-forward weights and no lateral ones."""
    model = SPCN(widths=widths, alpha_fast=(0.5, 0.2, 0.1, 0.05)[: len(widths)], **{**PLAIN, **settings}).fit([])
    for level, W in enumerate(W_ff):
        set_weights(model, "ff", level, W)
        model.weights_["forward"].lat[level] = 0
    return model


def set_weights(model: SPCN, name: str, level: int, W: Any) -> None:
    """Write a matrix of the paper's orientation [post, pre] into the padded [pre, post] array."""
    post, pre = np.shape(W)
    getattr(model.weights_["forward"], name)[level, :pre, :post] = np.transpose(W)


Play = Callable[..., tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]]


@pytest.fixture(params=["kernels", "reference"])
def play(request: pytest.FixtureRequest, reference_of: Any, run_reference: Any) -> Play:
    """play(model, sentences) → activations and traces, W_fb, precision, by either implementation.

    With learning=True the features are those before it and the weights those after it.
    """

    def run(model: SPCN, sentences: Sequence[Sequence[str]], learning: bool = False) -> Any:
        everything = "+".join(f"l{level}.all" for level in range(len(model.widths)))
        if request.param == "kernels":
            features = model.encode(sentences, everything)
            if learning:
                model.partial_fit(sentences)
            return features, model.W_fb(), model.precision()
        features = run_reference(reference_of(model), model, sentences)
        reference = reference_of(model)
        run_reference(reference, model, sentences, learning=learning)
        return features, reference.W_fb[:-1], reference.pi

    return run


def close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-14)


# PGHU (Eq. 2 and 3) by hand

# x0 = (1, 2) for the word a, x1 = W x0 = (-1, 0.5); beta = 0, so that learning does not change the states.
TWO_LEVELS = ([[1.0, 0.0], [2.0, 0.0]], [[1.0, -1.0], [0.5, 0.0]])
PGHU = {"eta": 0.1, "decay": 0.01, "variance_rate": 0.5}


def test_first_update_of_pghu(play: Play) -> None:
    model = by_hand((2, 2), TWO_LEVELS, **PGHU)
    features, (W_fb,), (pi, pi_top) = play(model, [["a"]], learning=True)
    close(features[0], [1, 2, 0.5, 1, 0.075, 0.15, -1, 0.5, -0.2, 0.1, -0.03, 0.015])
    # W_fb = 0, so x̂ = 0 and x − x̂ = (1, 2); π = 1, so e is the same; ΔW = 0.1 · e x1ᵀ, nothing to decay.
    close(W_fb, [[-0.1, 0.05], [-0.2, 0.1]])
    # The variance was 1 and moves half-way to (1², 2²): (1, 2.5).
    close(pi, [1, 0.4])
    close(pi_top, [1, 1])


@pytest.mark.parametrize(("power", "gate"), [(1, 0.4), (2, 0.4 * 0.4)])
def test_second_update_of_pghu_is_gated_by_precision_and_decays(play: Play, power: int, gate: float) -> None:
    model = by_hand((2, 2), TWO_LEVELS, precision_power=power, **PGHU)
    _, (W_fb,), (pi, _) = play(model, [["a"], ["a"]], learning=True)
    # x̂ = W_fb x1 = (0.1 + 0.025, 0.2 + 0.05), so x − x̂ = (0.875, 1.75); π = (1, 0.4) from the first update.
    # e = π ⊙ (x − x̂) in Eq. 2 and π e in Eq. 3: read literally π enters twice.
    close(
        W_fb,
        [
            [0.99 * -0.1 - 0.1 * 0.875, 0.99 * 0.05 + 0.1 * 0.875 * 0.5],
            [0.99 * -0.2 - 0.1 * gate * 1.75, 0.99 * 0.1 + 0.1 * gate * 1.75 * 0.5],
        ],
    )
    close(pi, [1 / (1 + 0.5 * (0.875**2 - 1)), 1 / (2.5 + 0.5 * (1.75**2 - 2.5))])


def test_the_literal_reading_of_eq_3_is_the_default() -> None:
    assert SPCN().precision_power == 2


def test_pghu_learns_to_predict(play: Play) -> None:
    """Without decay Eq. 3 has one fixed point for a constant input: W_fb x1 = x0."""
    model = by_hand((2, 2), TWO_LEVELS, eta=0.1, decay=0.0, variance_rate=0.0)
    _, (W_fb,), _ = play(model, [["a"]] * 400, learning=True)
    close(W_fb @ [-1.0, 0.5], [1, 2])


def test_precision_stays_in_its_range(play: Play) -> None:
    model = by_hand((2, 2), ([[0.0, 0.0], [100.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]]), eta=0.0, variance_rate=0.5)
    _, _, (pi, _) = play(model, [["a"]] * 20, learning=True)
    close(pi, [10, 0.1])  # 1/var would be 2^20 and about 1e-4


@pytest.mark.parametrize("n", [1, 2, 7])
def test_decay_alone_shrinks_W_fb_geometrically(play: Play, n: int) -> None:
    model = by_hand((2, 2), TWO_LEVELS, eta=0.0, decay=0.05)
    start = np.array([[1.0, -2.0], [0.25, 3.0]])
    set_weights(model, "fb", 0, start)
    _, (W_fb,), _ = play(model, [["a"] * n], learning=True)
    close(W_fb, 0.95**n * start)


def test_the_lazy_scale_is_folded_back_without_a_trace(reference_of: Any, run_reference: Any) -> None:
    """0.7^n crosses 1e-6 every 39 tokens, so that the scale is folded back several times in 300."""
    words = [["a", "b", "a"]] * 100
    # η π² < 1: beyond that the rule overshoots and its rounding errors grow without bound.
    settings = {"eta": 0.1, "decay": 0.3, "variance_rate": 0.05, "normalise": True, "pi_max": 2.0}
    model = by_hand((2, 2), ([[1.0, 0.3], [2.0, -0.4]], [[1.0, -1.0], [0.5, 0.8]]), **settings)
    reference = reference_of(model)
    model.partial_fit(words)
    run_reference(reference, model, words, learning=True)
    assert 1e-6 <= model.weights_["forward"].fb_scale[0] <= 1
    assert np.abs(model.W_fb()[0]).min() > 1e-4  # not compared at zero
    np.testing.assert_allclose(model.W_fb()[0], reference.W_fb[0], rtol=1e-11)
    # Decay without learning, far past many folds of the scale.
    shrinking = by_hand((2, 2), TWO_LEVELS, eta=0.0, decay=0.5)
    set_weights(shrinking, "fb", 0, [[1.0, -2.0], [0.25, 3.0]])
    shrinking.partial_fit([["a"] * 100])
    np.testing.assert_allclose(shrinking.W_fb()[0], 0.5**100 * np.array([[1.0, -2.0], [0.25, 3.0]]), rtol=1e-12)


def test_only_W_fb_and_precision_move(sentences: list[list[str]]) -> None:
    model = SPCN(widths=(20, 12, 8), dtype="float64", vocabulary=[f"w{i}" for i in range(14)]).fit([])
    before = {side: [a.copy() for a in model.W_ff(side) + model.W_lat(side)] for side in model.directions_}
    model.partial_fit(sentences)
    for side in model.directions_:
        for old, new in zip(before[side], model.W_ff(side) + model.W_lat(side), strict=True):
            assert (old == new).all()
        assert all((np.abs(W) > 0).any() for W in model.W_fb(side))
        assert [bool((pi != 1).any()) for pi in model.precision(side)] == [True, True, False]
    model.learn_feedback = False
    learned = [W.copy() for W in model.W_fb()]
    model.partial_fit(sentences)
    for old, new in zip(learned, model.W_fb(), strict=True):
        assert (old == new).all()


# Settling (Eq. 1) by hand


def test_one_settling_step_in_place(play: Play) -> None:
    """x0 = α W_ff w + β W_fb x1 + γ W_lat x0, then x1 the same with the new x0; twice, by hand."""
    model = by_hand((2, 1), ([[1.0, 0.0], [-1.0, 0.0]], [[2.0, 1.0]]), alpha=2.0, beta=0.5, gamma=0.25, settle_steps=2)
    set_weights(model, "fb", 0, [[1.0], [4.0]])
    set_weights(model, "lat", 0, [[0.0, 1.0], [2.0, 0.0]])
    set_weights(model, "lat", 1, [[-1.0]])
    features, _, _ = play(model, [["a"]])
    # step 1: x0 = 2 (1, -1) = (2, -2);  x1 = 2 (2·2 - 2) = 4
    # step 2: x0 = (2, -2) + 0.5·4·(1, 4) + 0.25·(-2, 4) = (3.5, 7);  x1 = 2 (7 + 7) + 0.25·(-4) = 27
    close(features[0, [0, 1, 6]], [3.5, 7, 27])


def test_one_settling_step_synchronous(play: Play) -> None:
    model = by_hand(
        (2, 1), ([[1.0, 0.0], [-1.0, 0.0]], [[2.0, 1.0]]), alpha=2.0, beta=0.5, gamma=0.25, settle_steps=3,
        update="synchronous",
    )  # fmt: skip
    set_weights(model, "fb", 0, [[1.0], [4.0]])
    set_weights(model, "lat", 0, [[0.0, 1.0], [2.0, 0.0]])
    set_weights(model, "lat", 1, [[-1.0]])
    features, _, _ = play(model, [["a"]])
    # step 1: x0 = (2, -2), x1 = 0;  step 2: x0 = (2, -2) + 0.25·(-2, 4) = (1.5, -1), x1 = 2 (4 - 2) = 4
    # step 3: x0 = (2, -2) + 0.5·4·(1, 4) + 0.25·(-1, 3) = (3.75, 6.75), x1 = 2 (3 - 1) + 0.25·(-4) = 3
    close(features[0, [0, 1, 6]], [3.75, 6.75, 3])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0, 3, 0, 4]),  # two of four by value
        ({"topk_by": "magnitude"}, [-5, 0, 0, 4]),
        ({"topk_by": "magnitude", "rectify": True}, [0, 0, 0, 4]),
        ({"topk_by": "magnitude", "rectify": True, "normalise": True}, [0, 0, 0, 1]),
        ({"normalise": True}, [0, 0.6, 0, 0.8]),
        ({"k": 1.0, "rectify": True}, [0, 3, 0, 4]),
        ({"k": 1.0}, [-5, 3, -1, 4]),
        ({"k": 0.75}, [0, 3, -1, 4]),
        ({"k": 0.75, "rectify": True}, [0, 3, 0, 4]),
        ({"k": 0.01}, [0, 0, 0, 4]),  # at least one
    ],
)
def test_what_top_k_keeps(play: Play, settings: dict[str, Any], expected: list[float]) -> None:
    model = by_hand((4,), ([[-5.0, 0], [3.0, 0], [-1.0, 0], [4.0, 0]],), **{"k": 0.5, **settings})
    features, _, _ = play(model, [["a"]])
    close(features[0, :4], expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [1e-15, 1.0, 1e15])
def test_unit_length_at_every_scale(dtype: str, scale: float) -> None:
    model = by_hand((4,), ([[3 * scale, 0], [4 * scale, 0], [-scale, 0], [0, 0]],), normalise=True, k=0.5, dtype=dtype)
    np.testing.assert_allclose(model.encode([["a"]], "l0")[0], [0.6, 0.8, 0, 0], rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-22, 1e-25])
def test_unit_length_of_a_tiny_drive(scale: float) -> None:
    model = by_hand(
        (4,), ([[3 * scale, 0], [4 * scale, 0], [-scale, 0], [0, 0]],), normalise=True, k=0.5, dtype="float32"
    )
    np.testing.assert_allclose(model.encode([["a"]], "l0")[0], [0.6, 0.8, 0, 0], rtol=1e-6)


def test_ties_go_to_the_lowest_index(play: Play) -> None:
    model = by_hand((5,), ([[1.0, 0], [2.0, 0], [1.0, 0], [2.0, 0], [1.0, 0]],), k=0.6)
    features, _, _ = play(model, [["a"]])
    close(features[0, :5], [1, 2, 0, 2, 0])


def test_the_state_is_carried_within_a_sentence_and_reset_between(play: Play) -> None:
    model = by_hand((1,), ([[1.0, 3.0]],), gamma=0.5)
    set_weights(model, "lat", 0, [[1.0]])
    # Many sentences: a few are encoded one by one, each from a fresh state anyway.
    features, _, _ = play(model, [["a", "b"], ["a"]] * 10)
    close(features[:, 0], [1, 3.5, 1] * 10)
    close(features[:, 1], [0.5, 0.25 + 1.75, 0.5] * 10)
    model.reset = "never"
    features, _, _ = play(model, [["a", "b"], ["a"]])
    close(features[:, 0], [1, 3.5, 1 + 1.75])
    close(features[:, 1], [0.5, 2.0, 1.0 + 0.5 * 2.75])


# SPA by hand


def test_spa_is_attention_from_the_precise_error_to_the_best_states(play: Play) -> None:
    """Buffer after a, b: (1, 0) and (0, 2). At the third token the state is still (0, 2) when the query is made."""
    model = by_hand((2, 1), ([[1.0, 0.0], [0.0, 2.0]], [[1.0, 1.0]]), spa=True, spa_gain=0.5, spa_top=2)
    set_weights(model, "fb", 0, [[0.25], [0.5]])
    model.weights_["forward"].precision[0, :2] = 4.0, 2.0
    model.reset, model.alpha = "sentence", 1.0
    # token 1: x0 = (1, 0), x1 = 1
    # token 2: x̂ = (.25, .5), q = (4 (1 - .25), 2 (0 - .5)) = (3, -1); one state, all of the share: + .5 (1, 0)
    #          x0 = (.5, 2); level 1 has no prediction: q = 1, c = .5 · 1; x1 = 2.5 + .5 = 3
    # token 3: x̂ = (.75, 1.5), q = (4 (.5 - .75), 2 (2 - 1.5)) = (-1, 1)
    #          scores (1, 0)·q/√2 = -1/√2 and (.5, 2)·q/√2 = 1.5/√2
    first = 1 / (1 + math.exp(2.5 / math.sqrt(2)))
    x0 = np.array([1, 0]) + 0.5 * (first * np.array([1, 0]) + (1 - first) * np.array([0.5, 2]))
    # level 1: q = 3, buffer 1 and 3, scores 3 and 9
    x1 = x0.sum() + 0.5 * (1 + 3 * math.exp(6)) / (1 + math.exp(6))
    features, _, _ = play(model, [["a", "b", "a"]])
    close(features[:, [0, 1, 6]], [[1, 0, 1], [0.5, 2, 3], [*x0, x1]])
    # Only the best state: (.5, 2) and 3.
    model.spa_top = 1
    features, _, _ = play(model, [["a", "b", "a"]])
    close(features[2, [0, 1, 6]], [1.25, 1, 2.25 + 1.5])


@pytest.mark.parametrize(("window", "top"), [(8, 8), (8, 4), (3, 3), (1, 1), (4, 9)])
def test_spa_reaches_back_exactly_its_window(play: Play, window: int, top: int) -> None:
    """Word i drives unit i alone. With a gain of 1e-4 a unit at the order of 1e-4 was retrieved from the buffer itself,
    one at the order of 1e-8 from the inside of a buffered state: so the words of the buffer can be read off."""
    n, gain = 20, 1e-4
    words = [f"w{i}" for i in range(n)]
    model = by_hand((n,), (np.eye(n),), spa=True, spa_window=window, spa_top=top, spa_gain=gain, vocabulary=words)
    x = play(model, [words])[0][:, :n]
    for t in range(n):
        close(x[t, t], 1)
        retrieved = set(np.flatnonzero(x[t] > gain / 20).tolist()) - {t}
        held = set(range(max(0, t - window), t))
        assert retrieved <= held, f"token {t}: {retrieved} from outside the window"
        assert len(retrieved) == min(top, len(held)), f"token {t}: retrieved {retrieved}"
        assert t == 0 or t - 1 in retrieved  # the state before is the query, so it is also its best match


def test_spa_buffer_is_emptied_at_each_sentence(play: Play) -> None:
    model = by_hand((2,), (np.eye(2),), spa=True)
    features, _, _ = play(model, [["a"], ["b", "a"], ["b"]] * 10)
    close(features[:, :2], [[1, 0], [0, 1], [1, 1], [0, 1]] * 10)


def test_tied_scores_are_broken_alike_after_the_buffer_has_wrapped(reference_of: Any, run_reference: Any) -> None:
    """With no precision every score is zero. Which states are then the best must not depend on where a ring begins."""
    n = 8
    words = [f"w{i}" for i in range(n)]
    model = by_hand((n,), (np.eye(n),), spa=True, spa_window=3, spa_top=2, vocabulary=words)
    model.weights_["forward"].precision[:] = 0
    expected = run_reference(reference_of(model), model, [words])
    np.testing.assert_allclose(model.encode([words], "l0.all"), expected, rtol=1e-12)


# Kernels against the reference

SETTINGS: dict[str, dict[str, Any]] = {
    "described": {"network": "described"},
    "locked": {"network": "locked"},
    "described, synchronous, by magnitude": {"network": "described", "update": "synchronous", "topk_by": "magnitude"},
    "described, fast precision": {"network": "described", "variance_rate": 0.2, "precision_power": 1},
    "no spa": {"spa": False},
    "synchronous": {"update": "synchronous"},
    "magnitude": {"topk_by": "magnitude"},
    "no relu": {"rectify": False},
    "magnitude without relu": {"topk_by": "magnitude", "rectify": False, "update": "synchronous"},
    "not normalised": {"normalise": False, "init_gain": 0.4, "spa_gain": 0.2},
    "linear": {"normalise": False, "rectify": False, "k": 1.0, "init_gain": 0.3, "spa_gain": 0.1},
    "never reset": {"reset": "never", "spa": False},
    "never reset, with ties in spa": {"reset": "never"},
    "precision once": {"precision_power": 1},
    "fast learning": {"eta": 0.2, "decay": 0.1, "variance_rate": 0.2, "pi_max": 2.0},
    "narrow attention": {"spa_window": 3, "spa_top": 1, "spa_gain": 0.7},
    "wide attention": {"spa_window": 12, "spa_top": 12},
    "one settling step": {"settle_steps": 1},
    "other pathways": {"alpha": 0.7, "beta": 1.3, "gamma": -0.4, "settle_steps": 5},
    "dense": {"k": 0.5},
}


@pytest.mark.parametrize(
    "settings",
    [pytest.param(given, id=name) for name, given in SETTINGS.items()],
)
def test_kernels_agree_with_the_reference(
    settings: dict[str, Any],
    sentences: list[list[str]],
    held_out: list[list[str]],
    reference_of: Any,
    run_reference: Any,
) -> None:
    words = [f"w{i}" for i in range(14)]
    given = {"eta": 0.05, "k": 0.15, "dtype": "float64", "vocabulary": words, "unknown_words": "zero", **settings}
    few = slice(0, 3) if settings.get("normalise") is False else slice(None)
    texts = [*sentences[few], ["w1", "unheard", "w2"]]
    model = SPCN(widths=(30, 20, 10), **given).fit([])
    references = {side: reference_of(model, side) for side in model.directions_}
    model.partial_fit(texts)
    for side, reference in references.items():
        run_reference(reference, model, texts, backward=side == "backward", learning=True)
        for level in range(2):
            np.testing.assert_allclose(model.W_fb(side)[level], reference.W_fb[level], rtol=1e-7, atol=1e-12)
            np.testing.assert_allclose(model.precision(side)[level], reference.pi[level], rtol=1e-7)
            assert np.abs(reference.W_fb[level]).max() > 1e-4
        reference.start_sentence()
        expected = run_reference(reference, model, held_out, backward=side == "backward")
        features = model.encode(held_out, "+".join(f"{part}@{side}" for part in ALL.split("+")))
        scale = np.abs(expected).max()
        np.testing.assert_allclose(features, expected, rtol=1e-7, atol=1e-9 * scale)


def test_float32_agrees_with_the_reference_to_its_precision(
    held_out: list[list[str]], reference_of: Any, run_reference: Any
) -> None:
    model = SPCN(widths=(40, 20), directions="forward", vocabulary=[f"w{i}" for i in range(14)]).fit([])
    expected = run_reference(reference_of(model), model, held_out)
    features = model.encode(held_out, "l0.all+l1.all")
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, expected, rtol=1e-3, atol=1e-4)


# Traces (Eq. 4 and 5)


def test_traces_are_the_closed_form_of_the_activations(sentences: list[list[str]]) -> None:
    """τ(t) = Σ_{s≤t} α (1 − α)^(t−s) x(s), with the paper's rates: fast .5 .2 .1 .05, slow .15 times that."""
    widths = (24, 16, 12, 8)
    model = SPCN(widths=widths, dtype="float64").fit(sentences)
    for side in ("forward", "backward"):
        for level, fast in enumerate((0.5, 0.2, 0.1, 0.05)):
            features = model.encode(sentences, f"l{level}.all@{side}")
            x, *traces = np.split(features, 3, axis=1)
            assert x.shape[1] == widths[level]
            start = 0
            for words in sentences:
                t = np.arange(len(words))
                age = t[:, None] - t[None, :] if side == "forward" else t[None, :] - t[:, None]
                part = slice(start, start + len(words))
                for trace, alpha in zip(traces, (fast, 0.15 * fast), strict=True):
                    kernel = np.where(age >= 0, alpha * (1 - alpha) ** np.maximum(age, 0), 0.0)
                    np.testing.assert_allclose(trace[part], kernel @ x[part], rtol=1e-10, atol=1e-14)
                start += len(words)


def test_traces_do_not_depend_on_which_others_are_asked_for(sentences: list[list[str]]) -> None:
    model = SPCN(widths=(24, 16), dtype="float64").fit(sentences)
    everything = model.encode(sentences, "l0.all+l1.all")
    for part in ("l0", "l1.slow", "traces", "l1.fast@backward", "l0.slow@forward+l1"):
        assert (model.encode(sentences, part) == everything[:, model.columns(part, "l0.all+l1.all")]).all()


def test_half_lives(play: Play) -> None:
    """One active token, then silence: the fast trace of L0 halves at each token, the slow one after about nine."""
    model = by_hand((1, 1), ([[1.0, 0.0]], [[1.0]]))
    features, _, _ = play(model, [["a"] + ["?"] * 12])
    assert features[0, [0, 3]].tolist() == [1, 1]
    assert not features[1:, [0, 3]].any()
    for column, alpha in ((1, 0.5), (2, 0.075), (4, 0.2), (5, 0.03)):
        close(features[0, column], alpha)
        close(features[:, column], alpha * (1 - alpha) ** np.arange(13))
    assert features[9, 2] < features[0, 2] / 2 < features[8, 2]  # ln 2 / -ln(1 - .075) = 8.9


# Top-k

DTYPES = (np.float32, np.float64)


def top_k(x: np.ndarray, k: int, floor: float = -math.inf) -> list[int]:
    """The kernel on one row among others, which it must not look at."""
    padded = np.full((3, len(x) + 5), np.nan, x.dtype)
    padded[1, : len(x)] = x
    idx = np.full((3, len(x) + 6), -1, np.int64)
    n = kernels.select_top_k(padded, 1, len(x), k, floor, idx)
    assert (idx[[0, 2]] == -1).all()
    return idx[1, :n].tolist()


def expected_top_k(x: np.ndarray, k: int) -> list[int]:
    return sorted(np.argsort(-x, kind="stable")[:k].tolist())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1e-45, 1e-38, 1e-25, 1e-15, 1e-3, 1.0, 1e6, 1e15, 1e18, 1e25, 5e37])
def test_top_k_at_every_scale(dtype: type, scale: float) -> None:
    rng = np.random.default_rng(0)
    for d in (1, 2, 7, 64, 512):
        for shape in (rng.standard_normal(d), np.abs(rng.standard_normal(d)), -np.abs(rng.standard_normal(d))):
            x = (np.clip(shape, -3, 3) * scale).astype(dtype)
            for k in {1, max(1, round(0.08 * d)), d // 2 or 1, d}:
                assert top_k(x, k) == expected_top_k(x, k)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -1.0, 1e-25, -1e-25, 1e-45, 3e38, -3e38, 0.1])
def test_top_k_of_equal_values_takes_the_first(dtype: type, value: float) -> None:
    for d in (1, 5, 33):
        for k in range(1, d + 1, 4):
            assert top_k(np.full(d, value, dtype), k) == list(range(k))


@pytest.mark.parametrize("dtype", DTYPES)
def test_top_k_of_neighbouring_floats(dtype: type) -> None:
    """Bisection must come down to the last bit, on either side of zero, and among subnormal numbers."""
    for start in (1.0, -1.0, 0.0, 1e-30, np.finfo(dtype).tiny, np.finfo(dtype).max / 4):
        x = [dtype(start)]
        for _ in range(30):
            x.append(np.nextafter(x[-1], dtype(np.inf)))
        shuffled = np.random.default_rng(1).permutation(np.array(x, dtype))
        for k in (1, 3, 17, 31):
            assert top_k(shuffled, k) == expected_top_k(shuffled, k)


@pytest.mark.parametrize("dtype", DTYPES)
def test_top_k_over_a_wide_range_of_sizes(dtype: type) -> None:
    """One outlier sets the length that the search starts from; the cut is 60 orders below (30 in float32)."""
    top = 1e30 if dtype is np.float64 else 1e14
    x = np.array([top, 2 / top, 1 / top, 3 / top, 0, -top, 1 / top], dtype)
    for k in range(1, 8):
        assert top_k(x, k) == expected_top_k(x, k)


@pytest.mark.parametrize("dtype", DTYPES)
def test_top_k_of_the_largest_floats(dtype: type) -> None:
    """Exactly k up to where the sum of squares, which the kernels check first, leaves the range."""
    x = np.sqrt(np.finfo(dtype).max / 4) * np.array([0.9, 0.7, 0.8, 0.1], dtype)
    for k in (1, 2, 3, 4):
        assert top_k(x, k) == expected_top_k(x, k)


def test_top_k_above_a_floor() -> None:
    x = np.array([3.0, -1.0, 0.0, 2.0, 0.5, -4.0])
    assert top_k(x, 2, 0.0) == [0, 3]
    assert top_k(x, 3, 0.0) == [0, 3, 4]
    assert top_k(x, 5, 0.0) == [0, 3, 4]  # zero is not above zero
    assert top_k(-np.abs(x), 3, 0.0) == []
    assert top_k(np.zeros(4), 2, 0.0) == []
    assert top_k(np.array([1.0, 1.0, 1.0, -1.0]), 2, 0.0) == [0, 1]


@st.composite
def rows(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    dtype = draw(st.sampled_from(DTYPES))
    largest = float(np.finfo(dtype).max / 4)
    width = 32 if dtype is np.float32 else 64
    numbers = st.sampled_from([-2.0, 0.0, 0.5, 1.0]) | st.floats(-largest, largest, width=width)
    x = draw(hnp.arrays(dtype, st.integers(1, 40), elements=numbers))
    return x, draw(st.integers(1, len(x)))


@given(rows())
def test_top_k_is_a_stable_sort(row: tuple[np.ndarray, int]) -> None:
    x, k = row
    assert top_k(x, k) == expected_top_k(x, k)
    assert top_k(x, k, 0.0) == [i for i in expected_top_k(x, k) if x[i] > 0]


# Direction


def test_the_backward_hierarchy_reads_from_the_end(sentences: list[list[str]]) -> None:
    """With the weights of the forward one, backward over a sentence is forward over the reversed sentence."""
    model = SPCN(widths=(24, 16), dtype="float64").fit(sentences)
    model.weights_["backward"] = model.weights_["forward"]
    for words in sentences:
        backward = model.encode([words], "l0.all@backward+l1.all@backward")
        forward = model.encode([words[::-1]], "l0.all@forward+l1.all@forward")
        assert (backward == forward[::-1]).all()


def test_the_two_hierarchies_are_independent(sentences: list[list[str]]) -> None:
    both = SPCN(widths=(24, 16)).fit(sentences)
    for side in ("forward", "backward"):
        one = SPCN(widths=(24, 16), directions=side).fit(sentences)
        assert (one.encode(sentences, "l0.all") == both.encode(sentences, f"l0.all@{side}")).all()
    assert (both.W_ff("forward")[0] != both.W_ff("backward")[0]).all()
