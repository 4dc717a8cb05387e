"""The Sparse Predictive Column Network as a scikit-learn transformer."""

from __future__ import annotations

import json
import numbers
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, pairwise, repeat
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.exceptions import NotFittedError

from ematrace.files import write_atomically
from ematrace.spcn import kernels
from ematrace.spcn.feedforward import FF_RULES, learn_feedforward
from ematrace.spcn.representation import DIRECTIONS, KINDS, Block, parse_representation

Floats = npt.NDArray[np.floating]
Sentences = Sequence[Any]
PAPER_RATES = (0.5, 0.2, 0.1, 0.05)


class SPCN(BaseEstimator, TransformerMixin):
    """Hebbian column network over sequences of words; the only learned weights are W_fb.

    Parameters named by the paper carry its letters and values; the rest are choices that the paper leaves open, and
    docs/deviations.md says how much each matters.

    Parameters
    ----------
    widths : units per level, L0 first.
    k : share of units that top-k keeps, in every level.
    alpha, beta, gamma : weights of feed-forward, feedback and lateral drive (Eq. 1).
    settle_steps : T_settle.
    eta, decay : learning rate and λ_d of PGHU (Eq. 3).
    pi_min, pi_max : range of the precision.
    spa : use Sparse Predictive Attention; spa_window, spa_top: its buffer and how many states it retrieves; spa_gain
        scales c_spa.
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
    rectify, normalise : ReLU and unit length after top-k. Without unit length the states can grow without bound.
    update : "in_place", levels see what was just computed, or "synchronous".
    reset : "sentence" clears states, traces and buffer at each sentence, "never" runs on.
    init_gain : W ~ N(0, init_gain² / fan_in).
    epochs : passes of `fit` over the sentences.
    dtype : "float32", or "float64" for tests.
    n_jobs : threads; -1 for all cores. Results do not depend on it.

    Examples
    --------
    >>> sentences = [["the", "cat", "sleeps"], ["the", "dog", "sees", "the", "cat"]]
    >>> features = SPCN(widths=(64, 32), random_state=0).fit(sentences).transform(sentences)
    >>> [f.shape for f in features]
    [(3, 384), (5, 384)]
    """

    def __init__(
        self,
        widths: Sequence[int] = (512, 256, 128, 64),
        *,
        k: float = 0.08,
        alpha: float = 1.0,
        beta: float = 0.5,
        gamma: float = 0.3,
        settle_steps: int = 3,
        eta: float = 0.01,
        decay: float = 0.001,
        pi_min: float = 0.1,
        pi_max: float = 10.0,
        spa: bool = True,
        spa_window: int = 8,
        spa_top: int = 4,
        spa_gain: float = 1.0,
        alpha_fast: Sequence[float] = PAPER_RATES,
        slow_ratio: float = 0.15,
        directions: str = "both",
        representation: str = "l0+traces",
        vocabulary: Iterable[str] | None = None,
        unknown_words: str = "error",
        ff_rule: str = "frozen",
        ff_eta: float | None = None,
        ff_epochs: int = 1,
        learn_feedback: bool = True,
        precision_power: int = 2,
        variance_rate: float = 0.01,
        topk_by: str = "value",
        rectify: bool = True,
        normalise: bool = True,
        update: str = "in_place",
        reset: str = "sentence",
        init_gain: float = 1.0,
        epochs: int = 1,
        dtype: str = "float32",
        n_jobs: int = 1,
        random_state: int = 0,
    ) -> None:
        self.widths = widths
        self.k = k
        self.alpha = alpha
        self.beta = beta
        self.gamma = gamma
        self.settle_steps = settle_steps
        self.eta = eta
        self.decay = decay
        self.pi_min = pi_min
        self.pi_max = pi_max
        self.spa = spa
        self.spa_window = spa_window
        self.spa_top = spa_top
        self.spa_gain = spa_gain
        self.alpha_fast = alpha_fast
        self.slow_ratio = slow_ratio
        self.directions = directions
        self.representation = representation
        self.vocabulary = vocabulary
        self.unknown_words = unknown_words
        self.ff_rule = ff_rule
        self.ff_eta = ff_eta
        self.ff_epochs = ff_epochs
        self.learn_feedback = learn_feedback
        self.precision_power = precision_power
        self.variance_rate = variance_rate
        self.topk_by = topk_by
        self.rectify = rectify
        self.normalise = normalise
        self.update = update
        self.reset = reset
        self.init_gain = init_gain
        self.epochs = epochs
        self.dtype = dtype
        self.n_jobs = n_jobs
        self.random_state = random_state

    # ------------------------------------------------------------------ scikit-learn contract

    def fit(self, sentences: Sentences, y: object = None) -> Self:
        """Draw fresh weights and learn W_fb over the sentences; labels are never looked at."""
        self._validate()
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
        self.weights_ = {side: self._initial_weights(side, learned.get(side)) for side in self.directions_}
        self.n_tokens_seen_ = 0
        for _ in range(self.epochs):
            self._learn(texts)
        return self

    def partial_fit(self, sentences: Sentences, y: object = None) -> Self:
        """Go on learning W_fb, online, from where it is."""
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

    def transform(self, sentences: Sentences) -> list[Floats]:
        """One array [T, d] per sentence, in the representation that the model was asked for."""
        texts = [_words(s, i) for i, s in enumerate(sentences)]
        features = self.encode(texts)
        ends = np.cumsum([len(text) for text in texts])
        return np.split(features, ends[:-1]) if texts else []

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

    # ------------------------------------------------------------------ encoding

    @property
    def directions_(self) -> tuple[str, ...]:
        return DIRECTIONS if self.directions == "both" else (self.directions,)

    @property
    def ks_(self) -> tuple[int, ...]:
        """Active units per level: the share k, at least one."""
        return tuple(max(1, round(self.k * d)) for d in self.widths)

    def blocks(self, representation: str | None = None) -> tuple[Block, ...]:
        """The feature blocks of a representation, in column order."""
        name = self.representation if representation is None else representation
        return parse_representation(name, len(self.widths), self.directions_)

    def columns(self, part: str, representation: str | None = None) -> npt.NDArray[np.int64]:
        """Where the features of `part` stand among those of `representation`."""
        whole = self.representation if representation is None else representation
        wanted, blocks = set(self.blocks(part)), self.blocks(whole)
        if missing := wanted - set(blocks):
            raise ValueError(f"representation: {sorted(map(str, missing))[0]} of {part!r} is not in {whole!r}")
        ends = np.cumsum([self.widths[b.level] for b in blocks])
        spans = zip(blocks, ends, strict=True)
        return np.concatenate([np.arange(end - self.widths[b.level], end) for b, end in spans if b in wanted])

    def encode(self, sentences: Sentences, representation: str | None = None, *, out: Floats | None = None) -> Floats:
        """Features [tokens, d] of all sentences in one array: in the first rows of `out` if that is given."""
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
        # With a reset at each sentence the sentences are independent, so any split gives the same features.
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
        """(slice of sentences, features) batch by batch, so that no feature matrix is ever held whole.

        The next batch overwrites the features of the last: fresh memory would cost half as much as computing them.
        """
        size = batch if self.reset == "sentence" else max(len(sentences), 1)
        parts = [slice(at, min(at + size, len(sentences))) for at in range(0, len(sentences), size)]
        tokens = max((sum(len(_words(s, 0)) for s in sentences[part]) for part in parts), default=0)
        out = np.empty((tokens, sum(self.widths[b.level] for b in self.blocks(representation))), self.dtype)
        for part in parts:
            yield part, self.encode(sentences[part], representation, out=out)

    # ------------------------------------------------------------------ weights

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

    # ------------------------------------------------------------------ files

    def save(self, path: str | Path) -> None:
        """Write one safetensors file: the weights, and the settings and vocabulary in its header. Atomic; no pickle."""
        if not hasattr(self, "weights_"):
            raise NotFittedError("SPCN.save: the model is not fitted")
        params = self.get_params() | {"vocabulary": list(self.vocabulary_)}
        config = {"format": "ematrace.spcn", "version": 1, "params": params, "words": len(self.vocabulary_)}
        text = json.dumps(config | {"seen": self.n_tokens_seen_}, default=lambda number: number.item())
        names = [f for f in kernels.Weights._fields if f != "widths"]
        tensors = {f"{side}.{f}": getattr(w, f) for side, w in self.weights_.items() for f in names}
        write_atomically(path, save(tensors, metadata={"config": text}))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote. `transform` is then bit-identical."""
        from safetensors import safe_open

        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file")
        try:
            with safe_open(path, framework="numpy") as file:
                config = json.loads((file.metadata() or {})["config"])
            tensors = load_file(path)
            if config["format"] != "ematrace.spcn" or config["version"] != 1:
                raise KeyError("format")
            model = cls(**config["params"])
            model._validate()
            model.vocabulary_ = {word: i for i, word in enumerate(config["params"]["vocabulary"])}
            if len(model.vocabulary_) != config["words"] or not all(isinstance(w, str) for w in model.vocabulary_):
                raise ValueError(f"its vocabulary is not that of {config['words']} words")
            model.n_tokens_seen_ = int(config["seen"])
            model.weights_ = {}
            for side in model.directions_:
                blank = model._initial_weights(side)
                fields = {f: tensors[f"{side}.{f}"] for f in kernels.Weights._fields if f != "widths"}
                for name, tensor in fields.items():
                    expected = getattr(blank, name)
                    if tensor.shape != expected.shape or tensor.dtype != expected.dtype:
                        raise ValueError(f"tensor {side}.{name} is {tensor.dtype}{list(tensor.shape)}")
                model.weights_[side] = blank._replace(**fields)
        except (SafetensorError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: not a readable SPCN model ({error})") from error
        return model

    # ------------------------------------------------------------------ inside

    def _validate(self) -> None:
        choices = {
            "directions": ("both", *DIRECTIONS), "unknown_words": ("error", "zero"), "topk_by": ("value", "magnitude"),
            "update": ("in_place", "synchronous"), "reset": ("sentence", "never"), "dtype": ("float32", "float64"),
            "precision_power": (1, 2), "ff_rule": ("frozen", *FF_RULES),
        }  # fmt: skip
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"SPCN.{name} is {getattr(self, name)!r}; choose from {', '.join(map(repr, allowed))}")
        counts = {"settle_steps": 1, "spa_window": 1, "spa_top": 1, "epochs": 0, "ff_epochs": 0, "random_state": 0}
        for name, least in counts.items():
            number = getattr(self, name)
            if not isinstance(number, numbers.Integral) or int(number) < least:
                raise ValueError(f"SPCN.{name} is {number!r}; it must be a whole number, at least {least}")
        for name in ("alpha", "beta", "gamma", "eta", "spa_gain", "init_gain"):
            if not np.isfinite(getattr(self, name)):
                raise ValueError(f"SPCN.{name} is {getattr(self, name)!r}; it must be finite")
        if isinstance(self.vocabulary, str):
            raise ValueError("SPCN.vocabulary is one string; give a list of words")
        if not isinstance(self.representation, str):
            raise ValueError(f"SPCN.representation is {self.representation!r}; it must be a name")
        if not self.widths or any(d < 1 for d in self.widths):
            raise ValueError(f"SPCN.widths is {self.widths!r}; every level needs at least one unit")
        spare = tuple(self.alpha_fast) == PAPER_RATES and len(self.widths) < len(PAPER_RATES)
        if len(self.alpha_fast) != len(self.widths) and not spare:  # fewer levels use the first of the paper's rates
            raise ValueError(f"SPCN.alpha_fast has {len(self.alpha_fast)} rates for {len(self.widths)} levels")
        rates = {"alpha_fast": self.alpha_fast, "variance_rate": (self.variance_rate,)}
        rates["slow_ratio"] = [self.slow_ratio * rate for rate in self.alpha_fast]
        for name, values in rates.items():
            if not all(0 <= rate <= 1 for rate in values):
                raise ValueError(f"SPCN.{name} is {getattr(self, name)!r}; every rate must lie in [0, 1]")
        if not 0 < self.k <= 1:
            raise ValueError(f"SPCN.k is {self.k}; it is a share in (0, 1]")
        if not 0 < self.pi_min <= self.pi_max:
            raise ValueError(f"SPCN.pi_min is {self.pi_min}, pi_max is {self.pi_max}; 0 < pi_min <= pi_max is needed")
        if not 0 <= self.decay < 1:
            raise ValueError(f"SPCN.decay is {self.decay}; it must lie in [0, 1)")
        self.blocks()

    def _threads(self) -> int:
        return (os.cpu_count() or 1) if self.n_jobs < 0 else max(1, self.n_jobs)

    def _map(self, jobs: Sequence[tuple[str, int, int]], work: Callable[[str, int, int], None]) -> None:
        """The kernels release the GIL, so threads are enough. The first error wins."""
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
            kernels.new_state(weights.widths, self.spa_window, self.dtype), self._rule(), learning, out, columns,
        )  # fmt: skip
        if sentence >= 0:
            word = texts[first + sentence][token]
            raise FloatingPointError(
                f"SPCN: the state of level {level} ({side}) is not finite at sentence {first + sentence}, "
                f"token {token} ({word!r}); smaller alpha, beta, gamma or eta, or normalise=True, keep it bounded"
            )

    def _rule(self) -> kernels.Rule:
        return kernels.Rule(
            alpha=float(self.alpha), beta=float(self.beta), gamma=float(self.gamma),
            settle_steps=int(self.settle_steps),
            synchronous=self.update == "synchronous", by_magnitude=self.topk_by == "magnitude",
            rectify=bool(self.rectify), normalise=bool(self.normalise), spa=bool(self.spa), spa_top=int(self.spa_top),
            spa_gain=float(self.spa_gain), eta=float(self.eta), decay=float(self.decay),
            precision_power=int(self.precision_power), variance_rate=float(self.variance_rate),
            pi_min=float(self.pi_min), pi_max=float(self.pi_max), reset=self.reset == "sentence",
        )  # fmt: skip

    def _draw(self, side: str) -> tuple[list[Floats], list[Floats]]:
        """W_ff and W_lat of one hierarchy, [pre, post], W ~ N(0, init_gain² / fan_in)."""
        rng = np.random.default_rng([self.random_state, DIRECTIONS.index(side)])
        inputs = (len(self.vocabulary_), *self.widths[:-1])

        def gaussian(pre: int, post: int) -> Floats:
            return np.asarray(self.init_gain / np.sqrt(pre) * rng.standard_normal((pre, post)), self.dtype)

        W_ff = [gaussian(p, d) for p, d in zip(inputs, self.widths, strict=True)]
        return W_ff, [gaussian(d, d) for d in self.widths]

    def _initial_weights(self, side: str, learned_ff: list[Floats] | None = None) -> kernels.Weights:
        drawn_ff, drawn_lat = self._draw(side)
        levels, widest = len(self.widths), max(self.widths)
        padded = (levels, max(len(self.vocabulary_), widest), widest)
        weights = kernels.Weights(
            widths=np.array(self.widths, np.int64),
            ff=np.zeros(padded, self.dtype),
            fb=np.zeros(padded, self.dtype),
            lat=np.zeros((levels, widest, widest), self.dtype),
            fb_scale=np.ones(levels, self.dtype),
            variance=np.ones((levels, widest), self.dtype),
            precision=np.ones((levels, widest), self.dtype),
        )
        for level, (W_ff, W_lat) in enumerate(zip(learned_ff or drawn_ff, drawn_lat, strict=True)):
            weights.ff[level, : W_ff.shape[0], : W_ff.shape[1]] = W_ff
            weights.lat[level, : W_lat.shape[0], : W_lat.shape[1]] = W_lat
        return weights

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
