"""Four Hebbian rules for W_ff, which the paper tried and rejected in favour of frozen random weights (claim C16).

Each rule learns one level at a time, bottom up, from the responses of the level below, and is then frozen like the
random weights it replaces. Level 0 sees the fast trace of the one-hot words, not the words: one-hots are uncorrelated,
so that a Hebbian rule would find nothing in them but word frequency.

The paper names the rules without equations; each docstring below gives the one used here. Letters: X_BI inputs of a
minibatch, W_IO weights [pre, post], Y_BO = X_BI W_IO.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.special import expit

Floats = npt.NDArray[np.floating]

BATCH = 128


@dataclass
class RuleState:
    """What a rule carries from batch to batch."""

    k: int
    rng: np.random.Generator
    memory: dict[str, Floats] = field(default_factory=dict)

    def start(self, name: str, value: Floats) -> Floats:
        return self.memory.setdefault(name, value)


def sanger(W_IO: Floats, X_BI: Floats, state: RuleState, eta: float) -> Floats:
    """Generalised Hebbian algorithm (Sanger 1989): ΔW = η (Xᵀ Y − W · triu(Yᵀ Y)) / B."""
    Y_BO = X_BI @ W_IO
    step = X_BI.T @ Y_BO - W_IO @ np.triu(Y_BO.T @ Y_BO)
    return W_IO + eta * step / len(X_BI)


def foldiak(W_IO: Floats, X_BI: Floats, state: RuleState, eta: float) -> Floats:
    """Foldiak (1990): binary sparse y, Hebb on W, anti-Hebb on lateral Q, threshold t towards a firing rate p = k/d.

    Δw_ij = η y_j (x_i − w_ij),  ΔQ = −η (YᵀY/B − p²) off the diagonal,  Δt = η (mean y − p)
    """
    d = W_IO.shape[1]
    p = state.k / d
    Q, t = state.start("Q", np.zeros((d, d), W_IO.dtype)), state.start("t", np.zeros(d, W_IO.dtype))
    drive = X_BI @ W_IO - t
    Y_BO = _winners(drive + _winners(drive, state.k) @ Q, state.k)
    Q -= eta * (Y_BO.T @ Y_BO / len(X_BI) - p * p)
    np.minimum(Q, 0.0, out=Q)
    np.fill_diagonal(Q, 0.0)
    t += eta * (Y_BO.mean(0) - p)
    return np.asarray(W_IO + eta * (X_BI.T @ Y_BO - W_IO * Y_BO.sum(0)) / len(X_BI))


def pghu(W_IO: Floats, X_BI: Floats, state: RuleState, eta: float) -> Floats:
    """Surprise-gated PGHU: Eq. 3 on W_ff, open only for inputs more surprising than usual.

    e = π ⊙ (y − ȳ), ȳ and var(y − ȳ) running,  ΔW = η Xᵀ (g π ⊙ e) / B − λ_d W,  g = [|y − ȳ|² > its running mean]
    """
    Y_BO = X_BI @ W_IO
    expected = state.start("expected", np.zeros(W_IO.shape[1], W_IO.dtype))
    variance = state.start("variance", np.ones(W_IO.shape[1], W_IO.dtype))
    usual = state.start("usual", np.zeros(1, W_IO.dtype))
    error = Y_BO - expected
    surprise = (error**2).sum(1, keepdims=True)
    gate = surprise > usual
    pi = np.clip(1 / variance, 0.1, 10.0)
    step = X_BI.T @ (gate * pi**2 * error)
    expected += 0.01 * (Y_BO.mean(0) - expected)
    variance += 0.01 * ((error**2).mean(0) - variance)
    usual += 0.01 * (surprise.mean() - usual)
    return np.asarray(W_IO + eta * step / len(X_BI) - 0.001 * W_IO)


def forward_forward(W_IO: Floats, X_BI: Floats, state: RuleState, eta: float) -> Floats:
    """Forward-forward (Hinton 2022), local: raise the goodness Σ y² of real inputs over θ, lower it for shuffled ones.

    ΔW = η Σ ± σ(∓(G − θ)) xᵀ y with y = relu(x W); negatives exchange the coordinates of x between inputs of the batch.
    """
    columns = np.argsort(state.rng.random(X_BI.shape), axis=0)
    negative = np.take_along_axis(X_BI, columns, axis=0)
    theta = 1.0
    step = np.zeros_like(W_IO)
    for sign, inputs in ((1.0, X_BI), (-1.0, negative)):
        Y_BO = np.maximum(inputs @ W_IO, 0.0)
        goodness = (Y_BO**2).sum(1, keepdims=True)
        step += sign * inputs.T @ (Y_BO * expit(sign * (theta - goodness)))
    return W_IO + eta * step / len(X_BI)


FF_RULES: dict[str, Callable[[Floats, Floats, RuleState, float], Floats]] = {
    "sanger": sanger,
    "foldiak": foldiak,
    "pghu": pghu,
    "forward_forward": forward_forward,
}
# Large enough to move every rule well away from its start in one pass, small enough to stay finite.
DEFAULT_ETA = {"sanger": 0.3, "foldiak": 0.1, "pghu": 0.03, "forward_forward": 0.3}


def learn_feedforward(
    rule: str,
    W_ff: Sequence[Floats],
    tokens: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    ks: Sequence[int],
    backward: bool,
    *,
    eta: float | None,
    epochs: int,
    alpha_fast: Sequence[float],
    seed: int,
) -> list[Floats]:
    """Learn W_ff [pre, post] of every level in turn; returns new arrays of the same dtype."""
    rng = np.random.default_rng([seed, 2 + backward])
    dtype = W_ff[0].dtype
    inputs = _traces_of_words(tokens, starts, W_ff[0].shape[0], alpha_fast[0], backward).astype(dtype)
    learned: list[Floats] = []
    for level, (start, k) in enumerate(zip(W_ff, ks, strict=True)):
        W_IO, state = start.copy(), RuleState(k, rng)
        for _ in range(epochs):
            order = rng.permutation(len(inputs))
            for at in range(0, len(order), BATCH):
                X_BI = inputs[order[at : at + BATCH]]
                W_IO = FF_RULES[rule](W_IO, X_BI, state, DEFAULT_ETA[rule] if eta is None else eta)
            if not np.isfinite(W_IO).all():
                raise FloatingPointError(f"SPCN: rule {rule!r} made W_ff of level {level} not finite; lower ff_eta")
        learned.append(W_IO.astype(start.dtype))
        if level + 1 < len(W_ff):
            inputs = _sparse_code(inputs @ learned[-1], k).astype(dtype, copy=False)
    return learned


def _traces_of_words(
    tokens: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    vocabulary: int,
    alpha: float,
    backward: bool,
) -> npt.NDArray[np.float32]:
    """Fast trace of the one-hot words [tokens, vocabulary], all sentences in step."""
    out = np.zeros((len(tokens), vocabulary), np.float32)
    known = tokens >= 0
    out[np.flatnonzero(known), tokens[known]] = alpha
    lengths = np.diff(starts)
    for step in range(1, int(lengths.max(initial=0))):
        rows = (starts[1:] - 1 - step if backward else starts[:-1] + step)[lengths > step]
        out[rows] += (1 - alpha) * out[rows + 1 if backward else rows - 1]
    return out


def _winners(drive: Floats, k: int) -> Floats:
    """1 for the k largest of each row, 0 elsewhere."""
    out = np.zeros_like(drive)
    np.put_along_axis(out, np.argpartition(drive, -k, axis=1)[:, -k:], 1, axis=1)
    return out


def _sparse_code(drive: npt.NDArray[np.floating], k: int) -> npt.NDArray[np.float32]:
    """Rectified top-k of each row at unit length, as in settling."""
    code = np.maximum(drive, 0.0) * _winners(drive, k)
    length = np.linalg.norm(code, axis=1, keepdims=True)
    return np.asarray(code / np.where(length > 0, length, 1.0), np.float32)
