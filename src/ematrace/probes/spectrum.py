"""Effective dimensionality of a set of vectors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.special import entr


def participation_ratio(X: NDArray[np.floating]) -> float:
    """(Σλ)² / Σλ² over the eigenvalues λ of the rows' covariance: 1 for a line, d for a ball, 0 if all rows agree.

    >>> import numpy as np
    >>> ball = np.random.default_rng(0).standard_normal((10_000, 4))
    >>> round(participation_ratio(ball), 1), round(participation_ratio(ball * [1, 0, 0, 0]), 1)
    (4.0, 1.0)
    """
    variances = _singular_values(X) ** 2
    total = variances.sum()
    return float(total**2 / (variances**2).sum()) if total > 0 else 0.0


def effective_rank(X: NDArray[np.floating]) -> float:
    """exp of the entropy of the normalised singular values of the centred rows (Roy and Vetterli 2007).

    >>> import numpy as np
    >>> ball = np.random.default_rng(0).standard_normal((10_000, 4))
    >>> round(effective_rank(ball), 1), round(effective_rank(ball * [1, 1, 0, 0]), 1)
    (4.0, 2.0)
    """
    values = _singular_values(X)
    return float(np.exp(entr(values / values.sum()).sum())) if values.sum() > 0 else 0.0


def _singular_values(X: NDArray[np.floating]) -> NDArray[np.float64]:
    centred = np.asarray(X, np.float64) - np.mean(X, axis=0, dtype=np.float64)
    if len(centred) > centred.shape[1]:  # the covariance is the smaller matrix, and its roots are enough
        return np.sqrt(np.clip(linalg.eigvalsh(centred.T @ centred), 0.0, None))
    return np.asarray(linalg.svdvals(centred))
