"""Scores of tiles of index keys, by all heads of a few queries: what a program does with each tile that it reads.

It waits once or twice for the matrix unit and three times for other threads, which few other programs fill: that, not
bytes (68 a key, the only traffic that grows with length) or products, is the limit.
Work for each key and head: 2 D floating-point operations on the matrix unit, a maximum and a fused multiply-add.
"""

from __future__ import annotations

import triton
import triton.language as tl

from minidsv41.kernels.index_cut import LARGEST
from minidsv41.kernels.index_keys import LIFT, beside, halves, load_queries, packed_planes, query_planes


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
    words, scales, first, rows, q0, q1, weight, G: tl.constexpr, D: tl.constexpr, DIMS: tl.constexpr,
    PACKED: tl.constexpr, HALVES: tl.constexpr, DOT: tl.constexpr, ASM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Scores [N, G] of keys at `rows` [N] behind `first`, [N, 1] or 0."""
    N: tl.constexpr = rows.shape[0]
    if PACKED:
        k0, k1 = packed_planes(words, scales, first, rows, D, DOT, ASM)
        if HALVES:
            dots = tl.dot(k0, q0, input_precision=PRECISION)
            dots = tl.dot(k1, q1, dots, input_precision=PRECISION)
        else:
            dots = tl.dot(beside(k0, k1), q0, input_precision=PRECISION)
    else:
        dim = tl.arange(0, DIMS)
        key = tl.load(words + first * D + rows[:, None] * D + dim[None, :], (dim < D)[None, :], other=0.0).to(DOT)
        dots = tl.dot(key, q0, input_precision=PRECISION)
    return tl.sum((positive(dots, ASM) * weight[None, :]).reshape(N, G, weight.shape[0] // G), 2)
