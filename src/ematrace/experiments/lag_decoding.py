"""What can be read back from a trace k steps later (C18): words, nouns, roles; by a linear probe and by peeling."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse

from ematrace.experiments.base import Context, accuracy
from ematrace.experiments.grammar_task import Floats, GrammarTask, grammar_experiment, grammar_task, words_of
from ematrace.grammar import Sentence
from ematrace.probes import GramMatrix, PeelingDecoder, Readout, lagged_words
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
    train, test = encode_forward(task)
    activation = train[:, task.spcn().columns("l0@forward", FORWARD)]
    return read_back(task, train, test) + peeled(task, activation)


def encode_forward(task: GrammarTask) -> tuple[Floats, Floats]:
    """What the network makes of the training and of the held-out sentences."""
    model = task.spcn()
    return model.encode(task.train, FORWARD), model.encode(task.within, FORWARD)


def read_back(task: GrammarTask, train: Floats, test: Floats, lags: Sequence[int] = LAGS) -> list[Row]:
    """Words, nouns and roles k steps back, by a linear probe of the traces and by guessing.

    noun_accuracy is over the places where a noun stood k steps back, and its reader knows that it was one; that of
    noun_among_words_accuracy does not, and also has to find out whose turn it was. The reader "role" knows that noun's
    role and sees nothing else: what structure alone tells of the noun.
    """
    model = task.spcn()
    columns = {name: model.columns(part, FORWARD) for name, part in PARTS.items()}
    traces = columns["traces"]
    position = {name: np.searchsorted(traces, cols) for name, cols in columns.items()}
    train_traces, test_traces = train[:, traces], test[:, traces]

    def solve(gram: GramMatrix) -> dict[str, Readout]:
        """For each part of the traces."""
        return {name: task.solve(gram, cols) for name, cols in position.items()}

    def read(readouts: dict[str, Readout], asked: Mask, answers: Labels) -> dict[str, Metric]:
        return {name: score(readout.predict(test_traces[asked]), answers) for name, readout in readouts.items()}

    def learn(seen: Mask, labels: Labels, classes: Sequence[str]) -> GramMatrix:
        gram = GramMatrix(len(traces), classes)
        gram.update(train_traces[seen], labels)
        return gram

    everything = slice(None)
    roles = [[role for s in sentences for role in s.roles] for sentences in (task.train, task.within)]
    role_now = read(solve(learn(everything, roles[0], task.roles)), everything, roles[1])
    rows = [Row({"reader": "probe", "trace": name}, {"role_accuracy": found}) for name, found in role_now.items()]
    for lag in lags:
        seen, asked = Lagged(task, task.train, lag), Lagged(task, task.within, lag)
        tokens = learn(seen.mask, seen.tokens, task.token_labels)
        by_word = tokens.relabel(task.A.words, {label: label.split()[0] for label in task.token_labels})
        word_readers, nouns = solve(by_word), learn(seen.at_nouns, seen.nouns, nouns_of(task))
        found = {
            "word_accuracy": read(word_readers, asked.mask, asked.words),
            "noun_among_words_accuracy": read(word_readers, asked.at_nouns, asked.nouns),
            "noun_accuracy": read(solve(nouns), asked.at_nouns, asked.nouns),
            "lagged_role_accuracy": read(solve(task.by_role_gram(tokens)), asked.mask, asked.roles),
        }
        rows += [
            Row({"reader": "probe", "trace": name, "lag": lag}, {metric: by[name] for metric, by in found.items()})
            for name in position
        ]
        rows.append(
            Row(
                {"reader": "majority", "lag": lag},
                {
                    "word_accuracy": guess_commonest(seen.words, asked.words),
                    "noun_accuracy": guess_commonest(seen.nouns, asked.nouns),
                    "lagged_role_accuracy": guess_commonest(seen.roles, asked.roles),
                },
            )
        )
        rows.append(Row({"reader": "role", "lag": lag}, {"noun_accuracy": guess_from_role(seen, asked)}))
    return rows


def nouns_of(task: GrammarTask) -> tuple[str, ...]:
    return task.A.content_classes[task.A.biased_class]


class Lagged:
    """What stood `lag` tokens back: masks [tokens] of where there is a word or a noun, and what it was."""

    def __init__(self, task: GrammarTask, sentences: list[Sentence], lag: int) -> None:
        self.mask, self.words = lagged_words(words_of(sentences), lag)
        self.roles = lagged_words([s.roles for s in sentences], lag)[1]
        self.tokens = [f"{word} {role}" for word, role in zip(self.words, self.roles, strict=True)]
        noun = np.isin(self.words, nouns_of(task))
        self.nouns, self.noun_roles = self.words[noun], self.roles[noun]
        self.at_nouns = self.mask.copy()
        self.at_nouns[self.mask] = noun


def guess_commonest(seen: Labels, answers: Labels) -> Metric:
    commonest = Counter(seen).most_common(1)[0][0]
    return score([commonest] * len(answers), answers)


def guess_from_role(seen: Lagged, asked: Lagged) -> Metric:
    """The commonest noun of the true role; of all roles where that one was not seen."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for noun, role in zip(seen.nouns, seen.noun_roles, strict=True):
        counts[role][noun] += 1
    anywhere = Counter(seen.nouns)
    guesses = [counts.get(role, anywhere).most_common(1)[0][0] for role in asked.noun_roles]
    return accuracy(float(np.mean(np.array(guesses) == asked.nouns)), len(asked.nouns))


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
            rows += _by_lag(factors, PeelingDecoder(alpha, codes), traces, sentences, task)
        words, _ = ema_traces(inputs.unsqueeze(0), alpha, cu_seqlens=starts, backend="reference")
        factors = {"reader": "peel", "codes": "onehot", "trace": rate}
        rows += _by_lag(factors, PeelingDecoder(alpha, one_hot), words[0, 0].numpy(), sentences, task)
    return rows


def mean_codes(task: GrammarTask, activation: Floats) -> Floats:
    """The mean activation of each word of A over the training sentences."""
    index = {word: i for i, word in enumerate(task.A.words)}
    numbers = [index[w] for s in task.train for w in s.words]
    member = sparse.csr_array((np.ones(len(numbers)), (numbers, np.arange(len(numbers)))), (len(index), len(numbers)))
    return np.asarray((member @ activation) / member.sum(axis=1)[:, None].clip(1))


def _by_lag(
    factors: Factors, decoder: PeelingDecoder, traces: Floats, sentences: list[Sentence], task: GrammarTask
) -> list[Row]:
    vocabulary = np.array(task.A.words)
    lengths = np.concatenate([np.arange(1, len(s.words) + 1) for s in sentences])
    decoded = decoder.decode_batch(traces, lengths)
    rows = []
    for lag in LAGS:
        asked = Lagged(task, sentences, lag)
        metrics = {
            "word_accuracy": score(vocabulary[decoded[asked.mask, lag]], asked.words),
            "noun_accuracy": score(vocabulary[decoded[asked.at_nouns, lag]], asked.nouns),
        }
        rows.append(Row({**factors, "lag": lag}, metrics))
    return rows


def score(guesses: npt.ArrayLike, answers: npt.ArrayLike) -> Metric:
    right = np.asarray(guesses) == np.asarray(answers)
    return accuracy(float(right.mean()) if len(right) else 0.0, len(right))


EXPERIMENT = grammar_experiment("lag_decoding", "What the trace keeps of words", measure, seconds=20)
