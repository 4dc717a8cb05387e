"""One-hot controls by hand; the BiGRU against its equations in numpy, against torch.nn.GRU, and on a tiny language."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ematrace.baselines.bigru import BiGRUNetwork, BiGRUSettings, BiGRUTagger, _minibatches, dropout_mask
from ematrace.baselines.fast_gru import gru_states
from ematrace.baselines.onehot import current_token, ema_of_onehots, merged_ema, position, window
from ematrace.baselines.shortcuts import (
    content_tokens,
    context_only_accuracy,
    intact_accuracy,
    swapped_accuracy,
    word_only_accuracy,
)
from ematrace.baselines.tokens import tokenize
from ematrace.traces import ema_traces


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


# One-hot controls

VOCABULARY = ("the", "cat", "dog", "sees")
TWO = [("the", "cat", "sees"), ("dog", "sees")]


def one_hot(sentence: tuple[str, ...], vocabulary: tuple[str, ...] = VOCABULARY) -> NDArray[np.float64]:
    return np.eye(len(vocabulary))[[vocabulary.index(word) for word in sentence]]


def test_current_token() -> None:
    x = current_token(TWO, VOCABULARY)
    assert x.dtype == np.float32
    expected = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0], [0, 0, 0, 1]]
    np.testing.assert_array_equal(x, expected)


def test_ema_of_onehots_by_hand() -> None:
    x = ema_of_onehots([("the", "cat")], ("the", "cat")).reshape(2, 5, 2)
    assert x.dtype == np.float32
    fast, slow = [[0.5, 0.0], [0.25, 0.5]], [[0.075, 0.0], [0.075 * 0.925, 0.075]]
    expected = [[[1, 0], [0, 1]], fast, slow, np.flip(fast), np.flip(slow)]  # backward is forward read from the end
    np.testing.assert_allclose(x.transpose(1, 0, 2), expected, rtol=1e-6)


def test_no_sentences_give_no_rows() -> None:
    assert ema_of_onehots([], VOCABULARY).shape == (0, 20)
    assert merged_ema([], VOCABULARY, ("the",)).shape == (0, 10)
    assert window([], VOCABULARY, 1).shape == (0, 12)
    assert position([], max_length=3).shape == (0, 3)


def test_ema_of_onehots_is_the_trace_of_each_sentence() -> None:
    # Lengths 3, 2, 3, 0: equal lengths are filtered together, so their order must survive, and nothing may leak.
    sentences = [*TWO, ("dog", "the", "the"), ()]
    features = ema_of_onehots(sentences, VOCABULARY)
    assert features.dtype == np.float32
    expected = []

    def ema(x: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
        return np.asarray(ema_traces(torch.from_numpy(x.copy())[None], alpha)[0][0, 0])

    for sentence in sentences[:3]:
        x = one_hot(sentence)
        backward = [ema(x[::-1], alpha)[::-1] for alpha in (0.5, 0.075)]
        expected.append(np.hstack([x, ema(x, 0.5), ema(x, 0.075), *backward]))
    np.testing.assert_allclose(features, np.vstack(expected), rtol=1e-6)


def test_window() -> None:
    x = window(TWO, VOCABULARY, radius=1).reshape(5, 3, 4)
    nothing = np.zeros(4)
    the, cat, dog, sees = np.eye(4)
    expected = [
        [nothing, the, cat],
        [the, cat, sees],
        [cat, sees, nothing],  # the next sentence does not show
        [nothing, dog, sees],
        [dog, sees, nothing],
    ]
    np.testing.assert_array_equal(x, expected)
    np.testing.assert_array_equal(window(TWO, VOCABULARY, 0), current_token(TWO, VOCABULARY))
    assert window(TWO, VOCABULARY, 9).sum() == 3 * 3 + 2 * 2


def test_merged_ema_cannot_tell_content_words_apart() -> None:
    cats, dogs = [("the", "cat", "sees")], [("the", "dog", "cat")]
    a, b = (merged_ema(s, VOCABULARY, ("the",)) for s in (cats, dogs))
    np.testing.assert_array_equal(a, b)
    # It still tells function from content: two symbols, "the" first.
    np.testing.assert_array_equal(a, ema_of_onehots([("the", "x", "x")], ("the", "x")))
    assert not np.array_equal(a, merged_ema([("cat", "the", "sees")], VOCABULARY, ("the",)))


def test_merged_ema_keeps_function_words_apart() -> None:
    vocabulary = ("cat", "by", "dog", "the")
    merged = merged_ema([("the", "cat", "by", "dog")], vocabulary, ("the", "by"))
    np.testing.assert_array_equal(merged[:, :3], [[0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 0, 1]])


def test_position_counts_from_the_start_only() -> None:
    x = position([("a",) * 3, ("b",) * 5], max_length=4)
    np.testing.assert_array_equal(x.argmax(1), [0, 1, 2, 0, 1, 2, 3, 3])
    np.testing.assert_array_equal(x.sum(1), np.ones(8))
    assert x.shape == (8, 4)


def test_bad_words_are_named() -> None:
    with pytest.raises(ValueError, match="unknown word 'fish' in sentence 1"):
        current_token([("the",), ("the", "fish")], VOCABULARY)
    with pytest.raises(ValueError, match="'the' twice"):
        current_token([("the",)], ("the", "cat", "the"))
    with pytest.raises(ValueError, match=r"\['by'\] are not in the vocabulary"):
        merged_ema([("the",)], VOCABULARY, ("by",))


# The recurrent network


def sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1.0 / (1.0 + np.exp(-x))


def gru_by_hand(x: NDArray[np.float64], p: dict[str, NDArray[np.float64]], suffix: str) -> NDArray[np.float64]:
    """One direction, one sentence [T, E], the gates' equations one by one."""
    W_ir, W_iz, W_in = np.split(p[f"weight_ih_{suffix}"], 3)
    W_hr, W_hz, W_hn = np.split(p[f"weight_hh_{suffix}"], 3)
    b_ir, b_iz, b_in = np.split(p[f"bias_ih_{suffix}"], 3)
    b_hr, b_hz, b_hn = np.split(p[f"bias_hh_{suffix}"], 3)
    h = np.zeros(W_hr.shape[1])
    states = []
    for x_t in x:
        r = sigmoid(W_ir @ x_t + b_ir + W_hr @ h + b_hr)
        z = sigmoid(W_iz @ x_t + b_iz + W_hz @ h + b_hz)
        n = np.tanh(W_in @ x_t + b_in + r * (W_hn @ h + b_hn))
        h = (1 - z) * n + z * h
        states.append(h)
    return np.array(states)


def double_network(n_words: int = 6, hidden: int = 5, embedding: int = 3) -> BiGRUNetwork:
    torch.manual_seed(0)
    return BiGRUNetwork(n_words, 4, BiGRUSettings(hidden=hidden, embedding=embedding)).double()


def test_states_equal_the_equations() -> None:
    network = double_network()
    ids = torch.tensor([[0, 3], [5, 3], [1, 2], [1, 0]])  # [T, B]
    states = network.states(ids, network.embedding.weight).detach().numpy()
    parameters = {name: p.detach().numpy() for name, p in network.gru.named_parameters()}
    embedding = network.embedding.weight.detach().numpy()
    for sentence in (0, 1):
        x = embedding[ids[:, sentence].numpy()]
        forward = gru_by_hand(x, parameters, "l0")
        backward = gru_by_hand(x[::-1], parameters, "l0_reverse")[::-1]
        np.testing.assert_allclose(states[:, sentence], np.hstack([forward, backward]), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (2, 1), (7, 5)])
def test_gradients_equal_those_of_torch(shape: tuple[int, int]) -> None:
    network = double_network()
    ids = torch.randint(0, 5, shape, generator=torch.Generator().manual_seed(1))
    weights = torch.randn(*shape, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    parameters = [network.embedding.weight, *network.gru.parameters()]

    def gradients(states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad((states * weights).sin().sum(), parameters)

    ours = gru_states(ids, network.embedding.weight, network.gru)
    theirs = network.gru(network.embedding(ids))[0]
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
    for ours_p, theirs_p in zip(gradients(ours), gradients(theirs), strict=True):
        torch.testing.assert_close(ours_p, theirs_p, rtol=1e-10, atol=1e-13)


def test_second_backward_is_refused() -> None:
    network = double_network()
    states = gru_states(torch.tensor([[0], [1]]), network.embedding.weight, network.gru)
    states.sum().backward(retain_graph=True)  # type: ignore[no-untyped-call]
    with pytest.raises(RuntimeError, match="used up"):
        states.sum().backward()  # type: ignore[no-untyped-call]


def test_each_half_looks_one_way() -> None:
    tagger = BiGRUTagger.untrained("abc", ("role",), BiGRUSettings(hidden=8))
    left, right = tagger.hidden_states(["abc"]), tagger.hidden_states(["abb"])
    np.testing.assert_array_equal(left[:2, :8], right[:2, :8])  # forward: the last word has not come yet
    assert (left[:, 8:] != right[:, 8:]).any(axis=1).all()  # backward: it is in every state
    assert left.dtype == np.float32


def test_dropout_mask() -> None:
    mask = dropout_mask(torch.Size((101, 999)), 0.1, torch.Generator().manual_seed(0))
    assert mask.shape == (101, 999)
    assert set(mask.flatten().tolist()) == {0.0, torch.tensor(1 / 0.9).item()}
    # 100,899 draws: the share of zeros has standard error .0009.
    assert (mask == 0).float().mean().item() == pytest.approx(0.1, abs=0.004)


def test_every_epoch_shows_every_sentence_once() -> None:
    sizes = [130, 1, 64]
    generator = torch.Generator().manual_seed(0)
    first, second = (_minibatches(sizes, 64, generator) for _ in range(2))
    for batches in (first, second):
        shown = sorted((group, int(i)) for group, part in batches for i in part)
        assert shown == [(group, i) for group, size in enumerate(sizes) for i in range(size)]
        assert max(len(part) for _, part in batches) <= 64
    assert [part.tolist() for _, part in first] != [part.tolist() for _, part in second]


# The tagger, on a language in which the middle's role is set by the first word and the last word together.


class Tagged(NamedTuple):
    words: tuple[str, ...]
    roles: tuple[str, ...]


def middle_language(n_middles: tuple[int, ...] = (1, 2, 3)) -> list[Tagged]:
    return [
        Tagged((left, *middle, right), ("first", *[left + right] * n, "last"))
        for left, right, n in itertools.product("ab", "cd", n_middles)
        for middle in itertools.product("mn", repeat=n)
    ]


LANGUAGE = middle_language()
WORDS = [s.words for s in LANGUAGE]
ROLES = [s.roles for s in LANGUAGE]
ALL_WORDS = ("u", *"abcdmn", "v")  # u and v never occur
SMALL = BiGRUSettings(hidden=16, embedding=8, epochs=40, lr=1e-2, batch_size=8)


def fitted(settings: BiGRUSettings = SMALL, random_state: int = 0) -> BiGRUTagger:
    return BiGRUTagger(settings, random_state).fit(WORDS, ROLES, ALL_WORDS)


@pytest.fixture(scope="module")
def tagger() -> BiGRUTagger:
    torch.set_num_threads(1)
    return fitted()


def weights(tagger: BiGRUTagger) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in tagger.network_.named_parameters()}


def test_learns_a_role_that_needs_both_sides(tagger: BiGRUTagger) -> None:
    assert tagger.predict(WORDS) == ROLES
    # One more middle word than training ever showed.
    longer = middle_language((4,))
    right = [p == s.roles for p, s in zip(tagger.predict([s.words for s in longer]), longer, strict=True)]
    assert np.mean(right) > 0.9


def test_predictions_come_in_the_order_of_the_sentences(tagger: BiGRUTagger) -> None:
    order = np.random.default_rng(0).permutation(len(WORDS))
    assert tagger.predict([WORDS[i] for i in order]) == [ROLES[i] for i in order]
    assert tagger.predict([(), WORDS[0], ()]) == [(), ROLES[0], ()]
    assert tagger.predict([]) == []
    states = tagger.hidden_states([WORDS[5], WORDS[0]])
    one, other = (tagger.hidden_states([WORDS[i]]) for i in (5, 0))
    np.testing.assert_allclose(states, np.vstack([one, other]), atol=1e-6)


def test_same_seed_same_weights_and_global_generator_untouched(tagger: BiGRUTagger) -> None:
    torch.manual_seed(123)
    before = torch.get_rng_state()
    again = fitted()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(weights(tagger)[name], p) for name, p in weights(again).items())
    assert again.history_ == tagger.history_
    other = fitted(random_state=1)
    assert not any(torch.equal(weights(tagger)[name], p) for name, p in weights(other).items())


def test_untrained_is_fit_before_its_first_step(tagger: BiGRUTagger) -> None:
    untrained = BiGRUTagger.untrained(ALL_WORDS, tagger.roles_, SMALL)
    zero_epochs = fitted(BiGRUSettings(hidden=16, embedding=8, epochs=0))
    for name, p in weights(untrained).items():
        assert torch.equal(p, weights(zero_epochs)[name]), name
        assert not torch.equal(p, weights(tagger)[name]), name
    np.testing.assert_array_equal(untrained.hidden_states(WORDS), zero_epochs.hidden_states(WORDS))


def test_rows_of_unseen_words_stay_at_their_initialisation(tagger: BiGRUTagger) -> None:
    initial = BiGRUTagger.untrained(ALL_WORDS, tagger.roles_, SMALL).network_.embedding.weight
    same = (tagger.network_.embedding.weight == initial).all(dim=1).tolist()
    assert same == [word in "uv" for word in ALL_WORDS]
    assert tagger.seen_.tolist() == [word not in "uv" for word in ALL_WORDS]


def test_codings_of_unseen_words(tagger: BiGRUTagger) -> None:
    embedding = tagger.network_.embedding.weight.detach()
    new, seen = [0, 7], slice(1, 7)
    coded = {"untrained": embedding[new], "zero": torch.zeros(2, 8), "mean": embedding[seen].mean(0).expand(2, -1)}
    for unseen, rows in coded.items():
        table = tagger._embedding(unseen)  # type: ignore[arg-type]
        torch.testing.assert_close(table[new], rows)
        assert torch.equal(table[seen], embedding[seen])
        assert not table[8].any()  # a masked word
        assert tagger.predict(WORDS, unseen=unseen) == ROLES  # type: ignore[arg-type]
        # The coding reaches the prediction: that of a network whose embedding has these rows.
        other = BiGRUTagger.untrained(ALL_WORDS, tagger.roles_, SMALL)
        other.network_.load_state_dict(tagger.network_.state_dict() | {"embedding.weight": table[:-1]})
        sentences = [(a, *middle, b) for a in "abu" for middle in ("m", "u", "uv", "vvv") for b in "cdv"]
        assert tagger.predict(sentences, unseen=unseen) == other.predict(sentences)  # type: ignore[arg-type]
    assert torch.equal(tagger.network_.embedding.weight, embedding)


def masked_states(tagger: BiGRUTagger, words: tuple[str, ...], mask: list[bool]) -> torch.Tensor:
    ((_, states),) = tagger._states(tokenize([words], tagger.vocabulary_), np.array(mask))
    return states[:, 0]


def test_mask_hides_the_word_and_nothing_else(tagger: BiGRUTagger) -> None:
    mask = [True, False, False]
    a, b = (masked_states(tagger, (first, "m", "c"), mask) for first in "ab")
    assert torch.equal(a, b)
    c, d = (masked_states(tagger, ("a", "m", last), mask) for last in "cd")
    assert not torch.equal(c, d)
    network = tagger.network_
    x = network.embedding(torch.tensor([ALL_WORDS.index(word) for word in "amc"]))
    x = x * torch.tensor([[0.0], [1.0], [1.0]])  # a masked word is zero input
    torch.testing.assert_close(masked_states(tagger, ("a", "m", "c"), mask), network.gru(x)[0])


@pytest.mark.parametrize("show", ["context", "word"])
def test_predict_with_masks_equals_one_at_a_time(tagger: BiGRUTagger, show: str) -> None:
    at = [(i, t) for i, words in enumerate(WORDS) for t in range(len(words))][::-1]
    batched = tagger.predict_with_masks(WORDS, at, show)  # type: ignore[arg-type]
    for role, (i, t) in zip(batched, at, strict=True):
        states = masked_states(tagger, WORDS[i], [(s == t) == (show == "context") for s in range(len(WORDS[i]))])
        assert role == tagger.roles_[int(tagger.network_.readout(states[t]).argmax())]
    assert tagger.predict_with_masks(WORDS, [], show) == []  # type: ignore[arg-type]


@pytest.mark.parametrize("at", [(0, 9), (999, 0), (-1, 0), (0, -1)])
def test_predict_with_masks_outside(tagger: BiGRUTagger, at: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="outside"):
        tagger.predict_with_masks(WORDS, [at], "word")


def test_shortcut_scores_separate_word_from_context(tagger: BiGRUTagger) -> None:
    # The first word gives its own role away; a middle word says nothing about which of the four roles it has.
    middles = content_tokens(LANGUAGE, "abcd")
    assert all(LANGUAGE[i].words[t] in "mn" for i, t in middles)
    firsts = [(i, 0) for i in range(len(LANGUAGE))]
    intact = intact_accuracy(tagger, LANGUAGE, middles)
    assert (intact.correct, intact.n, intact.accuracy) == (len(middles), len(middles), 1.0)
    assert set(intact.by_role) == {"ac", "ad", "bc", "bd"}
    assert sum(n for _, n in intact.by_role.values()) == intact.n
    assert word_only_accuracy(tagger, LANGUAGE, middles).accuracy <= 0.25
    assert context_only_accuracy(tagger, LANGUAGE, middles).accuracy > 0.8
    assert word_only_accuracy(tagger, LANGUAGE, firsts).accuracy > 0.8


def test_swapped_accuracy(tagger: BiGRUTagger) -> None:
    middles = content_tokens(LANGUAGE, "abcd")
    assert swapped_accuracy(tagger, LANGUAGE, middles, lambda word, role, rng: word).accuracy == 1.0
    other = {"m": "n", "n": "m"}
    assert swapped_accuracy(tagger, LANGUAGE, middles, lambda word, role, rng: other[word]).accuracy == 1.0
    # Swapping the first word changes only that word's sentence copy, and is scored at that word alone.
    firsts = [(i, 0) for i in range(len(LANGUAGE))]
    broken = swapped_accuracy(tagger, LANGUAGE, firsts, lambda word, role, rng: "c")
    assert broken.by_role == {"first": (broken.correct, len(LANGUAGE))}
    expected = [tagger.predict([("c", *words[1:])])[0][0] == "first" for words in WORDS]
    assert broken.correct == sum(expected)
    drawn = [
        swapped_accuracy(tagger, LANGUAGE, firsts, lambda word, role, rng: rng.choice(list("cdu")), seed)
        for seed in (0, 0)
    ]
    assert drawn[0] == drawn[1]


def test_scores_count_by_role() -> None:
    """A tagger that knows one role only: every count can be written down."""
    tagger = BiGRUTagger.untrained("ab", ("x", "y"), BiGRUSettings(hidden=2, embedding=2))
    with torch.no_grad():
        tagger.network_.readout.weight.zero_()
        tagger.network_.readout.bias.copy_(torch.tensor([1.0, 0.0]))
    sentences = [Tagged(("a", "b"), ("x", "y")), Tagged(("b",), ("x",))]
    at = [(0, 0), (0, 1), (1, 0)]
    for score in (
        intact_accuracy(tagger, sentences, at),
        context_only_accuracy(tagger, sentences, at),
        word_only_accuracy(tagger, sentences, at),
        swapped_accuracy(tagger, sentences, at, lambda word, role, rng: "a"),
    ):
        assert (score.correct, score.n, score.by_role) == (2, 3, {"x": (2, 2), "y": (0, 1)})


def test_cosine_schedule(tagger: BiGRUTagger) -> None:
    epochs = np.arange(SMALL.epochs)
    expected = SMALL.lr / 2 * (1 + np.cos(np.pi * epochs / SMALL.epochs))
    np.testing.assert_allclose([record.lr for record in tagger.history_], expected, rtol=1e-9)
    assert tagger.history_[-1].loss < 0.1 < tagger.history_[0].loss


def test_training_equals_a_plain_torch_loop() -> None:
    """Three words a sentence, one batch an epoch, no dropout: the recipe of the paper in ten lines of torch."""
    same_length = [s for s in LANGUAGE if len(s.words) == 3]
    settings = BiGRUSettings(hidden=16, embedding=8, epochs=6, lr=1e-2, clip=0.1, dropout=0.0)
    words, roles = [s.words for s in same_length], [s.roles for s in same_length]
    ours = BiGRUTagger(settings).fit(words, roles, ALL_WORDS)
    network = BiGRUTagger.untrained(ALL_WORDS, ours.roles_, settings).network_
    ids = torch.tensor([[ALL_WORDS.index(word) for word in sentence] for sentence in words]).T
    targets = torch.tensor([[ours.roles_.index(role) for role in sentence] for sentence in roles]).T
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for epoch in range(6):
        optimizer.param_groups[0]["lr"] = 1e-2 * (1 + np.cos(np.pi * epoch / 6)) / 2
        optimizer.zero_grad()
        logits = network.readout(network.gru(network.embedding(ids))[0])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(network.parameters(), 0.1)
        optimizer.step()
        assert ours.history_[epoch].loss == pytest.approx(loss.item(), rel=1e-4)
        assert ours.history_[epoch].grad_norm == pytest.approx(norm.item(), rel=1e-3)
    assert ours.history_[0].grad_norm > 0.1  # so clipping had work to do


def test_learning_rate_reaches_the_weights() -> None:
    """Adam's first step is lr for every weight with a gradient far above its epsilon."""
    one_step = BiGRUSettings(hidden=4, embedding=2, epochs=1, lr=0.01, dropout=0.0)
    sentence, roles = [("a", "b", "c")], [("x", "y", "z")]
    start = BiGRUTagger.untrained("abc", "xyz", one_step)
    end = BiGRUTagger(one_step).fit(sentence, roles, "abc")
    moved = (weights(end)["readout.bias"] - weights(start)["readout.bias"]).abs()
    torch.testing.assert_close(moved, torch.full((3,), 0.01), rtol=1e-3, atol=0)


def test_gradient_is_clipped() -> None:
    """Adam divides by |g| + 1e-8: gradients clipped far below 1e-8 move the weights by far less than lr."""
    moved = {}
    for clip in (1.0, 1e-10):
        settings = BiGRUSettings(hidden=4, embedding=2, epochs=1, lr=0.01, clip=clip, dropout=0.0)
        start = BiGRUTagger.untrained("abc", "xyz", settings)
        end = BiGRUTagger(settings).fit([("a", "b", "c")], [("x", "y", "z")], "abc")
        moved[clip] = max((weights(end)[name] - p).abs().max().item() for name, p in weights(start).items())
        assert end.history_[0].grad_norm > 0.1  # recorded before clipping
    assert moved[1.0] > 0.009
    assert moved[1e-10] < 0.001


def test_dropout_acts_in_training_and_not_in_prediction() -> None:
    losses = {}
    for p in (0.0, 0.5):
        settings = BiGRUSettings(hidden=16, embedding=8, epochs=2, batch_size=8, dropout=p)
        tagger = fitted(settings)
        losses[p] = tagger.history_[0].loss
        np.testing.assert_array_equal(tagger.hidden_states(WORDS), tagger.hidden_states(WORDS))
    assert losses[0.0] != losses[0.5]


def test_progress_is_called_each_epoch() -> None:
    calls: list[tuple[int, int, float]] = []
    settings = BiGRUSettings(hidden=4, embedding=2, epochs=3)
    tagger = BiGRUTagger(settings).fit(WORDS, ROLES, ALL_WORDS, progress=lambda *call: calls.append(call))
    assert calls == [(i + 1, 3, record.loss) for i, record in enumerate(tagger.history_)]


def test_bad_input(tagger: BiGRUTagger) -> None:
    with pytest.raises(ValueError, match="sentence 1 has 2 words and 1 roles"):
        BiGRUTagger(SMALL).fit(["a", "ab"], ["x", "x"], "ab")
    with pytest.raises(ValueError, match="2 sentences, but roles for 1"):
        BiGRUTagger(SMALL).fit(["a", "b"], ["x"], "ab")
    with pytest.raises(ValueError, match="no words"):
        BiGRUTagger(SMALL).fit([], [], "ab")
    with pytest.raises(ValueError, match="unknown word 'q' in sentence 0"):
        tagger.predict([("a", "q")])
    with pytest.raises(ValueError, match="unseen must be one of"):
        tagger.predict(WORDS, unseen="random")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no word has been seen"):
        BiGRUTagger.untrained("ab", "xy", SMALL).predict(["ab"], unseen="mean")


@pytest.mark.parametrize("wrong", [{"hidden": 0}, {"epochs": -1}, {"lr": 0.0}, {"clip": -1.0}, {"dropout": 1.0}])
def test_settings_that_contradict_themselves(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        BiGRUSettings(**wrong)  # type: ignore[arg-type]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_learns_the_same_language() -> None:
    on_gpu = fitted(replace(SMALL, device="cuda"))
    assert on_gpu.predict(WORDS) == ROLES
    on_cpu = BiGRUTagger.untrained(ALL_WORDS, on_gpu.roles_, SMALL)
    on_cpu.network_.load_state_dict(on_gpu.network_.state_dict())
    assert on_cpu.predict(WORDS) == ROLES
    # cuDNN multiplies in TF32: ten bits of mantissa.
    np.testing.assert_allclose(on_cpu.hidden_states(WORDS), on_gpu.hidden_states(WORDS), atol=1e-2)
