"""Scores of index keys, of which a program keeps the k best: no score stays in memory unless it may be among them.

A program takes `G` queries of one sequence and a stretch of its keys. Tile by tile it reads keys (68 B each: the only
traffic that grows with length), multiplies them with all heads of its queries, and puts the scores behind the
candidates of each query, in a buffer of CAP. After a segment of keys those that beat the bound move up to the others,
all at once. A buffer without room for another segment is
cut to the k best, and the worst of these is the next bound.
A tile waits once or twice for the matrix unit and three times for other threads, which few other programs fill: that,
not bytes or products, is the limit.
Work for each key and head: 2 D floating-point operations on the matrix unit, a maximum and a fused multiply-add.
"""

from __future__ import annotations

import triton
import triton.language as tl

from minidsv41.kernels.index_cut import FIRST, LARGEST, NONE, NONE_BITS, cut, ordered, places, row_of
from minidsv41.kernels.index_keys import (
    LIFT,
    beside,
    halves,
    in_pages,
    load_queries,
    packed_planes,
    pages_at,
    physical,
    query_planes,
)


@triton.jit
def squeeze(values, indices, count, K: tl.constexpr, CAP: tl.constexpr, STEP: tl.constexpr):
    """Cut a buffer of `count` candidates to the K best, in place and in order -> its new count, and a bound."""
    every = tl.arange(0, CAP)
    bound, room = cut(tl.load(values + every, every < count, other=NONE), K)
    before = 0
    for first in range(0, count, STEP):
        slot = tl.max_contiguous(first + tl.arange(0, STEP), 1)  # neighbours in neighbouring threads, as when stored
        value = tl.load(values + slot, slot < count, other=NONE)
        index = tl.load(indices + slot, slot < count, other=0)
        keep, place, before = places(value, bound, room, before)
        tl.debug_barrier()  # all are read before one is overwritten
        tl.store(values + place, value, keep)
        tl.store(indices + place, index, keep)
    return tl.minimum(count, K), tl.where(count >= K, bound, NONE)


@triton.jit
def squeeze_full(
    values, indices, slot0, parts, part, counts, bounds, room: tl.constexpr, K: tl.constexpr, CAP: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    """Squeeze those of the buffers of G queries that have less room than `room` -> new counts and bounds [G]."""
    G: tl.constexpr = counts.shape[0]
    member = tl.arange(0, G)
    tl.debug_barrier()  # what other threads appended
    for g in range(G):
        count = tl.sum(tl.where(member == g, counts, 0), 0)
        if count > CAP - room:
            base = ((slot0 + g).to(tl.int64) * parts + part) * CAP
            count, bound = squeeze(values + base, indices + base, count, K, CAP, STEP)
            counts, bounds = tl.where(member == g, count, counts), tl.where(member == g, bound, bounds)
    return counts, bounds


@triton.jit
def positive(x, TWICE: tl.constexpr):
    """max(x, 0), or twice that: a sum, which other units do than those that decode keys and are busiest."""
    return x + tl.abs(x) if TWICE else tl.maximum(x, 0.0)


@triton.jit
def entry(at, limit, blocks, SIZE: tl.constexpr):
    """The index of the entry at a position: itself, or where it lies in the blocks of a pool; LARGEST for none."""
    if blocks is not None:
        block = tl.load(blocks + at // SIZE, at < limit, other=-1)
        at = tl.where(block < 0, LARGEST, block.to(tl.int32) * SIZE + at % SIZE)
    return at


@triton.jit
def append(
    values, indices, base, counts, bounds, first, length, limit, blocks, SEGMENT: tl.constexpr, STEP: tl.constexpr,
    SIZE: tl.constexpr,
):  # fmt: skip
    """Keep what beats the bound of `length` scores behind the candidates of G queries, of positions from `first`.

    -> new counts [G].
    """
    G: tl.constexpr = counts.shape[0]
    W: tl.constexpr = min(STEP // 4, 128)  # four rows of a step are counted in the bytes of one number
    scores, row, to = values + (base + counts)[:, None, None], tl.arange(0, 4), counts
    for begin in range(0, SEGMENT, 4 * W):
        at = begin + row[:, None] * W + tl.arange(0, W)[None, :]
        score = tl.load(scores + at[None, :, :], (at < length)[None, :, :], other=NONE_BITS)  # [G, 4, W]
        value = ordered(score.to(tl.float32, bitcast=True))
        keep = value > bounds[:, None, None]
        four = tl.sum(keep.to(tl.int32) << (8 * row)[None, :, None], 1)
        rank = (tl.cumsum(four, 1)[:, None, :] >> (8 * row)[None, :, None]) & 0xFF
        kept = (tl.sum(four, 1)[:, None] >> (8 * row)[None, :]) & 0xFF  # [G, 4]
        place = (base[:, None] + to[:, None] + tl.cumsum(kept, 1) - kept - 1)[:, :, None] + rank
        tl.debug_barrier()  # all are read before one is overwritten
        tl.store(values + place, value, keep)
        index = entry(first + at, limit, blocks, SIZE)
        tl.store(indices + place, tl.broadcast_to(index[None, :, :], (G, 4, W)), keep)
        to += tl.sum(kept, 1)
    return to


@triton.jit
def load_problem(q, w, row, exists, H: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr, DIMS: tl.constexpr):
    """Queries of rows [G] and the weights of their heads, as stored: [G * HEADS, DIMS] and [G * HEADS]."""
    head = tl.arange(0, HEADS)
    where, held = (row.to(tl.int64) * H)[:, None] + head[None, :], exists[:, None] & (head < H)[None, :]
    weight = tl.load(w + where, held, other=0.0)
    return load_queries(q, row, exists, H, D, HEADS, DIMS), weight.reshape(row.shape[0] * HEADS)


@triton.jit
def operands(query, weight, PACKED: tl.constexpr, HALVES: tl.constexpr, DOT: tl.constexpr, ASM: tl.constexpr):
    """Queries as right operands, in two halves or twice the same, and weights of what is multiplied."""
    query, weight = query.to(DOT), weight.to(tl.float32)
    if ASM:
        weight *= 2.0 ** (LIFT - 1)  # half of what `positive` doubles
    if PACKED:
        query = query_planes(query)
    q0 = query.trans()
    q1 = q0
    if PACKED and HALVES:
        first, second = halves(query)
        q0, q1 = first.trans(), second.trans()
    return q0, q1, weight


@triton.jit
def tile_scores(
    words, scales, rows, q0, q1, weight, G: tl.constexpr, D: tl.constexpr, DIMS: tl.constexpr, PACKED: tl.constexpr,
    HALVES: tl.constexpr, DOT: tl.constexpr, ASM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Scores [N, G] of keys at `rows` [N]."""
    N: tl.constexpr = rows.shape[0]
    if PACKED:
        k0, k1 = packed_planes(words, scales, rows, D, DOT, ASM)
        if HALVES:
            dots = tl.dot(k0, q0, input_precision=PRECISION)
            dots = tl.dot(k1, q1, dots, input_precision=PRECISION)
        else:
            dots = tl.dot(beside(k0, k1), q0, input_precision=PRECISION)
    else:
        dim = tl.arange(0, DIMS)
        key = tl.load(words + rows[:, None] * D + dim[None, :], (dim < D)[None, :], other=0.0).to(DOT)
        dots = tl.dot(key, q0, input_precision=PRECISION)
    return tl.sum((positive(dots, ASM) * weight[None, :]).reshape(N, G, weight.shape[0] // G), 2)


@triton.jit
def score_kernel(
    q, w, words, scales, table, visible, blocks, values, indices, maxima,
    pages, page, n_blocks, row0, seq0, length, group0, per,
    G: tl.constexpr, K: tl.constexpr, CAP: tl.constexpr, SEGMENT: tl.constexpr, STEP: tl.constexpr, N: tl.constexpr,
    H: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr, DIMS: tl.constexpr, PAGE: tl.constexpr, SIZE: tl.constexpr,
    PACKED: tl.constexpr, HALVES: tl.constexpr, WHOLE: tl.constexpr, DOT: tl.constexpr, ASM: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()  # the cut, which waits for the end of all
    part, parts = tl.program_id(1), tl.num_programs(1)
    slot0 = tl.program_id(0) * G
    slot = slot0 + tl.arange(0, G)
    row, exists = row_of(slot, group0, per, length, row0, G)
    seq = seq0 + (group0 + tl.program_id(0)) // per
    seen = tl.load(visible + row, exists, other=0).to(tl.int32)
    base = (slot.to(tl.int64) * parts + part) * CAP
    query, weight = load_problem(q, w, row, exists, H, D, HEADS, DIMS)
    q0, q1, weight = operands(query, weight, PACKED, HALVES, DOT, ASM)
    limit, last = tl.max(seen, 0), tl.max(seen, 0)
    if blocks is not None:  # one query: positions count the entries of its blocks
        limit = tl.minimum((limit + SIZE - 1) // SIZE, n_blocks) * SIZE
        blocks += (row0 + group0 + tl.program_id(0)).to(tl.int64) * n_blocks
    stretch = tl.cdiv(tl.cdiv(limit, parts), N) * N
    begin = part * stretch
    end = tl.minimum(begin + stretch, limit)
    count, bound = tl.zeros([G], tl.int32), tl.full([G], NONE, tl.int32)
    for segment in range(begin, end, SEGMENT):
        if tl.max(count, 0) > CAP - SEGMENT:  # not enough room, should all stay
            count, bound = squeeze_full(values, indices, slot0, parts, part, count, bound, SEGMENT, K, CAP, STEP)
        length_now = tl.cdiv(tl.minimum(SEGMENT, end - segment), N) * N
        if WHOLE:
            near, far, inner = pages_at(table, seq, segment, last, pages, PAGE, N)
        for tile in range(0, length_now, N):
            start = segment + tile
            index = entry(start + tl.arange(0, N), limit, blocks, SIZE)
            if WHOLE:
                rows = in_pages(near, far, inner, PAGE, N)
                near, far, inner = pages_at(table, seq, start + N, last, pages, PAGE, N)
            else:
                rows = physical(table, seq, index, index < last, pages, page, PAGE)
            score = tile_scores(words, scales, rows, q0, q1, weight, G, D, DIMS, PACKED, HALVES, DOT, ASM, PRECISION)
            score = tl.where(index[:, None] < seen[None, :], score, float("-inf"))  # [N, G]
            if maxima is not None:
                block = start // SIZE + tl.arange(0, N // SIZE)
                newest = tl.where(seen > 0, (seen - 1) // SIZE, -1)
                top = ordered(tl.max(score.reshape(N // SIZE, SIZE, G), 1))
                top = tl.where(block[:, None] == newest[None, :], FIRST, top)
                to = maxima + slot.to(tl.int64)[None, :] * n_blocks + block[:, None]
                tl.store(to, top, exists[None, :] & (block < n_blocks)[:, None])
            to = values + (base + count)[None, :] + (tile + tl.arange(0, N))[:, None]
            tl.store(to, score.to(tl.int32, bitcast=True))
        tl.debug_barrier()  # what other threads stored
        count = append(values, indices, base, count, bound, segment, length_now, limit, blocks, SEGMENT, STEP, SIZE)
    count, bound = squeeze_full(values, indices, slot0, parts, part, count, bound, CAP - K, K, CAP, STEP)
    member = tl.arange(0, G)
    for g in range(G):  # what is missing to K is marked as such
        rest = tl.sum(tl.where(member == g, count, 0), 0) + tl.arange(0, CAP)
        to = values + ((slot0 + g).to(tl.int64) * parts + part) * CAP
        tl.store(to + rest, tl.full([CAP], NONE, tl.int32), rest < K)
