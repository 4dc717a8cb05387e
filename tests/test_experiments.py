"""The grammar experiments at toy sizes: the task against scikit-learn and counts by hand, rows and what they mean."""

from __future__ import annotations

import copy
import json
import math
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.random_projection import johnson_lindenstrauss_min_dim
from threadpoolctl import threadpool_limits

from cells_support import make_file, make_table
from ematrace.analysis.rates import best_rule_rates
from ematrace.experiments import EXPERIMENTS, Context, Metric, Point, lag_decoding, networks
from ematrace.experiments.base import merged
from ematrace.experiments.controls import majority
from ematrace.experiments.distances import jl_epsilon, sparse_code
from ematrace.experiments.grammar_task import (
    DRAWN,
    DRAWS,
    FULL,
    QUICK_DRAWS,
    SETTINGS,
    GrammarTask,
    Probed,
    Sizes,
    drawn_grid,
    grammar_task,
    role_codes,
    words_of,
)
from ematrace.experiments.shortcuts import (
    Chances,
    Novel,
    OtherClass,
    ProbeTagger,
    RolesOfClasses,
    Swap,
    word_or_context,
)
from ematrace.experiments.trace_probe import control_task
from ematrace.grammar import load_grammar
from ematrace.ledger import load_claims
from ematrace.probes import GramMatrix, Scores
from ematrace.results import Row, read_file
from ematrace.results.schema import file_name
from ematrace.spcn import SPCN

TINY = Sizes(train=40, within=20, transfer=20, bigru_epochs=1)
SMALL = {"widths": (128, 32, 16, 8)}  # the lemma of `distances` says nothing below 24 ln n dimensions
GRAMMAR = [name for name, experiment in EXPERIMENTS.items() if experiment.settings is SETTINGS]
DEFAULT = dict(load_claims().defaults)


class Given(Context):
    """A context in which this task is the one that is shared."""

    def __init__(self, task: GrammarTask, progress=lambda share: None) -> None:
        super().__init__(seed=task.seed, settings=SETTINGS, progress=progress)
        self.task = task

    def share(self, factory, *args):
        return self.task


def value_of(rows: list[Row], metric: str, **factors) -> Metric:
    """The metric of the only row with these factors and no others."""
    (row,) = [row for row in rows if row.factors == factors]
    return row.metrics[metric]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """As in the runner's workers: matrices this small are slower on more, and sums come in the same order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def task() -> GrammarTask:
    return GrammarTask(0, spcn=SMALL, sizes=TINY)


@pytest.fixture(scope="module")
def measured(task):
    """The rows of an experiment on the tiny task; measured once for all tests, and only if asked for."""
    known: dict[str, list[Row]] = {}

    def rows_of(name: str) -> list[Row]:
        if name not in known:
            known[name] = EXPERIMENTS[name].measure(Given(task), **DEFAULT)
        return known[name]

    return rows_of


# ---------------------------------------------------------------------- sentences


def test_seeds_and_streams_share_no_draw():
    streams = {
        (seed, name): tuple(getattr(GrammarTask(seed, sizes=TINY), name))
        for seed in range(3)
        for name in ("train", "within", "transfer")
    }
    assert len(set(streams.values())) == 9
    # the same number of sentences of one grammar: were a random stream used twice, they would be equal
    sizes = Sizes(20, 20, 20)
    of_a = {tuple(getattr(GrammarTask(seed, sizes=sizes), name)) for seed in range(3) for name in ("train", "within")}
    assert len(of_a) == 6


def test_sizes_and_grammars_of_the_three_sets(task):
    assert [len(task.train), len(task.within), len(task.transfer)] == [40, 20, 20]
    words = {name: {w for s in getattr(task, name) for w in s.words} for name in ("train", "within", "transfer")}
    assert words["train"] | words["within"] <= set(task.A.words)
    assert words["transfer"] <= set(task.B.words)
    assert not words["transfer"] & set(task.A.content_words)


def test_vocabulary_is_both_grammars_once(task):
    A, B = load_grammar("A"), load_grammar("B")
    assert len(task.vocabulary) == len(set(task.vocabulary)) == 147
    assert set(task.vocabulary) == set(A.words) | set(B.words)
    assert task.vocabulary[: len(A.words)] == A.words


def test_a_seed_changes_the_weights_too(task):
    other = GrammarTask(1, spcn=SMALL, sizes=TINY)
    assert not np.array_equal(task.spcn().W_ff()[0], other.spcn().W_ff()[0])


def test_networks_are_made_once_per_setting(task):
    assert task.spcn() is task.spcn()
    assert task.spcn(spa=False) is task.spcn(spa=False)
    assert task.spcn(spa=False) is not task.spcn()
    assert task.spcn(spa=False).spa is False
    assert task.spcn().spa is True


def test_relabelled_token_gram_is_the_gram_of_roles(task):
    features = task.spcn().encode(task.train, FULL)
    direct = GramMatrix(features.shape[1], task.roles)
    direct.update(features, [role for s in task.train for role in s.roles])
    ours = task.by_role_gram(task.token_gram)
    assert ours.classes == task.roles
    assert ours.class_counts.tolist() == direct.class_counts.tolist()
    np.testing.assert_allclose(ours.xtx, direct.xtx, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(ours.xty, direct.xty, rtol=1e-12, atol=1e-12)


def test_gram_by_word_is_the_gram_of_the_control_task(task):
    label_of = control_task(task)
    features = task.spcn().encode(task.train, FULL)
    direct = GramMatrix(features.shape[1], task.roles)
    direct.update(features, [label_of[word] for s in task.train for word in s.words])
    ours = task.by_word_gram(task.token_gram, label_of)
    assert ours.class_counts.tolist() == direct.class_counts.tolist()
    np.testing.assert_allclose(ours.xty, direct.xty, rtol=1e-12, atol=1e-12)


def sklearn_scores(task, train, held_out, sentences):
    """Right answers and tokens by role, from scikit-learn's ridge."""
    one_hot = np.eye(len(task.roles))[role_codes(task.train, task.roles)]
    guesses = Ridge(alpha=0.01, solver="cholesky").fit(train, one_hot).predict(held_out).argmax(axis=1)
    truth = role_codes(sentences, task.roles)
    return {
        role: (int(((guesses == i) & (truth == i)).sum()), int((truth == i).sum())) for i, role in enumerate(task.roles)
    }


@pytest.mark.parametrize("part", ["l0", "traces", FULL])
def test_probe_is_sklearn_ridge_on_encoded_features(task, part):
    model = task.spcn()
    probed = task.probe([part])[part]
    train = model.encode(words_of(task.train), part).astype(np.float64)
    for scores, sentences in ((probed.within, task.within), (probed.transfer, task.transfer)):
        held_out = model.encode(words_of(sentences), part).astype(np.float64)
        assert scores.per_role == sklearn_scores(task, train, held_out, sentences)
    assert probed.within.accuracy > 0.25  # the most frequent role: .14


def test_probe_of_another_network_reads_that_network(task):
    model = task.spcn(spa=False)
    train, held_out = (model.encode(words_of(s), FULL).astype(np.float64) for s in (task.train, task.within))
    probed = task.probe([FULL], model)[FULL]
    assert probed.within.per_role == sklearn_scores(task, train, held_out, task.within)


def test_probe_features_is_sklearn_ridge(task):
    def lengths(sentences):
        rows = [[t, len(s.words) - t, len(w)] for s in sentences for t, w in enumerate(s.words)]
        return np.array(rows, np.float64)

    probed = task.probe_features(lengths)
    for scores, sentences in ((probed.within, task.within), (probed.transfer, task.transfer)):
        assert scores.per_role == sklearn_scores(task, lengths(task.train), lengths(sentences), sentences)


HAND = Probed(
    within=Scores({"det_agent": (8, 10), "rel_pron": (4, 4), "verb_rel": (1, 4), "noun_rel": (1, 2), "aux": (0, 0)}),
    transfer=Scores({"det_agent": (3, 10), "verb": (0, 2)}),
)


def test_accuracies_by_hand(task):
    assert {name: (m.value, m.n, m.unit, m.better) for name, m in task.accuracies(HAND).items()} == {
        "within": (14 / 20, 20, "accuracy", "high"),
        "transfer": (3 / 12, 12, "accuracy", "high"),
        "deep": (6 / 10, 10, "accuracy", "high"),
        "deep_strict": (2 / 6, 6, "accuracy", "high"),
    }


def test_sentences_that_training_has_are_left_out_of_the_novel_ones():
    task = GrammarTask(0, sizes=Sizes(train=2000, within=200, transfer=20))
    codes = role_codes(task.within, task.roles)
    guesses = np.where(np.random.default_rng(0).random(len(codes)) < 0.7, codes, 0)
    found = task.accuracies(task.judge(guesses, role_codes(task.transfer, task.roles)))
    kept, deep, at = [], [], 0
    for sentence in task.within:
        right = guesses[at : at + len(sentence.roles)] == codes[at : at + len(sentence.roles)]
        at += len(right)
        if all(sentence.words != other.words for other in task.train):
            kept += right.tolist()
            deep += [r for r, role in zip(right.tolist(), sentence.roles, strict=True) if role in task.A.deep_roles]
    assert len(kept) < found["within"].n == len(codes)
    assert (found["within_novel"].value, found["within_novel"].n) == (pytest.approx(np.mean(kept)), len(kept))
    assert (found["deep_novel"].value, found["deep_novel"].n) == (pytest.approx(np.mean(deep)), len(deep))
    assert found["within"].value == pytest.approx(np.mean(guesses == codes))
    assert found["transfer"].n_effective == len(task.transfer), "all right: each sentence counts once"


def test_an_accuracy_of_no_tokens_is_unknown(task):
    nothing = Probed(Scores({"det_agent": (1, 2)}), Scores({}))
    deep = task.accuracies(nothing)["deep"]
    assert (deep.value, deep.n) == (None, 0)


def test_by_role_by_hand_leaves_out_roles_that_never_occur(task):
    rows = task.by_role(HAND, {"features": "x"})
    assert {row.factors["role"]: {name: (m.value, m.n) for name, m in row.metrics.items()} for row in rows} == {
        "det_agent": {"role_within": (0.8, 10), "role_transfer": (0.3, 10)},
        "rel_pron": {"role_within": (1.0, 4)},
        "verb_rel": {"role_within": (0.25, 4)},
        "noun_rel": {"role_within": (0.5, 2)},
        "verb": {"role_transfer": (0.0, 2)},
    }
    assert {row.factors["features"] for row in rows} == {"x"}


def check_rows(rows: list[Row]) -> None:
    assert rows
    keys = [json.dumps(row.factors, sort_keys=True) for row in rows]
    assert len(set(keys)) == len(keys)
    for row in rows:
        assert row.metrics
        for metric in row.metrics.values():
            assert metric.value is not None or metric.n == 0, row


@pytest.mark.parametrize("name", GRAMMAR)
def test_measures_every_metric_that_claims_select(task, measured, name):
    wide = GrammarTask(0, spcn={"widths": (512, 32, 16, 8)}, sizes=TINY)  # claims name the paper's 1,024 dimensions
    rows = EXPERIMENTS[name].measure(Given(wide)) if name == "dimension_control" else measured(name)
    check_rows(rows)
    file = make_file(*rows, experiment=name, factors=DEFAULT)
    claims = load_claims()
    table = make_table(file).at(claims.defaults)
    needed = {s for claim in claims for s in (*claim.selectors, *(claim.control.of if claim.control else ()))}
    assert {s for s in needed if s.experiment == name and table.select(s) is None} == set()


def test_accuracies_are_counted_on_all_tokens(task, measured):
    tokens = {side: sum(len(s.words) for s in getattr(task, side)) for side in ("within", "transfer")}
    deep = sum(role in task.A.deep_roles for s in task.within for role in s.roles)
    for experiment, factors in (
        ("trace_probe", {"representation": FULL}),
        ("controls", {"features": "onehot"}),
        ("ablations", {"variant": "no_spa"}),
    ):
        counted = {side: value_of(measured(experiment), side, **factors).n for side in ("within", "transfer", "deep")}
        assert counted == {**tokens, "deep": deep}


def test_experiments_that_probe_the_same_thing_agree(measured):
    """Table 1, the ablations' full network and the dimension control read one network by different ways."""
    whole, traces = {"representation": FULL}, {"representation": "traces"}
    raw = {"representation": "l0", "dimensions": 256, "projected": False}
    for side in ("within", "transfer", "deep"):
        of_table_1 = {str(f): value_of(measured("trace_probe"), side, **f) for f in (whole, traces)}
        assert of_table_1[str(whole)] == value_of(measured("ablations"), side, variant="full")
        assert of_table_1[str(traces)] == value_of(measured("ablations"), side, level=0)
        assert of_table_1[str(whole)] == value_of(measured("feedforward_rules"), side, rule="frozen")
        l0 = value_of(measured("trace_probe"), side, representation="l0")
        assert l0 == value_of(measured("dimension_control"), side, **raw)
        position = value_of(measured("position"), side, features="position")
        assert position == value_of(measured("controls"), side, features="position")


@pytest.mark.parametrize(
    ("factors", "kinds", "sides", "level"),
    [
        ({"variant": "full"}, ("activation", "fast", "slow"), ("forward", "backward"), 0),
        ({"variant": "activation"}, ("activation",), ("forward", "backward"), 0),
        ({"variant": "traces"}, ("fast", "slow"), ("forward", "backward"), 0),
        ({"variant": "forward_only"}, ("activation", "fast", "slow"), ("forward",), 0),
        ({"variant": "backward_only"}, ("activation", "fast", "slow"), ("backward",), 0),
        ({"variant": "fast_only"}, ("activation", "fast"), ("forward", "backward"), 0),
        ({"variant": "slow_only"}, ("activation", "slow"), ("forward", "backward"), 0),
        ({"level": 0}, ("fast", "slow"), ("forward", "backward"), 0),
        ({"level": 1}, ("fast", "slow"), ("forward", "backward"), 1),
        ({"level": 3}, ("fast", "slow"), ("forward", "backward"), 3),
    ],
)
def test_ablations_read_the_parts_they_are_named_for(task, measured, factors, kinds, sides, level):
    parts = [f"l{level}.{kind}@{side}" for side in sides for kind in kinds]
    train, held_out = (
        np.hstack([task.spcn().encode(words_of(s), part).astype(np.float64) for part in parts])
        for s in (task.train, task.within)
    )
    expected = Scores(sklearn_scores(task, train, held_out, task.within))
    within = value_of(measured("ablations"), "within", **factors)
    assert (within.value, within.n) == (expected.accuracy, expected.n)
    assert value_of(measured("ablations"), "deep", **factors).value == expected.subset(task.A.deep_roles).accuracy


def test_control_task_is_scored_on_the_labels_of_the_words(task, measured):
    label_of = control_task(task)
    train, held_out = (task.spcn().encode(words_of(s), "l0").astype(np.float64) for s in (task.train, task.within))
    index = {role: i for i, role in enumerate(task.roles)}
    learned, truth = ([index[label_of[w]] for s in part for w in s.words] for part in (task.train, task.within))
    ridge = Ridge(alpha=0.01, solver="cholesky").fit(train, np.eye(len(index))[learned])
    accuracy = float((ridge.predict(held_out).argmax(axis=1) == truth).mean())
    on_control = value_of(measured("trace_probe"), "control_task", representation="l0")
    assert (on_control.value, on_control.n) == (pytest.approx(accuracy), len(truth))
    assert accuracy > 0.5  # most words were seen with their label


def test_selectivity_is_task_minus_control(measured):
    for name in ("l0", "traces", FULL):
        within, control, selectivity = (
            value_of(measured("trace_probe"), metric, representation=name).value
            for metric in ("within", "control_task", "selectivity")
        )
        assert selectivity == pytest.approx(within - control)


def permute_roles(sentences):
    rng = np.random.default_rng(5)
    return [replace(s, roles=tuple(rng.permutation(s.roles).tolist())) for s in sentences]


@pytest.mark.parametrize("name", ["trace_probe", "controls", "supervised", "lag_decoding"])
def test_predictions_do_not_depend_on_the_roles_of_test_sentences(task, monkeypatch, name):
    """Every answer is caught just before it is compared with the truth."""
    if name == "supervised":
        task.bigru()  # trained once for both
    blind = copy.copy(task)
    blind.__dict__.update(within=permute_roles(task.within), transfer=permute_roles(task.transfer))
    assert [s.roles for s in blind.within] != [s.roles for s in task.within]
    answers = []

    def caught_in(function):
        def spy(predicted, *rest):
            answers[-1].append(list(predicted))
            return function(predicted, *rest)

        return spy

    right = GrammarTask.right
    catch = caught_in(lambda predicted, owner, sentences: right(owner, predicted, sentences))
    monkeypatch.setattr(GrammarTask, "right", lambda owner, predicted, sentences: catch(predicted, owner, sentences))
    monkeypatch.setattr(lag_decoding, "score", caught_in(lag_decoding.score))
    monkeypatch.setattr(lag_decoding, "peeled", lambda *_: [])  # no labels are learned there
    rows = []
    for each in (task, blind):
        answers.append([])
        rows.append(EXPERIMENTS[name].measure(Given(each), **DEFAULT))
    assert len(answers[0]) >= 2
    assert answers[0] == answers[1]
    assert rows[0] != rows[1]


@pytest.mark.parametrize(("points", "dimension"), [(147, 512), (1000, 512), (1000, 4096), (20, 100)])
def test_jl_epsilon_inverts_sklearn_min_dim(points, dimension):
    epsilon = jl_epsilon(points, dimension)
    assert 0 < epsilon < 1
    assert johnson_lindenstrauss_min_dim(points, eps=epsilon - 1e-4) >= dimension
    assert johnson_lindenstrauss_min_dim(points, eps=epsilon + 1e-3) < dimension


def test_sparse_code_by_hand():
    drive = np.array([[3.0, -1.0, 4.0, 0.5], [-5.0, 1.0, -2.0, -3.0]])
    np.testing.assert_allclose(sparse_code(drive, 2), [[0.6, 0, 0.8, 0], [0, 1, 0, 0]])
    np.testing.assert_allclose(sparse_code(drive, 1), [[0, 0, 1, 0], [0, 1, 0, 0]])
    root = math.sqrt(9 + 16 + 0.25)
    np.testing.assert_allclose(sparse_code(drive, 4)[0], [3 / root, 0, 4 / root, 0.5 / root])


def test_sparse_code_is_what_feed_forward_settling_gives(task):
    plain = task.spcn(spa=False, beta=0.0, gamma=0.0, learn_feedback=False)
    words = task.A.words
    drive = np.asarray(plain.W_ff()[0], np.float64).T[: len(words)]  # A's words come first in the vocabulary
    ours = sparse_code(drive, plain.ks_[0])
    theirs = plain.encode([[w] for w in words], "l0@forward")
    np.testing.assert_allclose(ours, theirs / np.linalg.norm(theirs, axis=1, keepdims=True), atol=1e-6)


def test_distances_have_their_meaning(measured):
    rows = measured("distances")
    assert value_of(rows, "jl_epsilon", points="words").value == pytest.approx(jl_epsilon(147, 128))
    for points in ("words", "contexts"):
        for code in ("linear", "topk"):
            share, most = (
                value_of(rows, metric, points=points, code=code).value
                for metric in ("share_within_epsilon", "max_distortion")
            )
            assert (share == 1.0) == (most <= value_of(rows, "jl_epsilon", points=points).value)
    with pytest.raises(KeyError):
        value_of(rows, "spearman", points="words", code="linear")
    linear, topk = (value_of(rows, "spearman", points="contexts", code=code).value for code in ("linear", "topk"))
    assert linear > topk > 0


def test_swap_gives_a_noun_of_the_other_half_and_another_word_of_the_class():
    A = load_grammar("A")
    swap, rng = Swap(A), np.random.default_rng(0)
    for name, words in A.content_classes.items():
        half = len(words) // 2
        for word in words:
            drawn = {swap(word, "any", rng) for _ in range(300)}
            if name == "noun":
                assert drawn == set(words[half:] if word in words[:half] else words[:half])
            else:
                assert drawn == set(words) - {word}


def test_shortcuts_score_content_words_only(task, measured):
    rows = measured("shortcuts")
    content = set(task.A.content_words)
    truth = Counter(role for s in task.within for w, role in zip(s.words, s.roles, strict=True) if w in content)
    for name in ("intact", "context_only", "word_only", "swapped"):
        whole = value_of(rows, "content_accuracy", input=name)
        by_role = {role: value_of(rows, "role_accuracy", input=name, role=role) for role in truth}
        assert whole.n == truth.total()
        assert {role: m.n for role, m in by_role.items()} == truth
        right = sum(m.value * m.n for m in by_role.values())
        assert whole.value == pytest.approx(right / truth.total())


def test_position_shares_are_counted_on_the_training_sentences(task, measured):
    first = Counter(s.roles[0] for s in task.train)
    for role in ("det_agent", "det_patient"):
        share = value_of(measured("position"), "first_word_share", role=role)
        assert (share.value, share.n) == (first[role] / 40, 40)
    assert first["det_agent"] + first["det_patient"] > 0


def test_majority_is_the_commonest_training_role_everywhere(task, measured):
    best = Counter(role for s in task.train for role in s.roles).most_common(1)[0][0]
    scores = majority(task)
    for side, sentences in (("within", task.within), ("transfer", task.transfer)):
        roles = [role for s in sentences for role in s.roles]
        assert getattr(scores, side).correct == roles.count(best)
        found = value_of(measured("controls"), side, features="majority")
        assert (found.value, found.n) == (roles.count(best) / len(roles), len(roles))


def test_parameter_counts_of_the_dimension_control(measured):
    found = {
        (row.factors["representation"], row.factors["dimensions"], row.factors["projected"]): row.metrics["parameters"]
        for row in measured("dimension_control")
    }
    assert {key: m.value for key, m in found.items()} == {
        ("l0", 256, False): (2 * 128 + 1) * 20,
        ("l0", 512, True): (512 + 1) * 20,
        ("traces", 1024, True): (1024 + 1) * 20,
        ("traces", 512, True): (512 + 1) * 20,
    }


def test_onehot_traces_are_peeled_exactly(measured):
    """Nothing but rounding is in the way there: a decoder that errs on these is broken."""
    for lag in lag_decoding.LAGS:
        peeled = value_of(
            measured("lag_decoding"), "word_accuracy", reader="peel", codes="onehot", trace="fast", lag=lag
        )
        assert peeled.value == 1.0


def test_a_projected_accuracy_is_the_mean_over_five_projections(task, measured):
    """By hand: the features multiplied by each projection, then scikit-learn."""
    from ematrace.probes import gaussian_projection

    train, held_out = (task.spcn().encode(words_of(s), "traces").astype(np.float64) for s in (task.train, task.within))
    accuracies = []
    for draw in range(5):
        P = gaussian_projection(train.shape[1], 512, seed=draw)
        accuracies.append(Scores(sklearn_scores(task, train @ P, held_out @ P, task.within)).accuracy)
    found = value_of(measured("dimension_control"), "within", representation="traces", dimensions=512, projected=True)
    assert found.value == pytest.approx(np.mean(accuracies), abs=1e-12)


def test_drawn_grammars_differ_and_have_passives_and_one_k():
    points = list(drawn_grid("cpu", DRAWS))
    drawn = [EXPERIMENTS["position"].resolve_settings(point, SETTINGS) for point in points]
    assert [point.seed for point in points] == list(range(DRAWS))
    grammars = [settings["grammar"] for settings in drawn]
    assert [g["drawn_seed"] for g in grammars] == list(range(DRAWS))
    assert len({g["noun_bias"] for g in grammars}) == len({g["adjective_rate"] for g in grammars}) == DRAWS
    assert len({tuple(g["shares"].values()) for g in grammars}) == DRAWS
    assert [g["shares"]["passive"] == pytest.approx(0.5) for g in grammars] == [i % 3 == 0 for i in range(DRAWS)]
    assert {settings["spcn"]["k"] for settings in drawn} == {SETTINGS["spcn"]["k"]}
    # every word order meets half passives and not, equally often
    kinds = Counter((g["word_order"], point.seed % 3 == 0) for g, point in zip(grammars, points, strict=True))
    assert sorted(kinds.values()) == [1] * 4 + [2] * 4


def test_a_drawn_task_is_what_its_settings_say():
    for factors, k in (({"grammar": DRAWN}, 0.08), ({"grammar": DRAWN, "k": 0.16}, 0.16)):
        point = Point(factors, 5)
        settings = EXPERIMENTS["position"].resolve_settings(point, merged(SETTINGS, {"sentences": {"train": 40}}))
        task = grammar_task(Context(seed=5, settings=settings), **point.factors)
        assert task.spcn().k == settings["spcn"]["k"] == k
        assert task.A.settings == task.B.settings == settings["grammar"]
        assert (task.seed, len(task.train), settings["grammar"]["drawn_seed"]) == (5, 40, 5)
        assert "word_order" in settings["grammar"]


def test_a_grammar_with_half_passives_is_told_apart():
    settings = EXPERIMENTS["position"].resolve_settings(Point({"grammar": "half_passives"}, 3), SETTINGS)
    task = grammar_task(Context(seed=3, settings=settings), grammar="half_passives")
    assert task.A.settings == task.B.settings == settings["grammar"]
    assert settings["grammar"]["shares"]["passive"] == 0.5
    with pytest.raises(ValueError, match="grammar is 'thirds'"):
        grammar_task(Context(seed=3, settings=settings), grammar="thirds")


def test_networks_measures_states_and_the_claims_of_both_networks(task):
    experiment = EXPERIMENTS["networks"]
    points = experiment.points("cpu", 1)
    frozen = {(p.factors["network"], p.factors["grammar"]) for p in points if p.factors["part"] == "frozen W_ff"}
    assert frozen == set(product(("described", "locked"), ("half_passives", "quarter_passives")))
    learned = [p.factors["network"] for p in points if p.factors["part"] == "learned W_ff"]
    assert learned == ["locked"], "that of the default network is measured by feedforward_rules"
    assert len(points) == 5
    for point in points:
        settings = experiment.resolve_settings(point, experiment.settings)
        assert settings["spcn"]["network"] == point.factors["network"]
        assert (settings["grammar"]["shares"]["passive"] == 0.5) == (point.factors["grammar"] == "half_passives")
    rows = experiment.measure(Given(task), network="described", grammar="half_passives", part="frozen W_ff")
    check_rows(rows)
    states = [row for row in rows if "diagnosis" in row.factors]
    assert [row.factors["level"] for row in states] == list(range(len(task.spcn().widths)))
    for row in states:
        terms = [metric.value for name, metric in row.metrics.items() if name.startswith("drive_")]
        assert sum(terms) == pytest.approx(1)
    without = value_of(rows, "transfer", variant="no_feedback")
    assert without == task.accuracies(task.probe([FULL], task.spcn(learn_feedback=False))[FULL])["transfer"]


def test_networks_records_the_rates_of_the_part_that_uses_them(monkeypatch):
    """And leaves the settings of the other part, which has recorded cells, as they are."""
    experiment = EXPERIMENTS["networks"]
    points = experiment.points("cpu", 1)
    before = [experiment.resolve_settings(point, experiment.settings) for point in points]
    monkeypatch.setattr(networks, "chosen_rule_rates", lambda: {"oja": 0.02})
    for point, old in zip(points, before, strict=True):
        new = experiment.resolve_settings(point, experiment.settings)
        assert new == (old | {"ff_rates": {"oja": 0.02}} if point.factors["part"] == "learned W_ff" else old)


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda experiment: experiment.name)
def test_settings_that_follow_from_the_factors_do_not_undo_pairs(experiment):
    for scale in ("cpu", "gpu"):
        found = []
        for point in experiment.points(scale, 1):
            settings = experiment.resolve_settings(point, experiment.settings)
            row = Row({}, {"x": Metric(1.0)})
            table = make_table(make_file(row, seed=point.seed, factors=dict(point.factors), settings=settings))
            found.append(table.select("one/x"))
        assert all(found[0].has_settings_of(other) for other in found)


def test_settings_reach_the_task():
    """Every one of them: a recorded setting that nothing reads would be a lie."""
    changed = {"spcn": {"widths": [64, 32], "eta": 0.5}, "sentences": {"within": 7}, "ridge_lambda": 3.0}
    task = grammar_task(Context(seed=2, settings=merged(SETTINGS, changed)))
    assert (task.sizes, task.ridge_lambda, task.seed) == (Sizes(within=7), 3.0, 2)
    task.sizes = TINY
    assert (task.spcn().widths, task.spcn().eta) == ((64, 32), 0.5)
    assert merged(SETTINGS, {"spcn": {}}) == SETTINGS
    untouched = grammar_task(Context(seed=0, settings=SETTINGS))
    assert untouched.spcn_settings.items() <= SPCN().get_params().items()


def test_experiments_of_one_seed_share_a_task_and_others_do_not():
    ctx = Context(seed=0, settings=SETTINGS)
    other = Context(seed=1, settings=SETTINGS, memo=ctx.memo)
    assert grammar_task(ctx) is grammar_task(ctx)
    assert grammar_task(ctx) is not grammar_task(other)
    assert grammar_task(ctx) is not grammar_task(ctx, grammar=DRAWN)
    assert grammar_task(ctx) is not grammar_task(ctx, k=0.02)


def test_settings_are_those_of_the_recorded_results():
    """Same settings, same name: seeds that are added stand beside the recorded ones."""
    folder = Path(__file__).resolve().parents[1] / "results"
    recorded_names = [name for name in GRAMMAR if (folder / name).is_dir()]
    compared = []
    for name in recorded_names:
        experiment = EXPERIMENTS[name]
        for point in (Point(DEFAULT, 0), Point({"grammar": DRAWN}, 1)):
            path = folder / name / file_name(point.factors, point.seed, "cpu")
            if path.is_file():
                expected = experiment.resolve_settings(point, experiment.settings)
                assert read_file(path).settings == json.loads(json.dumps(expected))
                compared.append(point.factors["grammar"])
    assert compared.count(DEFAULT["grammar"]) == len(recorded_names) >= 9
    assert compared.count(DRAWN) >= 7


def test_quick_robustness_is_what_takes_seconds():
    quick = {name for name in GRAMMAR if EXPERIMENTS[name].quick_draws}
    assert quick == {"trace_probe", "position", "distances"}
    assert {EXPERIMENTS[name].quick_draws for name in quick} == {QUICK_DRAWS}
    assert [name for name in GRAMMAR if EXPERIMENTS[name].robustness is None] == []


@pytest.mark.parametrize("lag", [1, 3])
def test_nouns_are_asked_for_where_one_stood_and_guessed_from_their_role(task, measured, lag):
    """Counted again by loops over the sentences."""
    nouns = set(task.A.content_classes["noun"])

    def pairs(sentences):
        places = [(s, t - lag) for s in sentences for t in range(lag, len(s.words))]
        return [(s.words[t], s.roles[t]) for s, t in places if s.words[t] in nouns]

    seen, asked = pairs(task.train), pairs(task.within)
    best = {}
    for role in {role for _, role in asked}:
        known = [w for w, r in seen if r == role] or [w for w, _ in seen]
        best[role] = Counter(known).most_common(1)[0][0]
    guess = value_of(measured("lag_decoding"), "noun_accuracy", reader="role", lag=lag)
    assert guess.n == len(asked) > 0
    assert guess.value == pytest.approx(np.mean([best[role] == word for word, role in asked]))
    probe = value_of(measured("lag_decoding"), "noun_accuracy", reader="probe", trace="slow", lag=lag)
    assert probe.n == len(asked)


def test_a_noun_probe_is_sklearn_ridge_on_the_traces_after_nouns(task, measured):
    nouns, lag = task.A.content_classes["noun"], 1

    def after_nouns(sentences):
        traces = task.spcn().encode(words_of(sentences), "slow@forward").astype(np.float64)
        before = [w for s in sentences for w in (None, *s.words[:-1])]
        at = [i for i, w in enumerate(before) if w in nouns]
        return traces[at], [before[i] for i in at]

    (train, seen), (held_out, asked) = after_nouns(task.train), after_nouns(task.within)
    one_hot = np.array([[w == noun for noun in nouns] for w in seen], np.float64)
    guesses = Ridge(alpha=0.01, solver="cholesky").fit(train, one_hot).predict(held_out).argmax(axis=1)
    found = value_of(measured("lag_decoding"), "noun_accuracy", reader="probe", trace="slow", lag=lag)
    assert found.value == pytest.approx(np.mean([nouns[g] == w for g, w in zip(guesses, asked, strict=True)]))


def test_new_words_are_of_the_same_class_and_other_words_of_one_without_the_role(task):
    A, B, rng = task.A, task.B, np.random.default_rng(0)
    roles_of = RolesOfClasses(task.train, A)
    novel, other = Novel(A, B), OtherClass(A, roles_of)
    for name, words in A.content_classes.items():
        assert {novel(words[0], "any", rng) for _ in range(300)} == set(B.content_classes[name])
    for role in ("noun_agent", "verb_rel", "adj_patient"):
        drawn = {other("cat", role, rng) for _ in range(500)}
        assert drawn <= set(A.content_words)
        assert not any(role in roles_of[A.word_class[word]] for word in drawn)
        assert len({A.word_class[word] for word in drawn}) > 2


class ByWord:
    """A tagger that is nothing but shortcuts: the commonest role of each word, and one role for words it never saw."""

    def __init__(self, sentences) -> None:
        counts = {}
        for s in sentences:
            for word, role in zip(s.words, s.roles, strict=True):
                counts.setdefault(word, Counter())[role] += 1
        self.role_of = {word: found.most_common(1)[0][0] for word, found in counts.items()}

    def predict(self, sentences):
        return [tuple(self.role_of.get(word, "aux") for word in words) for words in sentences]

    def predict_with_masks(self, sentences, at, show):
        return [self.predict([sentences[i]])[0][t] for i, t in at]


def test_shortcuts_are_seen_by_new_words_and_by_words_of_other_classes_not_by_swaps(task):
    blind = copy.copy(task)
    blind.bigru = lambda progress: ByWord(task.train + task.within)
    rows = EXPERIMENTS["shortcuts"].measure(Given(blind), **DEFAULT)
    right = {row.factors["input"]: row.metrics["content_accuracy"].value for row in rows if "role" not in row.factors}
    assert right["novel"] == right["other_class"] == 0.0
    assert value_of(rows, "follows_word", input="other_class").value > 0.7  # but for words that it never saw
    assert value_of(rows, "word_over_chance", input="other_class").value > 0.5
    assert value_of(rows, "context_over_chance", input="other_class").value < 0
    assert right["swapped"] > 0.3


class ByContext:
    """A tagger that reads nothing but the words around: the role of the place in these sentences."""

    def __init__(self, sentences) -> None:
        self.role_at = {around(s.words, t): role for s in sentences for t, role in enumerate(s.roles)}

    def predict(self, sentences):
        return [tuple(self.role_at.get(around(words, t), "aux") for t in range(len(words))) for words in sentences]

    def predict_with_masks(self, sentences, at, show):
        return [self.predict([sentences[i]])[0][t] for i, t in at]


def around(words, t):
    return tuple(words[:t]), tuple(words[t + 1 :])


def test_a_tagger_that_reads_the_context_takes_no_shortcut(task):
    follows = copy.copy(task)
    follows.bigru = lambda progress: ByContext(task.within)
    rows = EXPERIMENTS["shortcuts"].measure(Given(follows), **DEFAULT)
    assert value_of(rows, "context_over_chance", input="other_class").value > 0.9
    assert value_of(rows, "word_over_chance", input="other_class").value < 0
    intact, novel = (value_of(rows, "content_accuracy", input=name).value for name in ("intact", "novel"))
    assert novel == intact > 0.9


def test_a_guess_follows_neither_word_nor_context(task):
    """Though it has the word's class right far more often than the one role that the context asks for."""
    chances = Chances(task.train, task.A, RolesOfClasses(task.train, task.A))
    tokens = [(w, r) for s in task.train for w, r in zip(s.words, s.roles, strict=True) if w in task.A.content_words]
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(tokens), size=(3, 20_000))
    guessed = [(tokens[i][0], tokens[j][1]) for i, j in zip(*drawn[:2], strict=True)]
    found = word_or_context(guessed, [tokens[i][1] for i in drawn[2]], chances)
    assert found["follows_word"].value > found["content_chance"].value + 0.05
    assert found["word_over_chance"].value == pytest.approx(0, abs=0.02)
    assert found["context_over_chance"].value == pytest.approx(0, abs=0.02)


def test_spcn_takes_the_test_of_shortcuts_with_the_probe_of_its_table(task, measured):
    """Nothing changed, its roles are those of trace_probe."""
    sentences = task.within
    probe = task.by_role_gram(task.token_gram).solve(task.ridge_lambda)
    codes = task.predict({"": probe}, task.spcn(), sentences)[""]
    found = [role for roles in ProbeTagger(task).predict(words_of(sentences)) for role in roles]
    assert found == [task.roles[code] for code in codes]
    content = [w in task.A.content_words for s in sentences for w in s.words]
    truth = [role for s in sentences for role in s.roles]
    right = [a == b for a, b, counts in zip(found, truth, content, strict=True) if counts]
    assert value_of(measured("shortcuts"), "spcn_content_accuracy", input="intact").value == pytest.approx(
        np.mean(right)
    )


def test_states_of_l0_are_projected_as_l1_reads_them(task, measured):
    """With W_ff of L1: a matrix of its own, and as many dimensions."""
    states = np.unique(task.spcn().encode(words_of(task.within), "l0.activation@forward"), axis=0).astype(np.float64)
    images = states @ np.asarray(task.spcn().W_ff()[1], np.float64).T
    before, after = (np.square(x[:, None] - x[None]).sum(-1)[np.triu_indices(len(x), 1)] for x in (states, images))
    ratio = after / before
    found = value_of(measured("distances"), "max_distortion", points="l0_states", code="linear")
    assert found.value == pytest.approx(np.abs(ratio / np.median(ratio) - 1).max(), rel=1e-6)


def test_the_rate_of_a_rule_is_the_best_at_which_it_does_not_collapse():
    def run(seed, rule, rate, within, transfer, weight_pr=50.0, code_pr=50.0):
        row = Row({"rule": rule, "rate": rate}, {})
        row.metrics.update(
            {n: Metric(v) for n, v in zip(("within", "transfer"), (within, transfer), strict=True)}
            | {"weight_pr": Metric(weight_pr), "code_pr": Metric(code_pr)}
        )
        return make_file(row, experiment="feedforward_rates", seed=seed).unpack()[0]

    cells = [
        *(run(s, "foldiak", 0.1, 0.95, 0.80, code_pr=1.1) for s in (1000, 1001)),  # best, but of rank 1
        *(run(s, "foldiak", 0.03, 0.97, 0.68) for s in (1000, 1001)),
        *(run(s, "foldiak", 0.01, 0.97, t) for s, t in ((1000, 0.75), (1001, 0.60))),  # better on one seed only
        run(1000, "pghu", 0.01, 0.90, 0.50, weight_pr=1.5),  # all collapse
        run(1000, "pghu", 0.03, 0.91, 0.50, weight_pr=1.2),
        run(1000, "frozen", 0.0, 0.99, 0.99),
    ]
    assert best_rule_rates(cells) == {"foldiak": 0.03, "pghu": 0.03}
    broken = [run(1000, "foldiak", 0.3, 0.99, 0.99), run(1001, "foldiak", 0.3, None, None, None, None)]
    lost = [run(1000, "oja", 0.3, None, None, None, None)]
    found = best_rule_rates([*cells, *broken, *lost])
    assert found == {"foldiak": 0.03, "pghu": 0.03}, "a rate fails if it does on one seed"
