"""Values become the bytes of rows inside a kernel: rotated, rounded, packed, stored, in pieces [rows, channels].

No card before Blackwell rounds to E2M1 by itself. A quotient x / s is x times 1 / s. For float32 its bits are rounded,
and what lies within 8 steps of a tie counts as the tie. For bfloat16 two quotients are rounded at once by arithmetic in
float16, which is enough to tell a tie: others differ from it by 2**-8 or more. So the units that multiply do what those
for bits, half as fast, would have to.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from minidsv41.kernels import launch as launching
from minidsv41.kernels.codes import e4m3_decode, e4m3_encode, ue8m0_decode, ue8m0_encode

INTERPRETED = tl.constexpr(launching.INTERPRETED)
LIFTED = tl.constexpr(16.0)  # of numbers times this, float16 cuts those beyond 9.14 times the largest scale of E4M3
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
def halves(x):
    """x [M, N * 8], cut at 65504 -> float16 pairs [M, N, 4] in int32: channels k and k + 4 of eight, k lower."""
    low, high = x.reshape(x.shape[0], x.shape[1] // 8, 2, 4).permute(0, 1, 3, 2).split()
    return tl.inline_asm_elementwise("cvt.rn.satfinite.f16x2.f32 $0, $2, $1;", "=r,r,r", [low, high], tl.int32, True, 1)


@triton.jit
def steps(pairs, half):
    """Magnitudes of float16 pairs, times 2 `half` quotients q up to 9.2 -> E2M1 codes 0 to 7, in the lowest bits.

    With p = min(2 q, q + 2), a code is min(p, 0.203 p + 5.078) as a whole number, ties to even, to which float16 below
    2**-14 rounds by itself: 6.5 at the tie q = 5, and less than 7.5 for what lies beyond 6.
    """
    return tl.inline_asm_elementwise(
        """{.reg .b32 q, s, p, a, b; abs.f16x2 q, $1; mul.rn.sat.f16x2 s, q, $2; fma.rn.f16x2 p, q, $2, s;
        mov.b32 a, 0x3E603E60; mov.b32 b, 0xC514C514; fma.rn.relu.f16x2 s, p, a, b; neg.f16x2 s, s;
        mov.b32 a, 0x40004000; fma.rn.f16x2 p, p, a, s; mov.b32 a, 0x00010001; mul.rn.f16x2 $0, p, a;}""",
        "=r,r,r", [pairs, half], tl.int32, True, 1,
    )  # fmt: skip


@triton.jit
def joined(pairs, half):
    """float16 pairs [M, N, 4] of channels k and k + 4, times 2 `half` -> E2M1 codes, eight in an int32 [M, N]."""
    M: tl.constexpr = pairs.shape[0]
    N: tl.constexpr = pairs.shape[1]
    even, odd = steps(pairs, half).reshape(M, N, 2, 2).split()
    first, second = (even + odd * 16).split()
    even, odd = pairs.reshape(M, N, 2, 2).split()
    a, c = even.split()
    b, d = odd.split()
    return tl.inline_asm_elementwise(  # with the signs, which `prmt` repeats in all bits of a byte
        """{.reg .b32 e, o; prmt.b32 e, $2, $4, 0xFBD9; prmt.b32 o, $3, $5, 0xFBD9;
        lop3.b32 e, e, o, 0x0F0F0F0F, 0xE4; lop3.b32 $0, $1, e, 0x88888888, 0xF8;}""",
        "=r,r,r,r,r,r", [first + second * 256, a, b, c, d], tl.int32, True, 1,
    )  # fmt: skip


@triton.jit
def nibbles(x, inverse, BEYOND: tl.constexpr, TYPE: tl.constexpr):
    """x [M, N * 8] times inverse, of the same shape -> E2M1 codes, eight in an int32 [M, N], the first lowest.

    Where quotients can lie BEYOND 6, float16 cuts them at 8.
    """
    if tl.bfloat16 == TYPE and not INTERPRETED:
        return joined(halves(x * (inverse * (8192.0 if BEYOND else 1.0))), 0x04000400 if BEYOND else 0x38003800)
    x *= inverse
    bits = tl.minimum(tl.abs(x) * 2.0**-126, 6 * 2.0**-126).to(tl.int32, bitcast=True)  # a code and a rest
    codes = (bits + 0x1FFFF8 + ((bits >> 18) & 16)) >> 22  # what is within 8 steps of a tie counts as one
    codes = (codes | ((x.to(tl.int32, bitcast=True) >> 28) & 8)).reshape(x.shape[0], x.shape[1] // 8, 8)
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
def larger(x, y):
    """The larger magnitudes of float16 pairs."""
    return tl.inline_asm_elementwise(
        "{.reg .b32 x, y; abs.f16x2 x, $1; abs.f16x2 y, $2; max.NaN.f16x2 $0, x, y;}",
        "=r,r,r", [x, y], tl.int32, True, 1,
    )  # fmt: skip


@triton.jit
def largest_pair(x, y, GROUP: tl.constexpr):
    """Largest magnitude of each group of x and of y, float16 pairs [M, N, 4] -> both as a pair [M, groups]."""
    x, y = tl.reduce(x, 2, larger), tl.reduce(y, 2, larger)
    low = tl.inline_asm_elementwise("prmt.b32 $0, $1, $2, 0x5410;", "=r,r,r", [x, y], tl.int32, True, 1)
    high = tl.inline_asm_elementwise("prmt.b32 $0, $1, $2, 0x7632;", "=r,r,r", [x, y], tl.int32, True, 1)
    return tl.reduce(larger(low, high).reshape(x.shape[0], x.shape[1] * 8 // GROUP, GROUP // 8), 2, larger)


@triton.jit
def scaled_pair(largest):
    """`scaled` of two at once, LIFTED: scale codes uint8, and 1 / scale as `joined` takes it.

    A sixth of a number that bfloat16 has either is a tie of E4M3 or differs from it by 2**-8: float16 is enough to
    tell. Inverses are taken 2**-14 larger: float16 rounds that of 1.375 down, and its product with a tie too.
    """
    codes, first, second = tl.inline_asm_elementwise(
        """{.reg .b32 h, c; .reg .b16 e, low, high; .reg .f32 f, g;
        mov.b32 c, 0x32003200; max.NaN.f16x2 h, $3, c; mov.b32 c, 0x21552155; mul.rn.f16x2 h, h, c;
        cvt.rn.satfinite.e4m3x2.f16x2 e, h; cvt.u32.u16 $0, e; cvt.rn.f16x2.e4m3x2 h, e; mov.b32 {low, high}, h;
        cvt.f32.f16 f, low; rcp.approx.ftz.f32 f, f; mul.rn.f32 f, f, 0f3D000200; cvt.rn.f16x2.f32 $1, f, f;
        cvt.f32.f16 g, high; rcp.approx.ftz.f32 g, g; mul.rn.f32 g, g, 0f3D000200; cvt.rn.f16x2.f32 $2, g, g;}""",
        "=&r,=&r,=&r,r", [largest], (tl.int32, tl.int32, tl.int32), True, 1,
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
        words = nibbles(x, inverse, FORM == "main", TYPE)
    return words


@triton.jit
def packed(x, GROUP: tl.constexpr, FORM: tl.constexpr, TYPE: tl.constexpr, FP8: tl.constexpr):
    """x [M, WIDE] -> int32 words [M, WIDE * bits / 32] and uint8 scale codes [M, WIDE / GROUP]."""
    scales, inverse = scaled(largest_of(x, GROUP, FORM), FORM, FP8)
    return coded(x, inverse, GROUP, FORM, TYPE, FP8), scales


@triton.jit
def packed_pair(x, y, GROUP: tl.constexpr):
    """`packed` of two pieces LIFTED, of numbers that bfloat16 has, in form main, on a card that converts E4M3."""
    x, y = halves(x), halves(y)
    first, second, inverse, other = scaled_pair(largest_pair(x, y, GROUP))
    return joined(x, repeated(inverse, x, GROUP)), first, joined(y, repeated(other, y, GROUP)), second


@triton.jit
def repeated(inverse, pairs, GROUP: tl.constexpr):
    """inverse [M, groups] for each of the pairs [M, N, 4]."""
    M: tl.constexpr = pairs.shape[0]
    N: tl.constexpr = pairs.shape[1]
    return inverse.expand_dims(2).broadcast_to(M, N * 8 // GROUP, GROUP // 2).reshape(M, N, 4)


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
