"""Tiles of keys of one query: decoded, multiplied twice and added to the softmax, one after another."""

from __future__ import annotations

import triton
import triton.language as tl

from minidsv41.kernels.attention_rows import LOG2E, UNIT, decoded, decoded_words, fetch, fetch_words
from minidsv41.kernels.fragments import by_thread


@triton.jit
def joined(s, keys, rows, lowest, m, total, acc, SCALE: tl.constexpr, PRECISION: tl.constexpr):
    """Keys with products s [heads, N] join the softmax: maximum m (base 2), denominator in eight parts, outputs."""
    N: tl.constexpr = s.shape[1]
    # Unless scores pass a branch, each half of the warps computes all of them (the layout of chained products).
    if lowest < 0:
        s = tl.where((tl.load(rows + tl.arange(0, N)) >= 0)[None, :], s, float("-inf"))
    top = tl.maximum(m, tl.max(s, 1) * (SCALE * LOG2E))
    p, less = tl.exp2(s * (SCALE * LOG2E) - top[:, None]), tl.exp2(m - top)
    same = tl.max(tl.max(by_thread(tl.broadcast_to(less[:, None], s.shape)), 4), 2)  # `less`, placed as `total` is
    total = total * same + tl.sum(tl.sum(by_thread(p), 4), 2)
    acc = tl.dot(p.to(keys.dtype), keys, acc * less[:, None], input_precision=PRECISION)
    return top, total, acc


@triton.jit
def over_tiles(
    q, rows, tile, end, data, scales, words, pairs, lowest, m, total, acc, D: tl.constexpr, HALF: tl.constexpr,
    N: tl.constexpr, FORMAT: tl.constexpr, PRECISION: tl.constexpr, FP8: tl.constexpr, PACKED: tl.constexpr,
    STAGES: tl.constexpr, RUNS: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """`joined` with the keys of tiles tile..end - 1. The next tile is fetched while one is multiplied.

    words, pairs: where AHEAD, what was fetched of the first tile.
    """
    slot = tl.arange(0, N)
    SCALE: tl.constexpr = D**-0.5 * (UNIT if PACKED and FORMAT == "main" else 1.0)
    if AHEAD:
        for t in tl.range(tile, end, num_stages=1, disable_licm=True):
            row = tl.load(rows + (t + 1) * N + slot, t + 1 < end, other=-1)
            keys = decoded_words(words, pairs, HALF, FP8)
            s = tl.dot(q, tl.trans(keys), input_precision=PRECISION)
            words, pairs = fetch_words(data, scales, row, HALF)
            m, total, acc = joined(s, keys, rows + t * N, lowest, m, total, acc, SCALE, PRECISION)
    else:
        row = tl.load(rows + tile * N + slot, tile < end, other=-1)
        for t in tl.range(tile, end, num_stages=STAGES, disable_licm=True):
            if STAGES > 1:  # the compiler's pipeline loads rows ahead
                row = tl.load(rows + t * N + slot)
            stored, scale = fetch(data, scales, row, D, HALF, FORMAT, PACKED, RUNS)
            keys = decoded(stored, scale, HALF, FORMAT, q.dtype, FP8, PACKED, RUNS)
            s = tl.dot(q, tl.trans(keys), input_precision=PRECISION)
            if STAGES == 1:
                row = tl.load(rows + (t + 1) * N + slot, t + 1 < end, other=-1)
            m, total, acc = joined(s, keys, rows + t * N, lowest, m, total, acc, SCALE, PRECISION)
    return m, total, acc
