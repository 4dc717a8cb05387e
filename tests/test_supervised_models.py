"""Supervised taggers under every coding of words, and k crossed with grammars, at toy sizes."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from ematrace.baselines.bigru import BiGRUSettings, BiGRUTagger
from ematrace.baselines.transformer import TransformerNetwork, TransformerSettings, TransformerTagger
from ematrace.experiments import EXPERIMENTS, Context, Row
from ematrace.experiments.base import merged
from ematrace.experiments.grammar_task import DRAWN, GRAMMAR, KS, Sizes, grammar_task
from ematrace.experiments.supervised_models import EMBEDDINGS, MODELS, make_tagger
from ematrace.grammar import load_grammar

A, B = load_grammar("A"), load_grammar("B")
VOCABULARY = tuple(dict.fromkeys(A.words + B.words))
TRAIN = A.sample(60, seed=0)
SIZES = asdict(Sizes(train=40, within=20, transfer=20, bigru_epochs=1))
NOVEL_NOUNS = [["the", "truck", "sleeps"], ["the", "car", "sleeps"]]


def fitted(tagger: BiGRUTagger) -> BiGRUTagger:
    return tagger.fit([s.words for s in TRAIN], [s.roles for s in TRAIN], VOCABULARY)


def settings(**changes) -> BiGRUSettings:
    return BiGRUSettings(**{"hidden": 8, "embedding": 8, "epochs": 2, **changes})


def states_of(tagger: BiGRUTagger, words: list[str], unseen: str) -> np.ndarray:
    ids = torch.tensor([[VOCABULARY.index(word)] for word in words])
    with torch.no_grad():
        return tagger.network_.states(ids, tagger._embedding(unseen)).numpy()


@pytest.fixture(scope="module")
def with_dropout() -> BiGRUTagger:
    return fitted(BiGRUTagger(settings(word_dropout=0.3)))


def test_unknown_words_are_all_the_same_word_which_training_has_changed(with_dropout):
    one, other = (states_of(with_dropout, words, "unk") for words in NOVEL_NOUNS)
    np.testing.assert_array_equal(one, other)
    one, other = (states_of(with_dropout, words, "untrained") for words in NOVEL_NOUNS)
    assert not np.array_equal(one, other)
    first = BiGRUTagger.untrained(VOCABULARY, with_dropout.roles_, settings(word_dropout=0.3))
    row = {t: t.network_.embedding.weight[len(VOCABULARY)] for t in (with_dropout, first)}
    assert not torch.equal(row[with_dropout], row[first]), "word dropout trains it"
    seen = ["the", "cat", "sleeps"]
    np.testing.assert_array_equal(states_of(with_dropout, seen, "unk"), states_of(with_dropout, seen, "untrained"))


def test_masks_and_means_leave_the_unknown_word_out(with_dropout):
    weight = with_dropout.network_.embedding.weight.detach()
    rows = with_dropout._embedding("mean")
    np.testing.assert_array_equal(rows[-1], np.zeros(8))
    seen = torch.from_numpy(with_dropout.seen_)
    expected = weight[: len(VOCABULARY)][seen].mean(0)
    torch.testing.assert_close(rows[VOCABULARY.index("truck")], expected)
    roles = with_dropout.predict_with_masks([("the", "cat", "sleeps")], [(0, 1)], "context")
    zero = with_dropout.predict([("the", "truck", "sleeps")], unseen="zero")
    assert roles == [zero[0][1]], "a masked word and an unseen one that is zero are the same"


def test_without_word_dropout_there_is_no_unknown_word():
    tagger = BiGRUTagger.untrained(VOCABULARY, A.roles, settings())
    assert tagger.network_.embedding.num_embeddings == len(VOCABULARY)
    with pytest.raises(ValueError, match="word_dropout"):
        tagger.predict(NOVEL_NOUNS, unseen="unk")
    with pytest.raises(ValueError, match="word_dropout must lie"):
        settings(word_dropout=1.0)


def test_one_hot_words_are_not_trained_and_reach_their_own_column():
    tagger = fitted(BiGRUTagger(settings(one_hot=True)))
    torch.testing.assert_close(tagger.network_.embedding.weight, torch.eye(len(VOCABULARY)), rtol=0, atol=0)
    first = BiGRUTagger.untrained(VOCABULARY, tagger.roles_, tagger.settings)
    W, W0 = (t.network_.gru.weight_ih_l0.detach() for t in (tagger, first))
    changed = (W != W0).any(0).numpy()
    np.testing.assert_array_equal(changed, tagger.seen_)


def test_attention_sees_the_whole_sentence_and_order_but_no_other_sentence():
    torch.manual_seed(0)
    network = TransformerNetwork(len(VOCABULARY), 5, TransformerSettings(embedding=16, hidden=16)).eval()
    ids = torch.tensor([[0, 8], [7, 9], [20, 21], [3, 4]])  # [T, B]
    weight = network.embedding.weight
    with torch.no_grad():
        both = network.states(ids, weight)
        alone = network.states(ids[:, :1], weight)
        torch.testing.assert_close(both[:, :1], alone)
        last_changed = network.states(torch.tensor([[0], [7], [20], [5]]), weight)
        assert not torch.allclose(last_changed[0], alone[0]), "the first word sees the last"
        turned = network.states(ids[:, :1].flip(0), weight)
        assert not torch.allclose(turned.flip(0), alone, atol=1e-3), "order matters"
        with pytest.raises(ValueError, match="65 words"):
            network.states(torch.zeros(65, 1, dtype=torch.long), weight)


def test_a_transformer_learns_the_roles_and_is_the_same_again():
    settings = TransformerSettings(embedding=32, hidden=32, layers=1, epochs=15, lr=1e-2, batch_size=8)
    tagger = fitted(TransformerTagger(settings))
    one, again = (fitted(TransformerTagger(replace(settings, epochs=1))) for _ in range(2))
    right = [
        role == r
        for s, p in zip(TRAIN, tagger.predict([s.words for s in TRAIN]), strict=True)
        for role, r in zip(s.roles, p, strict=True)
    ]
    assert np.mean(right) > 0.9
    assert one.history_ == again.history_
    assert tagger.hidden_states([("the", "cat")]).shape == (2, 32)
    with pytest.raises(ValueError, match="heads must divide"):
        TransformerSettings(embedding=30)
    with pytest.raises(ValueError, match="one_hot"):
        TransformerSettings(one_hot=True)


@pytest.mark.parametrize(("model", "embedding", "word_dropout"), [("gru", "onehot", 0.0), ("transformer", 64, 0.1)])
def test_a_model_is_judged_under_every_coding_that_it_has(model, embedding, word_dropout):
    experiment = EXPERIMENTS["supervised_models"]
    (point,) = [
        p
        for p in experiment.points("cpu", 1)
        if (p.factors["model"], p.factors["embedding"], p.factors["word_dropout"]) == (model, embedding, word_dropout)
    ]
    resolved = experiment.resolve_settings(point, merged(experiment.settings, {"sentences": SIZES, "epochs": 1}))
    rows = experiment.measure(Context(seed=0, settings=resolved), **point.factors)
    whole = {row.factors["unseen"]: row.metrics for row in rows if set(row.factors) == {"unseen"}}
    assert set(whole) == {"untrained", "zero", "mean"} | ({"unk"} if word_dropout else set())
    assert len({metrics["within"].value for metrics in whole.values()}) == 1, "no unseen word is in grammar A"
    assert any(row.factors.get("role") == "verb_rel" and "role_transfer" in row.metrics for row in rows)
    assert rows[0].metrics["parameters"].value > 1000


def test_models_are_all_combinations_and_have_the_sentences_of_spcn():
    points = EXPERIMENTS["supervised_models"].points("cpu", 20)
    assert len(points) == 20 * len(MODELS) * 2 * len({p.factors["grammar"] for p in points})
    assert {p.factors["embedding"] for p in points} == set(EMBEDDINGS)
    for name in ("supervised_models", "supervised_epochs"):
        experiment = EXPERIMENTS[name]
        for point in experiment.points("cpu", 2):
            ours = experiment.resolve_settings(point, experiment.settings)
            spcn = EXPERIMENTS["trace_probe"]
            theirs = spcn.resolve_settings(point, spcn.settings)
            assert (ours["sentences"], ours["grammar"]) == (theirs["sentences"], theirs["grammar"])
    assert make_tagger(3, "gru", 128, epochs=4).settings == BiGRUSettings(embedding=128, epochs=4)


def test_150_epochs_are_for_the_grus_that_supervised_does_not_have():
    of_model = [p.factors for p in EXPERIMENTS["supervised_epochs"].points("cpu", 1)]
    assert len(of_model) == 7
    assert {f["model"] for f in of_model} == {"gru"}
    assert EXPERIMENTS["supervised_epochs"].settings["epochs"] == 150


@pytest.fixture(scope="module")
def by_k() -> dict[float, list[Row]]:
    experiment = EXPERIMENTS["k_by_grammar"]
    small = merged(experiment.settings, {"sentences": SIZES, "spcn": {"widths": [32, 16, 8, 8]}})
    found = {}
    for point in experiment.points("cpu", 1):
        if point.factors["grammar"] == DRAWN and point.factors["k"] in (0.04, 0.16):
            resolved = experiment.resolve_settings(point, small)
            assert resolved["spcn"]["k"] == point.factors["k"]
            ctx = Context(seed=1, settings=resolved)
            found[point.factors["k"]] = experiment.measure(ctx, **point.factors)
            assert grammar_task(ctx, **point.factors).spcn().k == point.factors["k"]
    return found


def test_k_changes_the_network_and_nothing_else(by_k):
    metrics = {k: {row.factors["features"]: row.metrics for row in rows} for k, rows in by_k.items()}
    low, high = metrics[0.04], metrics[0.16]
    assert low["ema_onehot"] == high["ema_onehot"]
    assert low["spcn"] != high["spcn"]
    assert set(low) == {"ema_onehot", "spcn", "traces", "l0", "l0_to_512", "traces_to_1024", "traces_to_512"}
    assert len(by_k[0.04]) == len(low), "one row each"


def test_k_is_crossed_with_every_grammar():
    points = EXPERIMENTS["k_by_grammar"].points("cpu", 24)
    combinations = {(p.factors["grammar"], p.factors["k"], p.seed) for p in points}
    assert len(combinations) == len(points)
    grammars = {p.factors["grammar"] for p in points}
    assert grammars == {GRAMMAR, DRAWN}
    assert len(points) == len(grammars) * len(KS) * 24
    assert len({json.dumps(p.factors) for p in points}) == len(grammars) * len(KS)
