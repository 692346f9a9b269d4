"""Heads of single queries in attention: loaded in the order that keys are decoded in, put together of parts, written.

`combine` adds up the parts of a query: a few heads a program, 1 KB of bfloat16 a head and part.
"""

from __future__ import annotations

import triton
import triton.language as tl

from minidsv41.kernels.attention_rows import LOG2E, columns, in_order, places_of

LOWEST = tl.constexpr(-1e30)  # the maximum of no scores: finite, so that differences are numbers


@triton.jit
def load_heads(q, token, head, H, D: tl.constexpr, HALF: tl.constexpr, RUNS: tl.constexpr = 2):
    """[heads, 2 * HALF] of a token's queries."""
    column = columns(HALF, RUNS)
    inside = (head < H)[:, None] if D == 2 * HALF else (head < H)[:, None] & (column < D)[None, :]
    return tl.load(q + (token * H + head)[:, None] * D + column[None, :], inside, other=0.0)


@triton.jit
def rotation(cos, sin, token, D: tl.constexpr, HALF: tl.constexpr, PAIRS: tl.constexpr, LINES: tl.constexpr = 0):
    """cos and sin [1, HALF] of a token, for all pairs of a head: only the last PAIRS are turned.

    LINES: as many heads are turned, [LINES, HALF], so that each thread loads what it needs itself.
    """
    pair = tl.arange(0, HALF) - (D // 2 - PAIRS)
    if LINES:
        pair = tl.broadcast_to(pair[None, :], LINES, HALF)
    if PAIRS > 0:
        turned = (pair >= 0) & (pair < PAIRS)
        c = tl.load(cos + token * PAIRS + pair, turned, other=1.0).to(tl.float32)
        s = tl.load(sin + token * PAIRS + pair, turned, other=0.0).to(tl.float32)
    else:
        c, s = pair, pair
    if LINES == 0:
        c, s = c[None, :], s[None, :]
    return c, s


@triton.jit
def rotated_back(x, turn, HALF: tl.constexpr):
    """Undo the `rotation` of head outputs [heads, 2 * HALF], columns in order."""
    HEADS: tl.constexpr = x.shape[0]
    c, s = turn[0], turn[1]
    a, b = x.reshape(HEADS, HALF, 2).split()
    return tl.join(a * c + b * s, b * c - a * s).reshape(HEADS, 2 * HALF)


@triton.jit
def finish(
    out, o, head, token, turn, H, D: tl.constexpr, HALF: tl.constexpr, PAIRS: tl.constexpr, RUNS: tl.constexpr = 2
):  # fmt: skip
    """Write a token's head outputs, rotated back by `turn` (of `rotation`)."""
    c = tl.arange(0, 2 * HALF)
    if RUNS > 1:
        o = in_order(o, HALF, RUNS)
    if PAIRS > 0:
        o = rotated_back(o, turn, HALF)
    inside = (head < H)[:, None] if D == 2 * HALF else (head < H)[:, None] & (c < D)[None, :]
    tl.store(out + (token * H + head)[:, None] * D + c[None, :], o.to(out.dtype.element_ty), inside)


@triton.jit
def combine(
    out, lse, stat, part, cos, sin, H: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, HEADS: tl.constexpr,
    SPLITS: tl.constexpr, PAIRS: tl.constexpr, RUNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Some heads of a query: the parts' outputs, weighed by their share in the denominator, make one."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    real = head < H if H % HEADS else tl.full([HEADS], True, tl.int1)
    place = head[:, None] * (2 * HALF) + places_of(HALF, RUNS)[None, :]
    part += token * (SPLITS * H * 2 * HALF)
    stat += token * (SPLITS * H)
    totals = stat + tl.num_programs(0).to(tl.int64) * (SPLITS * H)
    tops, sums, parts = (), (), ()
    for split in tl.static_range(SPLITS):
        parts = parts + (tl.load(part + split * (H * 2 * HALF) + place, real[:, None], other=0.0),)
    turn = rotation(cos, sin, token, D, HALF, PAIRS, HEADS)
    tl.debug_barrier()  # all of these are on their way before the weights, which they wait for, are asked for
    for split in tl.static_range(SPLITS):
        tops = tops + (tl.load(stat + split * H + head, real, other=LOWEST),)
        sums = sums + (tl.load(totals + split * H + head, real, other=1.0),)
    top = tops[0]
    for split in tl.static_range(1, SPLITS):
        top = tl.maximum(top, tops[split])
    total = tl.zeros([HEADS], tl.float32)
    acc = tl.zeros([HEADS, 2 * HALF], tl.float32)
    for split in tl.static_range(SPLITS):
        weight = tl.exp2(tops[split] - top)
        total += weight * sums[split]
        acc += weight[:, None] * parts[split].to(tl.float32)
    if lse is not None:
        tl.store(lse + token * H + head, (top + tl.log2(total)) / LOG2E, real)
    finish(out, acc * (1.0 / total)[:, None], head, token, turn, H, D, HALF, PAIRS, 1)
