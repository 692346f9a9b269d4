"""Values become the bytes of rows inside a kernel: rotated, rounded, packed, stored, in pieces [rows, channels].

E2M1 is rounded by bits: no card before Blackwell does it by itself. A quotient x / s is x times 1 / s, and what lies
within 8 float32 steps of a tie counts as the tie.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from minidsv41.kernels import launch as launching
from minidsv41.kernels.codes import e4m3_decode, e4m3_encode, ue8m0_decode, ue8m0_encode

INTERPRETED = tl.constexpr(launching.INTERPRETED)
ACTIVATIONS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}


@triton.jit
def rounded(x, TYPE: tl.constexpr):
    """float32 -> the nearest number of TYPE, ties to even, as float32. The interpreter's own cast cuts bits off."""
    if tl.float32 == TYPE:
        return x
    if INTERPRETED:
        bits = x.to(tl.int32, bitcast=True)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & -65536).to(tl.float32, bitcast=True)
    return tl.inline_asm_elementwise(  # beside a zero, so that it need not be taken out of a pair
        "cvt.rn.bf16x2.f32 $0, $1, 0f00000000;", "=r,r", [x], tl.float32, True, 1
    )


@triton.jit
def widened(x, TYPE: tl.constexpr):
    """Numbers of TYPE, an even number in each thread, as float32."""
    if INTERPRETED or tl.float32 == TYPE:
        x = x.to(tl.float32)
    else:  # one instruction each, where `x.to` takes two for every second one
        x = tl.inline_asm_elementwise(
            "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;", "=&r,=r,r", [x], tl.float32, True, 2
        )
    return x


@triton.jit
def over(x, N: tl.constexpr):
    """x / N for a small whole N, exact where the quotient is short, without the branches of a true division."""
    ONE: tl.constexpr = 1.0 / N
    near = ((x * ONE).to(tl.int32, bitcast=True) & -4096).to(tl.float32, bitcast=True)  # near * N is exact
    return near + (x - near * N) * ONE


@triton.jit
def reciprocal(x):
    """1 / x of a normal float32, to its last place."""
    if INTERPRETED:
        return 1.0 / x
    return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=r,r", [x], tl.float32, True, 1)


@triton.jit
def together(codes):
    """E4M3 codes, just converted, as parts of words of four, for all that follows.

    ptxas 12.8 and 12.9 convert two pairs into one register where they are stored as a word, and lose the first pair
    for any other use: it was decoded from a register that nobody had written.
    """
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [codes], tl.uint8, True, 4)


@triton.jit
def halves(low, high, BEYOND: tl.constexpr, FP8: tl.constexpr):
    """float32 pairs, scaled by 2**-14, cut at 6 if some can lie BEYOND -> their float16 bits, both in one int32."""
    if INTERPRETED:
        low, high = tl.clamp(low, -6 * 2.0**-14, 6 * 2.0**-14), tl.clamp(high, -6 * 2.0**-14, 6 * 2.0**-14)
        low, high = low.to(tl.float16).to(tl.int16, bitcast=True), high.to(tl.float16).to(tl.int16, bitcast=True)
        return (low.to(tl.int32) & 0xFFFF) | (high.to(tl.int32) << 16)
    if not BEYOND:
        return tl.inline_asm_elementwise("cvt.rn.f16x2.f32 $0, $2, $1;", "=r,r,r", [low, high], tl.int32, True, 1)
    if FP8:  # a card which also has the smaller of two sizes, with a sign, as one instruction
        return tl.inline_asm_elementwise(
            """{.reg .b32 t, m; cvt.rn.f16x2.f32 t, $2, $1; mov.b32 m, 0x0E000E00;
            min.xorsign.abs.f16x2 $0, t, m;}""",
            "=r,r,r", [low, high], tl.int32, True, 1,
        )  # fmt: skip
    return tl.inline_asm_elementwise(
        """{.reg .b32 t, m; cvt.rn.f16x2.f32 t, $2, $1; mov.b32 m, 0x0E000E00; min.f16x2 t, t, m;
        mov.b32 m, 0x8E008E00; max.f16x2 $0, t, m;}""",
        "=r,r,r", [low, high], tl.int32, True, 1,
    )  # fmt: skip


@triton.jit
def upper_bytes(pairs):
    """int32 [M, N, 2], in each two numbers of 16 bits -> the upper bytes of all four: [M, N]."""
    first, second = pairs.split()
    if INTERPRETED:
        return ((first >> 8) & 0xFF00FF) | (second & -0xFF0100)
    return tl.inline_asm_elementwise("prmt.b32 $0, $1, $2, 0x7351;", "=r,r,r", [first, second], tl.int32, True, 1)


@triton.jit
def nibbles(x, inverse, BEYOND: tl.constexpr, TYPE: tl.constexpr, FP8: tl.constexpr):
    """x [M, N * 8] times inverse, of the same shape -> E2M1 codes, eight in an int32 [M, N], the first lowest.

    x times a small power of two, as a float, has its code in the lowest exponent bit or two and the first of the
    mantissa. For bfloat16, float16 is enough to tell a tie (quotients differ by 2**-8 or not at all), and two fit.
    """
    M: tl.constexpr = x.shape[0]
    N: tl.constexpr = x.shape[1] // 8
    if tl.bfloat16 == TYPE:
        low, high = (x * (inverse * 2.0**-14)).reshape(M, N, 2, 4).permute(0, 1, 3, 2).split()  # channels k and k + 4
        bits = halves(low, high, BEYOND, FP8)
        bits += 0xFF00FF + ((bits >> 9) & 0x10001)  # up where beyond a half, or at it and odd
        even, odd = bits.reshape(M, N, 2, 2).split()
        even, odd = upper_bytes(even), upper_bytes(odd)  # s000eem and a rest
        low = ((even >> 1) & 0x07070707) | ((even >> 4) & ~0x07070707)
        high = ((odd << 3) & 0x70707070) | (odd & ~0x70707070)
        return (low & 0x0F0F0F0F) | (high & ~0x0F0F0F0F)
    x *= inverse
    bits = tl.minimum(tl.abs(x) * 2.0**-126, 6 * 2.0**-126).to(tl.int32, bitcast=True)
    codes = (bits + 0x1FFFF8 + ((bits >> 18) & 16)) >> 22  # what is within 8 steps of a tie counts as one
    codes = (codes | ((x.to(tl.int32, bitcast=True) >> 28) & 8)).reshape(M, N, 8)
    return tl.sum(codes << (tl.arange(0, 8) * 4)[None, None, :], 2)


@triton.jit
def largest_of(x, GROUP: tl.constexpr, FORM: tl.constexpr):
    """Largest magnitude of each group of x [M, WIDE], but not below what the smallest scale needs: [M, groups]."""
    FLOOR: tl.constexpr = 6 * 2.0**-9 if FORM == "main" else 1e-4 if FORM == "window" else 6 * 2.0**-126
    largest = tl.max(tl.abs(x).reshape(x.shape[0], x.shape[1] // GROUP, GROUP), 2)
    return tl.maximum(largest, FLOOR, propagate_nan=tl.PropagateNan.ALL)  # NaN if not finite


@triton.jit
def scaled(largest, FORM: tl.constexpr, FP8: tl.constexpr):
    """Scale codes uint8 and 1 / scale of groups."""
    scale = over(largest, 448.0 if FORM == "window" else 6.0)
    if FORM == "main":
        scales = together(scale.to(tl.float8e4nv).to(tl.uint8, bitcast=True)) if FP8 else e4m3_encode(scale, FP8)
        inverse = reciprocal(e4m3_decode(scales, FP8).to(tl.float32))
    else:
        scales = ue8m0_encode(scale)
        inverse = ue8m0_decode(254 - scales.to(tl.int32))
    return scales, inverse


@triton.jit
def scaled_pair(first, second):
    """`scaled` of two at once, of numbers that bfloat16 has, in form main, on a card that converts E4M3.

    A sixth of such a number either is a tie of E4M3 or differs from it by 2**-8: float16 is enough to tell.
    """
    codes, first, second = tl.inline_asm_elementwise(
        """{.reg .b32 h; .reg .b16 e, low, high;
        cvt.rn.f16x2.f32 h, $4, $3; cvt.rn.satfinite.e4m3x2.f16x2 e, h; cvt.u32.u16 $0, e;
        cvt.rn.f16x2.e4m3x2 h, e; mov.b32 {low, high}, h; cvt.f32.f16 $1, low; cvt.f32.f16 $2, high;
        rcp.approx.ftz.f32 $1, $1; rcp.approx.ftz.f32 $2, $2;}""",
        "=&r,=&r,=&r,r,r", [first * (1 / 6), second * (1 / 6)], (tl.int32, tl.float32, tl.float32), True, 1,
    )  # fmt: skip
    return (codes & 0xFF).to(tl.uint8), (codes >> 8).to(tl.uint8), first, second


@triton.jit
def coded(x, inverse, GROUP: tl.constexpr, FORM: tl.constexpr, TYPE: tl.constexpr, FP8: tl.constexpr):
    """x [M, WIDE] times the inverse [M, WIDE / GROUP] of its scales -> int32 words [M, WIDE * bits / 32] of codes."""
    M: tl.constexpr = x.shape[0]
    WIDE: tl.constexpr = x.shape[1]
    inverse = inverse.expand_dims(2).broadcast_to(M, WIDE // GROUP, GROUP).reshape(M, WIDE)
    if FORM == "window":
        x *= inverse
        codes = x.to(tl.float8e4nv).to(tl.uint8, bitcast=True) if FP8 else e4m3_encode(x, FP8)
        words = tl.sum(codes.to(tl.int32).reshape(M, WIDE // 4, 4) << (tl.arange(0, 4) * 8)[None, None, :], 2)
    else:
        words = nibbles(x, inverse, FORM == "main", TYPE, FP8)
    return words


@triton.jit
def packed(x, GROUP: tl.constexpr, FORM: tl.constexpr, TYPE: tl.constexpr, FP8: tl.constexpr):
    """x [M, WIDE] -> int32 words [M, WIDE * bits / 32] and uint8 scale codes [M, WIDE / GROUP]."""
    scales, inverse = scaled(largest_of(x, GROUP, FORM), FORM, FP8)
    return coded(x, inverse, GROUP, FORM, TYPE, FP8), scales


@triton.jit
def packed_pair(x, y, GROUP: tl.constexpr, FORM: tl.constexpr, TYPE: tl.constexpr, FP8: tl.constexpr):
    """`packed` of two pieces, whose scales are converted together where that takes less."""
    if FORM == "main" and tl.bfloat16 == TYPE and FP8 and not INTERPRETED:
        first, second, inverse, other = scaled_pair(largest_of(x, GROUP, FORM), largest_of(y, GROUP, FORM))
    else:
        first, inverse = scaled(largest_of(x, GROUP, FORM), FORM, FP8)
        second, other = scaled(largest_of(y, GROUP, FORM), FORM, FP8)
    x, y = coded(x, inverse, GROUP, FORM, TYPE, FP8), coded(y, other, GROUP, FORM, TYPE, FP8)
    return x, first, y, second


@triton.jit
def stored(
    words, groups, at, data, scales, FIRST: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr, WORD: tl.constexpr
):  # fmt: skip
    """Store what was packed, as the channels from FIRST on of physical rows `at` [M]; -1: not at all.

    A scale once for every 8 of its channels, lanes first: so the threads that store words have its place and its byte.
    """
    M: tl.constexpr = words.shape[0]
    N: tl.constexpr = words.shape[1]
    EACH: tl.constexpr = GROUP // 8
    LANES: tl.constexpr = groups.shape[1] * EACH
    here, row = at[:, None] >= 0, at.to(tl.int64)[:, None]
    tl.store(data + row * (D // WORD) + (FIRST // WORD) + tl.arange(0, N)[None, :], words, here)
    groups = groups.expand_dims(2).broadcast_to(M, LANES // EACH, EACH).reshape(M, LANES)
    place = scales + row * (D // GROUP) + (FIRST // GROUP) + tl.arange(0, LANES)[None, :] // EACH
    tl.store(tl.trans(place), tl.trans(groups), tl.trans(tl.broadcast_to(here, M, LANES)))


@triton.jit
def physical(table, seq, index, pages, PAGE: tl.constexpr):
    """Row `index` of sequence `seq` by the page table, -1 for -1; of fewer than 2**31 rows."""
    index = index.to(tl.int32)
    place = index.to(tl.uint32, bitcast=True)  # which is divided in one step
    page = tl.load(table + seq.to(tl.int32) * pages + (place // PAGE).to(tl.int32), index >= 0, 0).to(tl.int32)
    return tl.where(index >= 0, page * PAGE + (place % PAGE).to(tl.int32), -1)
