"""Blocks of a matrix product that go from memory to registers and back without shared memory and its barriers.

A thread of a product (lane 4 l + j of a warp) holds columns 2 j and 2 j + 1 of every eight, of lines l and l + 8 of
each 16. It can load and store them 16 bytes at a time if every 32 columns change places (`exchanged`: of the keys, in
shared memory, so that q and the output are as they were), and if memory is visited in the order of `lines_of`: rows of
32 columns, eight of each warp, are what the compiler gives to a warp. All layouts are then one, but for registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from minidsv41.kernels.launch import INTERPRETED

ON_CARD = tl.constexpr(not INTERPRETED)


@triton.jit
def exchanged(x):
    """Columns 8 j + 2 b + e (j, b < 4, e < 2) of every 32 change places with columns 8 b + 2 j + e."""
    N: tl.constexpr = x.shape[0]
    BLOCK: tl.constexpr = x.shape[1]
    return x.reshape(N, BLOCK // 32, 4, 4, 2).permute(0, 1, 3, 2, 4).reshape(N, BLOCK)


@triton.jit
def operand(x, GROUPS: tl.constexpr):
    """Rows of 32 columns, in the order of `lines_of`, as [lines, GROUPS * 32] with exchanged columns."""
    UNITS: tl.constexpr = x.shape[0] // (16 * GROUPS)
    x = x.reshape(2, GROUPS, UNITS, 8, 4, 4, 2).permute(2, 0, 3, 1, 5, 4, 6)
    return x.reshape(16 * UNITS, 32 * GROUPS)


@triton.jit
def result(o):
    """[lines, GROUPS * 32] with exchanged columns as rows of 32 columns, in the order of `lines_of`."""
    UNITS: tl.constexpr = o.shape[0] // 16
    GROUPS: tl.constexpr = o.shape[1] // 32
    o = o.reshape(UNITS, 2, 8, GROUPS, 4, 4, 2).permute(1, 3, 0, 2, 5, 4, 6)
    return o.reshape(16 * UNITS * GROUPS, 32)


@triton.jit
def lines_of(LINES: tl.constexpr, GROUPS: tl.constexpr):
    """Line and first column of each row of 32 columns: a warp loads the lines that it multiplies."""
    i = tl.arange(0, LINES * GROUPS)
    UNITS: tl.constexpr = LINES // 16
    return i // 8 % UNITS * 16 + i // (8 * UNITS * GROUPS) * 8 + i % 8, i // (8 * UNITS) % GROUPS * 32


@triton.jit
def by_thread(x):
    """x [lines, N] so that axes 2 and 4 are what one thread holds of a product whose columns two warps share."""
    return x.reshape(x.shape[0], 2, x.shape[1] // 16, 4, 2)


@triton.jit
def held(x):
    """x itself, which stays in registers: what is loaded would by itself be multiplied from shared memory."""
    if ON_CARD and x.dtype == tl.bfloat16:
        x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], tl.bfloat16, is_pure=True, pack=2)
    return x


@triton.jit
def arrived(x, HOPPER: tl.constexpr):
    """Barrier after which all see in products what any thread stored in shared memory. x: any number."""
    if ON_CARD and HOPPER:
        tl.inline_asm_elementwise(
            "fence.proxy.async.shared::cta; mov.b32 $0, $1;", "=r,r", [x], tl.int32, is_pure=False, pack=1
        )
    tl.debug_barrier()


@triton.jit
def bring_near(pointer, size, HOPPER: tl.constexpr):
    """Fetch `size` bytes from memory into L2, for loads that come later; both are multiples of 16."""
    if ON_CARD and HOPPER:
        tl.inline_asm_elementwise(
            """{ .reg .pred p; .reg .u32 t; mov.u32 t, %tid.x; setp.eq.u32 p, t, 0; setp.gt.and.s32 p, $2, 0, p;
            @p cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0; }""",
            "=r,l,r", [pointer.to(tl.int64), size], tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
