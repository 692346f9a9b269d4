"""Rows of new keys inside a kernel: asked for, and then normed, rotated, packed and stored, in pieces."""

from __future__ import annotations

import triton
import triton.language as tl

from minidsv41.kernels.packing import INTERPRETED, LIFTED, packed, packed_pair, rounded, stored
from minidsv41.kernels.streams import widened


@triton.jit
def angles(row, cos, sin, WIDE: tl.constexpr, R: tl.constexpr):
    """cos and sin [M, WIDE / 2] of `row` [M] for pairs of channels, of which the last R are turned."""
    p = (tl.arange(0, WIDE // 2) - (WIDE - R) // 2)[None, :]
    at = row[:, None] * (R // 2) + p
    return tl.load(cos + at, p >= 0, 1.0), tl.load(sin + at, p >= 0, 0.0)  # the others stay what they are


@triton.jit
def turned(x, c, s, TYPE: tl.constexpr):
    """Turn pairs of channels of x [M, WIDE]."""
    a, b = x.reshape(x.shape[0], x.shape[1] // 2, 2).split()
    return tl.join(rounded(a * c - b * s, TYPE), rounded(a * s + b * c, TYPE)).reshape(x.shape[0], x.shape[1])


@triton.jit
def inverse_rms(total, D: tl.constexpr, eps):
    """Of a row with `total` as its sum of squares; NaN if that is not finite."""
    return tl.rsqrt(total / D + eps) + (total - total)


@triton.jit
def asked(x, cos, sin, seq, index, row, n, stride, PIECES: tl.constexpr, R: tl.constexpr, WIDE: tl.constexpr):
    """What comes from afar for rows `row` [ROWS]: sequence, entry, cos and sin, pieces."""
    row = tl.minimum(row, n - 1).to(tl.int64)  # beyond the last row it comes again, not to be stored
    own, entry = tl.load(seq + row), tl.load(index + row)
    c, s = angles(row, cos, sin, WIDE, R)
    tl.debug_barrier()  # these are asked for here: the compiler would do so where they are needed
    here = x + row[:, None] * stride + tl.arange(0, WIDE)[None, :]
    pieces = ()
    for i in tl.static_range(PIECES):
        pieces += (tl.load(here + i * WIDE),)
    return own, entry, c, s, pieces


@triton.jit
def written(
    pieces, c, s, at, norm, data, scales, eps, D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
    GROUP: tl.constexpr, WORD: tl.constexpr, FORM: tl.constexpr, TYPE: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """Norm, rotation and packing of pieces, stored as physical rows `at`."""
    d = tl.arange(0, WIDE)
    squares, weighed = tl.zeros([ROWS, WIDE], tl.float32), ()
    for i in tl.static_range(D // WIDE):
        gain = widened(tl.load(tl.broadcast_to((norm + i * WIDE + d)[None, :], ROWS, WIDE)))
        piece = widened(pieces[i])
        squares += piece * piece
        weighed += (piece * gain,)
    PAIRS: tl.constexpr = FORM == "main" and tl.bfloat16 == TYPE and FP8 and not INTERPRETED and D > WIDE
    factor = inverse_rms(tl.sum(squares, 1), D, eps)[:, None] * (LIFTED if PAIRS else 1.0)
    values, packs = (), ()
    for i in tl.static_range(D // WIDE):
        piece = rounded(weighed[i] * factor, TYPE)
        if i == D // WIDE - 1:
            piece = turned(piece, c, s, TYPE)
        values += (piece,)
        if not PAIRS:
            packs += (packed(piece, GROUP, FORM, TYPE, FP8),)
        elif i % 2:
            words, groups, others, theirs = packed_pair(values[i - 1], piece, GROUP)
            packs += ((words, groups), (others, theirs))
    for i in tl.static_range(D // WIDE):
        words, groups = packs[i]
        stored(words, groups, at, data, scales, i * WIDE, D, GROUP, WORD)
