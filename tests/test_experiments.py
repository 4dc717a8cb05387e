"""Experiments at tiny sizes: the bench against scikit-learn and counts by hand, figures of claims, the runner."""

from __future__ import annotations

import copy
import math
from collections import Counter
from dataclasses import replace
from multiprocessing import active_children

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.random_projection import johnson_lindenstrauss_min_dim
from threadpoolctl import threadpool_limits

from ematrace.experiments import EXPERIMENTS, choices, lag_decoding, robustness, runner, supervised
from ematrace.experiments.controls import majority
from ematrace.experiments.distances import jl_epsilon, sparse_code
from ematrace.experiments.shortcuts import Swap
from ematrace.experiments.trace_probe import control_task
from ematrace.experiments.workbench import FULL, Probed, Sizes, Workbench, role_codes, words_of
from ematrace.grammar import load_grammar
from ematrace.ledger import load_claims, read_result
from ematrace.probes import GramMatrix, Scores

TINY = Sizes(train=40, within=20, transfer=20, bigru_epochs=1, spen_tokens=8192, spen_positions=64)
SMALL = {"widths": (128, 32, 16, 8)}  # the lemma of `distances` says nothing below 24 ln n dimensions


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """As in the runner's workers: matrices this small are slower on more, and sums come in the same order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def bench() -> Workbench:
    return Workbench(0, spcn=SMALL, sizes=TINY)


@pytest.fixture(scope="module")
def measured(bench):
    """What each experiment measures on the tiny bench; measured once for all tests, and only if asked for."""
    known: dict[str, dict[str, tuple[float, int | None]]] = {}

    def figures_of(name: str) -> dict[str, tuple[float, int | None]]:
        if name not in known:
            known[name] = EXPERIMENTS[name].measure(bench)
        return known[name]

    return figures_of


# ---------------------------------------------------------------------- sentences


def test_seeds_and_streams_share_no_draw():
    streams = {
        (seed, name): tuple(getattr(Workbench(seed, sizes=TINY), name))
        for seed in range(3)
        for name in ("train", "within", "transfer")
    }
    assert len(set(streams.values())) == 9
    # the same number of sentences of one grammar: were a random stream used twice, they would be equal
    sizes = Sizes(20, 20, 20)
    of_a = {tuple(getattr(Workbench(seed, sizes=sizes), name)) for seed in range(3) for name in ("train", "within")}
    assert len(of_a) == 6


def test_sizes_and_grammars_of_the_three_sets(bench):
    assert [len(bench.train), len(bench.within), len(bench.transfer)] == [40, 20, 20]
    words = {name: {w for s in getattr(bench, name) for w in s.words} for name in ("train", "within", "transfer")}
    assert words["train"] | words["within"] <= set(bench.A.words)
    assert words["transfer"] <= set(bench.B.words)
    assert not words["transfer"] & set(bench.A.content_words)


def test_vocabulary_is_both_grammars_once(bench):
    A, B = load_grammar("A"), load_grammar("B")
    assert len(bench.vocabulary) == len(set(bench.vocabulary)) == 147
    assert set(bench.vocabulary) == set(A.words) | set(B.words)
    assert bench.vocabulary[: len(A.words)] == A.words


def test_a_seed_changes_the_weights_too(bench):
    other = Workbench(1, spcn=SMALL, sizes=TINY)
    assert not np.array_equal(bench.spcn().W_ff()[0], other.spcn().W_ff()[0])


def test_networks_are_made_once_per_setting(bench):
    assert bench.spcn() is bench.spcn()
    assert bench.spcn(spa=False) is bench.spcn(spa=False)
    assert bench.spcn(spa=False) is not bench.spcn()
    assert bench.spcn(spa=False).spa is False
    assert bench.spcn().spa is True


# ---------------------------------------------------------------------- probes


def test_relabelled_token_gram_is_the_gram_of_roles(bench):
    features = bench.spcn().encode(bench.train, FULL)
    direct = GramMatrix(features.shape[1], bench.roles)
    direct.update(features, [role for s in bench.train for role in s.roles])
    ours = bench.by_role_gram(bench.token_gram)
    assert ours.classes == bench.roles
    assert ours.class_counts.tolist() == direct.class_counts.tolist()
    np.testing.assert_allclose(ours.xtx, direct.xtx, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(ours.xty, direct.xty, rtol=1e-12, atol=1e-12)


def test_gram_by_word_is_the_gram_of_the_control_task(bench):
    label_of = control_task(bench)
    features = bench.spcn().encode(bench.train, FULL)
    direct = GramMatrix(features.shape[1], bench.roles)
    direct.update(features, [label_of[word] for s in bench.train for word in s.words])
    ours = bench.by_word_gram(bench.token_gram, label_of)
    assert ours.class_counts.tolist() == direct.class_counts.tolist()
    np.testing.assert_allclose(ours.xty, direct.xty, rtol=1e-12, atol=1e-12)


def sklearn_scores(bench, train, held_out, sentences):
    """Right answers and tokens by role, from scikit-learn's ridge."""
    one_hot = np.eye(len(bench.roles))[role_codes(bench.train, bench.roles)]
    guesses = Ridge(alpha=0.01, solver="cholesky").fit(train, one_hot).predict(held_out).argmax(axis=1)
    truth = role_codes(sentences, bench.roles)
    return {
        role: (int(((guesses == i) & (truth == i)).sum()), int((truth == i).sum()))
        for i, role in enumerate(bench.roles)
    }


@pytest.mark.parametrize("part", ["l0", "traces", FULL])
def test_probe_is_sklearn_ridge_on_encoded_features(bench, part):
    model = bench.spcn()
    probed = bench.probe([part])[part]
    train = model.encode(words_of(bench.train), part).astype(np.float64)
    for scores, sentences in ((probed.within, bench.within), (probed.transfer, bench.transfer)):
        held_out = model.encode(words_of(sentences), part).astype(np.float64)
        assert scores.per_role == sklearn_scores(bench, train, held_out, sentences)
    assert probed.within.accuracy > 0.4


def test_probe_of_another_network_reads_that_network(bench):
    model = bench.spcn(spa=False)
    train, held_out = (model.encode(words_of(s), FULL).astype(np.float64) for s in (bench.train, bench.within))
    probed = bench.probe([FULL], model)[FULL]
    assert probed.within.per_role == sklearn_scores(bench, train, held_out, bench.within)


def test_probe_features_is_sklearn_ridge(bench):
    def lengths(sentences):
        rows = [[t, len(s.words) - t, len(w)] for s in sentences for t, w in enumerate(s.words)]
        return np.array(rows, np.float64)

    probed = bench.probe_features(lengths)
    for scores, sentences in ((probed.within, bench.within), (probed.transfer, bench.transfer)):
        assert scores.per_role == sklearn_scores(bench, lengths(bench.train), lengths(sentences), sentences)


HAND = Probed(
    within=Scores({"det_agent": (8, 10), "rel_pron": (4, 4), "verb_rel": (1, 4), "noun_rel": (1, 2), "aux": (0, 0)}),
    transfer=Scores({"det_agent": (3, 10), "verb": (0, 2)}),
)


def test_accuracies_by_hand(bench):
    assert bench.accuracies("x", HAND) == {
        "x.within": (14 / 20, 20),
        "x.transfer": (3 / 12, 12),
        "x.deep": (6 / 10, 10),
        "x.deep_strict": (2 / 6, 6),
    }


def test_by_role_by_hand_leaves_out_roles_that_never_occur(bench):
    assert bench.by_role("x", HAND) == {
        "x.within.role.det_agent": (0.8, 10),
        "x.within.role.rel_pron": (1.0, 4),
        "x.within.role.verb_rel": (0.25, 4),
        "x.within.role.noun_rel": (0.5, 2),
        "x.transfer.role.det_agent": (0.3, 10),
        "x.transfer.role.verb": (0.0, 2),
    }


# ---------------------------------------------------------------------- figures

BEARING = [name for name, experiment in EXPERIMENTS.items() if not experiment.by_name_only]


def check_figures(figures):
    assert figures
    for name, (value, n) in figures.items():
        assert math.isfinite(value), name
        if n is not None:
            assert n > 0, name
            assert 0 <= value <= 1, name


@pytest.mark.parametrize("name", BEARING)
def test_measures_every_figure_that_claims_need(measured, name):
    figures = measured(name)
    check_figures(figures)
    needed = {ref.partition("/")[2] for c in load_claims() for ref in c.refs if ref.startswith(f"{name}/")}
    assert needed <= set(figures)


def test_claims_refer_to_experiments_that_exist_and_run_by_default():
    referred = {name for claim in load_claims() for name in claim.experiments}
    assert referred - set(runner.RUN_ELSEWHERE) <= set(runner.experiments_for([]))


def test_choices_measures_each_choice_and_probe(bench, monkeypatch):
    few = {name: choices.CHOICES[name] for name in ("default", "no reset between sentences", "three epochs")}
    monkeypatch.setattr(choices, "CHOICES", few)
    shares = []
    with_progress = copy.copy(bench)
    with_progress.progress = shares.append
    figures = choices.measure(with_progress)
    check_figures(figures)
    assert {name.rpartition(".")[0] for name in figures} == {*few, *choices.PROBES}
    assert shares == sorted(shares)
    assert figures["default.within"] == bench.accuracies("default", bench.probe([FULL])[FULL])["default.within"]


def test_accuracies_are_counted_on_all_tokens(bench, measured):
    tokens = {side: sum(len(s.words) for s in getattr(bench, side)) for side in ("within", "transfer")}
    deep = sum(role in bench.A.deep_roles for s in bench.within for role in s.roles)
    for experiment, name in (("trace_probe", FULL), ("controls", "onehot"), ("ablations", "no_spa")):
        figures = measured(experiment)
        assert figures[f"{name}.within"][1] == tokens["within"]
        assert figures[f"{name}.transfer"][1] == tokens["transfer"]
        assert figures[f"{name}.deep"][1] == deep


def test_experiments_that_probe_the_same_thing_agree(measured):
    """Table 1, the ablations' full network and the dimension control read one network by different ways."""
    for side in ("within", "transfer", "deep"):
        assert measured("trace_probe")[f"{FULL}.{side}"] == measured("ablations")[f"full.{side}"]
        assert measured("trace_probe")[f"traces.{side}"] == measured("ablations")[f"level0.{side}"]
        assert measured("trace_probe")[f"l0.{side}"] == measured("dimension_control")[f"l0.{side}"]
        assert measured("trace_probe")[f"{FULL}.{side}"] == measured("feedforward_rules")[f"frozen.{side}"]
        assert measured("controls")[f"position.{side}"] == measured("position")[f"position_only.{side}"]


@pytest.mark.parametrize(
    ("name", "kinds", "sides", "level"),
    [
        ("full", ("activation", "fast", "slow"), ("forward", "backward"), 0),
        ("forward_only", ("activation", "fast", "slow"), ("forward",), 0),
        ("backward_only", ("activation", "fast", "slow"), ("backward",), 0),
        ("fast_only", ("activation", "fast"), ("forward", "backward"), 0),
        ("slow_only", ("activation", "slow"), ("forward", "backward"), 0),
        ("level0", ("fast", "slow"), ("forward", "backward"), 0),
        ("level1", ("fast", "slow"), ("forward", "backward"), 1),
        ("level3", ("fast", "slow"), ("forward", "backward"), 3),
    ],
)
def test_ablations_read_the_parts_they_are_named_for(bench, measured, name, kinds, sides, level):
    parts = [f"l{level}.{kind}@{side}" for side in sides for kind in kinds]
    train, held_out = (
        np.hstack([bench.spcn().encode(words_of(s), part).astype(np.float64) for part in parts])
        for s in (bench.train, bench.within)
    )
    expected = Scores(sklearn_scores(bench, train, held_out, bench.within))
    assert measured("ablations")[f"{name}.within"] == (expected.accuracy, expected.n)
    assert measured("ablations")[f"{name}.deep"][0] == expected.subset(bench.A.deep_roles).accuracy


def test_control_task_is_scored_on_the_labels_of_the_words(bench, measured):
    label_of = control_task(bench)
    train, held_out = (bench.spcn().encode(words_of(s), "l0").astype(np.float64) for s in (bench.train, bench.within))
    index = {role: i for i, role in enumerate(bench.roles)}
    learned, truth = ([index[label_of[w]] for s in part for w in s.words] for part in (bench.train, bench.within))
    ridge = Ridge(alpha=0.01, solver="cholesky").fit(train, np.eye(len(index))[learned])
    accuracy = float((ridge.predict(held_out).argmax(axis=1) == truth).mean())
    assert measured("trace_probe")["l0.control_task"] == (pytest.approx(accuracy), len(truth))
    assert accuracy > 0.5  # most words were seen with their label


def test_selectivity_is_task_minus_control(measured):
    figures = measured("trace_probe")
    for name in ("l0", "traces", FULL):
        difference = figures[f"{name}.within"][0] - figures[f"{name}.control_task"][0]
        assert figures[f"{name}.selectivity"] == (pytest.approx(difference), None)


def permute_roles(sentences):
    rng = np.random.default_rng(5)
    return [replace(s, roles=tuple(rng.permutation(s.roles).tolist())) for s in sentences]


@pytest.mark.parametrize("name", ["trace_probe", "controls", "supervised", "lag_decoding"])
def test_predictions_do_not_depend_on_the_roles_of_test_sentences(bench, monkeypatch, name):
    """Every answer is caught just before it is compared with the truth."""
    if name == "supervised":
        _ = bench.bigru  # trained once for both
    blind = copy.copy(bench)
    blind.__dict__.update(within=permute_roles(bench.within), transfer=permute_roles(bench.transfer))
    assert [s.roles for s in blind.within] != [s.roles for s in bench.within]
    answers = []

    def caught_in(function):
        def spy(predicted, *rest):
            answers[-1].append(list(predicted))
            return function(predicted, *rest)

        return spy

    right = Workbench.right
    catch = caught_in(lambda predicted, owner, sentences: right(owner, predicted, sentences))
    monkeypatch.setattr(Workbench, "right", lambda owner, predicted, sentences: catch(predicted, owner, sentences))
    monkeypatch.setattr(supervised, "score_roles", caught_in(supervised.score_roles))
    monkeypatch.setattr(lag_decoding, "_accuracy", caught_in(lag_decoding._accuracy))
    monkeypatch.setattr(lag_decoding, "peeled", lambda *_: {})  # no labels are learned there
    figures = []
    for each in (bench, blind):
        answers.append([])
        figures.append(EXPERIMENTS[name].measure(each))
    assert len(answers[0]) >= 2
    assert answers[0] == answers[1]
    assert figures[0] != figures[1]


# ---------------------------------------------------------------------- distances


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


def test_sparse_code_is_what_feed_forward_settling_gives(bench):
    plain = bench.spcn(spa=False, beta=0.0, gamma=0.0, learn_feedback=False)
    words = bench.A.words
    drive = np.asarray(plain.W_ff()[0], np.float64).T[: len(words)]  # A's words come first in the vocabulary
    ours = sparse_code(drive, plain.ks_[0])
    np.testing.assert_allclose(ours, plain.encode([[w] for w in words], "l0@forward"), atol=1e-6)


def test_distances_figures_have_their_meaning(measured):
    figures = {name: value for name, (value, _) in measured("distances").items()}
    assert figures["words.jl_epsilon"] == pytest.approx(jl_epsilon(147, 128))
    for points in ("words", "contexts"):
        for code in ("linear", "topk"):
            share = figures[f"{points}.{code}.share_within_epsilon"]
            assert (share == 1.0) == (figures[f"{points}.{code}.max_distortion"] <= figures[f"{points}.jl_epsilon"])
    assert "words.linear.spearman" not in figures
    assert figures["contexts.linear.spearman"] > figures["contexts.topk.spearman"] > 0


# ---------------------------------------------------------------------- shortcuts, position, controls, dimensions


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


def test_shortcuts_score_content_words_only(bench, measured):
    figures = measured("shortcuts")
    content = set(bench.A.content_words)
    truth = Counter(role for s in bench.within for w, role in zip(s.words, s.roles, strict=True) if w in content)
    for name in ("intact", "context_only", "word_only", "swapped"):
        assert figures[f"{name}.content"][1] == truth.total()
        by_role = {role: figures[f"{name}.role.{role}"] for role in truth}
        assert {role: n for role, (_, n) in by_role.items()} == truth
        right = sum(value * n for value, n in by_role.values())
        assert figures[f"{name}.content"][0] == pytest.approx(right / truth.total())


def test_position_shares_are_counted_on_the_training_sentences(bench, measured):
    first = Counter(s.roles[0] for s in bench.train)
    figures = measured("position")
    for role in ("det_agent", "det_patient"):
        assert figures[f"position0.{role}"] == (first[role] / 40, 40)
    assert first["det_agent"] + first["det_patient"] > 0


def test_majority_is_the_commonest_training_role_everywhere(bench, measured):
    best = Counter(role for s in bench.train for role in s.roles).most_common(1)[0][0]
    scores = majority(bench)
    for side, sentences in (("within", bench.within), ("transfer", bench.transfer)):
        roles = [role for s in sentences for role in s.roles]
        assert getattr(scores, side).correct == roles.count(best)
        assert measured("controls")[f"majority.{side}"] == (roles.count(best) / len(roles), len(roles))


def test_parameter_counts_of_the_dimension_control(measured):
    figures = measured("dimension_control")
    assert figures["traces_1024.parameters"] == ((1024 + 1) * 20, None)
    assert figures["traces_512.parameters"] == figures["l0_512.parameters"] == ((512 + 1) * 20, None)
    assert figures["l0.parameters"] == ((2 * 128 + 1) * 20, None)


def test_onehot_traces_are_peeled_exactly(measured):
    """Nothing but rounding is in the way there: a decoder that errs on these is broken."""
    for lag in lag_decoding.LAGS:
        assert measured("lag_decoding")[f"peel_onehot_fast.lag{lag}"][0] == 1.0


# ---------------------------------------------------------------------- the runner


def test_claims_and_experiments_name_what_runs():
    assert runner.experiments_for(["C09"]) == ["trace_probe", "supervised"]
    assert runner.experiments_for(["c09"]) == ["trace_probe", "supervised"]
    assert runner.experiments_for(["supervised", "C09", "trace_probe"]) == ["trace_probe", "supervised"]
    assert runner.experiments_for(["robustness"]) == ["robustness"]
    assert runner.experiments_for(["choices"]) == ["choices"]
    assert runner.experiments_for([]) == [*BEARING, "robustness"]


def test_an_unknown_name_is_named():
    with pytest.raises(ValueError, match=r"'NOPE'.*trace_probe"):
        runner.experiments_for(["trace_probe", "NOPE"])


def test_a_claim_without_experiment_says_that_it_is_open():
    with pytest.raises(ValueError, match=r"C23 .*open"):
        runner.experiments_for(["C23"])


@pytest.mark.parametrize("name", ["C21", "spen_training"])
def test_what_needs_a_gpu_names_the_command_that_records_it(name):
    with pytest.raises(ValueError, match=r"spen_training needs a GPU.*benchmarks/spen_training\.py"):
        runner.experiments_for([name])


def test_experiments_of_a_group_share_their_tasks():
    plans = {p.experiment: p for p in runner.plan(["trace_probe", "controls", "supervised"], 3, TINY)}
    assert list(plans) == ["trace_probe", "controls", "supervised"]
    assert plans["trace_probe"].tasks == plans["controls"].tasks
    assert plans["trace_probe"].seeds == (0, 1, 2)
    assert [t.seed for t in plans["trace_probe"].tasks] == [0, 1, 2]
    assert {t.experiments for t in plans["trace_probe"].tasks} == {("trace_probe", "controls")}
    assert {t.experiments for t in plans["supervised"].tasks} == {("supervised",)}
    assert plans["controls"].command == "ematrace reproduce controls --seeds 3"


def test_robustness_runs_quick_experiments_unless_told_a_number():
    (quick,) = runner.plan(["robustness"], None, TINY)
    assert {name for t in quick.tasks for name in t.experiments} == set(robustness.QUICK_EXPERIMENTS)
    assert [t.seed for t in quick.tasks] == list(range(robustness.QUICK_GRAMMARS))
    (full,) = runner.plan(["robustness"], 6, TINY)
    assert {name for t in full.tasks for name in t.experiments} == {n for n in BEARING if EXPERIMENTS[n].on_grammars}
    assert full.seeds == tuple(range(6))
    assert all(t.drawn for t in (*quick.tasks, *full.tasks))


def test_drawn_conditions_differ_and_have_passives_and_every_k():
    drawn = [robustness.condition(number) for number in range(robustness.GRAMMARS)]
    assert [c["grammar_seed"] for c in drawn] == list(range(robustness.GRAMMARS))
    assert len({c["noun_bias"] for c in drawn}) == len({c["adjective_rate"] for c in drawn}) == len(drawn)
    assert len({tuple(c["shares"].values()) for c in drawn}) == len(drawn)
    assert [c["shares"]["passive"] == pytest.approx(0.5) for c in drawn] == [i % 3 == 0 for i in range(len(drawn))]
    assert [c["k"] for c in drawn] == [0.02, 0.04, 0.08, 0.16] * (len(drawn) // 4)
    # every k meets half passives and not
    assert len({(c["k"], c["grammar_seed"] % 3 == 0) for c in drawn}) == 8


def test_a_drawn_bench_uses_what_its_condition_says():
    bench, said = robustness.workbench(5, TINY), robustness.condition(5)
    assert bench.spcn().k == said["k"]
    assert bench.A.settings == bench.B.settings == {k: v for k, v in said.items() if k not in ("grammar_seed", "k")}
    assert bench.seed == 5


RUN = ("trace_probe", "position", "distances")


@pytest.fixture(scope="module")
def run_results(tmp_path_factory):
    """Two seeds of three experiments and two drawn grammars, in two processes: one start for all checks."""
    folder = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(robustness, "QUICK_GRAMMARS", 2)
        patch.setattr(robustness, "QUICK_EXPERIMENTS", ("position", "distances"))
        plans = runner.plan(RUN, 2, TINY) + runner.plan(["robustness"], None, TINY)
    told, written = [], []
    paths = runner.run(
        plans, folder, jobs=2, progress=lambda task, share: told.append((task, share)), written=written.append
    )
    return folder, plans, paths, told, written


def test_run_writes_one_valid_file_per_experiment(run_results):
    folder, plans, paths, _, written = run_results
    assert sorted(p.name for p in folder.iterdir()) == sorted(f"{p.experiment}.json" for p in plans)
    assert paths == written
    assert sorted(paths) == sorted(folder.iterdir())
    for plan in plans:
        result = read_result(folder / f"{plan.experiment}.json")
        assert result.seeds == plan.seeds
        assert result.command == plan.command
        assert result.settings["sentences"] == {"train": 40, "within": 20, "transfer": 20, "bigru_epochs": 1}
        assert {len(figure.values) for figure in result.figures.values()} == {len(plan.seeds)}
        assert result.provenance.peak_memory_mb > 50
        assert result.provenance.seconds > 0


def test_run_names_the_claims_that_a_result_bears_on(run_results):
    folder = run_results[0]
    assert "C09" in read_result(folder / "trace_probe.json").claims
    assert read_result(folder / "position.json").claims == ("C17",)
    assert read_result(folder / "distances.json").claims == ("C42",)


def test_run_gives_the_figures_of_measure_bit_for_bit(run_results):
    """In another process, beside another seed: the same numbers."""
    folder = run_results[0]
    results = {name: read_result(folder / f"{name}.json") for name in RUN}
    for seed in (0, 1):
        bench = Workbench(seed, sizes=TINY)
        for name, result in results.items():
            figures = EXPERIMENTS[name].measure(bench)
            assert set(figures) <= set(result.figures)
            stored = {figure: f.values[seed] for figure, f in result.figures.items()}
            assert {figure: stored.pop(figure) for figure in figures} == {k: v for k, (v, _) in figures.items()}
            assert all(math.isnan(value) for value in stored.values())  # roles that this seed never drew
    for result in results.values():
        changing = [f for f in result.figures.values() if len(set(f.values)) > 1]
        assert changing, "seeds must differ"


def test_run_gives_the_smallest_number_of_tokens(run_results):
    result = read_result(run_results[0] / "trace_probe.json")
    tokens = [sum(len(s.words) for s in Workbench(seed, sizes=TINY).within) for seed in (0, 1)]
    assert tokens[0] != tokens[1]
    assert result.figures["l0.within"].n == min(tokens)


def test_robustness_describes_each_condition_and_names_the_experiment(run_results):
    result = read_result(run_results[0] / "robustness.json")
    assert list(result.conditions) == [robustness.condition(number) for number in range(2)]
    assert {name.partition("/")[0] for name in result.figures} == {"position", "distances"}
    bench = robustness.workbench(1, TINY)
    first = Counter(s.roles[0] for s in bench.train)
    assert result.figures["position/position0.det_agent"].values[1] == first["det_agent"] / 40


def test_progress_ends_at_one_for_every_task(run_results):
    _, plans, _, told, _ = run_results
    assert {task for task, _ in told} == {task for plan in plans for task in plan.tasks}
    for _, share in told:
        assert 0 <= share <= 1
    assert {task for task, share in told if share == 1.0} == {task for plan in plans for task in plan.tasks}


def test_a_failing_task_raises_and_leaves_no_file_and_no_process(tmp_path):
    before = set(active_children())
    with pytest.raises(ValueError, match=r"\S"):
        runner.run(runner.plan(["position"], 1, Sizes(0, 0, 0)), tmp_path / "out", jobs=1)
    assert not (tmp_path / "out").exists()
    for process in set(active_children()) - before:
        process.join(5)
    assert set(active_children()) == before
