"""Which words can be read back from a trace, k steps later (C18): by a linear probe, and by peeling one vector."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from ematrace.experiments.base import Experiment
from ematrace.experiments.workbench import LAMBDA, Figures, Floats, Workbench, words_of
from ematrace.grammar import Sentence
from ematrace.probes import GramMatrix, PeelingDecoder, lagged_words
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
    """Decode whole prefixes from single trace vectors.

    Codes of the network: the mean activation of each word, so its context-dependent part is noise to the decoder. Codes of
    the control: one-hots, where a trace of the words themselves is decoded and nothing but rounding stands in the way.
    """
    model, vocabulary = bench.spcn(), bench.A.words
    index = {word: i for i, word in enumerate(vocabulary)}
    numbers = np.array([index[w] for s in bench.train for w in s.words])
    activation = model.encode(bench.train, "l0.activation@forward")
    sums = np.zeros((len(vocabulary), activation.shape[1]))
    np.add.at(sums, numbers, activation)
    mean_codes = sums / np.bincount(numbers, minlength=len(vocabulary))[:, None].clip(1)
    sentences = bench.within[:PEELED_SENTENCES]
    fast = float(model.alpha_fast[0])
    rates = {"fast": fast, "slow": fast * model.slow_ratio}
    figures: Figures = {}
    for name, alpha in rates.items():
        traces = model.encode(sentences, PARTS[name])
        figures |= _by_lag(f"peel_{name}", PeelingDecoder(alpha, mean_codes), traces, sentences, index)
        one_hot = np.eye(len(vocabulary), dtype=np.float32)
        words = [ema(one_hot[[index[w] for w in s.words]], alpha) for s in sentences]
        figures |= _by_lag(
            f"peel_onehot_{name}", PeelingDecoder(alpha, one_hot), np.concatenate(words), sentences, index
        )
    return figures


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
