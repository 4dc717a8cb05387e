"""Does a random projection with top-k keep pairwise distances, as the paper says by Johnson-Lindenstrauss? (C42)"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.spatial.distance import pdist
from scipy.stats import spearmanr

from ematrace.experiments.base import Context, number
from ematrace.experiments.grammar_task import QUICK_DRAWS, Floats, GrammarTask, grammar_experiment, grammar_task
from ematrace.results import Row
from ematrace.traces import ema_traces

CONTEXTS = 1000


def measure(ctx: Context, **grammar: Any) -> list[Row]:
    """Points before and after W_ff alone, and after W_ff, top-k, ReLU and unit length.

    W_ff of L0 reads single words, one-hot; that of L1 reads states of L0. Contexts, EMA of one-hots through W_ff of
    L0, are beside them: the network never projects those.
    """
    task = grammar_task(ctx, **grammar)
    model = task.spcn()
    by_magnitude, rectify = model.topk_by == "magnitude", bool(model.rectify)
    W, k = np.asarray(model.W_ff()[0], np.float64), model.ks_[0]
    one_hot = np.eye(len(task.vocabulary))
    index = {word: i for i, word in enumerate(task.vocabulary)}
    words = torch.from_numpy(one_hot[[index[w] for s in task.within for w in s.words]])
    starts = torch.tensor(np.cumsum([0, *(len(s.words) for s in task.within)]))
    # The loop gives equal contexts equal bits wherever they stand, so that `unique` sees them as one.
    contexts, _ = ema_traces(words.unsqueeze(0), float(model.alpha_fast[0]), cu_seqlens=starts, backend="reference")
    distinct = np.unique(contexts[0, 0].numpy(), axis=0)
    chosen = np.random.default_rng(task.seed).permutation(len(distinct))[:CONTEXTS]
    rows = []
    projected = (
        ("words", one_hot, W, k),
        ("contexts", distinct[chosen], W, k),
        ("l0_states", settled_states(task), np.asarray(model.W_ff()[1], np.float64), model.ks_[1]),
    )
    for name, points, W, k in projected:
        epsilon = jl_epsilon(len(points), W.shape[0])
        rows.append(Row({"points": name}, {"jl_epsilon": number(epsilon)}))
        drive = points @ W.T
        for code, images in (("linear", drive), ("topk", sparse_code(drive, k, by_magnitude, rectify))):
            rows.append(Row({"points": name, "code": code}, compare(points, images, epsilon)))
    return rows


def settled_states(task: GrammarTask) -> Floats:
    """Distinct states of L0 on held-out sentences: what L1 is given."""
    states = np.unique(task.spcn().encode(task.within, "l0.activation@forward"), axis=0)
    chosen = np.random.default_rng(task.seed).permutation(len(states))[:CONTEXTS]
    return states[chosen].astype(np.float64)


def compare(points: Floats, images: Floats, epsilon: float) -> dict[str, Any]:
    """How well squared distances of images keep those of points."""
    before, after = pdist(points, "sqeuclidean"), pdist(images, "sqeuclidean")
    ratio = after / before
    distortion = np.abs(ratio / np.median(ratio) - 1)  # the scale is free; only its spread is distortion
    metrics = {
        "max_distortion": number(distortion.max()),
        "share_within_epsilon": number((distortion <= epsilon).mean()),
    }
    if np.ptp(before) > 0:  # one-hots are all equally far apart: there is no order to keep
        metrics["spearman"] = number(spearmanr(before, after).statistic)
    return metrics


def jl_epsilon(points: int, dimension: int) -> float:
    """The ε for which the lemma guarantees (1 ± ε) in this dimension: 4 ln n / (ε²/2 − ε³/3) = d.

    1 where the dimension is too small for any guarantee (d < 24 ln n).
    """
    if dimension <= 24 * np.log(points):
        return 1.0
    return float(brentq(lambda e: 4 * np.log(points) - dimension * (e**2 / 2 - e**3 / 3), 1e-6, 1.0))


def sparse_code(drive: Floats, k: int, by_magnitude: bool = False, rectify: bool = True) -> Floats:
    """Top-k of each row, rectified, at unit length, as in settling."""
    size = np.abs(drive) if by_magnitude else drive
    threshold = np.partition(size, -k, axis=1)[:, [-k]]
    code = np.where(size >= threshold, np.maximum(drive, 0.0) if rectify else drive, 0.0)
    length = np.linalg.norm(code, axis=1, keepdims=True)
    return np.asarray(code / np.where(length > 0, length, 1.0))  # all zeros stay zeros


EXPERIMENT = grammar_experiment(
    "distances", "Do sparse codes keep distances?", measure, quick_draws=QUICK_DRAWS, seconds=2
)
