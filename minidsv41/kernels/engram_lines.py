"""Rows of Engram's table in order, by loads that ask for whole lines; and the values of rows, stored."""

from __future__ import annotations

import triton
import triton.language as tl

from minidsv41.kernels import launch as launching
from minidsv41.kernels.codes import e4m3_decode, ue8m0_decode

INTERPRETED = tl.constexpr(launching.INTERPRETED)
FETCH_128 = tl.constexpr("ld.global.L2::128B.v4.b32 {$0, $1, $2, $3}, [$4];")
FETCH_256 = tl.constexpr("ld.global.L2::256B.v4.b32 {$0, $1, $2, $3}, [$4];")
FOUR = tl.constexpr((tl.int32,) * 4)


@triton.jit
def written(code, scale, place, live, out, ROWS: tl.constexpr, W: tl.constexpr, FP8: tl.constexpr):
    """Store the values of rows at their places."""
    value = e4m3_decode(code, FP8).to(tl.float32).reshape(ROWS, W // 32, 32)
    value = (value * ue8m0_decode(scale)[:, :, None]).reshape(ROWS, W)
    here = out + place[:, None] * W + tl.arange(0, W)[None, :]
    tl.store(here, value.to(out.dtype.element_ty), live[:, None])


@triton.jit
def fetched(ids, order, codes, scales, step, total, ROWS: tl.constexpr, W: tl.constexpr, LINES: tl.constexpr):
    """Places of the rows of a step, -1 for none; words of their codes, the first of each four, the second, ...; scales.

    A load that misses asks for LINES bytes: by itself the card may ask for less at once.
    """
    item = step * ROWS + tl.arange(0, ROWS)
    live = item < total
    place, row = tl.load(order + item, live, -1), tl.load(ids + item, live, 0).to(tl.int64)
    here = codes + row[:, None] * W + (tl.arange(0, W // 16) * 16)[None, :]
    if INTERPRETED:
        here = here.to(tl.pointer_type(tl.int32))
        words = tl.load(here), tl.load(here + 1), tl.load(here + 2), tl.load(here + 3)
    else:
        ASM: tl.constexpr = FETCH_256 if LINES == 256 else FETCH_128
        words = tl.inline_asm_elementwise(ASM, "=r,=r,=r,=r,l", [here.to(tl.int64)], FOUR, False, 1)
    scale = tl.load(scales + row[:, None] * (W // 32) + tl.arange(0, W // 32)[None, :])
    return place, words, scale


@triton.jit
def read_lines(
    ids, order, codes, scales, out, total, steps, stride, W: tl.constexpr, ROWS: tl.constexpr, LINES: tl.constexpr,
    FP8: tl.constexpr,
):  # fmt: skip
    """`read` of rows in order; the next step is under way while one is written."""
    place, words, scale = fetched(ids, order, codes, scales, tl.program_id(0), total, ROWS, W, LINES)
    for step in tl.range(tl.program_id(0), steps, stride, num_stages=1):
        place1, words1, scale1 = fetched(ids, order, codes, scales, step + stride, total, ROWS, W, LINES)
        four = tl.join(tl.join(words[0], words[2]), tl.join(words[1], words[3])).reshape(ROWS, W // 4)
        code = (four[:, :, None] >> (tl.arange(0, 4) * 8)[None, None, :]).to(tl.uint8).reshape(ROWS, W)
        written(code, scale, place, place >= 0, out, ROWS, W, FP8)
        place, words, scale = place1, words1, scale1
