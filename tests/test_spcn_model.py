"""SPCN as an estimator: the contract, the paper's settings, determinism, odd input, no leak of labels."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.validation import check_is_fitted

from ematrace.grammar import Sentence, load_grammar
from ematrace.probes import RidgeProbe
from ematrace.spcn import SPCN

WIDTHS = (24, 12)
WORDS = tuple(f"w{i}" for i in range(14))
EVERYTHING = "l0.all+l1.all"


def weights_of(model: SPCN) -> dict[str, np.ndarray]:
    return {f"{side}.{name}": a for side, w in model.weights_.items() for name, a in w._asdict().items()}


def same_weights(a: SPCN, b: SPCN) -> bool:
    left, right = weights_of(a), weights_of(b)
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


# The paper's numbers


def test_defaults_are_the_papers() -> None:
    model = SPCN()
    assert (model.alpha, model.beta, model.gamma, model.settle_steps) == (1.0, 0.5, 0.3, 3)
    assert tuple(model.alpha_fast) == (0.5, 0.2, 0.1, 0.05)
    assert model.slow_ratio == 0.15
    assert len(model.widths) == 4
    assert model.ff_rule == "frozen"


@pytest.mark.parametrize(
    ("representation", "directions", "d"),
    [
        ("l0", "both", 1024),
        ("traces", "both", 2048),
        ("l0+traces", "both", 3072),
        ("l0+traces", "forward", 1536),
        ("l1.traces", "both", 1024),
    ],
)
def test_dimensions_of_the_papers_tables(representation: str, directions: str, d: int) -> None:
    model = SPCN(representation=representation, directions=directions, vocabulary=WORDS).fit([])
    assert model.transform([["w1", "w2"]])[0].shape == (2, d)
    assert len(model.get_feature_names_out()) == d


@pytest.mark.parametrize(("network", "length"), [("described", np.sqrt(8)), ("locked", 1.0)])
def test_share_of_active_units(network: str, length: float, sentences: list[list[str]]) -> None:
    """8% of the units at most, never negative; active units at mean square 1, or states at unit length."""
    model = SPCN(widths=(100, 50), network=network, representation="l0").fit(sentences)
    assert model.ks_ == (8, 4)
    x = model.encode(sentences)
    for side in np.split(x, 2, axis=1):
        assert (np.count_nonzero(side, axis=1) == 8).all()
        assert (side >= 0).all()
        np.testing.assert_allclose(np.linalg.norm(side, axis=1), length, rtol=1e-5)


@pytest.mark.parametrize(
    ("network", "inputs"),
    [("described", [1, 15, 15, 10]), ("locked", [200, 150, 150, 100])],
    ids=["described", "locked"],
)
def test_initial_weights_are_normal_with_variance_over_inputs(network: str, inputs: list[int]) -> None:
    """Over the active inputs (one word; a tenth of the units), or over all of them."""
    words = [f"v{i}" for i in range(200)]
    model = SPCN(widths=(150, 100), k=0.1, network=network, vocabulary=words, init_gain=2.0, dtype="float64").fit([])
    matrices = [*model.W_ff(), *model.W_lat()]
    assert [W.shape[1] for W in matrices] == [200, 150, 150, 100]
    for W, n in zip(matrices, inputs, strict=True):
        z = W.ravel() * np.sqrt(n) / 2.0
        assert abs(z.mean()) < 5 / np.sqrt(z.size)
        assert abs((z**2).mean() - 1) < 5 * np.sqrt(2 / z.size)
        assert abs((z**4).mean() - 3) < 5 * np.sqrt(96 / z.size)
    assert all(not W.any() for W in model.W_fb())


# The scikit-learn contract


def test_init_only_stores() -> None:
    names = [p for p in inspect.signature(SPCN.__init__).parameters if p != "self"]
    given = {name: object() for name in names}
    model = SPCN(**given)  # no setting is valid, and none is looked at
    assert vars(model) == given


def test_get_set_clone(sentences: list[list[str]]) -> None:
    settings: dict[str, Any] = {"widths": [24, 12], "k": 0.2, "vocabulary": list(WORDS), "random_state": 5}
    model = SPCN(**settings)
    assert settings.items() <= model.get_params().items()
    assert model.get_params()["widths"] is settings["widths"]
    assert model.set_params(k=0.3, spa=False) is model
    assert (model.k, model.spa) == (0.3, False)
    with pytest.raises(ValueError, match="no_such"):
        model.set_params(no_such=1)
    fitted = model.fit(sentences)
    assert fitted is model
    copy = clone(fitted)
    assert not hasattr(copy, "weights_")
    assert copy.get_params() == fitted.get_params()
    assert same_weights(copy.fit(sentences), fitted)


def test_fit_and_partial_fit_return_self_and_leave_settings_alone(sentences: list[list[str]]) -> None:
    model = SPCN(widths=WIDTHS)
    before = model.get_params()
    assert model.fit(sentences) is model
    assert model.partial_fit(sentences) is model
    assert model.get_params() == before
    check_is_fitted(model)


@pytest.mark.parametrize("method", ["transform", "encode"])
def test_not_fitted(method: str) -> None:
    with pytest.raises(NotFittedError, match="SPCN"):
        getattr(SPCN(), method)([["a"]])
    with pytest.raises(NotFittedError):
        check_is_fitted(SPCN())


def test_in_a_pipeline() -> None:
    """Roles of words are read from the features of a whole pipeline, and better than by always saying the commonest."""
    grammar = load_grammar("A")
    train, test = grammar.sample(120, 0), grammar.sample(40, 1)
    labels = [np.array([role for s in part for role in s.roles]) for part in (train, test)]
    pipeline = make_pipeline(
        SPCN(widths=(64, 16), vocabulary=grammar.words), FunctionTransformer(np.concatenate), RidgeProbe()
    )
    pipeline.fit([s.words for s in train], labels[0])
    prediction = pipeline.predict([s.words for s in test])
    _, counts = np.unique(labels[1], return_counts=True)
    assert (prediction == labels[1]).mean() > counts.max() / counts.sum() + 0.2
    direct = SPCN(widths=(64, 16), vocabulary=grammar.words).fit(train)
    assert (np.concatenate(direct.transform(test)) == pipeline[:2].transform([s.words for s in test])).all()


def test_feature_names(sentences: list[list[str]]) -> None:
    model = SPCN(widths=WIDTHS, representation="l0+l1.traces").fit(sentences)
    names = model.get_feature_names_out()
    assert len(names) == len(set(names)) == model.transform(sentences)[0].shape[1]
    assert names[0] == "l0.activation@forward.0"
    assert names[-1] == "l1.slow@backward.11"


@pytest.mark.parametrize("way", ["set_output", "set_config", "pipeline", "clone"])
def test_tables_by_sentence(sentences: list[list[str]], way: str) -> None:
    """One for each sentence, with the features' names: what scikit-learn's `set_output` means for sequences."""
    pandas = pytest.importorskip("pandas")
    fitted = SPCN(widths=WIDTHS).fit(sentences)
    expected = fitted.transform(sentences)
    if way == "set_config":
        with config_context(transform_output="pandas"):
            tables = fitted.transform(sentences)
    elif way == "pipeline":
        tables = make_pipeline(clone(fitted)).set_output(transform="pandas").fit_transform(sentences)
    else:
        model = clone(fitted).set_output(transform="pandas")
        assert model.set_output() is model  # None leaves it as it is
        tables = (clone(model) if way == "clone" else model).fit(sentences).transform(sentences)
    assert len(tables) == len(sentences)
    for table, array in zip(tables, expected, strict=True):
        assert isinstance(table, pandas.DataFrame)
        assert list(table.columns) == list(fitted.get_feature_names_out())
        assert np.array_equal(table.to_numpy(), array)
    assert isinstance(fitted.transform(sentences)[0], np.ndarray)


def test_an_unknown_container_is_refused(fitted: SPCN) -> None:
    with pytest.raises(ValueError, match="'excel'; choose from default, pandas, polars"):
        clone(fitted).set_output(transform="excel")


def test_vocabulary_is_the_words_of_the_first_fit_in_order_of_appearance() -> None:
    model = SPCN(widths=WIDTHS).fit([["b", "a"], ["a", "c", "b"]])
    assert model.vocabulary_ == {"b": 0, "a": 1, "c": 2}
    assert [W.shape for W in model.W_ff()] == [(24, 3), (12, 24)]
    assert [W.shape for W in model.W_fb()] == [(24, 12)]
    assert [W.shape for W in model.W_lat()] == [(24, 24), (12, 12)]


# Determinism


def test_seeds(sentences: list[list[str]]) -> None:
    a, again, other = (SPCN(widths=WIDTHS, random_state=seed).fit(sentences) for seed in (1, 1, 2))
    assert same_weights(a, again)
    assert (a.encode(sentences) == again.encode(sentences)).all()
    for name, weights in weights_of(a).items():
        if name.endswith((".ff", ".fb", ".lat")):
            assert not np.array_equal(weights, weights_of(other)[name])
    assert (a.encode(sentences) != other.encode(sentences)).any()


def test_fit_starts_afresh(sentences: list[list[str]], held_out: list[list[str]]) -> None:
    model = SPCN(widths=WIDTHS, vocabulary=WORDS)
    assert same_weights(model.fit(held_out).fit(sentences), clone(model).fit(sentences))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_threads_do_not_change_a_bit(sentences: list[list[str]], dtype: str) -> None:
    texts = [*sentences, [], *sentences[::-1], ["w3"], []]
    one, two, many, unsaid = (SPCN(widths=WIDTHS, dtype=dtype, n_jobs=n).fit(texts) for n in (1, 2, 5, None))
    assert np.array_equal(unsaid.encode(texts), one.encode(texts))
    assert same_weights(one, two)
    assert same_weights(one, many)
    for representation in (None, EVERYTHING, "l1.slow@backward"):
        expected = one.encode(texts, representation)
        assert (two.encode(texts, representation) == expected).all()
        assert (many.encode(texts, representation) == expected).all()


@pytest.mark.parametrize("batch", [1, 3, 1000])
def test_batches_do_not_change_a_bit(sentences: list[list[str]], batch: int) -> None:
    model = SPCN(widths=WIDTHS).fit(sentences)
    parts = [(part, features.copy()) for part, features in model.iter_encode(sentences, batch=batch)]
    assert [s for part, _ in parts for s in sentences[part]] == sentences
    assert (np.concatenate([features for _, features in parts]) == model.encode(sentences)).all()
    one_by_one = np.concatenate([model.transform([s])[0] for s in sentences])
    assert (one_by_one == model.encode(sentences)).all()


def test_transform_is_encode_cut_into_sentences(sentences: list[list[str]]) -> None:
    model = SPCN(widths=WIDTHS).fit(sentences)
    features = model.transform(sentences)
    assert [len(f) for f in features] == [len(s) for s in sentences]
    assert (np.concatenate(features) == model.encode(sentences)).all()


def test_transform_learns_nothing(sentences: list[list[str]]) -> None:
    model = SPCN(widths=WIDTHS).fit(sentences)
    before = {name: a.copy() for name, a in weights_of(model).items()}
    first = model.encode(sentences)
    assert (model.encode(sentences) == first).all()
    assert all(np.array_equal(before[name], a) for name, a in weights_of(model).items())


def test_partial_fit_goes_on_where_fit_left_off(sentences: list[list[str]], held_out: list[list[str]]) -> None:
    whole = SPCN(widths=WIDTHS, vocabulary=WORDS).fit(sentences + held_out)
    parts = SPCN(widths=WIDTHS, vocabulary=WORDS).fit(sentences).partial_fit(held_out)
    only_parts = SPCN(widths=WIDTHS, vocabulary=WORDS).partial_fit(sentences[:3])
    only_parts.partial_fit(sentences[3:]).partial_fit([]).partial_fit(held_out)
    assert same_weights(whole, parts)
    assert same_weights(whole, only_parts)
    assert whole.n_tokens_seen_ == parts.n_tokens_seen_ == sum(map(len, sentences + held_out))


def test_epochs_are_passes(sentences: list[list[str]]) -> None:
    twice = SPCN(widths=WIDTHS, epochs=2).fit(sentences)
    assert same_weights(twice, SPCN(widths=WIDTHS).fit(sentences).partial_fit(sentences))
    assert twice.n_tokens_seen_ == 2 * sum(map(len, sentences))


def test_frozen_feedback_stays_at_zero(sentences: list[list[str]]) -> None:
    model = SPCN(widths=WIDTHS, learn_feedback=False).fit(sentences)
    assert not any(W.any() for side in model.directions_ for W in model.W_fb(side))
    assert (SPCN(widths=WIDTHS).fit(sentences).encode(sentences) != model.encode(sentences)).any()


def test_sentences_do_not_see_each_other(sentences: list[list[str]]) -> None:
    model = SPCN(widths=WIDTHS).fit(sentences)
    alone = model.transform([sentences[2]])[0]
    among = model.transform([sentences[0], sentences[2], sentences[1]])[1]
    assert (alone == among).all()
    model.reset = "never"
    assert (model.transform([sentences[0], sentences[2]])[1] != alone).any()


# Odd input


@pytest.fixture(scope="module")
def fitted() -> SPCN:
    return SPCN(widths=WIDTHS, vocabulary=("a", "b", "c", "d")).fit([["a", "b"], ["b", "a", "c"]])


def test_a_word_of_the_vocabulary_that_was_never_seen(fitted: SPCN) -> None:
    features = fitted.encode([["d"], ["a", "d", "b"]], EVERYTHING)
    assert np.isfinite(features).all()
    assert (np.count_nonzero(fitted.encode([["d"]], "l0@forward")) == fitted.ks_[0]).all()
    # At the first token of a sentence, before any feedback, its units are the largest of its column of W_ff.
    bare = clone(fitted).set_params(beta=0.0, gamma=0.0, spa=False).fit([["a"]])
    column = bare.W_ff("forward")[0][:, 3]
    assert set(np.flatnonzero(bare.encode([["d"]], "l0@forward"))) == set(np.argsort(-column)[: bare.ks_[0]])


def test_sentences_of_no_and_of_one_word(fitted: SPCN) -> None:
    d = len(fitted.get_feature_names_out())
    assert fitted.transform([]) == []
    assert fitted.encode([]).shape == (0, d)
    assert [f.shape for f in fitted.transform([[]])] == [(0, d)]
    assert [f.shape for f in fitted.transform([[], ["a"], [], ["b", "c"], []])] == [
        (0, d), (1, d), (0, d), (2, d), (0, d),
    ]  # fmt: skip
    assert (fitted.transform([[], ["a"], []])[1] == fitted.transform([["a"]])[0]).all()
    assert list(fitted.iter_encode([])) == []
    with_gaps = SPCN(widths=WIDTHS, vocabulary=WORDS).fit([[], ["w1", "w2"], [], ["w3"], []])
    assert same_weights(with_gaps, SPCN(widths=WIDTHS, vocabulary=WORDS).fit([["w1", "w2"], ["w3"]]))


def test_nothing_to_fit() -> None:
    for nothing in ([], [[]]):
        with pytest.raises(ValueError, match="vocabulary"):
            SPCN().fit(nothing)
    assert SPCN(widths=WIDTHS, vocabulary=["a"]).fit([]).transform([["a"]])[0].shape[0] == 1


@pytest.mark.parametrize("method", ["transform", "encode", "partial_fit", "fit"])
def test_unknown_word_is_named_with_its_place(fitted: SPCN, method: str) -> None:
    model = clone(fitted).fit([["a"]])
    with pytest.raises(ValueError, match=r"'zebra' at sentence 2, token 1"):
        getattr(model, method)([["a"], [], ["b", "zebra", "yak"], ["zebra"]])


def test_unknown_word_without_drive(fitted: SPCN) -> None:
    model = clone(fitted).set_params(unknown_words="zero").fit([["a", "b"], ["b", "zebra", "c"]])
    assert "zebra" not in model.vocabulary_
    assert not model.encode([["zebra", "yak"]], EVERYTHING).any()
    # Without feed-forward drive the state lives on through its other pathways, the same for every unknown word.
    features = model.encode([["a", "zebra"]], EVERYTHING)
    assert features[1].any()
    assert (model.encode([["a", "yak"]], EVERYTHING) == features).all()
    assert (model.encode([["a", "b"]], EVERYTHING) != features).any()


@pytest.mark.parametrize("method", ["fit", "partial_fit", "transform", "encode"])
@pytest.mark.parametrize("bad", ["the cat", ["the", 3], ["the", None], {"the"}, 7, None, [["the"]]], ids=repr)
def test_what_is_not_a_list_of_words(fitted: SPCN, method: str, bad: Any) -> None:
    model = clone(fitted).fit([["a"]])
    with pytest.raises(TypeError, match="sentence 1 is not a sequence of words"):
        getattr(model, method)([["a"], bad])


def test_a_text_instead_of_sentences(fitted: SPCN) -> None:
    with pytest.raises(TypeError, match="sentence 0 is not a sequence of words"):
        fitted.transform("a b c")


def test_sentence_objects_tuples_and_generators_are_sentences(fitted: SPCN) -> None:
    expected = fitted.encode([["a", "b"], ["c"]])
    objects = [Sentence(("a", "b"), ("det", "noun"), "x"), Sentence(("c",), ("verb",), "x")]
    assert (fitted.encode(objects) == expected).all()
    assert (fitted.encode([("a", "b"), ("c",)]) == expected).all()
    assert (np.concatenate(fitted.transform(s for s in objects)) == expected).all()


BAD_SETTINGS: list[tuple[str, Any]] = [
    ("directions", "sideways"), ("unknown_words", "skip"), ("topk_by", "rank"), ("update", "async"),
    ("reset", "always"), ("dtype", "float16"), ("precision_power", 3), ("ff_rule", "oja"), ("settle_steps", 0),
    ("spa_window", 0), ("spa_top", 0), ("widths", ()), ("widths", (8, 0)), ("widths", (-3,)), ("k", 0), ("k", 1.01),
    ("k", float("nan")), ("alpha_fast", (0.5,)), ("alpha_fast", (0.5, 0.2, 0.1)), ("pi_min", 0.0), ("pi_min", 20.0),
    ("pi_max", 0.01), ("decay", 1.0), ("decay", -0.1), ("decay", float("nan")), ("representation", "l2"),
    ("representation", "everything"), ("representation", ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD_SETTINGS, ids=lambda v: str(v))
def test_bad_setting_is_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        SPCN(**{"widths": WIDTHS, name: value}).fit([["a"]])


def test_five_levels_need_their_own_rates() -> None:
    with pytest.raises(ValueError, match="alpha_fast"):
        SPCN(widths=(8, 8, 8, 8, 8)).fit([["a"]])
    model = SPCN(widths=(8, 8, 8, 8, 8), alpha_fast=(0.5, 0.4, 0.3, 0.2, 0.1)).fit([["a"]])
    np.testing.assert_allclose(model.encode([["a"]], "l4.fast"), 0.1 * model.encode([["a"]], "l4"), rtol=1e-6)


# Settings that make no sense and are taken in silence, or refused without their name.
UNCHECKED: list[tuple[str, Any]] = [
    ("alpha_fast", (1.5, 0.5)), ("alpha_fast", (-0.5, 0.5)), ("slow_ratio", -1.0), ("slow_ratio", 10.0),
    ("variance_rate", -1.0), ("variance_rate", 2.5), ("epochs", -1), ("ff_epochs", -1), ("settle_steps", 2.5),
    ("random_state", -1), ("representation", None), ("eta", float("nan")), ("vocabulary", "abc"),
    ("eta", -0.01), ("ff_eta", -0.1), ("ff_eta", float("nan")), ("n_jobs", 0), ("n_jobs", "all"),
    ("widths", (8.0, 4.0)), ("settle_steps", 10**20),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), UNCHECKED, ids=lambda v: str(v))
def test_senseless_setting_is_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        SPCN(**{"widths": WIDTHS, name: value}).fit([["a", "b", "c"]] * 3)


def test_a_vocabulary_may_repeat_words() -> None:
    """The natural way to write "both grammars": their 7 function words are then there twice."""
    words = [*load_grammar("A").words, *load_grammar("B").words]
    model = SPCN(widths=(200, 20), directions="forward", vocabulary=words).fit([])
    assert len(model.vocabulary_) == len(set(words)) == 147
    assert sorted(model.vocabulary_.values()) == list(range(147))
    for word in model.vocabulary_:
        assert model.encode([[word]], "l0").any(), f"{word!r} has no feed-forward drive"


def test_an_empty_representation_is_refused(fitted: SPCN) -> None:
    with pytest.raises(ValueError, match="representation"):
        fitted.encode([["a"]], "")


# States that are not finite


def place_of(error: pytest.ExceptionInfo[FloatingPointError]) -> tuple[int, int, str, int]:
    text = str(error.value)
    numbers = re.search(r"level (\d+).*sentence (\d+), token (\d+) \('(\w+)'\)", text)
    assert numbers, text
    level, sentence, token, word = numbers.groups()
    return int(sentence), int(token), word, int(level)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_states_that_grow_without_bound_are_reported(sentences: list[list[str]], dtype: str) -> None:
    settings: dict[str, Any] = {"widths": WIDTHS, "normalise": False, "init_gain": 1e6, "dtype": dtype}
    with pytest.raises(FloatingPointError) as error:
        SPCN(**settings).fit(sentences)
    sentence, token, word, level = place_of(error)
    assert sentences[sentence][token] == word
    assert level in (0, 1)
    model = SPCN(**settings, vocabulary=WORDS).fit([])
    with pytest.raises(FloatingPointError) as error:
        model.transform(sentences)
    sentence, token, word, level = place_of(error)
    assert sentences[sentence][token] == word


@pytest.mark.parametrize("method", ["transform", "partial_fit"])
@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("directions", ["forward", "backward", "both"])
@pytest.mark.parametrize("level", [0, 1])
def test_the_place_of_a_state_that_is_not_finite(method: str, n_jobs: int, directions: str, level: int) -> None:
    """Only the word "bang" overflows, in level 0 or in what level 1 makes of it; the message must say so."""
    words = ("a", "b", "bang")
    model = SPCN(
        widths=WIDTHS, vocabulary=words, normalise=False, init_gain=0.1, gamma=0.0, eta=0.0, directions=directions,
        n_jobs=n_jobs,
    ).fit([])  # fmt: skip
    for weights in model.weights_.values():
        weights.ff[0, 2, : WIDTHS[0]] = 1e30 if level == 0 else 1e10
        if level == 1:
            weights.ff[1, : WIDTHS[0], : WIDTHS[1]] *= 1e15
            weights.ff[0, :2] *= 1e-10
    texts = [["a"], ["b", "a"], [], ["a", "b", "bang", "a"], ["b"], ["a", "a"]]
    with pytest.raises(FloatingPointError, match="not finite") as error:
        getattr(model, method)(texts)
    assert place_of(error) == (3, 2, "bang", level)


def test_overflowing_attention_scores_are_reported_too() -> None:
    """The scores overflow before the drive does. In a process of its own, which can be stopped."""
    code = """
from ematrace.spcn import SPCN
model = SPCN(widths=(16, 8), k=1.0, rectify=False, normalise=False, alpha=0.05, beta=0.0, gamma=12.0, settle_steps=1,
             spa_top=1, directions="forward", pi_max=100.0, eta=0.0, random_state=4).fit([["a"]] * 400)
try:
    model.transform([["a"] * 50])
except FloatingPointError:
    print("reported")
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == "reported"


# Labels


def test_labels_given_to_fit_are_not_used(sentences: list[list[str]]) -> None:
    rng = np.random.default_rng(0)
    labels = [rng.integers(0, 5, len(s)).tolist() for s in sentences]
    blind = SPCN(widths=WIDTHS, ff_rule="sanger").fit(sentences)
    assert same_weights(blind, SPCN(widths=WIDTHS, ff_rule="sanger").fit(sentences, labels))
    assert same_weights(blind, SPCN(widths=WIDTHS, ff_rule="sanger").fit(sentences, y=object()))
    blind.partial_fit(sentences)
    other = SPCN(widths=WIDTHS, ff_rule="sanger").fit(sentences).partial_fit(sentences, labels)
    assert same_weights(blind, other)


def test_roles_of_sentences_are_not_used() -> None:
    """Permuted roles and another structure leave every weight and every feature as it is, bit for bit."""
    sentences = load_grammar("A").sample(30, 0)
    rng = np.random.default_rng(1)
    permuted = [
        replace(s, roles=tuple(s.roles[i] for i in rng.permutation(len(s.roles))), structure="none") for s in sentences
    ]
    assert any(a.roles != b.roles for a, b in zip(sentences, permuted, strict=True))
    a, b = SPCN(widths=WIDTHS).fit(sentences), SPCN(widths=WIDTHS).fit(permuted)
    plain = SPCN(widths=WIDTHS).fit([list(s.words) for s in sentences])
    assert a.vocabulary_ == b.vocabulary_ == plain.vocabulary_
    assert same_weights(a, b)
    assert same_weights(a, plain)
    assert (a.encode(sentences) == a.encode(permuted)).all()
