"""Heads of single queries in attention: loaded in the order that keys are decoded in, put together of parts, written.

`combine` adds up the parts of a query: a few heads a program, 1 KB of bfloat16 a head and part.
"""

from __future__ import annotations

import triton
import triton.language as tl

from minidsv41.kernels.attention_rows import LOG2E, columns, in_order

LOWEST = tl.constexpr(-1e30)  # the maximum of no scores: finite, so that differences are numbers


@triton.jit
def load_heads(q, token, head, H, D: tl.constexpr, HALF: tl.constexpr, RUNS: tl.constexpr = 2):
    """[heads, 2 * HALF] of a token's queries."""
    column = columns(HALF, RUNS)
    inside = (head < H)[:, None] if D == 2 * HALF else (head < H)[:, None] & (column < D)[None, :]
    return tl.load(q + (token * H + head)[:, None] * D + column[None, :], inside, other=0.0)


@triton.jit
def rotation(cos, sin, token, D: tl.constexpr, HALF: tl.constexpr, PAIRS: tl.constexpr):
    """cos and sin [HALF] of a token, for all pairs of a head: only the last PAIRS are turned."""
    pair = tl.arange(0, HALF) - (D // 2 - PAIRS)
    if PAIRS > 0:
        turned = (pair >= 0) & (pair < PAIRS)
        c = tl.load(cos + token * PAIRS + pair, turned, other=1.0).to(tl.float32)
        s = tl.load(sin + token * PAIRS + pair, turned, other=0.0).to(tl.float32)
    else:
        c, s = pair, pair
    return c, s


@triton.jit
def rotated_back(x, turn, HALF: tl.constexpr):
    """Undo the `rotation` of head outputs [heads, 2 * HALF], columns in order."""
    HEADS: tl.constexpr = x.shape[0]
    c, s = turn[0][None, :], turn[1][None, :]
    a, b = x.reshape(HEADS, HALF, 2).split()
    return tl.join(a * c + b * s, b * c - a * s).reshape(HEADS, 2 * HALF)


@triton.jit
def finish(
    out, o, head, token, turn, H, D: tl.constexpr, HALF: tl.constexpr, PAIRS: tl.constexpr, RUNS: tl.constexpr = 2
):  # fmt: skip
    """Write a token's head outputs, rotated back by `turn` (of `rotation`)."""
    o, c = in_order(o, HALF, RUNS), tl.arange(0, 2 * HALF)
    if PAIRS > 0:
        o = rotated_back(o, turn, HALF)
    inside = (head < H)[:, None] if D == 2 * HALF else (head < H)[:, None] & (c < D)[None, :]
    tl.store(out + (token * H + head)[:, None] * D + c[None, :], o.to(out.dtype.element_ty), inside)


@triton.jit
def combine(
    out, lse, stat, part, cos, sin, H, D: tl.constexpr, HALF: tl.constexpr, HEADS: tl.constexpr,
    SPLITS: tl.constexpr, PAIRS: tl.constexpr, RUNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Some heads of a query: the parts' outputs, weighed by their share in the denominator, make one."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    c, real = tl.arange(0, 2 * HALF), head < H
    totals = stat + tl.num_programs(0).to(tl.int64) * SPLITS * H
    turn = rotation(cos, sin, token, D, HALF, PAIRS)
    tops, sums, parts = (), (), ()
    for split in tl.static_range(SPLITS):
        at = (token * SPLITS + split) * H + head
        tops = tops + (tl.load(stat + at, real, other=LOWEST),)
        sums = sums + (tl.load(totals + at, real, other=1.0),)
        parts = parts + (tl.load(part + at[:, None] * (2 * HALF) + c[None, :], real[:, None], other=0.0),)
    tl.debug_barrier()  # no load may move behind it: all are on their way before one is waited for
    top = tops[0]
    for split in tl.static_range(1, SPLITS):
        top = tl.maximum(top, tops[split])
    total = tl.zeros([HEADS], tl.float32)
    acc = tl.zeros([HEADS, 2 * HALF], tl.float32)
    for split in tl.static_range(SPLITS):
        weight = tl.exp2(tops[split] - top)
        total += weight * sums[split]
        acc += weight[:, None] * parts[split].to(tl.float32)
    tl.store(lse + token * H + head, (top + tl.log2(total)) / LOG2E, real)
    finish(out, acc * (1.0 / total)[:, None], head, token, turn, H, D, HALF, PAIRS, RUNS)
