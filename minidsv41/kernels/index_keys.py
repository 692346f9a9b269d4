"""Index keys inside a kernel: read a tile of stored keys, and multiply it with queries.

A packed key is D / 8 words of eight 4-bit codes. Plane j of a word is its codes j and j + 4: they come out of one
register side by side, ready to be multiplied, and no code has to change its place. The queries' columns are put in the
order of the planes once instead. Key scales are powers of two, exact in bfloat16; 2**LIFT is taken out of them so that
they fit, and must be given back to the head weights. Scales from 2**-100 to 2**33 are exact; larger ones overflow.
"""

from __future__ import annotations

import triton
import triton.language as tl

from minidsv41.kernels.codes import e2m1_decode, ue8m0_decode

LIFT = tl.constexpr(32)

# A code's sign goes to bit 15 and its magnitude to bits 8..6 of a half register: bfloat16, 2**126 too small. One
# multiplication shifts both ways at once; the scale, two bfloat16 side by side in the second argument, mends the rest.
PLANES = tl.constexpr("""{
.reg .b32 a, b, c, d, factor, none;
min.u32 factor, $9, 0x7F807F80;
mov.b32 none, 0x80008000;
shr.u32 c, $8, 8;
and.b32 a, $8, 0x000F000F;
and.b32 b, $8, 0x00F000F0;
and.b32 d, c, 0x00F000F0;
and.b32 c, c, 0x000F000F;
mul.lo.u32 a, a, 0x1040;
mul.lo.u32 b, b, 0x0104;
mul.lo.u32 c, c, 0x1040;
mul.lo.u32 d, d, 0x0104;
and.b32 a, a, 0x81C081C0;
and.b32 b, b, 0x81C081C0;
and.b32 c, c, 0x81C081C0;
and.b32 d, d, 0x81C081C0;
fma.rn.bf16x2 a, a, factor, none;
fma.rn.bf16x2 b, b, factor, none;
fma.rn.bf16x2 c, c, factor, none;
fma.rn.bf16x2 d, d, factor, none;
mov.b32 {$0, $1}, a;
mov.b32 {$2, $3}, b;
mov.b32 {$4, $5}, c;
mov.b32 {$6, $7}, d;
}""")


@triton.jit
def physical(table, seq, index, exists, pages, page, PAGE: tl.constexpr):
    """int64 rows where entries `index` of a sequence lie; some row of page 0 for those that do not exist.

    PAGE: the page, where a compiler should know it, or 0: all of a sequence lies in one.
    """
    if PAGE == 0:
        return tl.load(table + seq).to(tl.int64) * page + tl.where(exists, index, 0)
    index = index.to(tl.uint32)  # of which powers of two are divisors by a shift
    first = tl.load(table + seq.to(tl.int64) * pages + index // PAGE, exists, other=0)
    return first.to(tl.int64) * PAGE + index % PAGE


@triton.jit
def pages_at(table, seq, start, last, pages, PAGE: tl.constexpr, N: tl.constexpr):
    """The page, int32, where a tile of N entries from `start` begins, the next one where it takes two, and where it
    begins within its page; page 0 for those of which no entry exists."""
    at = table + seq.to(tl.int64) * pages + start // PAGE
    near = tl.load(at, start < last, other=0).to(tl.int32)
    far, inner = near, 0
    if N > PAGE:
        far = tl.load(at + 1, start + PAGE < last, other=0).to(tl.int32)
    if N < PAGE:
        inner = start % PAGE
    return near, far, inner


@triton.jit
def in_pages(near, far, inner, PAGE: tl.constexpr, N: tl.constexpr):
    """For a tile of N entries that begins at place `inner` of page `near`: first rows of their pages, int64 [N, 1], and
    places within [N], so that most of an address is computed once."""
    at = tl.arange(0, N)
    return tl.where(at < PAGE, near, far)[:, None].to(tl.int64) * PAGE, inner + at % PAGE


@triton.jit
def plane(low, high, factor, DOT: tl.constexpr):
    """Two codes of every word [N, W] -> values [N, 2 * W], side by side."""
    values = tl.join(e2m1_decode(low).to(tl.float32) * factor, e2m1_decode(high).to(tl.float32) * factor)
    return values.reshape(low.shape[0], 2 * low.shape[1]).to(DOT)


@triton.jit
def planes_factor(scale):
    """UE8M0 codes -> 2**(126 - LIFT) times the scale, as two bfloat16 in 32 bits; PLANES makes large ones infinite."""
    return scale.to(tl.uint32) * 0x800080 + (126 - LIFT) * 0x800080


@triton.jit
def side_by_side(low, high):
    return tl.join(low, high).reshape(low.shape[0], 2 * low.shape[1])


@triton.jit
def beside(left, right):
    """[N, C] twice -> [N, 2 * C], without a value that changes its thread."""
    return tl.join(left, right).permute(0, 2, 1).reshape(left.shape[0], 2 * left.shape[1])


@triton.jit
def packed_planes(words, scales, first, rows, D: tl.constexpr, DOT: tl.constexpr, ASM: tl.constexpr):
    """Keys at `rows` [N] behind `first` as planes 0, 1 and 2, 3 side by side, [N, 4 * W] twice, over 2**LIFT if ASM.

    W: words, 16 at least: planes of less than 32 columns are multiplied wrongly by triton 3.6, where a thread's words
    are eight columns of an operand, and four threads side by side take 32 of them. A load of less than 4 bytes a thread
    is not fetched ahead: few scales are read more than once instead, and one of the copies is used.
    """
    N: tl.constexpr = rows.shape[0]
    W: tl.constexpr = max(16, triton.next_power_of_2(D // 8))
    COPIES: tl.constexpr = min(4, max(1, 512 // (N * W // 4)))  # so that 4 warps have 4 bytes of scales a thread
    word, group = tl.arange(0, W), tl.arange(0, COPIES * W // 4) % (W // 4)
    words += first * (D // 8)
    where, scale_where = rows[:, None] * (D // 8) + word[None, :], (first + rows[:, None]) * (D // 32) + group[None, :]
    if W * 8 == D:
        x, scale = tl.load(words + where), tl.load(scales + scale_where)
    else:
        x = tl.load(words + where, (word < D // 8)[None, :], other=0)
        scale = tl.load(scales + scale_where, (group < D // 32)[None, :], other=127)
    if COPIES > 2:
        scale, same = halves(scale)
    if COPIES > 1:
        scale, same = halves(scale)
    x = x.reshape(N, W // 4, 4).permute(0, 2, 1).reshape(N, W)  # a thread's words are then neighbours, of one scale
    if ASM:
        factor = planes_factor(scale)
        factor = tl.broadcast_to(factor[:, None, :], (N, 4, W // 4)).reshape(N, W)
        a0, a4, a1, a5, a2, a6, a3, a7 = tl.inline_asm_elementwise(
            PLANES, "=h,=h,=h,=h,=h,=h,=h,=h,r,r", [x, factor], dtype=(tl.bfloat16,) * 8, is_pure=True, pack=1
        )
        a, b, c, d = side_by_side(a0, a4), side_by_side(a1, a5), side_by_side(a2, a6), side_by_side(a3, a7)
    else:
        factor = ue8m0_decode(scale)
        factor = tl.broadcast_to(factor[:, None, :], (N, 4, W // 4)).reshape(N, W)
        a, b = plane(x & 15, (x >> 16) & 15, factor, DOT), plane((x >> 4) & 15, (x >> 20) & 15, factor, DOT)
        c, d = plane((x >> 8) & 15, (x >> 24) & 15, factor, DOT), plane((x >> 12) & 15, (x >> 28) & 15, factor, DOT)
    return beside(a, b), beside(c, d)


@triton.jit
def query_planes(q):
    """q [Q, 8 * W], columns as stored -> in the order of `packed_planes`."""
    Q: tl.constexpr = q.shape[0]
    W: tl.constexpr = q.shape[1] // 8
    x = q.reshape(Q, W // 4, 4, 2, 2, 2)  # scale group, word in it, code // 4, plane // 2, plane % 2
    return x.permute(0, 4, 5, 2, 1, 3).reshape(Q, 8 * W)


@triton.jit
def halves(x):
    """[Q, 2 * C] -> its columns in two halves."""
    return x.reshape(x.shape[0], 2, x.shape[1] // 2).permute(0, 2, 1).split()


@triton.jit
def load_queries(q, row, exists, H: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr, DIMS: tl.constexpr):
    """Queries of rows [G] -> [G * HEADS, DIMS], zero where there is none."""
    G: tl.constexpr = row.shape[0]
    head, dim = tl.arange(0, HEADS), tl.arange(0, DIMS)
    at = ((row.to(tl.int64) * H)[:, None] + head[None, :]).reshape(G * HEADS)
    held = (exists[:, None] & (head < H)[None, :]).reshape(G * HEADS)
    return tl.load(q + at[:, None] * D + dim[None, :], held[:, None] & (dim < D)[None, :], other=0.0)
