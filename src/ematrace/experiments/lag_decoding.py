"""Which words can be read back from a trace, k steps later (C18): by a linear probe, and by peeling one vector."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse

from ematrace.experiments.base import Context, accuracy
from ematrace.experiments.grammar_task import Floats, GrammarTask, grammar_experiment, grammar_task, words_of
from ematrace.grammar import Sentence
from ematrace.probes import GramMatrix, PeelingDecoder, lagged_words
from ematrace.results import Factors, Metric, Row
from ematrace.traces import ema_traces

Mask = npt.NDArray[np.bool_] | slice
Labels = Sequence[str] | npt.NDArray[np.str_]

LAGS = range(7)
PEELED_SENTENCES = 400
FORWARD = "l0.all@forward"  # only the forward hierarchy: the backward one has seen the future
PARTS = {"fast": "fast@forward", "slow": "slow@forward", "traces": "traces@forward"}


def measure(ctx: Context, **grammar: Any) -> list[Row]:
    task = grammar_task(ctx, **grammar)
    model = task.spcn()
    train, test = model.encode(task.train, FORWARD), model.encode(task.within, FORWARD)
    columns = {name: model.columns(part, FORWARD) for name, part in PARTS.items()}
    traces = columns["traces"]
    position = {name: np.searchsorted(traces, cols) for name, cols in columns.items()}
    train_traces, test_traces = train[:, traces], test[:, traces]
    rows: list[Row] = []

    def read(seen: Mask, labels: Labels, asked: Mask, answers: Labels, classes: Sequence[str], **lag: int) -> None:
        gram = GramMatrix(len(traces), classes)
        gram.update(train_traces[seen], labels)
        for name, cols in position.items():
            guesses = gram.solve(task.ridge_lambda, cols).predict(test_traces[asked])
            metric = "word_accuracy" if lag else "role_accuracy"
            rows.append(Row({"reader": "probe", "trace": name, **lag}, {metric: score(guesses, answers)}))

    everything = slice(None)
    roles = [[role for s in sentences for role in s.roles] for sentences in (task.train, task.within)]
    read(everything, roles[0], everything, roles[1], task.roles)
    for lag in LAGS:
        seen, words = lagged_words(words_of(task.train), lag)
        asked, answers = lagged_words(words_of(task.within), lag)
        read(seen, words, asked, answers, task.A.words, lag=lag)
        commonest = Counter(words).most_common(1)[0][0]
        guessed = score([commonest] * len(answers), answers)
        rows.append(Row({"reader": "majority", "lag": lag}, {"word_accuracy": guessed}))
    activation = train[:, model.columns("l0@forward", FORWARD)]
    return rows + peeled(task, activation)


def peeled(task: GrammarTask, activation: Floats) -> list[Row]:
    """Decode whole prefixes from single trace vectors, three times, with less and less in the way.

    codes = network: the network's own traces. The code of a word is its mean activation, so that what its context adds
    is noise. plain: the same network with feed-forward drive only, where a word has one code. onehot: traces of the
    words themselves, where nothing but rounding is in the way.
    """
    vocabulary = task.A.words
    index = {word: i for i, word in enumerate(vocabulary)}
    model = task.spcn()
    plain = task.spcn(spa=False, beta=0.0, gamma=0.0, learn_feedback=False)
    one_code = plain.encode([[word] for word in vocabulary], "l0@forward")
    codebooks = {"network": (model, mean_codes(task, activation)), "plain": (plain, one_code)}
    sentences = task.within[:PEELED_SENTENCES]
    one_hot = np.eye(len(vocabulary), dtype=np.float32)
    inputs = torch.from_numpy(one_hot[[index[w] for s in sentences for w in s.words]])
    starts = torch.tensor(np.cumsum([0, *(len(s.words) for s in sentences)]))
    fast = float(model.alpha_fast[0])
    rows: list[Row] = []
    for rate, alpha in (("fast", fast), ("slow", fast * model.slow_ratio)):
        for name, (network, codes) in codebooks.items():
            traces = network.encode(sentences, PARTS[rate])
            factors = {"reader": "peel", "codes": name, "trace": rate}
            rows += _by_lag(factors, PeelingDecoder(alpha, codes), traces, sentences, index)
        words, _ = ema_traces(inputs.unsqueeze(0), alpha, cu_seqlens=starts, backend="reference")
        factors = {"reader": "peel", "codes": "onehot", "trace": rate}
        rows += _by_lag(factors, PeelingDecoder(alpha, one_hot), words[0, 0].numpy(), sentences, index)
    return rows


def mean_codes(task: GrammarTask, activation: Floats) -> Floats:
    """The mean activation of each word of A over the training sentences."""
    index = {word: i for i, word in enumerate(task.A.words)}
    numbers = [index[w] for s in task.train for w in s.words]
    member = sparse.csr_array((np.ones(len(numbers)), (numbers, np.arange(len(numbers)))), (len(index), len(numbers)))
    return np.asarray((member @ activation) / member.sum(axis=1)[:, None].clip(1))


def _by_lag(
    factors: Factors, decoder: PeelingDecoder, traces: Floats, sentences: list[Sentence], index: dict[str, int]
) -> list[Row]:
    lengths = np.concatenate([np.arange(1, len(s.words) + 1) for s in sentences])
    decoded = decoder.decode_batch(traces, lengths)
    rows = []
    for lag in LAGS:
        mask, words = lagged_words(words_of(sentences), lag)
        right = score(decoded[mask, lag], [index[w] for w in words])
        rows.append(Row({**factors, "lag": lag}, {"word_accuracy": right}))
    return rows


def score(guesses: npt.ArrayLike, answers: npt.ArrayLike) -> Metric:
    right = np.asarray(guesses) == np.asarray(answers)
    return accuracy(float(right.mean()), len(right))


EXPERIMENT = grammar_experiment("lag_decoding", "What the trace keeps of words", measure, seconds=14)
