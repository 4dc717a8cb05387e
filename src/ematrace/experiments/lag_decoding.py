"""Which words can be read back from a trace, k steps later (C18): by a linear probe, and by peeling one vector."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse

from ematrace.experiments.base import Experiment
from ematrace.experiments.workbench import LAMBDA, Figures, Floats, Workbench, words_of
from ematrace.grammar import Sentence
from ematrace.probes import GramMatrix, PeelingDecoder, lagged_words
from ematrace.traces import ema_traces

Mask = npt.NDArray[np.bool_] | slice
Labels = Sequence[str] | npt.NDArray[np.str_]

LAGS = range(7)
PEELED_SENTENCES = 400
FORWARD = "l0.all@forward"  # only the forward hierarchy: the backward one has seen the future
PARTS = {"fast": "fast@forward", "slow": "slow@forward", "traces": "traces@forward"}


def measure(bench: Workbench) -> Figures:
    model = bench.spcn()
    train, test = model.encode(bench.train, FORWARD), model.encode(bench.within, FORWARD)
    columns = {name: model.columns(part, FORWARD) for name, part in PARTS.items()}
    figures: Figures = {}
    traces = columns["traces"]
    position = {name: np.searchsorted(traces, cols) for name, cols in columns.items()}
    train_traces, test_traces = train[:, traces], test[:, traces]

    def read(seen: Mask, labels: Labels, asked: Mask, answers: Labels, classes: Sequence[str], suffix: str) -> None:
        gram = GramMatrix(len(traces), classes)
        gram.update(train_traces[seen], labels)
        for name, cols in position.items():
            guesses = gram.solve(LAMBDA, cols).predict(test_traces[asked])
            figures[f"{name}.{suffix}"] = _accuracy(guesses, answers)

    everything = slice(None)
    roles = [[role for s in sentences for role in s.roles] for sentences in (bench.train, bench.within)]
    read(everything, roles[0], everything, roles[1], bench.roles, "role")
    for lag in LAGS:
        seen, words = lagged_words(words_of(bench.train), lag)
        asked, answers = lagged_words(words_of(bench.within), lag)
        read(seen, words, asked, answers, bench.A.words, f"lag{lag}")
        commonest = Counter(words).most_common(1)[0][0]
        figures[f"majority.lag{lag}"] = _accuracy([commonest] * len(answers), answers)
    activation = train[:, model.columns("l0@forward", FORWARD)]
    return figures | peeled(bench, activation)


def peeled(bench: Workbench, activation: Floats) -> Figures:
    """Decode whole prefixes from single trace vectors, three times, with less and less in the way.

    `peel`: the network's own traces. The code of a word is its mean activation, so that what its context adds is noise.
    `peel_plain`: the same network with feed-forward drive only, where a word has one code.
    `peel_onehot`: traces of the words themselves, where nothing but rounding is in the way.
    """
    vocabulary = bench.A.words
    index = {word: i for i, word in enumerate(vocabulary)}
    model = bench.spcn()
    plain = bench.spcn(spa=False, beta=0.0, gamma=0.0, learn_feedback=False)
    one_code = plain.encode([[word] for word in vocabulary], "l0@forward")
    codebooks = {"peel": (model, mean_codes(bench, activation)), "peel_plain": (plain, one_code)}
    sentences = bench.within[:PEELED_SENTENCES]
    one_hot = np.eye(len(vocabulary), dtype=np.float32)
    inputs = torch.from_numpy(one_hot[[index[w] for s in sentences for w in s.words]])
    starts = torch.tensor(np.cumsum([0, *(len(s.words) for s in sentences)]))
    fast = float(model.alpha_fast[0])
    figures: Figures = {}
    for rate, alpha in (("fast", fast), ("slow", fast * model.slow_ratio)):
        for name, (network, codes) in codebooks.items():
            traces = network.encode(sentences, PARTS[rate])
            figures |= _by_lag(f"{name}_{rate}", PeelingDecoder(alpha, codes), traces, sentences, index)
        words, _ = ema_traces(inputs.unsqueeze(0), alpha, cu_seqlens=starts, backend="reference")
        decoder = PeelingDecoder(alpha, one_hot)
        figures |= _by_lag(f"peel_onehot_{rate}", decoder, words[0, 0].numpy(), sentences, index)
    return figures


def mean_codes(bench: Workbench, activation: Floats) -> Floats:
    """The mean activation of each word of A over the training sentences."""
    index = {word: i for i, word in enumerate(bench.A.words)}
    numbers = [index[w] for s in bench.train for w in s.words]
    member = sparse.csr_array((np.ones(len(numbers)), (numbers, np.arange(len(numbers)))), (len(index), len(numbers)))
    return np.asarray((member @ activation) / member.sum(axis=1)[:, None].clip(1))


def _by_lag(
    name: str, decoder: PeelingDecoder, traces: Floats, sentences: list[Sentence], index: dict[str, int]
) -> Figures:
    lengths = np.concatenate([np.arange(1, len(s.words) + 1) for s in sentences])
    decoded = decoder.decode_batch(traces, lengths)
    figures: Figures = {}
    for lag in LAGS:
        mask, words = lagged_words(words_of(sentences), lag)
        right = decoded[mask, lag] == np.array([index[w] for w in words])
        figures[f"{name}.lag{lag}"] = (float(right.mean()), len(right))
    return figures


def _accuracy(guesses: npt.ArrayLike, answers: npt.ArrayLike) -> tuple[float, int]:
    right = np.asarray(guesses) == np.asarray(answers)
    return float(right.mean()), len(right)


EXPERIMENT = Experiment("lag_decoding", "What the trace keeps of words", measure)
