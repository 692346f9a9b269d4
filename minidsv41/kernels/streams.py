"""Four streams inside a kernel: the same channels of each as a tuple, a token's coefficients as columns."""

from __future__ import annotations

import triton
import triton.language as tl

from minidsv41.kernels import launch as launching

INTERPRETED = tl.constexpr(launching.INTERPRETED)


@triton.jit
def narrow(x, TYPE: tl.constexpr):
    """float32 -> TYPE, ties to even. Two at a time: `x.to` converts one by one, on a slow unit, or cuts bits off."""
    if tl.float32 == TYPE:
        y = x
    elif INTERPRETED:
        bits = x.to(tl.int32, bitcast=True)
        y = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -65536).to(tl.float32, bitcast=True).to(TYPE)
    else:
        y = tl.inline_asm_elementwise("cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [x], tl.bfloat16, True, 2)
    return y


@triton.jit
def rounded(x, TYPE: tl.constexpr):
    """What `narrow` makes of x, and that as float32, of which no half of a pair is taken out and put back."""
    if INTERPRETED or tl.float32 == TYPE:
        y = narrow(x, TYPE)
        z = y.to(tl.float32)
    else:
        asm: tl.constexpr = "cvt.rn.bf16x2.f32 $0, $4, $3; shl.b32 $1, $0, 16; and.b32 $2, $0, 0xffff0000;"
        kinds: tl.constexpr = (tl.bfloat16, tl.float32)
        y, z = tl.inline_asm_elementwise(asm, "=r,=f,=f,f,f", [x], kinds, True, 2)
    return y, z


@triton.jit
def widened(x):
    """x as float32; of bfloat16, an even number in each thread, by one instruction each, where `x.to` takes more."""
    if INTERPRETED or x.dtype != tl.bfloat16:
        y = x.to(tl.float32)
    else:
        asm: tl.constexpr = "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;"
        y = tl.inline_asm_elementwise(asm, "=f,=f,r", [x], tl.float32, True, 2)
    return y


@triton.jit
def four(at, live, STEP: tl.constexpr):
    """Four coefficients of each token as columns [tokens, 1]."""
    a, b = tl.load(at, live, other=0.0), tl.load(at + STEP, live, other=0.0)
    c, d = tl.load(at + 2 * STEP, live, other=0.0), tl.load(at + 3 * STEP, live, other=0.0)
    return a[:, None], b[:, None], c[:, None], d[:, None]


@triton.jit
def quad(at):
    """Four neighbours as columns [tokens, 1], loaded at once: they must begin at 16 bytes."""
    if INTERPRETED:
        a, b, c, d = tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3)
    else:
        asm: tl.constexpr = "ld.global.v4.f32 {$0, $1, $2, $3}, [$4];"
        kinds: tl.constexpr = (tl.float32, tl.float32, tl.float32, tl.float32)
        a, b, c, d = tl.inline_asm_elementwise(asm, "=f,=f,=f,=f,l", [at.to(tl.int64)], kinds, False, 1)
    return a[:, None], b[:, None], c[:, None], d[:, None]


@triton.jit
def loaded(at, inside, C: tl.constexpr, KEEP: tl.constexpr):
    """The same channels of four streams; KEEP: how long L2 is asked to keep them."""
    a = tl.load(at, inside, other=0.0, eviction_policy=KEEP)
    b = tl.load(at + C, inside, other=0.0, eviction_policy=KEEP)
    c = tl.load(at + 2 * C, inside, other=0.0, eviction_policy=KEEP)
    return a, b, c, tl.load(at + 3 * C, inside, other=0.0, eviction_policy=KEEP)


@triton.jit
def streams(at, inside, C: tl.constexpr, KEEP: tl.constexpr):
    """The same as float32."""
    return wide(loaded(at, inside, C, KEEP))


@triton.jit
def fetch(at):
    """Ask for what lies at these addresses to be in L2 when it is loaded."""
    if not INTERPRETED:
        asm: tl.constexpr = "prefetch.global.L2 [$1]; mov.u32 $0, 0;"
        tl.inline_asm_elementwise(asm, "=r,l", [at.to(tl.int64)], tl.int32, False, 1)


@triton.jit
def fetch_streams(at, C: tl.constexpr):
    fetch(at)
    fetch(at + C)
    fetch(at + 2 * C)
    fetch(at + 3 * C)


@triton.jit
def summed(x):
    """[tokens, N] -> [tokens, N / 8]: over what a thread holds of a row, so that threads need not meet yet."""
    return tl.sum(x.reshape(x.shape[0], x.shape[1] // 8, 8), 2)


@triton.jit
def wide(x):
    return x[0].to(tl.float32), x[1].to(tl.float32), x[2].to(tl.float32), x[3].to(tl.float32)


@triton.jit
def onto(sum, a, b):
    """sum + mixed(a, b), in which sum comes first."""
    return sum + a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3]


@triton.jit
def updated(o, to0, to1, to2, to3, f, s, TYPE: tl.constexpr):
    """X' from X (s) and F (f): o is post, to_j[i] is comb[i, j]."""
    return updated_twice(o, to0, to1, to2, to3, f, s, TYPE)[0]


@triton.jit
def updated_twice(o, to0, to1, to2, to3, f, s, TYPE: tl.constexpr):
    """The same, and as float32."""
    a, b = rounded(onto(o[0] * f, to0, s), TYPE), rounded(onto(o[1] * f, to1, s), TYPE)
    c, d = rounded(onto(o[2] * f, to2, s), TYPE), rounded(onto(o[3] * f, to3, s), TYPE)
    return (a[0], b[0], c[0], d[0]), (a[1], b[1], c[1], d[1])


@triton.jit
def normal(y, r, w, TYPE: tl.constexpr):
    return narrow(widened(y) * r[:, None] * w.to(tl.float32)[None, :], TYPE)


@triton.jit
def normalise(x, norm, row, live, r, c0, C: tl.constexpr, N: tl.constexpr):
    """N channels of y, at c0 of x, times r and the norm's weight."""
    c = c0 + tl.arange(0, N)
    at, inside = x + row[:, None] * C + c[None, :], live[:, None] & (c < C)[None, :]
    w = tl.load(norm + c, c < C, other=0.0)
    tl.store(at, normal(tl.load(at, inside, other=0.0), r, w, x.dtype.element_ty), inside)
