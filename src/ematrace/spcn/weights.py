"""The weights of one hierarchy before learning."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ematrace.spcn.kernels import Weights, aligned

Floats = npt.NDArray[np.floating]


def draw_weights(
    n_words: int, widths: Sequence[int], gain: float, dtype: str, rng: np.random.Generator
) -> tuple[list[Floats], list[Floats]]:
    """W_ff and W_lat of all levels, [pre, post], W ~ N(0, gain² / fan_in)."""

    def gaussian(pre: int, post: int) -> Floats:
        return np.asarray(gain / np.sqrt(pre) * rng.standard_normal((pre, post)), dtype)

    W_ff = [gaussian(pre, post) for pre, post in zip((n_words, *widths[:-1]), widths, strict=True)]
    return W_ff, [gaussian(d, d) for d in widths]


def per_active_input(matrices: Sequence[Floats], active: Sequence[int]) -> list[Floats]:
    """Weights [pre, post] of variance 1 / fan_in at variance 1 / active, where so many inputs are active at a time."""
    return [W * W.dtype.type(np.sqrt(len(W) / n)) for W, n in zip(matrices, active, strict=True)]


def padded_shapes(n_words: int, widths: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Shapes of the kernels' arrays: all levels in one, as wide as the widest."""
    levels, widest = len(widths), max(widths)
    padded = (levels, max(n_words, widest), widest)
    units = (levels, widest)
    return {
        **{"ff": padded, "fb": padded, "lat": (*units, widest)},
        **{"fb_scale": (levels,), "variance": units, "precision": units},
    }


def pad_weights(W_ff: Sequence[Floats], W_lat: Sequence[Floats], dtype: str) -> Weights:
    """The kernels' arrays with these weights, W_fb = 0 and precision 1."""
    widths = [W.shape[0] for W in W_lat]
    shapes = padded_shapes(W_ff[0].shape[0], widths)
    zeros = {name: aligned(np.zeros(shapes[name], dtype)) for name in ("ff", "fb", "lat")}
    ones = {name: aligned(np.ones(shapes[name], dtype)) for name in ("fb_scale", "variance", "precision")}
    weights = Weights(widths=np.array(widths, np.int64), **zeros, **ones)
    for level in range(len(widths)):
        weights.ff[level, : W_ff[level].shape[0], : widths[level]] = W_ff[level]
        weights.lat[level, : widths[level], : widths[level]] = W_lat[level]
    return weights
