"""Random projections to a common dimension."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def gaussian_projection(d_in: int, d_out: int, seed: int) -> NDArray[np.float64]:
    """P [d_in, d_out] with entries N(0, 1/d_out), so that E |x P|² = |x|².

    scikit-learn's GaussianRandomProjection has the same distribution, but would be fitted to dummy data to get at its
    matrix, and draws other matrices than those behind the recorded figures.

    >>> import numpy as np
    >>> x = np.ones(10) @ gaussian_projection(10, 10_000, seed=0)
    >>> x.shape, round(float(x @ x))  # as long as before
    ((10000,), 10)
    """
    if d_in < 1 or d_out < 1:
        raise ValueError(f"dimensions must be positive, got {d_in} and {d_out}")
    P = np.random.default_rng(seed).standard_normal((d_in, d_out))
    return np.asarray(P / np.sqrt(d_out), dtype=np.float64)
