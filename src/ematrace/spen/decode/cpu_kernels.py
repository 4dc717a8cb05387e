"""Compiled kernels of one decoding step on CPUs: the three matmuls of `weights.py`, one call per thread and token.

A step is bound by reading weights, once each. So they lie in one flat array in the order of use, are read row by row
with what comes next asked for ahead of time, and may be bfloat16, half the bytes; every sum is in float32.

The threads of a step meet 3 times a block. Starting threads that often would cost more than it brings, so each runs
the whole step and takes pieces of work from a counter until none is left. Whoever comes late finds less to do, whoever
comes too late finds nothing, and one thread alone finishes as well: nothing is waited for but pieces under way. What
is small (traces, norms, the choice of units) each thread computes for itself instead of waiting for another.

Letters in shapes: L blocks, A rates, B streams, d width, F feed-forward units. Weights of a block: M, W_up, W_down_T.
"""

# mypy: disallow-untyped-decorators=false, disallow-untyped-calls=false
from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ematrace.jit import SUMS, compiled
from ematrace.ops.topk_cpu import cut, gelu, order
from ematrace.spen.decode.simd import claim, give_way, load, multiply_add, observe, prefetch, total, widen, zeros

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

_compile = compiled(fastmath=SUMS)

PIECE = 49_152
"""Weights in a piece of work: a few microseconds, so that threads end a phase at nearly the same time."""
AHEAD = 4096
"""Weights between what is read and what is asked for."""
PARTS = 8
"""Sums into which the active units are divided, whatever the number of threads: so results do not depend on that."""
PATIENCE = 2000
"""Looks at a counter before the processor is offered to others."""


class Layout(NamedTuple):
    """Sizes and switches."""

    n_layers: int
    n_rates: int
    d: int
    d_ff: int
    k: int
    vocabulary: int
    head: int  # where the head begins in the flat weights, after the blocks
    embedding: int
    dense: bool
    direct: bool
    epsilon: float
    piece: int = PIECE


class Shared(NamedTuple):
    """What the threads of a step share. A phase writes nothing that itself reads, so that late threads do no harm."""

    claimed: Ints  # [phases] pieces taken
    finished: Ints  # [phases] pieces done
    x: Floats  # [L, B, d] inputs of the blocks
    c: Floats  # [L, B, d] contexts
    z: Floats  # [B, F] GELU
    rank: npt.NDArray[np.int32]  # [B, F] the order in which units are kept, as whole numbers
    parts: Floats  # [B, PARTS, d] what the active units add up to


class Private(NamedTuple):
    """Working memory of one thread."""

    vector: Floats  # [B (A + 2) d] what the rows are multiplied with
    active: Ints  # [F + 1] the last place is written but never read by branch-free compaction


def new_shared(layout: Layout, n_streams: int) -> Shared:
    phases, B, d = 3 * layout.n_layers + 1, n_streams, layout.d
    return Shared(
        claimed=np.zeros(phases, np.int64),
        finished=np.zeros(phases, np.int64),
        x=np.zeros((layout.n_layers, B, d), np.float32),
        c=np.zeros((layout.n_layers, B, d), np.float32),
        z=np.zeros((B, layout.d_ff), np.float32),
        rank=np.zeros((B, layout.d_ff), np.int32),
        parts=np.zeros((B, PARTS, d), np.float32),
    )


def new_private(layout: Layout, n_streams: int) -> Private:
    vector = np.zeros(n_streams * (layout.n_rates + 2) * layout.d, np.float32)
    return Private(vector, np.zeros(layout.d_ff + 1, np.int64))


@_compile
def step(weights, norms, rates, layout, ids, state, shared, private, logits):  # type: ignore[no-untyped-def]
    """One token for each stream: ids [B], state [L, A, B, d] updated in place, logits [B, vocabulary].

    Every thread calls this with the same arguments but its own `private`; the counters of `shared` start at zero.
    """
    for layer in range(layout.n_layers):
        mix(weights, rates, layout, layer, ids, state, shared, private)
        expand(weights, norms, rates, layout, layer, state, shared, private)
        contract(weights, layout, layer, shared, private)
    score(weights, norms, layout, ids, shared, private, logits)


@_compile
def mix(weights, rates, layout, layer, ids, state, shared, private):  # type: ignore[no-untyped-def]
    """c = x + M [h_f; h_m; h_s; x; ĥ]."""
    d, A, B = layout.d, layout.n_rates, ids.size
    width, phase, begin = (A + 2) * d, 3 * layer, block_begin(layout, layer)
    rows = max(layout.piece // width, 1)
    pieces = -(-d // rows)
    piece = claim(shared.claimed, phase)
    if piece < pieces:
        for b in range(B):
            incoming(weights, layout, layer, b, ids, shared, private.vector, b * width + A * d)
            follow(rates, layout, layer, b, state, private.vector, b * width)
    while piece < pieces:
        if piece == 0:
            for b in range(B):
                for j in range(d):
                    shared.x[layer, b, j] = private.vector[b * width + A * d + j]
        for row in range(piece * rows, min((piece + 1) * rows, d)):
            for b in range(B):
                product = dot(weights, begin + row * width, private.vector, b * width, width)
                shared.c[layer, b, row] = private.vector[b * width + A * d + row] + product
        claim(shared.finished, phase)
        piece = claim(shared.claimed, phase)
    wait(shared.finished, phase, pieces)


@_compile
def expand(weights, norms, rates, layout, layer, state, shared, private):  # type: ignore[no-untyped-def]
    """z = GELU(W_up LN(c)), and the traces of all that read them in `mix` are put away."""
    d, B = layout.d, shared.z.shape[0]
    phase, begin = 3 * layer + 1, block_begin(layout, layer) + (layout.n_rates + 2) * d * d
    rows = max(layout.piece // d, 1)
    pieces = -(-layout.d_ff // rows)
    piece = claim(shared.claimed, phase)
    if piece < pieces:
        for b in range(B):
            for j in range(d):
                private.vector[b * d + j] = shared.c[layer, b, j]
            normalise(private.vector, b * d, d, norms, layer, layout.epsilon)
    while piece < pieces:
        if piece == 0:
            for a in range(layout.n_rates):
                for b in range(B):
                    for j in range(d):
                        state[layer, a, b, j] = moved(state[layer, a, b, j], shared.x[layer, b, j], rates[a])
        first, end = piece * rows, min((piece + 1) * rows, layout.d_ff)
        for row in range(first, end):
            for b in range(B):
                shared.z[b, row] = dot(weights, begin + row * d, private.vector, b * d, d)
        for b in range(B):
            for row in range(first, end):
                u = shared.z[b, row]
                shared.z[b, row] = gelu(u)
                shared.rank[b, row] = order(u, shared.z[b, row])
        claim(shared.finished, phase)
        piece = claim(shared.claimed, phase)
    wait(shared.finished, phase, pieces)


@_compile
def contract(weights, layout, layer, shared, private):  # type: ignore[no-untyped-def]
    """Partial sums of W_down z over the active units, whose rows alone are read."""
    d = layout.d
    phase = 3 * layer + 2
    begin = block_begin(layout, layer) + (layout.n_rates + 2) * d * d + layout.d_ff * d
    n_active = layout.d_ff if layout.dense else layout.k
    pieces = shared.z.shape[0] * PARTS
    chosen = -1
    piece = claim(shared.claimed, phase)
    while piece < pieces:
        b, part = piece // PARTS, piece % PARTS
        if chosen != b:
            largest(shared.rank, b, layout.d_ff, n_active, private.active)
            chosen = b
        first, end = part * n_active // PARTS, (part + 1) * n_active // PARTS
        add_rows(shared.parts, b, part, d, weights, begin, shared.z, private.active, first, end)
        claim(shared.finished, phase)
        piece = claim(shared.claimed, phase)
    wait(shared.finished, phase, pieces)


@_compile
def score(weights, norms, layout, ids, shared, private, logits):  # type: ignore[no-untyped-def]
    """Logits of the next token from the normalised output of the last block."""
    d, B, phase = layout.d, ids.size, 3 * layout.n_layers
    rows = max(layout.piece // d, 1)
    pieces = -(-layout.vocabulary // rows)
    piece = claim(shared.claimed, phase)
    if piece < pieces:
        for b in range(B):
            incoming(weights, layout, layout.n_layers, b, ids, shared, private.vector, b * d)
            normalise(private.vector, b * d, d, norms, layout.n_layers, layout.epsilon)
    while piece < pieces:
        for row in range(piece * rows, min((piece + 1) * rows, layout.vocabulary)):
            for b in range(B):
                logits[b, row] = dot(weights, layout.head + row * d, private.vector, b * d, d)
        claim(shared.finished, phase)
        piece = claim(shared.claimed, phase)
    wait(shared.finished, phase, pieces)


@_compile
def block_begin(layout, layer):  # type: ignore[no-untyped-def]
    return layer * ((layout.n_rates + 2) * layout.d + 2 * layout.d_ff) * layout.d


@_compile
def wait(finished, phase, pieces):  # type: ignore[no-untyped-def]
    """Until the pieces that others have taken are done."""
    looks = 0
    while observe(finished, phase) < pieces:
        looks += 1
        if looks > PATIENCE:
            give_way()


@_compile
def dot(weights, begin, vector, at, n):  # type: ignore[no-untyped-def]
    """Σ_j weights[begin + j] · vector[at + j] over n terms; four sums at a time hide the latency of the additions."""
    s0 = s1 = s2 = s3 = zeros()
    j = 0
    while j + 64 <= n:
        w, v = begin + j, at + j
        prefetch(weights, w + AHEAD, 64)
        s0 = multiply_add(load(weights, w), load(vector, v), s0)
        s1 = multiply_add(load(weights, w + 16), load(vector, v + 16), s1)
        s2 = multiply_add(load(weights, w + 32), load(vector, v + 32), s2)
        s3 = multiply_add(load(weights, w + 48), load(vector, v + 48), s3)
        j += 64
    while j + 16 <= n:
        s0 = multiply_add(load(weights, begin + j), load(vector, at + j), s0)
        j += 16
    product = total(s0, s1, s2, s3)
    while j < n:
        product += widen(weights[begin + j]) * vector[at + j]
        j += 1
    return product


@_compile
def add_rows(parts, b, part, d, weights, begin, z, active, first, end):  # type: ignore[no-untyped-def]
    """parts[b, part] = Σ_i z[b, i] · row i over active[first : end], four rows a pass."""
    for j in range(d):
        parts[b, part, j] = 0
    i = first
    while i + 4 <= end:
        p, q, r, s = active[i], active[i + 1], active[i + 2], active[i + 3]
        z_p, z_q, z_r, z_s = z[b, p], z[b, q], z[b, r], z[b, s]
        p, q, r, s = begin + p * d, begin + q * d, begin + r * d, begin + s * d
        for j in range(d):
            pq = z_p * widen(weights[p + j]) + z_q * widen(weights[q + j])
            rs = z_r * widen(weights[r + j]) + z_s * widen(weights[s + j])
            parts[b, part, j] += pq + rs
        i += 4
    while i < end:
        z_p, p = z[b, active[i]], begin + active[i] * d
        for j in range(d):
            parts[b, part, j] += z_p * widen(weights[p + j])
        i += 1


@_compile
def incoming(weights, layout, layer, b, ids, shared, vector, at):  # type: ignore[no-untyped-def]
    """vector[at :] = x of this layer: the embedding, or what the layer before added W_down z to."""
    d = layout.d
    if layer == 0:
        row = layout.embedding + ids[b] * d
        for j in range(d):
            vector[at + j] = widen(weights[row + j])
        return
    base = shared.c if layout.direct else shared.x
    for j in range(d):
        added = np.float32(0)
        for part in range(PARTS):
            added += shared.parts[b, part, j]
        vector[at + j] = base[layer - 1, b, j] + added


@_compile
def follow(rates, layout, layer, b, state, vector, at):  # type: ignore[no-untyped-def]
    """vector[at :] = [h_f; h_m; h_s] after x, which stands behind them, and ĥ behind x."""
    d, A = layout.d, layout.n_rates
    x = at + A * d
    for a in range(A):
        for j in range(d):
            vector[at + a * d + j] = moved(state[layer, a, b, j], vector[x + j], rates[a])
    slow = at + (A - 1) * d
    power = 0.0  # in float64: the squares of small numbers leave the range of float32
    for j in range(d):
        power += np.float64(vector[slow + j]) * np.float64(vector[slow + j])
    scale = np.float32(1 / np.sqrt(power) if power != 0 else 0.0)
    for j in range(d):
        vector[x + d + j] = vector[slow + j] * scale


@_compile
def moved(h, x, a):  # type: ignore[no-untyped-def]
    """(1 - a) h + a x, exact at a = 0 and a = 1."""
    return h + a * (x - h) if a < HALF else x - (x - h) * (ONE - a)


@_compile
def normalise(vector, at, d, norms, which, epsilon):  # type: ignore[no-untyped-def]
    """LayerNorm of vector[at : at + d] in place."""
    mean = np.float32(0)
    for j in range(d):
        mean += vector[at + j]
    mean /= np.float32(d)
    variance = np.float32(0)
    for j in range(d):
        variance += (vector[at + j] - mean) * (vector[at + j] - mean)
    scale = np.float32(1 / np.sqrt(variance / np.float32(d) + np.float32(epsilon)))
    for j in range(d):
        vector[at + j] = (vector[at + j] - mean) * scale * norms[which, 0, j] + norms[which, 1, j]


HALF, ONE = np.float32(0.5), np.float32(1)


@_compile
def largest(rank, b, n, k, active):  # type: ignore[no-untyped-def]
    """Write the indices of the k largest of rank[b, :n] to `active`, ascending; ties go to the lowest index."""
    threshold, ties = cut(rank[b, :n], k)
    kept = 0
    for j in range(n):
        tied = rank[b, j] == threshold and ties > 0
        active[kept] = j
        kept += rank[b, j] > threshold or tied
        ties -= tied
    return kept
