"""Ridge probes against scikit-learn; controls and scores against counts by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.utils.estimator_checks import check_estimator

from ematrace.probes import (
    GramMatrix,
    ReadoutBank,
    RidgeProbe,
    Scores,
    control_labels,
    effective_rank,
    gaussian_projection,
    label_weights,
    participation_ratio,
    score_roles,
    selectivity,
)

CLASSES = ("det", "noun", "verb", "aux")
N, D = 300, 24


@pytest.fixture(scope="module")
def data():
    """Features with unequal means and scales, and labels that depend on them."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((N, D)) * rng.uniform(0.1, 3, D) + rng.uniform(-2, 2, D)
    codes = (X @ rng.standard_normal((D, len(CLASSES))) + rng.standard_normal((N, len(CLASSES)))).argmax(axis=1)
    return X, codes


def gram_of(X, codes, **kwargs):
    gram = GramMatrix(X.shape[1], CLASSES)
    gram.update(X, codes, **kwargs)
    return gram


def oracle(X, codes, lam, fit_intercept=True):
    one_hot = np.eye(len(CLASSES))[codes]
    return Ridge(alpha=lam, fit_intercept=fit_intercept, solver="svd").fit(X, one_hot)


@pytest.mark.parametrize("lam", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_solve_is_sklearn_ridge(data, lam, fit_intercept):
    X, codes = data
    readout, ridge = (
        gram_of(X, codes).solve(lam, fit_intercept=fit_intercept),
        oracle(X, codes, lam, fit_intercept),
    )
    np.testing.assert_allclose(readout.weights, ridge.coef_.T, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(readout.intercept, ridge.intercept_, rtol=1e-9, atol=1e-12)
    assert (readout.predict_codes(X) == ridge.predict(X).argmax(axis=1)).all()
    assert readout.n_parameters == (D + fit_intercept) * len(CLASSES)


def test_default_penalty_is_the_papers(data):
    np.testing.assert_allclose(gram_of(*data).solve().weights, oracle(*data, 0.01).coef_.T, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("columns", [[3, 4, 5, 6], [20, 1, 13], [7]])
def test_columns_solve_the_sliced_problem(data, columns):
    X, codes = data
    readout, ridge = gram_of(X, codes).solve(0.3, columns=columns), oracle(X[:, columns], codes, 0.3)
    np.testing.assert_allclose(readout.weights[columns], ridge.coef_.T, rtol=1e-9, atol=1e-12)
    assert not np.delete(readout.weights, columns, axis=0).any()
    np.testing.assert_allclose(readout.decision(X), ridge.predict(X[:, columns]), rtol=1e-9, atol=1e-10)
    assert readout.n_parameters == (len(columns) + 1) * len(CLASSES)


@pytest.mark.parametrize(("columns", "m"), [(None, 10), (None, 40), ([9, 2, 17, 4, 11], 3), ([9, 2, 17, 4, 11], 8)])
def test_projection_solves_the_projected_problem(data, columns, m):
    """m above the input width makes PᵀGP singular: only the penalty keeps it solvable."""
    X, codes = data
    sliced = X if columns is None else X[:, columns]
    P = gaussian_projection(sliced.shape[1], m, seed=3)
    readout, ridge = gram_of(X, codes).solve(0.1, columns, P), oracle(sliced @ P, codes, 0.1)
    np.testing.assert_allclose(readout.decision(X), ridge.predict(sliced @ P), rtol=1e-7, atol=1e-8)
    assert readout.n_parameters == (m + 1) * len(CLASSES)
    if columns is not None:
        assert not np.delete(readout.weights, columns, axis=0).any()


def test_identity_projection_changes_nothing(data):
    gram = gram_of(*data)
    np.testing.assert_allclose(gram.solve(1.0, projection=np.eye(D)).weights, gram.solve(1.0).weights, rtol=1e-9)


def test_statistics_are_the_products(data):
    X, codes = data
    gram = gram_of(X, codes)
    np.testing.assert_allclose(gram.xtx, X.T @ X, rtol=1e-12)
    np.testing.assert_allclose(gram.xty, X.T @ np.eye(len(CLASSES))[codes], rtol=1e-12, atol=1e-12)
    assert gram.class_counts.tolist() == np.bincount(codes, minlength=len(CLASSES)).tolist()
    assert gram.n == N


def test_solving_between_updates_leaves_the_stream_intact(data):
    """xtx and solve mirror the triangle in place; later updates must still add to the right one."""
    X, codes = data
    gram = GramMatrix(D, CLASSES)
    for rows in np.array_split(np.arange(N), 7):
        gram.update(X[rows], codes[rows])
        gram.solve(1.0)
    np.testing.assert_allclose(gram.xtx, X.T @ X, rtol=1e-12)
    np.testing.assert_allclose(gram.solve(1.0).weights, oracle(X, codes, 1.0).coef_.T, rtol=1e-9, atol=1e-12)


def test_wide_gram_is_mirrored_in_every_block():
    X = np.random.default_rng(0).standard_normal((50, 600))
    np.testing.assert_allclose(gram_of(X, np.zeros(50, dtype=int)).xtx, X.T @ X, rtol=1e-10, atol=1e-12)


def test_rows_beyond_one_block_are_counted(monkeypatch, data):
    monkeypatch.setattr("ematrace.probes.ridge.BLOCK_ROWS", 64)
    X, codes = data
    readout, ridge = gram_of(X, codes).solve(1.0), oracle(X, codes, 1.0)
    np.testing.assert_allclose(readout.weights, ridge.coef_.T, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(readout.decision(X), ridge.predict(X), rtol=1e-9, atol=1e-12)
    assert (ReadoutBank({"a": readout}).predict_codes(X)["a"] == ridge.predict(X).argmax(axis=1)).all()
    np.testing.assert_allclose(RidgeProbe(1.0).fit(X, codes).decision_function(X), ridge.predict(X), atol=1e-9)


@pytest.mark.parametrize("order", ["C", "F"])
def test_float32_chunks_accumulate_in_float64(data, order):
    X, codes = data
    X32 = np.asarray(X, dtype=np.float32, order=order)
    gram = GramMatrix(D, CLASSES)
    for rows in np.array_split(np.arange(N), 11):
        gram.update(X32[rows], codes[rows])
    exact = X32.astype(np.float64)
    np.testing.assert_allclose(gram.xtx, exact.T @ exact, rtol=1e-12)


def test_labels_by_name_and_by_code_agree(data):
    X, codes = data
    by_name = GramMatrix(D, CLASSES)
    by_name.update(X, [CLASSES[code] for code in codes])
    by_array = GramMatrix(D, CLASSES)
    by_array.update(X, np.array(CLASSES)[codes])
    expected = gram_of(X, codes).xty
    assert (by_name.xty == expected).all()
    assert (by_array.xty == expected).all()


def test_collinear_and_constant_features(data):
    X, codes = data
    X = np.hstack([X, X[:, :5], X[:, 5:8] + X[:, 8:11], np.full((N, 1), 3.0)])
    readout, ridge = gram_of(X, codes).solve(0.01), oracle(X, codes, 0.01)
    np.testing.assert_allclose(readout.decision(X), ridge.predict(X), atol=1e-8)
    np.testing.assert_allclose(readout.weights[:5], readout.weights[D : D + 5], atol=1e-8)
    np.testing.assert_allclose(readout.weights[-1], 0, atol=1e-9)


def test_no_penalty_on_singular_features_gives_the_minimum_norm_solution(data):
    X, codes = data
    X = np.hstack([X[:, :6], X[:, :6], np.zeros((N, 1))])
    readout = gram_of(X, codes).solve(0.0)
    Y = np.eye(len(CLASSES))[codes]
    W = np.linalg.pinv(X - X.mean(axis=0)) @ (Y - Y.mean(axis=0))
    np.testing.assert_allclose(readout.weights, W, atol=1e-9)
    constant = gram_of(np.ones((N, 2)), codes).solve(0.0)
    assert not constant.weights.any()
    np.testing.assert_allclose(constant.intercept, Y.mean(axis=0), rtol=1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_dependence_up_to_rounding_counts_as_singular(seed):
    """Rounding lets Cholesky through on some of these; its weights would then be of order 1e8."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((N, 3))
    X = np.column_stack([X, X @ [0.1, 0.3, 0.7]])
    codes = rng.integers(0, len(CLASSES), N)
    Y = np.eye(len(CLASSES))[codes]
    W = np.linalg.pinv(X - X.mean(axis=0), rcond=1e-10) @ (Y - Y.mean(axis=0))
    np.testing.assert_allclose(gram_of(X, codes).solve(0.0).weights, W, atol=1e-9)


def test_ties_go_to_the_lowest_class():
    gram = GramMatrix(1, CLASSES)
    gram.update(np.zeros((4, 1)), [3, 1, 3, 1])
    readout = gram.solve()
    assert readout.predict(np.zeros((2, 1))).tolist() == ["noun", "noun"]
    assert ReadoutBank({"a": readout}).predict_codes(np.zeros((2, 1)))["a"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("X", "labels", "message"),
    [
        (np.zeros((2, 3)), ["det", "det"], r"X must be \[rows, 2\]"),
        (np.zeros(2), ["det", "det"], r"X must be \[rows, 2\]"),
        (np.zeros((2, 2), dtype=complex), ["det", "det"], "real numbers"),
        (np.array([[0, np.nan], [0, 0]]), ["det", "det"], "NaN or infinite"),
        (np.array([[0, 0], [np.inf, 0]], dtype=np.float32), ["det", "det"], "NaN or infinite"),
        (np.zeros((2, 2)), ["det", "adverb"], "'adverb' is not one of the classes"),
        (np.zeros((2, 2)), [0, 4], r"codes must lie in 0\.\.3"),
        (np.zeros((2, 2)), [0, -1], r"codes must lie in 0\.\.3"),
        (np.zeros((2, 2)), [0.0, 1.0], "not one of the classes"),
        (np.zeros((2, 2)), ["det"], "2 rows but there are 1 labels"),
    ],
)
def test_bad_rows_are_refused_and_leave_no_mark(X, labels, message):
    gram = GramMatrix(2, CLASSES)
    gram.update(np.ones((1, 2)), ["verb"])
    with pytest.raises(ValueError, match=message) as error:
        gram.update(X, labels)
    assert "\n" not in str(error.value)
    assert gram.n == 1
    assert (gram.xtx == 1).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lam": -1.0}, "lam"),
        ({"lam": math.nan}, "lam"),
        ({"columns": [0, 0]}, "repeat"),
        ({"columns": [D]}, "lie in"),
        ({"columns": [-1]}, "lie in"),
        ({"columns": []}, "non-empty"),
        ({"columns": np.ones(D, dtype=bool)}, "feature indices"),
        ({"projection": np.ones((D + 1, 2))}, "projection must be"),
        ({"columns": [0, 1], "projection": np.ones((D, 2))}, r"projection must be \[2, m\]"),
    ],
)
def test_bad_solves_are_refused(data, settings, message):
    with pytest.raises(ValueError, match=message):
        gram_of(*data).solve(**settings)


def test_bad_grams_are_refused():
    with pytest.raises(ValueError, match="no rows"):
        GramMatrix(2, CLASSES).solve()
    with pytest.raises(ValueError, match="strings"):
        GramMatrix(2, [0, 1])
    with pytest.raises(ValueError, match="repeat"):
        GramMatrix(2, ["a", "a"])
    with pytest.raises(ValueError, match="positive"):
        GramMatrix(0, CLASSES)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_bank_predicts_what_each_readout_predicts(data, dtype):
    """Readouts of different class counts share one matmul."""
    X, codes = data
    gram = gram_of(X, codes)
    halves = GramMatrix(D, ["low", "high"])
    halves.update(X, (codes > 1).astype(int))
    readouts = {
        "all": gram.solve(),
        "some": gram.solve(columns=[1, 5, 9]),
        "halves": halves.solve(),
        "projected": gram.solve(projection=gaussian_projection(D, 6, 0)),
    }
    X = X.astype(dtype)
    predicted = ReadoutBank(readouts).predict_codes(X)
    for name, readout in readouts.items():
        assert (predicted[name] == readout.predict_codes(X)).all(), name
    assert list(predicted) == list(readouts)


def test_bank_refuses_other_features(data):
    readout = gram_of(*data).solve()
    other = gram_of(data[0][:, :5], data[1]).solve()
    with pytest.raises(ValueError, match="same features"):
        ReadoutBank({"a": readout, "b": other})
    with pytest.raises(ValueError, match=r"X must be"):
        ReadoutBank({"a": readout}).predict_codes(data[0][:, :5])


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_ridge_probe_is_sklearn_ridge(data, fit_intercept):
    X, codes = data
    y = np.array(CLASSES)[codes]
    probe = RidgeProbe(lam=0.5, fit_intercept=fit_intercept).fit(X, y)
    assert probe.classes_.tolist() == sorted(CLASSES)
    order = [CLASSES.index(name) for name in probe.classes_]
    ridge = oracle(X, codes, 0.5, fit_intercept)
    np.testing.assert_allclose(probe.coef_, ridge.coef_[order], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(probe.decision_function(X), ridge.predict(X)[:, order], rtol=1e-9, atol=1e-10)
    assert probe.score(X, y) == np.mean(ridge.predict(X).argmax(axis=1) == codes)
    classifier = RidgeClassifier(alpha=0.5, fit_intercept=fit_intercept).fit(X, y)
    assert (probe.predict(X) == classifier.predict(X)).all()


def test_ridge_probe_survives_a_far_offset(data):
    """Means of a million would cost the uncentred Gram matrix 12 of its 16 digits."""
    X, codes = data
    near, far = RidgeProbe(1.0).fit(X, codes), RidgeProbe(1.0).fit(X + 1e6, codes)
    np.testing.assert_allclose(far.coef_, near.coef_, rtol=1e-6, atol=1e-8)


def test_ridge_probe_meets_the_estimator_contract():
    results = check_estimator(RidgeProbe(), on_fail=None, on_skip=None)
    failed = {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
    assert not failed
    assert sum(r["status"] == "passed" for r in results) > 40


def test_projection_keeps_lengths_and_follows_the_seed():
    P = gaussian_projection(400, 256, seed=7)
    assert P.shape == (400, 256)
    assert P.mean() == pytest.approx(0, abs=1e-3)
    assert P.var() == pytest.approx(1 / 256, rel=0.02)
    x = np.random.default_rng(0).standard_normal((50, 400))
    assert np.mean(np.sum((x @ P) ** 2, axis=1) / np.sum(x**2, axis=1)) == pytest.approx(1, abs=0.05)
    assert (gaussian_projection(400, 256, seed=7) == P).all()
    assert not np.isclose(P, gaussian_projection(400, 256, seed=8)).all()
    with pytest.raises(ValueError, match="positive"):
        gaussian_projection(4, 0, seed=0)


def test_control_labels_depend_on_the_word_alone():
    words = ["the", "cat", "sees", "the", "dog", "cat"]
    labels = control_labels(words, CLASSES, seed=3)
    assert labels[0] == labels[3]
    assert labels[1] == labels[5]
    alone = {word: control_labels([word], CLASSES, seed=3)[0] for word in words}
    assert [alone[word] for word in words] == labels.tolist()
    types = [f"w{i}" for i in range(200)]
    first, second = control_labels(types, CLASSES, seed=3), control_labels(types, CLASSES, seed=4)
    assert np.mean(first == second) == pytest.approx(0.25, abs=0.1)


def test_control_labels_follow_the_distribution():
    types = [f"w{i}" for i in range(20_000)]
    weights = label_weights(["det"] * 5 + ["noun"] * 3 + ["aux"] * 2, CLASSES)
    np.testing.assert_allclose(weights, [0.5, 0.3, 0.0, 0.2])
    np.testing.assert_allclose(label_weights(control_labels(types, CLASSES, 0, weights), CLASSES), weights, atol=0.015)
    np.testing.assert_allclose(label_weights(control_labels(types, CLASSES, 0), CLASSES), 0.25, atol=0.015)
    assert set(control_labels(types[:100], CLASSES, 0, [0, 0, 1, 0])) == {"verb"}


def test_bad_control_weights_are_refused():
    for weights in ([1, 1], [0, 0, 0, 0], [1, -1, 1, 1], [1, math.nan, 1, 1]):
        with pytest.raises(ValueError, match="weights must be 4"):
            control_labels(["the"], CLASSES, 0, weights)
    with pytest.raises(ValueError, match="'adverb'"):
        label_weights(["det", "adverb"], CLASSES)


def test_selectivity_is_the_difference():
    assert selectivity(0.75, 0.5) == 0.25


def test_scores_by_hand():
    true = ["det", "noun", "noun", "verb", "noun", "det"]
    predicted = ["det", "noun", "verb", "noun", "noun", "det"]
    scores = score_roles(predicted, true)
    assert scores.per_role == {"det": (2, 2), "noun": (2, 3), "verb": (0, 1)}
    assert (scores.correct, scores.n, scores.accuracy) == (4, 6, 4 / 6)
    deep = scores.subset({"noun", "verb", "aux"})
    assert (deep.correct, deep.n, deep.accuracy) == (2, 4, 0.5)
    assert math.isnan(scores.subset(["aux"]).accuracy)


def test_scores_of_codes(data):
    _, codes = data
    predicted = np.roll(codes, 1)
    names = np.array(CLASSES)
    by_code = score_roles(predicted, codes, CLASSES)
    assert by_code == score_roles(names[predicted], names[codes])
    assert score_roles([0], [2], CLASSES) == Scores({"det": (0, 0), "noun": (0, 0), "verb": (0, 1), "aux": (0, 0)})
    with pytest.raises(ValueError, match="equally long"):
        score_roles(["det"], ["det", "det"])
    with pytest.raises(ValueError, match="integer codes"):
        score_roles(["det"], ["det"], CLASSES)
    with pytest.raises(ValueError, match=r"lie in 0\.\.3"):
        score_roles([0], [4], CLASSES)


# Relabelling, and how many dimensions vectors use

COARSE = ("function", "content", "never")
COARSE_OF = {"det": "function", "noun": "content", "verb": "content", "aux": "function"}


def test_relabel_is_accumulation_under_the_coarse_labels(data):
    X, codes = data
    coarse = gram_of(X, codes).relabel(COARSE, COARSE_OF)
    direct = GramMatrix(D, COARSE)
    direct.update(X, [COARSE_OF[CLASSES[code]] for code in codes])
    assert coarse.classes == COARSE
    assert coarse.n == N
    assert coarse.class_counts.tolist() == direct.class_counts.tolist()
    np.testing.assert_array_equal(coarse.xtx, direct.xtx)
    np.testing.assert_allclose(coarse.xty, direct.xty, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(coarse.solve(0.01, [3, 1, 7]).weights, direct.solve(0.01, [3, 1, 7]).weights, atol=1e-10)


def test_relabel_shares_xtx_and_leaves_the_fine_statistics_alone(data):
    gram = gram_of(*data)
    before = gram.xtx.copy(), gram.xty.copy(), gram.class_counts.copy()
    coarse = gram.relabel(COARSE, COARSE_OF)
    coarse.solve()
    assert np.shares_memory(coarse.xtx, gram.xtx)
    assert not np.shares_memory(coarse.xty, gram.xty)
    assert gram.classes == CLASSES
    for now, then in zip((gram.xtx, gram.xty, gram.class_counts), before, strict=True):
        np.testing.assert_array_equal(now, then)


def test_updating_a_relabelled_matrix_leaves_the_fine_one_alone(data):
    X, codes = data
    gram = gram_of(X, codes)
    before = gram.xtx.copy()
    coarse = gram.relabel(COARSE, COARSE_OF)
    try:
        coarse.update(X, ["content"] * N)
    except ValueError:  # refusing is as good, if it comes before anything has changed
        assert coarse.n == N
    np.testing.assert_array_equal(gram.xtx, before)


def test_updating_the_fine_matrix_leaves_a_relabelled_one_as_it_was(data):
    X, codes = data
    gram = gram_of(X, codes)
    coarse = gram.relabel(COARSE, COARSE_OF)
    before = coarse.solve().weights
    try:
        gram.update(X, codes)
    except ValueError:
        assert gram.n == N
    np.testing.assert_array_equal(coarse.solve().weights, before)


@pytest.mark.parametrize(
    ("classes", "name_of", "named"),
    [
        (("function",), COARSE_OF, "content"),
        (COARSE, {"det": "function", "noun": "content", "verb": "content"}, "aux"),
    ],
)
def test_relabel_names_the_label_that_has_no_place(data, classes, name_of, named):
    with pytest.raises(ValueError, match=f"'{named}'"):
        gram_of(*data).relabel(classes, name_of)


def with_spectrum(values, rows=7, shift=0.0):
    """Centred rows with these singular values, moved as a whole."""
    rng = np.random.default_rng(8)
    ones = np.ones((rows, 1))
    U = np.linalg.qr(np.hstack([ones, rng.standard_normal((rows, len(values)))]))[0][:, 1:]  # orthogonal to 1: centred
    V = np.linalg.qr(rng.standard_normal((len(values) + 2, len(values))))[0]
    return U @ np.diag(values) @ V.T + shift


@pytest.mark.parametrize("shift", [0.0, 50.0])
def test_participation_ratio_by_hand(shift):
    assert participation_ratio(with_spectrum([3.0], shift=shift)) == pytest.approx(1.0)
    assert participation_ratio(with_spectrum([np.sqrt(2.0), 1.0], shift=shift)) == pytest.approx(9 / 5)
    assert participation_ratio(with_spectrum([2.0] * 5, shift=shift)) == pytest.approx(5.0)


def test_participation_ratio_of_a_line_a_ball_and_a_point():
    rng = np.random.default_rng(9)
    line = np.outer(rng.standard_normal(40), rng.standard_normal(6)) + 3.0
    assert participation_ratio(line) == pytest.approx(1.0)
    assert participation_ratio(rng.standard_normal((20_000, 6))) == pytest.approx(6.0, rel=0.01)
    assert participation_ratio(np.full((5, 3), 7.0)) == 0.0


@pytest.mark.parametrize("shift", [0.0, 50.0])
def test_effective_rank_is_the_exponential_of_the_entropy(shift):
    assert effective_rank(with_spectrum([5.0], shift=shift)) == pytest.approx(1.0, abs=1e-5)
    assert effective_rank(with_spectrum([2.0] * 4, shift=shift)) == pytest.approx(4.0, abs=1e-5)
    # shares 1/2, 1/4, 1/4 have an entropy of 1.5 bits
    assert effective_rank(with_spectrum([2.0, 1.0, 1.0], shift=shift)) == pytest.approx(2**1.5, abs=1e-5)


def test_effective_rank_of_a_point_is_zero():
    assert effective_rank(np.full((5, 3), 7.0)) == 0.0


@pytest.mark.parametrize("measure", [participation_ratio, effective_rank])
def test_tall_and_wide_matrices_agree(measure):
    """Zero columns change no singular value, but make a tall matrix wide."""
    tall = np.random.default_rng(10).standard_normal((30, 8)) * np.arange(1, 9)
    wide = np.hstack([tall, np.zeros((30, 40))])
    assert measure(wide) == pytest.approx(measure(tall), rel=1e-9)
    assert measure(tall.astype(np.float32)) == pytest.approx(measure(tall), rel=1e-5)


def test_scores_by_sentence_are_counts_by_hand():
    true = ["det", "noun", "verb", "det", "noun", "det"]
    predicted = ["det", "verb", "verb", "det", "noun", "noun"]
    codes = [[CLASSES.index(name) for name in names] for names in (predicted, true)]
    scores = score_roles(*codes, CLASSES, lengths=[3, 2, 0, 1])
    assert scores == score_roles(*codes, CLASSES), "the same scores, known by sentence or not"
    assert scores.by_sentence[:, :, 0].tolist() == [[1, 0, 1, 0], [1, 1, 0, 0], [0] * 4, [0] * 4]
    assert scores.by_sentence[:, :, 1].tolist() == [[1, 1, 1, 0], [1, 1, 0, 0], [0] * 4, [1, 0, 0, 0]]
    some = scores.of_sentences(np.array([True, False, True, True]))
    assert some.per_role == {"det": (1, 2), "noun": (0, 1), "verb": (1, 1), "aux": (0, 0)}
    nouns = scores.subset(["noun", "other"])
    assert nouns.per_role == {"noun": (1, 2), "other": (0, 0)}
    assert nouns.by_sentence.sum(0).tolist() == [[1, 2], [0, 0]]
    assert nouns.of_sentences(np.array([False, True, True, True])).per_role["noun"] == (1, 1)
    assert set(scores.n_effective_per_role) == {"det", "noun", "verb"}
    assert 1 <= scores.n_effective <= scores.n
    assert Scores({"det": (1, 2)}).n_effective is None
    with pytest.raises(ValueError, match="lengths sum to 5"):
        score_roles(*codes, CLASSES, lengths=[3, 2])
    with pytest.raises(ValueError, match="by sentence"):
        Scores({"det": (1, 2)}).of_sentences(np.array([True]))
