"""Which words can be read back from a trace, k steps later (C18): by a linear probe, and by peeling one vector."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from ematrace.experiments.base import Experiment
from ematrace.experiments.workbench import LAMBDA, Figures, Floats, Workbench, words_of
from ematrace.grammar import Sentence
from ematrace.probes import GramMatrix, PeelingDecoder, lagged_words
from ematrace.spcn import SPCN
from ematrace.traces import ema

LAGS = range(7)
PEELED_SENTENCES = 400
FORWARD = "traces@forward"  # only the forward hierarchy: the backward one has seen the future
PARTS = {"fast": "fast@forward", "slow": "slow@forward", "traces": FORWARD}


def measure(bench: Workbench) -> Figures:
    model = bench.spcn()
    figures: Figures = {}
    roles = bench.probe(tuple(PARTS.values()), model, FORWARD)
    for name, part in PARTS.items():
        figures[f"{name}.role"] = (roles[part].within.accuracy, roles[part].within.n)
    train, test = model.encode(bench.train, FORWARD), model.encode(bench.within, FORWARD)
    columns = {name: model.columns(part, FORWARD) for name, part in PARTS.items()}
    for lag in LAGS:
        seen, words = lagged_words(words_of(bench.train), lag)
        asked, answers = lagged_words(words_of(bench.within), lag)
        gram = GramMatrix(train.shape[1], bench.A.words)
        gram.update(train[seen], words)
        for name, cols in columns.items():
            guesses = gram.solve(LAMBDA, cols).predict(test[asked])
            figures[f"{name}.lag{lag}"] = _accuracy(guesses, answers)
        commonest = Counter(words).most_common(1)[0][0]
        figures[f"majority.lag{lag}"] = _accuracy([commonest] * len(answers), answers)
    return figures | peeled(bench)


def peeled(bench: Workbench) -> Figures:
    """Decode whole prefixes from single trace vectors, three times, with less and less in the way.

    `peel`: the network's own traces. The code of a word is its mean activation, so that what its context adds is noise.
    `peel_plain`: the same network with feed-forward drive only, where a word has one code.
    `peel_onehot`: traces of the words themselves, where nothing but rounding is in the way.
    """
    vocabulary = bench.A.words
    index = {word: i for i, word in enumerate(vocabulary)}
    model = bench.spcn()
    plain = bench.spcn(spa=False, beta=0.0, gamma=0.0, learn_feedback=False)
    codebooks = {"peel": (model, mean_codes(bench, model)), "peel_plain": (plain, mean_codes(bench, plain))}
    sentences = bench.within[:PEELED_SENTENCES]
    one_hot = np.eye(len(vocabulary), dtype=np.float32)
    fast = float(model.alpha_fast[0])
    figures: Figures = {}
    for rate, alpha in (("fast", fast), ("slow", fast * model.slow_ratio)):
        for name, (network, codes) in codebooks.items():
            traces = network.encode(sentences, PARTS[rate])
            figures |= _by_lag(f"{name}_{rate}", PeelingDecoder(alpha, codes), traces, sentences, index)
        words = np.concatenate([ema(one_hot[[index[w] for w in s.words]], alpha) for s in sentences])
        figures |= _by_lag(f"peel_onehot_{rate}", PeelingDecoder(alpha, one_hot), words, sentences, index)
    return figures


def mean_codes(bench: Workbench, model: SPCN) -> Floats:
    """The mean L0 activation of each word of A over the training sentences."""
    index = {word: i for i, word in enumerate(bench.A.words)}
    sums, counts = np.zeros((len(index), model.widths[0])), np.zeros((len(index), 1))
    for part, activation in model.iter_encode(bench.train, "l0.activation@forward"):
        words = [index[w] for s in bench.train[part] for w in s.words]
        np.add.at(sums, words, activation)
        np.add.at(counts, words, 1)
    return np.asarray(sums / counts.clip(1))


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
