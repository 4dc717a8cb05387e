"""One token of one stream through all of SPEN in one kernel.

A token needs three matmuls per block, each of which needs all of the one before it. As kernels of their own they would
be too short to fill the memory's pipeline, so one kernel keeps a program on every multiprocessor for the whole token:
each owns some rows of every matrix and fetches those of the next matmul while it waits for the results of the others.
It fetches no further ahead: a warp counts its loads on so few counters that whoever waits for the exchanged numbers
waits for all weights that were asked for before them, too.

Results are exchanged through memory, a 32-bit word for each number. A word is EMPTY until its owner writes it, once,
and readers ask until no word is EMPTY: the data is its own flag, so no fence and no counter is on the way. Every
exchange of a token has words of its own; there are two sets of them, and a token that uses one empties the other, which
the end of the kernel makes known to all. No program can be late for an exchange: the next one needs its part.
All programs must be resident together, one on each multiprocessor, or they would wait for one that never starts: no
more programs than multiprocessors, and no two such kernels at the same time on different streams.

Weights are pairs of bfloat16 in 32-bit words (`pack_pairs`): column j of a row's first half in the low bits, column j
of its second half in the high bits, so that both unpack in one instruction. All arithmetic is in float32.
"""

# mypy: disallow-untyped-decorators=false, disallow-untyped-defs=false, disallow-incomplete-defs=false
# mypy: disable-error-code="assignment,misc,unreachable"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ematrace.spen.decode.gpu_topk import keep_topk, rank_key

EMPTY = tl.constexpr(-1)
"""As a float a NaN that no computation returns; `_word` maps every NaN to another."""
PATIENCE = tl.constexpr(1 << 20)
"""Times to ask for missing words, about a second, before giving up: `status` then tells, and the GPU is not lost."""
SMALLEST = tl.constexpr(-(1 << 63))
LINE = tl.constexpr(32)
"""Words of a cache line: a line that is read as a whole must not hold another exchange."""

CONTEXT, UNITS, OUTPUT, HEAD = 1, 2, 4, 8
WHOLE = CONTEXT | UNITS | OUTPUT | HEAD
"""What a launch does: a whole token, or one part of it for one block (for tests, where programs run one by one)."""
_CONTEXT, _UNITS, _OUTPUT = tl.constexpr(CONTEXT), tl.constexpr(UNITS), tl.constexpr(OUTPUT)
_HEAD, _WHOLE = tl.constexpr(HEAD), tl.constexpr(WHOLE)


@triton.jit
def _wide(number):
    return tl.zeros((), tl.int64) + number


@triton.jit
def _low(pair):
    return (pair << 16).to(tl.float32, bitcast=True)


@triton.jit
def _high(pair):
    return (pair & -65536).to(tl.float32, bitcast=True)


@triton.jit
def _word(value):
    """A float's bits, never EMPTY."""
    return tl.where(value != value, float("nan"), value).to(tl.int32, bitcast=True)


@triton.jit
def _missing(low, high):
    return tl.sum(((low == EMPTY) | (high == EMPTY)).to(tl.int32))


@triton.jit
def _receive(words_ptr, at, half, inside, status_ptr):
    """Both halves of an exchanged vector, [BLOCK] each, as soon as all of it is there.

    The tensors must have at least 4 elements a thread: a smaller one is held by several threads, and the one that is
    asked might have it while another does not.
    """
    low = tl.load(words_ptr + at, mask=inside, other=0, volatile=True)
    high = tl.load(words_ptr + half + at, mask=inside, other=0, volatile=True)
    asked = 0
    while (_missing(low, high) > 0) & (asked < PATIENCE):
        low = tl.load(words_ptr + at, mask=inside, other=0, volatile=True)
        high = tl.load(words_ptr + half + at, mask=inside, other=0, volatile=True)
        asked += 1
    if asked == PATIENCE:
        tl.store(status_ptr, 1)
    return low.to(tl.float32, bitcast=True), high.to(tl.float32, bitcast=True)


@triton.jit
def _n_missing(words_ptr, N: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    words = tl.load(words_ptr + at, mask=at < N, other=0, volatile=True)
    return tl.sum((words == EMPTY).to(tl.int32))


@triton.jit
def _await(words_ptr, N: tl.constexpr, BLOCK: tl.constexpr, status_ptr):
    """Returns when all N words are there. Ordinary loads may follow: no cache has a word that was not there."""
    asked = 0
    missing = _n_missing(words_ptr, N, BLOCK)
    while (missing > 0) & (asked < PATIENCE):
        missing = _n_missing(words_ptr, N, BLOCK)
        asked += 1
    if asked == PATIENCE:
        tl.store(status_ptr, 1)


@triton.jit
def _rows(weights_ptr, row, wanted, column, COLUMNS: tl.constexpr):
    """[R, C] pairs; rows that are not wanted are 0 and cost no memory traffic."""
    return tl.load(
        weights_ptr + row.to(tl.int64)[:, None] * COLUMNS + column[None, :],
        mask=wanted[:, None] & (column < COLUMNS)[None, :],
        other=0,
        eviction_policy="evict_first",
    )


@triton.jit
def _product(pairs, low, high):
    """[R, C] pairs times a vector in halves [C] to [R]."""
    total = _low(pairs) * low[None, :]
    total += _high(pairs) * high[None, :]
    return tl.sum(total, axis=1)


@triton.jit
def _chunks(words_ptr, D: tl.constexpr, CHUNK: tl.constexpr, WARPS: tl.constexpr):
    """D exchanged numbers that have all arrived, each half in chunks [WARPS, CHUNK], with mean and variance [WARPS].

    Each row is the same and belongs to one warp, which so has all of the vector and reduces it by itself.
    """
    HALF: tl.constexpr = D // 2
    CHUNKS: tl.constexpr = (HALF + CHUNK - 1) // CHUNK
    column = tl.arange(0, CHUNK)[None, :] + tl.zeros((WARPS, 1), tl.int32)
    low, high = (), ()
    total = tl.zeros((WARPS, CHUNK), tl.float32)
    for i in tl.static_range(CHUNKS):
        at = i * CHUNK + column
        low += (tl.load(words_ptr + at, mask=at < HALF, other=0).to(tl.float32, bitcast=True),)
        high += (tl.load(words_ptr + HALF + at, mask=at < HALF, other=0).to(tl.float32, bitcast=True),)
        total += low[i] + high[i]
    mean = tl.sum(total, axis=1) / D
    square = tl.zeros((WARPS, CHUNK), tl.float32)
    for i in tl.static_range(CHUNKS):
        inside = i * CHUNK + column < HALF
        off_low, off_high = low[i] - mean[:, None], high[i] - mean[:, None]
        square += tl.where(inside, off_low * off_low + off_high * off_high, 0.0)
    return low, high, mean, tl.sum(square, axis=1) / D


@triton.jit
def _normed(words_ptr, weight_ptr, bias_ptr, eps, D: tl.constexpr, CHUNK: tl.constexpr, WARPS: tl.constexpr):
    """LayerNorm, in the same chunks."""
    HALF: tl.constexpr = D // 2
    low, high, mean, variance = _chunks(words_ptr, D, CHUNK, WARPS)
    scale = 1.0 / tl.sqrt(variance + eps)
    column = tl.arange(0, CHUNK)[None, :] + tl.zeros((WARPS, 1), tl.int32)
    n_low, n_high = (), ()
    for i in tl.static_range((HALF + CHUNK - 1) // CHUNK):
        at = i * CHUNK + column
        inside = at < HALF
        g = tl.load(weight_ptr + at, mask=inside, other=0.0)
        b = tl.load(bias_ptr + at, mask=inside, other=0.0)
        n_low += ((low[i] - mean[:, None]) * scale[:, None] * g + b,)
        g = tl.load(weight_ptr + HALF + at, mask=inside, other=0.0)
        b = tl.load(bias_ptr + HALF + at, mask=inside, other=0.0)
        n_high += ((high[i] - mean[:, None]) * scale[:, None] * g + b,)
    return n_low, n_high


@triton.jit
def _row_chunks(weights_ptr, row, wanted, HALF: tl.constexpr, CHUNK: tl.constexpr):
    """The pairs of rows [WARPS, R] in chunks [WARPS, R, CHUNK]: a warp has whole rows, R of them."""
    column = tl.arange(0, CHUNK)[None, None, :]
    row_ptr = weights_ptr + row.to(tl.int64)[:, :, None] * HALF
    tiles = ()
    for i in tl.static_range((HALF + CHUNK - 1) // CHUNK):
        at = i * CHUNK + column
        inside = wanted[:, :, None] & (at < HALF)
        tiles += (tl.load(row_ptr + at, mask=inside, other=0, eviction_policy="evict_first"),)
    return tiles


@triton.jit
def _chunked_product(tiles, n_low, n_high, CHUNKS: tl.constexpr):
    """[WARPS, R]."""
    total = _low(tiles[0]) * n_low[0][:, None, :]
    total += _high(tiles[0]) * n_high[0][:, None, :]
    for i in tl.static_range(1, CHUNKS):
        total += _low(tiles[i]) * n_low[i][:, None, :]
        total += _high(tiles[i]) * n_high[i][:, None, :]
    return tl.sum(total, axis=2)


@triton.jit
def _score(tiles, n, logits_ptr, row, end, best, CHUNKS: tl.constexpr):
    """Logits of some rows, and the best so far: larger logits have larger keys, and of equal ones the first row has."""
    logit = _chunked_product(tiles, n[0], n[1], CHUNKS)
    tl.store(logits_ptr + row, logit, mask=row < end)
    key = (rank_key(logit, row < end).to(tl.int64) << 32) | (0x7FFFFFFF - row).to(tl.int64)
    return tl.maximum(best, tl.where(row < end, key, SMALLEST))


@triton.jit(do_not_specialize=["greedy", "first_layer", "last_layer", "n_layers"])
def decode_token(
    ids_ptr,  # [1] int64, the token, unless `greedy`
    best_ptr,  # [2] int64: key of the largest logit << 32 | (2^31 - 1 - its row), of this token and the one before
    history_ptr,  # [HISTORY] int64: the tokens that were read
    clock_ptr,  # [1] int32: tokens read so far
    status_ptr,  # [1] int32: 1 when an exchange was given up
    state_ptr,  # [n_layers, A, D] float32
    next_state_ptr,  # the same memory when a whole token is read
    rates_ptr,  # [2, A] float32: 1 - alpha, alpha
    hints_ptr,  # [2, n_layers] float32: thresholds of the last two tokens
    words_ptr,  # [2, n_layers, words_of_a_block(D, D_FF)] int32: c, then x', then z
    embedding_ptr,  # [vocabulary, D / 2] pairs
    mix_ptr,  # [n_layers, D, (A + 2) D / 2] pairs
    up_ptr,  # [n_layers, D_FF, D / 2] pairs: W_up times the norm's weight
    up_sums_ptr,  # [n_layers, 2, D_FF] float32: sums of these rows, and W_up times the norm's bias
    down_ptr,  # [n_layers, D, D_FF / 2] pairs
    norm_ptr,  # [2, D] float32: weight and bias of the final norm
    head_ptr,  # [vocabulary, D / 2] pairs
    logits_ptr,  # [vocabulary] float32
    eps,
    greedy,  # not 0: read the token that the last logits put first
    first_layer,
    last_layer,
    n_layers,
    A: tl.constexpr,
    D: tl.constexpr,
    D_FF: tl.constexpr,
    VOCABULARY: tl.constexpr,
    K: tl.constexpr,  # 0: dense
    DIRECT: tl.constexpr,  # residual "direct": x' = c + W_down z
    HISTORY: tl.constexpr,
    ROWS_D: tl.constexpr,  # of D and of D_FF that a program owns, and the same as powers of two
    ROWS_FF: tl.constexpr,
    ROWS_HEAD: tl.constexpr,
    BLOCK_ROWS_D: tl.constexpr,
    BLOCK_ROWS_FF: tl.constexpr,
    BLOCK_ROWS_HEAD: tl.constexpr,
    BLOCK_MIX: tl.constexpr,  # powers of two that hold (A + 2) D / 2, D_FF / 2, D
    BLOCK_DOWN: tl.constexpr,
    BLOCK_D: tl.constexpr,
    CHUNK: tl.constexpr,
    WARPS: tl.constexpr,  # num_warps of the launch
    PARTS: tl.constexpr,
):
    HALF: tl.constexpr = D // 2
    HALF_FF: tl.constexpr = D_FF // 2
    MIX: tl.constexpr = (A + 2) * HALF
    CHUNKS: tl.constexpr = (HALF + CHUNK - 1) // CHUNK
    WORDS_D: tl.constexpr = (D + LINE - 1) // LINE * LINE
    EXCHANGED: tl.constexpr = 2 * WORDS_D + (D_FF + LINE - 1) // LINE * LINE
    program = tl.program_id(0)
    clock = tl.load(clock_ptr)
    side = clock & 1
    given, best_0, best_1 = tl.load(ids_ptr), tl.load(best_ptr), tl.load(best_ptr + 1)
    token = tl.where(greedy != 0, 0x7FFFFFFF - (tl.where(side == 0, best_1, best_0) & 0x7FFFFFFF), given)
    mine_ptr = words_ptr + side * n_layers * EXCHANGED
    other_ptr = words_ptr + (1 - side) * n_layers * EXCHANGED

    in_d = tl.arange(0, BLOCK_ROWS_D)
    row_d = program * ROWS_D + in_d
    own_d = (in_d < ROWS_D) & (row_d < D)
    in_ff = tl.arange(0, WARPS)[:, None] + WARPS * tl.arange(0, BLOCK_ROWS_FF // WARPS)[None, :]
    row_ff = program * ROWS_FF + in_ff
    own_ff = (in_ff < ROWS_FF) & (row_ff < D_FF)

    # Position i of the context's input, v = [h_1 ... h_A, x, ĥ]: pair `at` of part `part`.
    i = tl.arange(0, BLOCK_MIX)
    in_mix = i < MIX
    part = i // HALF
    at = i % HALF
    trace = tl.where(part < A, part, A - 1)  # ĥ is the slow trace too
    is_trace = in_mix & (part != A)
    is_unit = part == A + 1
    keep = tl.where(part == A, 0.0, tl.load(rates_ptr + trace))
    alpha = tl.where(part == A, 1.0, tl.load(rates_ptr + A + trace))
    stored = in_mix & (part < A)
    store_low = stored & (at // ROWS_D == program)
    store_high = stored & ((at + HALF) // ROWS_D == program)
    in_down = tl.arange(0, BLOCK_DOWN)
    inside_down = in_down < HALF_FF

    if _CONTEXT & PARTS:
        w_mix = _rows(mix_ptr + _wide(first_layer) * D * MIX, row_d, own_d, i, MIX)
        h_at = state_ptr + first_layer * A * D + trace * D + at
        h_low = tl.load(h_at, mask=is_trace, other=0.0)
        h_high = tl.load(h_at + HALF, mask=is_trace, other=0.0)
    if (_CONTEXT | _OUTPUT) & PARTS:
        valid = tl.where((token >= 0) & (token < VOCABULARY), token, 0)
        pairs = tl.load(embedding_ptr + valid * HALF + at, mask=in_mix, other=0)
        x_low, x_high = _low(pairs), _high(pairs)
        pair = tl.load(embedding_ptr + valid * HALF + row_d % HALF, mask=own_d, other=0)
        x_own = tl.where(row_d < HALF, _low(pair), _high(pair))
        if PARTS != _WHOLE and first_layer > 0:  # an earlier launch has it all
            before_ptr = mine_ptr + (first_layer - 1) * EXCHANGED + WORDS_D
            x_low = tl.load(before_ptr + at, mask=in_mix, other=0).to(tl.float32, bitcast=True)
            x_high = tl.load(before_ptr + HALF + at, mask=in_mix, other=0).to(tl.float32, bitcast=True)
            x_own = tl.load(before_ptr + row_d, mask=own_d, other=0).to(tl.float32, bitcast=True)

    for layer in range(first_layer, last_layer):
        c_ptr = mine_ptr + layer * EXCHANGED
        x_ptr = c_ptr + WORDS_D
        z_ptr = c_ptr + 2 * WORDS_D

        if _CONTEXT & PARTS:  # c = x + M [h; x; ĥ]
            v_low = keep * h_low + alpha * x_low
            v_high = keep * h_high + alpha * x_high
            slow = tl.where(is_unit & in_mix, v_low * v_low + v_high * v_high, 0.0)
            length = tl.sqrt(tl.sum(slow))
        if _UNITS & PARTS:
            w_up = _row_chunks(up_ptr + _wide(layer) * D_FF * HALF, row_ff, own_ff, HALF, CHUNK)
        if _CONTEXT & PARTS:
            unit = tl.where(is_unit, 1.0 / tl.where(length == 0, float("inf"), length), 1.0)
            c_own = x_own + _product(w_mix, v_low * unit, v_high * unit)
            tl.store(c_ptr + row_d, _word(c_own), mask=own_d)

        if _UNITS & PARTS:  # z = GELU(W_up LN(c)), the norm taken out of the matmul
            row_sum = tl.load(up_sums_ptr + layer * 2 * D_FF + row_ff, mask=own_ff, other=0.0)
            offset = tl.load(up_sums_ptr + (layer * 2 + 1) * D_FF + row_ff, mask=own_ff, other=0.0)
            _await(c_ptr, D, BLOCK_D, status_ptr)
            c_low, c_high, mean, variance = _chunks(c_ptr, D, CHUNK, WARPS)
            u = _chunked_product(w_up, c_low, c_high, CHUNKS) - mean[:, None] * row_sum
            u = u * tl.rsqrt(variance + eps)[:, None] + offset
            z = 0.5 * u * (1.0 + tl.erf(u * 0.7071067811865476))
            tl.store(z_ptr + row_ff, _word(z), mask=own_ff)
        if _CONTEXT & PARTS:
            # All of c is there, so that nobody needs the old state any more.
            state_at = next_state_ptr + layer * A * D + trace * D + at
            tl.store(state_at, v_low, mask=store_low)
            tl.store(state_at + HALF, v_high, mask=store_high)

        if _OUTPUT & PARTS:  # x' = x + W_down topk(z)
            w_down = _rows(down_ptr + _wide(layer) * D * HALF_FF, row_d, own_d, in_down, HALF_FF)
            # What the last token left in the other set is emptied for the next one.
            emptied_ptr = other_ptr + layer * EXCHANGED
            tl.store(emptied_ptr + row_d, EMPTY, mask=own_d)
            tl.store(emptied_ptr + WORDS_D + row_d, EMPTY, mask=own_d)
            tl.store(emptied_ptr + 2 * WORDS_D + row_ff, EMPTY, mask=own_ff)
            hint = tl.load(hints_ptr + (1 - side) * n_layers + layer)
            z_low, z_high = _receive(z_ptr, in_down, HALF_FF, inside_down, status_ptr)
            if PARTS == _WHOLE:  # the next block's weights and state, none after the last
                left = tl.where(_wide(layer) + 1 < last_layer, 1 << 30, 0)
                w_mix = _rows(mix_ptr + _wide(layer + 1) * D * MIX, row_d, own_d & (row_d < left), i, MIX)
                h_at = state_ptr + (layer + 1) * A * D + trace * D + at
                h_low = tl.load(h_at, mask=is_trace & (i < left), other=0.0)
                h_high = tl.load(h_at + HALF, mask=is_trace & (i < left), other=0.0)
            if K > 0 and K < D_FF:
                z_low, z_high, threshold = keep_topk(z_low, z_high, in_down, inside_down, HALF_FF, K, hint)
                tl.store(hints_ptr + side * n_layers + layer, threshold, mask=program == 0)
            if DIRECT:
                x_own = tl.load(c_ptr + row_d, mask=own_d, other=0).to(tl.float32, bitcast=True)
            x_own += _product(w_down, z_low, z_high)
            tl.store(x_ptr + row_d, _word(x_own), mask=own_d)
            if PARTS == _WHOLE:
                # One more trip to the L2 than `_receive`, but each number makes it once and not A + 2 times.
                _await(x_ptr, D, BLOCK_D, status_ptr)
                x_low = tl.load(x_ptr + at, mask=in_mix, other=0).to(tl.float32, bitcast=True)
                x_high = tl.load(x_ptr + HALF + at, mask=in_mix, other=0).to(tl.float32, bitcast=True)

    if _HEAD & PARTS:  # logits = W_head LN(x)
        x_ptr = mine_ptr + (n_layers - 1) * EXCHANGED + WORDS_D
        in_head = tl.arange(0, WARPS)[:, None] + WARPS * tl.arange(0, BLOCK_ROWS_HEAD // WARPS)[None, :]
        start = program * ROWS_HEAD
        end = tl.minimum(start + ROWS_HEAD, VOCABULARY)
        row = start + in_head
        w_head = _row_chunks(head_ptr, row, row < end, HALF, CHUNK)
        _await(x_ptr, D, BLOCK_D, status_ptr)
        n = _normed(x_ptr, norm_ptr, norm_ptr + D, eps, D, CHUNK, WARPS)
        best = tl.full((WARPS, BLOCK_ROWS_HEAD // WARPS), SMALLEST, tl.int64)
        for _ in range(0, ROWS_HEAD, BLOCK_ROWS_HEAD):
            later = row + BLOCK_ROWS_HEAD
            w_next = _row_chunks(head_ptr, later, later < end, HALF, CHUNK)
            best = _score(w_head, n, logits_ptr, row, end, best, CHUNKS)
            w_head, row = w_next, later
        tl.atomic_max(best_ptr + side, tl.max(tl.max(best, axis=1), axis=0), sem="relaxed")
        # All programs have read these: each has sent its part of the last x.
        if program == tl.num_programs(0) - 1:
            tl.store(history_ptr + clock % HISTORY, token)
            tl.store(best_ptr + 1 - side, SMALLEST)
            tl.store(clock_ptr, clock + 1)


INTERPRETED = not isinstance(decode_token, triton.JITFunction)  # by TRITON_INTERPRET=1, for tests without a GPU


def words_of_a_block(d: int, d_ff: int) -> int:
    """Words that the exchanges of c, x' and z need, each in lines of its own."""
    line: int = LINE.value
    return sum(-(-n // line) * line for n in (d, d, d_ff))


def pack_pairs(weight: Tensor, parts: int = 1) -> Tensor:
    """[rows, columns] as pairs of bfloat16, [rows, columns / 2] int32; columns are `parts` vectors, each halved."""
    halves = weight.to(torch.bfloat16).unflatten(1, (parts, 2, -1)).view(torch.int16).to(torch.int32)
    pairs: Tensor = (halves[:, :, 0] & 0xFFFF) | (halves[:, :, 1] << 16)
    return pairs.flatten(1).contiguous()
