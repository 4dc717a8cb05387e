"""Language models without context: the minimum that a trained model has to beat."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ematrace.files import write_atomically

__all__ = ["ContextFree", "Uniform", "Unigram"]

UNIGRAM = "unigram.safetensors"
"""Name of `Unigram`'s file in a model's folder: the token counts of its training text."""


class ContextFree:
    """The same distribution at every position: p(token) = exp(log_probs[token]).

    >>> Uniform(vocab_size=4).nll([0, 3])  # 2 ln 4
    2.772588722239781
    """

    log_probs: np.ndarray  # float64 [vocab_size]

    @property
    def vocab_size(self) -> int:
        return len(self.log_probs)

    def nll(self, ids: np.ndarray) -> float:
        """-Σ log p(token), in nats."""
        ids = np.asarray(ids)
        if ids.size and not 0 <= ids.min() <= ids.max() < self.vocab_size:
            raise ValueError(f"token {ids.min()} or {ids.max()} is not in a vocabulary of {self.vocab_size}")
        counts = np.bincount(ids.ravel().astype(np.int64), minlength=self.vocab_size)
        seen = counts > 0  # 0 · log 0 = 0
        return float(-(counts[seen] @ self.log_probs[seen]))


class Unigram(ContextFree):
    """p(token) = (count + smoothing) / (Σ counts + smoothing · vocab_size).

    >>> import numpy as np
    >>> unigram = Unigram(counts=np.array([8, 1, 0]), smoothing=1.0)
    >>> np.exp(unigram.log_probs).round(3).tolist()
    [0.75, 0.167, 0.083]
    """

    def __init__(self, counts: np.ndarray, smoothing: float = 1.0) -> None:
        counts = np.asarray(counts, dtype=np.int64)
        if counts.ndim != 1 or not len(counts) or counts.min() < 0:
            raise ValueError(f"counts must be a row of non-negative numbers, not of shape {counts.shape}")
        if not (np.isfinite(smoothing) and smoothing >= 0):
            raise ValueError(f"smoothing is {smoothing}, must be finite and not negative")
        self.counts, self.smoothing = counts, float(smoothing)
        weights = counts + self.smoothing
        if not weights.sum():
            raise ValueError("counts are all zero, and so is smoothing")
        with np.errstate(divide="ignore"):  # an unseen token has probability 0 without smoothing
            self.log_probs = np.log(weights) - np.log(weights.sum())

    def save(self, path: str | Path) -> Path:
        from safetensors.numpy import save

        return write_atomically(path, save({"counts": self.counts}, {"smoothing": repr(self.smoothing)}))

    @classmethod
    def load(cls, path: str | Path) -> Unigram:
        from safetensors import SafetensorError, safe_open

        if not Path(path).is_file():
            raise FileNotFoundError(f"{path}: no such file")
        try:
            with safe_open(path, "numpy") as file:
                smoothing = float((file.metadata() or {})["smoothing"])
                return cls(file.get_tensor("counts"), smoothing)
        except SafetensorError as error:
            raise ValueError(f"{path}: {error}") from None
        except (KeyError, ValueError) as error:
            raise ValueError(f"{path}: not the counts of a unigram model ({error})") from None


class Uniform(ContextFree):
    """p(token) = 1 / vocab_size.

    >>> round(Uniform(vocab_size=4096).nll([17]), 3)
    8.318
    """

    def __init__(self, vocab_size: int) -> None:
        if vocab_size < 1:
            raise ValueError(f"vocab_size is {vocab_size}, must be positive")
        self.log_probs = np.full(vocab_size, -np.log(vocab_size))
