"""Compiled kernels of one SPCN hierarchy: settling (Eq. 1), PGHU (Eq. 3), traces (Eq. 4 and 5).

`reference.py` is the specification that the tests compare with. Four facts make this fast:

* A state has k of d units active, so a matrix-vector product is a sum of k rows. Weights are stored with one row per
  *presynaptic* unit, so that the inner loops run over contiguous memory and vectorise.
* The k largest are found by counting against a bisected threshold. Counting vectorises; sorting does not.
* The decay of W_fb is one scalar: W_fb = scale · V, and only the rows of active units of V are touched.
* Arrays begin at a cache line. A vector that straddles two lines is read twice.

Letters in shapes: L levels, D the widest level, P the largest number of presynaptic units, B slots of the SPA buffer.
Narrower levels use the start of a padded row; the padding is never read. Words are integers; -1 is a word without
feed-forward drive.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ematrace.jit import SUMS, compiled, inlined

Floats = npt.NDArray[np.floating]
Ints = npt.NDArray[np.int64]

CACHE_LINE = 64
_compile = compiled(fastmath=SUMS)
_inline = inlined(fastmath=SUMS)  # steps that take Weights and State, which are costly to pass on


class Weights(NamedTuple):
    """W_fb is fb_scale · fb. Precision is 1 / variance within its bounds, kept since it is read more than written."""

    widths: Ints  # [L]
    ff: Floats  # [L, P, D]
    fb: Floats  # [L, P, D]
    lat: Floats  # [L, D, D]
    fb_scale: Floats  # [L]
    variance: Floats  # [L, D]
    precision: Floats  # [L, D]


class Rule(NamedTuple):
    """The scalars of the dynamics in the paper's letters, and the choices that the paper leaves open."""

    alpha: float
    beta: float
    gamma: float
    settle_steps: int
    synchronous: bool
    by_magnitude: bool
    rectify: bool
    normalise: bool
    spa: bool
    spa_top: int
    spa_gain: float
    eta: float
    decay: float
    precision_power: int
    variance_rate: float
    pi_min: float
    pi_max: float
    reset: bool
    per_active: bool  # the unit of states and errors, see `SPCN.network`


class State(NamedTuple):
    """Working memory. The sparse state of a level is (idx, val, active); `dense` is the same state spread out."""

    idx: Ints  # [L, D + 1], the last place is written but never read by branch-free compaction
    val: Floats  # [L, D]
    active: Ints  # [L]
    dense: Floats  # [L, D]
    drive: Floats  # [L, D]
    prediction: Floats  # [L, D]
    scratch: Floats  # [L, D]
    fast: Floats  # [L, D]
    slow: Floats  # [L, D]
    buffer: Floats  # [L, B, D], dense: a vectorised dot product is faster than gathering the active units
    buffer_seen: Ints  # [1] states put in so far; the circular buffer holds the last B
    scores: Floats  # [L, B]
    best: Ints  # [L, B]


def aligned(array: npt.ArrayLike) -> npt.NDArray[Any]:
    """A copy that begins at a cache line, which numpy does not promise."""
    given = np.asarray(array)
    memory = np.empty(given.nbytes + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    copy = memory[start : start + given.nbytes].view(given.dtype).reshape(given.shape)
    copy[...] = given
    return copy


def new_state(widths: Ints, window: int, dtype: npt.DTypeLike) -> State:
    levels, widest, places = len(widths), int(max(widths)), max(window, 1)
    per_unit = np.zeros((levels, widest), dtype)
    return State(
        idx=np.zeros((levels, widest + 1), np.int64),
        val=aligned(per_unit),
        active=np.zeros(levels, np.int64),
        dense=aligned(per_unit),
        drive=aligned(per_unit),
        prediction=aligned(per_unit),
        scratch=aligned(per_unit),
        fast=aligned(per_unit),
        slow=aligned(per_unit),
        buffer=aligned(np.zeros((levels, places, widest), dtype)),
        buffer_seen=np.zeros(1, np.int64),
        scores=np.zeros((levels, places), dtype),
        best=np.zeros((levels, places), np.int64),
    )


@_compile
def add_rows(out, level, d, weights, idx, val, source, active, factor):  # type: ignore[no-untyped-def]
    """out[level] += factor · Σ_i val[source, i] · weights[level, idx[source, i]].

    Eight rows a pass, then two, then one, so that `out` is read and written less.
    """
    factor = out.dtype.type(factor)
    i = 0
    while i + 8 <= active:
        p, q, r, s = idx[source, i], idx[source, i + 1], idx[source, i + 2], idx[source, i + 3]
        t, u, v, w = idx[source, i + 4], idx[source, i + 5], idx[source, i + 6], idx[source, i + 7]
        x_p, x_q = factor * val[source, i], factor * val[source, i + 1]
        x_r, x_s = factor * val[source, i + 2], factor * val[source, i + 3]
        x_t, x_u = factor * val[source, i + 4], factor * val[source, i + 5]
        x_v, x_w = factor * val[source, i + 6], factor * val[source, i + 7]
        for j in range(d):
            pq = x_p * weights[level, p, j] + x_q * weights[level, q, j]
            rs = x_r * weights[level, r, j] + x_s * weights[level, s, j]
            tu = x_t * weights[level, t, j] + x_u * weights[level, u, j]
            vw = x_v * weights[level, v, j] + x_w * weights[level, w, j]
            out[level, j] += (pq + rs) + (tu + vw)
        i += 8
    while i + 2 <= active:
        p, q = idx[source, i], idx[source, i + 1]
        x_p, x_q = factor * val[source, i], factor * val[source, i + 1]
        for j in range(d):
            out[level, j] += x_p * weights[level, p, j] + x_q * weights[level, q, j]
        i += 2
    if i < active:
        p, x_p = idx[source, i], factor * val[source, i]
        for j in range(d):
            out[level, j] += x_p * weights[level, p, j]


@_compile
def count_above(x, level, d, threshold):  # type: ignore[no-untyped-def]
    """How many of x[level] exceed the threshold. Counted in x's dtype: integer counters halve the vector width."""
    one, zero = x.dtype.type(1), x.dtype.type(0)
    count = zero
    for j in range(d):
        count += one if x[level, j] > threshold else zero
    return np.int64(count)


@_compile
def sum_of_squares(x, level, d):  # type: ignore[no-untyped-def]
    total = x.dtype.type(0)
    for j in range(d):
        total += x[level, j] * x[level, j]
    return total


@_compile
def bracket(x, level, d, k):  # type: ignore[no-untyped-def]
    """low <= min(x), and high with at most k of x above it, both from the length of x, which vectorises.

    k entries above h > 0 have squares that sum to more than k h², so h = |x| / √k will do.
    """
    power = sum_of_squares(x, level, d)
    if 1e-30 < power < 1e30:
        length = np.sqrt(power) * x.dtype.type(1.001)  # room for rounding
        return -length, length / np.sqrt(x.dtype.type(k))
    low = high = x[level, 0]
    for j in range(d):  # the squares may have left the range of floats
        low, high = min(low, x[level, j]), max(high, x[level, j])
    return low, high


@_compile
def select_top_k(x, level, d, k, floor, idx):  # type: ignore[no-untyped-def]
    """Write the indices of the k largest of x[level, :d] to idx[level], ascending, and return how many.

    Exactly k, ties to the lowest index, unless fewer lie above the floor: then those; -inf asks for exactly k.
    Bisection keeps count(x > low) > k >= count(x > high) until a threshold splits off exactly k, or low and high are
    neighbouring floats: then every x equal to high ties at the cut. The squares of x must have a finite sum.
    """
    half = x.dtype.type(0.5)
    low, high = bracket(x, level, d, k)
    low = max(low, x.dtype.type(floor))
    threshold, above = low, count_above(x, level, d, low)
    if above > k:
        while True:
            threshold = (low + high) * half
            if threshold <= low or threshold >= high:
                threshold, above = high, count_above(x, level, d, high)
                break
            above = count_above(x, level, d, threshold)
            if above == k:
                break
            if above > k:
                low = threshold
            else:
                high = threshold
    n = 0
    if above == k or threshold <= floor:
        for j in range(d):
            idx[level, n] = j
            n += x[level, j] > threshold
        return n
    ties = k - above
    for j in range(d):
        if x[level, j] > threshold:
            idx[level, n] = j
            n += 1
        elif ties > 0 and x[level, j] == threshold:
            idx[level, n] = j
            n += 1
            ties -= 1
    return n


@_compile
def select_best(x, level, n, k, idx):  # type: ignore[no-untyped-def]
    """As select_top_k for a few numbers: those with fewer than k above them, ties to the lowest index."""
    kept = 0
    for i in range(n):
        above = 0
        for j in range(n):
            above += x[level, j] > x[level, i] or (j < i and x[level, j] == x[level, i])
        if above < k:
            idx[level, kept] = i
            kept += 1
    return kept


@_compile
def score_past(error, buffer, level, place, d):  # type: ignore[no-untyped-def]
    """e·b for the buffered state in this place."""
    total = error.dtype.type(0)
    for j in range(d):
        total += error[level, j] * buffer[level, place, j]
    return total


@_inline
def predict_level(level, weights, state):  # type: ignore[no-untyped-def]
    """x̂ = W_fb x^(l+1); the top level predicts nothing."""
    d, above = weights.widths[level], level + 1
    for j in range(d):
        state.prediction[level, j] = 0
    if above < weights.widths.size:
        scale, active = weights.fb_scale[level], state.active[above]
        add_rows(state.prediction, level, d, weights.fb, state.idx, state.val, above, active, scale)


@_inline
def add_spa_context(level, weights, state, rule):  # type: ignore[no-untyped-def]
    """c_spa: softmax over the best of the scores e·b/√d, where e = π ⊙ (x − x̂) now and b is a buffered state."""
    kind = state.scores.dtype.type
    d = weights.widths[level]
    stored = min(state.buffer_seen[0], state.scores.shape[1])
    for j in range(d):
        state.scratch[level, j] = weights.precision[level, j] * (state.dense[level, j] - state.prediction[level, j])
    root = np.sqrt(kind(d))
    oldest = state.buffer_seen[0] - stored
    for age in range(stored):  # oldest first, so that ties do not depend on where the ring begins
        b = (oldest + age) % state.scores.shape[1]
        state.scores[level, age] = score_past(state.scratch, state.buffer, level, b, d) / root
    if not np.isfinite(sum_of_squares(state.scores, level, stored)):
        state.drive[level, 0] = np.nan  # the drive is checked next, and this level is then reported
        return
    top = select_best(state.scores, level, stored, min(rule.spa_top, stored), state.best)
    peak = state.scores[level, state.best[level, 0]]
    for i in range(top):
        peak = max(peak, state.scores[level, state.best[level, i]])
    total = kind(0)
    for i in range(top):
        age = state.best[level, i]
        state.scores[level, age] = np.exp(state.scores[level, age] - peak)
        total += state.scores[level, age]
    for i in range(top):
        age = state.best[level, i]
        b = (oldest + age) % state.scores.shape[1]
        share = kind(rule.spa_gain) * state.scores[level, age] / total
        for j in range(d):
            state.drive[level, j] += share * state.buffer[level, b, j]


@_inline
def drive_level(level, word, weights, state, rule):  # type: ignore[no-untyped-def]
    """The argument of top-k in Eq. 1. Returns False if it is not finite."""
    kind = state.drive.dtype.type
    d, below = weights.widths[level], level - 1
    predict_level(level, weights, state)
    beta = kind(rule.beta)
    for j in range(d):
        state.drive[level, j] = beta * state.prediction[level, j]
    if level > 0:
        active = state.active[below]
        add_rows(state.drive, level, d, weights.ff, state.idx, state.val, below, active, rule.alpha)
    elif word >= 0:
        alpha = kind(rule.alpha)
        for j in range(d):
            state.drive[0, j] += alpha * weights.ff[0, word, j]
    if rule.gamma != 0:
        active = state.active[level]
        add_rows(state.drive, level, d, weights.lat, state.idx, state.val, level, active, rule.gamma)
    if rule.spa and state.buffer_seen[0] > 0:
        add_spa_context(level, weights, state, rule)
    return np.isfinite(sum_of_squares(state.drive, level, d))


@_inline
def activate_level(level, k, weights, state, rule):  # type: ignore[no-untyped-def]
    """x ← top-k(drive), then rectified and brought to its length where the settings say so.

    The length is 1, or for `per_active` the root of the number of active units, whose mean square is then 1.
    """
    kind = state.drive.dtype.type
    d = weights.widths[level]
    for i in range(state.active[level]):
        state.dense[level, state.idx[level, i]] = 0
    if rule.by_magnitude:
        for j in range(d):
            state.scratch[level, j] = abs(state.drive[level, j])
        n = select_top_k(state.scratch, level, d, k, -np.inf, state.idx)
    else:
        n = select_top_k(state.drive, level, d, k, 0.0 if rule.rectify else -np.inf, state.idx)
    kept = 0
    power = kind(0)
    for i in range(n):
        unit = state.idx[level, i]
        value = state.drive[level, unit]
        if value > 0 or not rule.rectify:
            state.idx[level, kept] = unit
            state.val[level, kept] = value
            power += value * value
            kept += 1
    if rule.normalise and kept > 0 and power < 1e-30:
        # The squares may have left the range of floats: scale the largest value to 1 first.
        peak = kind(0)
        for i in range(kept):
            peak = max(peak, abs(state.val[level, i]), kind(1e-37))
        power = kind(0)
        for i in range(kept):
            state.val[level, i] /= peak
            power += state.val[level, i] * state.val[level, i]
    length = np.sqrt(kind(kept)) if rule.per_active else kind(1)
    factor = length / np.sqrt(power) if rule.normalise and power > 0 else kind(1)
    for i in range(kept):
        state.val[level, i] *= factor
        state.dense[level, state.idx[level, i]] = state.val[level, i]
    state.active[level] = kept


@_inline
def settle(word, ks, weights, state, rule):  # type: ignore[no-untyped-def]
    """T_settle applications of Eq. 1 to every level. Returns the level whose drive is not finite, or -1."""
    failed = -1
    for _ in range(rule.settle_steps):
        for level in range(weights.widths.size):
            if failed < 0:
                if not drive_level(level, word, weights, state, rule):
                    failed = level
                elif not rule.synchronous:
                    activate_level(level, ks[level], weights, state, rule)
        if rule.synchronous and failed < 0:
            for level in range(weights.widths.size):
                activate_level(level, ks[level], weights, state, rule)
    return failed


@_inline
def learn(weights, state, rule):  # type: ignore[no-untyped-def]
    """PGHU (Eq. 3): ΔW_fb[j,k] = η π_j e_j x_k − λ_d W_fb[j,k], with e = π ⊙ (x − x̂) and π = 1 / var(x − x̂).

    The variance is uncentred. For `per_active` it is relative to the mean square of the level's state, k / d: a level
    that predicts nothing has variance 1 on average. π is that of the tokens before; this token changes it afterwards.
    """
    kind = state.drive.dtype.type
    rate, low, high = kind(rule.variance_rate), kind(rule.pi_min), kind(rule.pi_max)
    for level in range(weights.widths.size - 1):
        predict_level(level, weights, state)
        d, above = weights.widths[level], level + 1
        weights.fb_scale[level] *= kind(1) - kind(rule.decay)
        step = kind(rule.eta) / weights.fb_scale[level]
        relative = kind(d) / kind(max(state.active[level], 1)) if rule.per_active else kind(1)
        for j in range(d):
            pi = weights.precision[level, j]
            error = state.dense[level, j] - state.prediction[level, j]
            state.scratch[level, j] = step * (pi * pi if rule.precision_power == 2 else pi) * error
            variance = weights.variance[level, j] + rate * (relative * error * error - weights.variance[level, j])
            weights.variance[level, j] = variance
            pi = kind(1) / variance
            pi = low if pi < low else pi
            weights.precision[level, j] = high if pi > high else pi
        for i in range(state.active[above]):
            k, x_k = state.idx[above, i], state.val[above, i]
            for j in range(d):
                weights.fb[level, k, j] += x_k * state.scratch[level, j]
        if weights.fb_scale[level] < 1e-6:  # fold the scale back in before fb grows out of range
            for k in range(weights.widths[above]):
                for j in range(d):
                    weights.fb[level, k, j] *= weights.fb_scale[level]
            weights.fb_scale[level] = 1


@_inline
def remember(weights, state):  # type: ignore[no-untyped-def]
    """Put the settled states into the circular buffer of SPA."""
    place = state.buffer_seen[0] % state.scores.shape[1]
    for level in range(weights.widths.size):
        for j in range(weights.widths[level]):
            state.buffer[level, place, j] = state.dense[level, j]
    state.buffer_seen[0] += 1


@_compile
def integrate(trace, level, d, idx, val, active, rate, out, t, column):  # type: ignore[no-untyped-def]
    """τ ← (1 − rate) τ + rate · x (Eq. 4 and 5), copied to out[t, column:]."""
    rate = trace.dtype.type(rate)
    keep = trace.dtype.type(1) - rate
    for j in range(d):
        trace[level, j] *= keep
    for i in range(active):
        trace[level, idx[level, i]] += rate * val[level, i]
    for j in range(d):
        out[t, column + j] = trace[level, j]


@_inline
def clear(weights, state):  # type: ignore[no-untyped-def]
    """The start of a sentence: no activity, no traces, an empty buffer."""
    state.buffer_seen[0] = 0
    for level in range(weights.widths.size):
        state.active[level] = 0
        for j in range(weights.widths[level]):
            state.dense[level, j] = 0
            state.fast[level, j] = 0
            state.slow[level, j] = 0


@_compile
def run(words, starts, backward, ks, alpha_fast, alpha_slow, weights, state, rule, learning, out, columns):  # type: ignore[no-untyped-def]
    """Drive one hierarchy over sentences; sentence s is words[starts[s]:starts[s+1]].

    out [tokens, features] receives what `columns` [L, 3] asks for: the first column of the activation, fast trace and
    slow trace of each level, -1 for "not wanted". Returns (sentence, token, level) of the first state that is not
    finite, (-1, -1, -1) if all went well.
    """
    levels = weights.widths.size
    for s in range(starts.size - 1):
        if rule.reset:
            clear(weights, state)
        for step in range(starts[s + 1] - starts[s]):
            t = starts[s + 1] - 1 - step if backward else starts[s] + step
            failed = settle(words[t], ks, weights, state, rule)
            if failed >= 0:
                return s, t - starts[s], failed
            if learning:
                learn(weights, state, rule)
            if rule.spa:
                remember(weights, state)
            for level in range(levels):
                d, active = weights.widths[level], state.active[level]
                column = columns[level, 0]
                if column >= 0:
                    for j in range(d):
                        out[t, column + j] = state.dense[level, j]
                column = columns[level, 1]
                if column >= 0:
                    rate = alpha_fast[level]
                    integrate(state.fast, level, d, state.idx, state.val, active, rate, out, t, column)
                column = columns[level, 2]
                if column >= 0:
                    rate = alpha_slow[level]
                    integrate(state.slow, level, d, state.idx, state.val, active, rate, out, t, column)
    return -1, -1, -1
