"""The Sparse Predictive Column Network as a scikit-learn transformer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass
from itertools import chain, pairwise, repeat
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from joblib import effective_n_jobs  # type: ignore[import-untyped]
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.exceptions import NotFittedError

from ematrace.spcn import kernels
from ematrace.spcn.feedforward import learn_feedforward
from ematrace.spcn.output import as_tables, set_output
from ematrace.spcn.representation import DIRECTIONS, KINDS, Block, parse_representation
from ematrace.spcn.settings import DEFAULT_NETWORK, PAPER_RATES, check_settings
from ematrace.spcn.storage import load_model, save_model
from ematrace.spcn.weights import draw_weights, pad_weights, per_active_input

Floats = npt.NDArray[np.floating]
Sentences = Sequence[Any]


@dataclass(eq=False, repr=False)  # scikit-learn reads the parameters from the generated __init__
class SPCN(BaseEstimator, TransformerMixin, auto_wrap_output_keys=None):  # type: ignore[call-arg]
    """Hebbian column network over sequences of words; the only learned weights are W_fb.

    Parameters that the paper names have its letters and values; the rest are choices that the paper leaves open
    (docs/deviations.md says how much each matters).

    Parameters
    ----------
    widths : units per level, L0 first.
    network : the unit in which the terms of Eq. 1 and the error are measured; the coefficients are the paper's in both.
        "described": the active units of a state have mean square 1, weights have variance 1 / active inputs (for a
        one-hot word: 1), and the error's variance is relative to the mean square of the state. The current input then
        dominates each state, and precision stays within its bounds. "locked": states have unit length, weights have
        variance 1 / fan_in, and the variance is absolute. SPA and feedback then outweigh the input, so that levels
        above L0 hardly change within a sentence, and precision sits at pi_max (docs/objections.md).
    k : share of units that top-k keeps, in every level.
    alpha, beta, gamma : weights of feed-forward, feedback and lateral drive (Eq. 1).
    settle_steps : T_settle.
    eta, decay : learning rate and λ_d of PGHU (Eq. 3).
    pi_min, pi_max : range of the precision.
    spa : use Sparse Predictive Attention. spa_window: size of its buffer; spa_top: states it retrieves; spa_gain:
        scale of c_spa.
    alpha_fast : rate of the fast trace per level; slow_ratio: slow rate as a share of it (Eq. 4 and 5).
    directions : "both", "forward" or "backward" hierarchies.
    representation : what `transform` returns, see `ematrace.spcn.representation`.
    vocabulary : every word that may occur; None takes the words of the first fit.
    unknown_words : "error", or "zero" for a word without feed-forward drive.
    ff_rule : "frozen" random W_ff, or a Hebbian rule that learns it first: "sanger", "foldiak", "pghu",
        "forward_forward". ff_eta is its learning rate (None: the rule's own), ff_epochs its passes.
    learn_feedback : False leaves W_fb at zero.
    precision_power : 2 reads Eq. 3 literally (e already carries π), 1 lets π enter once.
    variance_rate : rate at which the error variance behind π is tracked.
    topk_by : "value" or "magnitude".
    rectify, normalise : ReLU and a fixed length after top-k. Without it the states can grow without bound.
    update : "in_place": a level sees the new states of the levels below; or "synchronous".
    reset : "sentence" clears states, traces and buffer before each sentence; or "never".
    init_gain : standard deviation of the initial weights, as a multiple of the network's.
    epochs : passes of `fit` over the sentences.
    dtype : "float32", or "float64" for tests.
    n_jobs : threads, counted as scikit-learn does: None for 1, -1 for all cores. Results do not depend on it.

    Examples
    --------
    >>> sentences = [["the", "cat", "sleeps"], ["the", "dog", "sees", "the", "cat"]]
    >>> features = SPCN(widths=(64, 32), random_state=0).fit(sentences).transform(sentences)
    >>> [f.shape for f in features]
    [(3, 384), (5, 384)]
    """

    widths: Sequence[int] = (512, 256, 128, 64)
    _: KW_ONLY
    network: str = DEFAULT_NETWORK
    k: float = 0.08
    alpha: float = 1.0
    beta: float = 0.5
    gamma: float = 0.3
    settle_steps: int = 3
    eta: float = 0.01
    decay: float = 0.001
    pi_min: float = 0.1
    pi_max: float = 10.0
    spa: bool = True
    spa_window: int = 8
    spa_top: int = 4
    spa_gain: float = 1.0
    alpha_fast: Sequence[float] = PAPER_RATES
    slow_ratio: float = 0.15
    directions: str = "both"
    representation: str = "l0+traces"
    vocabulary: Iterable[str] | None = None
    unknown_words: str = "error"
    ff_rule: str = "frozen"
    ff_eta: float | None = None
    ff_epochs: int = 1
    learn_feedback: bool = True
    precision_power: int = 2
    variance_rate: float = 0.01
    topk_by: str = "value"
    rectify: bool = True
    normalise: bool = True
    update: str = "in_place"
    reset: str = "sentence"
    init_gain: float = 1.0
    epochs: int = 1
    dtype: str = "float32"
    n_jobs: int | None = 1
    random_state: int = 0

    def fit(self, sentences: Sentences, y: object = None) -> Self:
        """Draw new weights and learn W_fb from the sentences; `y` is ignored."""
        check_settings(self)
        texts = [_words(s, i) for i, s in enumerate(sentences)]
        words = self.vocabulary if self.vocabulary is not None else (w for text in texts for w in text)
        self.vocabulary_ = {word: i for i, word in enumerate(dict.fromkeys(words))}
        if not self.vocabulary_:
            raise ValueError("SPCN.fit: the vocabulary is empty; give sentences with words, or `vocabulary`")
        if self.ff_rule == "frozen":
            learned: dict[str, list[Floats]] = {}
        else:
            tokens, starts = self._encode(texts)
            learned = {
                side: learn_feedforward(
                    self.ff_rule, self._draw(side)[0], tokens, starts, self.ks_, side == "backward",
                    eta=self.ff_eta, epochs=self.ff_epochs, alpha_fast=self.alpha_fast, seed=self.random_state,
                )
                for side in self.directions_
            }  # fmt: skip
        self.weights_ = {side: self.initial_weights(side, learned.get(side)) for side in self.directions_}
        self.n_tokens_seen_ = 0
        for _ in range(self.epochs):
            self._learn(texts)
        return self

    def partial_fit(self, sentences: Sentences, y: object = None) -> Self:
        """Continue to learn W_fb online."""
        if not hasattr(self, "weights_"):
            return self.fit(sentences)
        self._learn([_words(s, i) for i, s in enumerate(sentences)])
        return self

    def _learn(self, texts: Sequence[Sequence[str]]) -> None:
        tokens, starts = self._encode(texts)
        if self.learn_feedback:
            nothing = np.zeros((0, 0), self.dtype)
            columns = np.full((len(self.widths), len(KINDS)), -1)
            self._map(
                [(side, 0, len(texts)) for side in self.directions_],
                lambda side, lo, hi: self._run(side, tokens, starts, nothing, columns, texts, learning=True),
            )
        self.n_tokens_seen_ += len(tokens)

    def transform(self, sentences: Sentences) -> list[Any]:
        """One array [T, d] per sentence, in the model's `representation`; see also `set_output`."""
        texts = [_words(s, i) for i, s in enumerate(sentences)]
        features = self.encode(texts)
        ends = np.cumsum([len(text) for text in texts])
        return as_tables(self, np.split(features, ends[:-1])) if texts else []

    def set_output(self, *, transform: str | None = None) -> Self:
        """What `transform` returns for each sentence: "default" an array, "pandas" or "polars" a table of it.

        Its columns are those of `get_feature_names_out`, its rows the words. None changes nothing. As everywhere in
        scikit-learn, `set_config(transform_output=...)` decides where this was not called.
        """
        return set_output(self, transform)

    def get_feature_names_out(self, input_features: object = None) -> npt.NDArray[np.object_]:
        names = [f"{b}.{j}" for b in self.blocks() for j in range(self.widths[b.level])]
        return np.array(names, dtype=object)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "weights_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = True
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        tags.no_validation = True
        return tags

    @property
    def directions_(self) -> tuple[str, ...]:
        return DIRECTIONS if self.directions == "both" else (self.directions,)

    @property
    def ks_(self) -> tuple[int, ...]:
        """Active units per level: the share k, at least one."""
        return tuple(max(1, round(self.k * d)) for d in self.widths)

    @property
    def rule_(self) -> kernels.Rule:
        """The settings of the dynamics, as the kernels take them."""
        return kernels.Rule(
            alpha=float(self.alpha), beta=float(self.beta), gamma=float(self.gamma),
            settle_steps=int(self.settle_steps),
            synchronous=self.update == "synchronous", by_magnitude=self.topk_by == "magnitude",
            rectify=bool(self.rectify), normalise=bool(self.normalise), spa=bool(self.spa), spa_top=int(self.spa_top),
            spa_gain=float(self.spa_gain), eta=float(self.eta), decay=float(self.decay),
            precision_power=int(self.precision_power), variance_rate=float(self.variance_rate),
            pi_min=float(self.pi_min), pi_max=float(self.pi_max), reset=self.reset == "sentence",
            per_active=self.network == "described",
        )  # fmt: skip

    def blocks(self, representation: str | None = None) -> tuple[Block, ...]:
        """The feature blocks of a representation, in column order."""
        name = self.representation if representation is None else representation
        return parse_representation(name, len(self.widths), self.directions_)

    def columns(self, part: str, representation: str | None = None) -> npt.NDArray[np.int64]:
        """Columns of the features of `part` among those of `representation`."""
        whole = self.representation if representation is None else representation
        wanted, blocks = set(self.blocks(part)), self.blocks(whole)
        if missing := wanted - set(blocks):
            raise ValueError(f"representation: {sorted(map(str, missing))[0]} of {part!r} is not in {whole!r}")
        ends = np.cumsum([self.widths[b.level] for b in blocks])
        spans = zip(blocks, ends, strict=True)
        return np.concatenate([np.arange(end - self.widths[b.level], end) for b, end in spans if b in wanted])

    def encode(self, sentences: Sentences, representation: str | None = None, *, out: Floats | None = None) -> Floats:
        """Features [tokens, d] of all sentences in one array, written to the first rows of `out` if given."""
        if not hasattr(self, "weights_"):
            raise NotFittedError("SPCN is not fitted: call fit first")
        texts = [_words(s, i) for i, s in enumerate(sentences)]
        tokens, starts = self._encode(texts)
        blocks = self.blocks(representation)
        width = sum(self.widths[b.level] for b in blocks)
        if out is None:
            out = np.empty((len(tokens), width), self.dtype)
        elif len(out) < len(tokens) or out.shape[1] != width or out.dtype != self.dtype:
            raise ValueError(
                f"SPCN.encode: out is {out.dtype}{list(out.shape)}, {self.dtype}[{len(tokens)}, {width}] is needed"
            )
        else:
            out = out[: len(tokens)]
        columns = {side: np.full((len(self.widths), len(KINDS)), -1) for side in self.directions_}
        column = 0
        for block in blocks:
            columns[block.direction][block.level, KINDS.index(block.kind)] = column
            column += self.widths[block.level]
        sides = [side for side in self.directions_ if columns[side].max() >= 0]
        # With a reset before each sentence the sentences are independent, so any split gives the same features.
        parts = 4 * self._threads() if self.reset == "sentence" else 1
        edges = np.unique(np.searchsorted(starts, np.linspace(0, len(tokens), parts + 1)))
        jobs = [(side, lo, hi) for side in sides for lo, hi in pairwise(edges)]
        self._map(
            jobs,
            lambda side, lo, hi: self._run(side, tokens, starts[lo : hi + 1], out, columns[side], texts, lo),
        )
        return out

    def iter_encode(
        self, sentences: Sentences, representation: str | None = None, batch: int = 128
    ) -> Iterator[tuple[slice, Floats]]:
        """(slice of sentences, features) batch by batch, so that the whole feature matrix is never in memory.

        Each batch overwrites the features of the last: fresh memory would cost half as much as computing them.
        """
        size = batch if self.reset == "sentence" else max(len(sentences), 1)
        parts = [slice(at, min(at + size, len(sentences))) for at in range(0, len(sentences), size)]
        tokens = max((sum(len(_words(s, 0)) for s in sentences[part]) for part in parts), default=0)
        out = np.empty((tokens, sum(self.widths[b.level] for b in self.blocks(representation))), self.dtype)
        for part in parts:
            yield part, self.encode(sentences[part], representation, out=out)

    def W_ff(self, direction: str = "forward") -> list[Floats]:
        """Feed-forward weights per level, [d_l, d_{l-1}] as in the paper."""
        w, inputs = self.weights_[direction], (len(self.vocabulary_), *self.widths[:-1])
        return [w.ff[level, :p, :d].T for level, (p, d) in enumerate(zip(inputs, self.widths, strict=True))]

    def W_fb(self, direction: str = "forward") -> list[Floats]:
        """Learned feedback weights of every level but the top, [d_l, d_{l+1}]."""
        w = self.weights_[direction]
        pairs = zip(self.widths[1:], self.widths[:-1], strict=True)
        return [w.fb_scale[level] * w.fb[level, :up, :d].T for level, (up, d) in enumerate(pairs)]

    def W_lat(self, direction: str = "forward") -> list[Floats]:
        """Lateral weights per level, [d_l, d_l]."""
        return [self.weights_[direction].lat[level, :d, :d].T for level, d in enumerate(self.widths)]

    def precision(self, direction: str = "forward") -> list[Floats]:
        """π per level."""
        return [self.weights_[direction].precision[level, :d] for level, d in enumerate(self.widths)]

    def save(self, path: str | Path) -> None:
        """Write one safetensors file: the weights, and the settings and vocabulary in its header. Atomic; no pickle."""
        save_model(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote; `transform` is then bit-identical. ValueError names a file that is not a model."""
        return load_model(cls, path)

    def _threads(self) -> int:
        return int(effective_n_jobs(self.n_jobs))

    def _map(self, jobs: Sequence[tuple[str, int, int]], work: Callable[[str, int, int], None]) -> None:
        """Run jobs in threads, since the kernels release the GIL; raises the first error."""
        if self._threads() == 1 or len(jobs) < 2:
            for job in jobs:
                work(*job)
            return
        with ThreadPoolExecutor(self._threads()) as pool:
            for future in [pool.submit(work, side, lo, hi) for side, lo, hi in jobs]:
                future.result()

    def _run(
        self,
        side: str,
        tokens: npt.NDArray[np.int64],
        starts: npt.NDArray[np.int64],
        out: Floats,
        columns: npt.NDArray[np.int64],
        texts: Sequence[Sequence[str]],
        first: int = 0,
        learning: bool = False,
    ) -> None:
        weights = self.weights_[side]
        fast = np.array(self.alpha_fast[: len(self.widths)])
        sentence, token, level = kernels.run(
            tokens, starts, side == "backward", np.array(self.ks_), fast, fast * self.slow_ratio, weights,
            kernels.new_state(weights.widths, self.spa_window, self.dtype), self.rule_, learning, out, columns,
        )  # fmt: skip
        if sentence >= 0:
            word = texts[first + sentence][token]
            raise FloatingPointError(
                f"SPCN: the state of level {level} ({side}) is not finite at sentence {first + sentence}, "
                f"token {token} ({word!r}); smaller alpha, beta, gamma or eta, or normalise=True, keep it bounded"
            )

    def initial_weights(self, side: str, learned_ff: Sequence[Floats] | None = None) -> kernels.Weights:
        """Weights of one hierarchy before PGHU: random but for W_ff that a rule has learned."""
        drawn_ff, drawn_lat = self._draw(side)
        W_ff: Sequence[Floats] = learned_ff or drawn_ff
        if self.network == "described":
            W_ff, drawn_lat = per_active_input(W_ff, (1, *self.ks_[:-1])), per_active_input(drawn_lat, self.ks_)
        return pad_weights(W_ff, drawn_lat, self.dtype)

    def _draw(self, side: str) -> tuple[list[Floats], list[Floats]]:
        """W_ff and W_lat of one hierarchy."""
        rng = np.random.default_rng([self.random_state, DIRECTIONS.index(side)])
        return draw_weights(len(self.vocabulary_), self.widths, self.init_gain, self.dtype, rng)

    def _encode(self, texts: Sequence[Sequence[str]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Word numbers of all sentences, and where each sentence starts."""
        index = self.vocabulary_
        tokens = np.fromiter(map(index.get, chain.from_iterable(texts), repeat(-1)), np.int64)
        starts = np.concatenate([[0], np.cumsum([len(text) for text in texts], dtype=np.int64)]).astype(np.int64)
        if self.unknown_words == "error" and tokens.size and tokens.min() < 0:
            t = int(np.argmax(tokens < 0))
            s = int(np.searchsorted(starts, t, side="right")) - 1
            word = texts[s][t - starts[s]]
            raise ValueError(
                f"SPCN: unknown word {word!r} at sentence {s}, token {t - starts[s]}; give it in `vocabulary`, "
                'or set unknown_words="zero"'
            )
        return tokens, starts


def _words(sentence: Any, number: int) -> Sequence[str]:
    """The words of a sentence, which is a sequence of strings or has `.words`."""
    words = getattr(sentence, "words", sentence)
    plain = isinstance(words, tuple | list) and set(map(type, words)) <= {str}  # the usual case, quickly
    if plain:
        return words  # type: ignore[no-any-return]
    if isinstance(words, str) or not isinstance(words, Sequence) or not all(isinstance(w, str) for w in words):
        raise TypeError(f"SPCN: sentence {number} is not a sequence of words (got {type(sentence).__name__})")
    return words
