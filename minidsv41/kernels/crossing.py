"""The two kernels of a seam: `cross` passes over streams, `finish` adds up what several programs of a tile left."""

from __future__ import annotations

import triton
import triton.language as tl

from minidsv41.kernels.coefficients import apart, coefficients, held
from minidsv41.kernels.predictor import parted, product, product_weights, turned_product, turned_token, turned_weights
from minidsv41.kernels.sinkhorn import mixed
from minidsv41.kernels.streams import loaded, normal, normalise, quad, rounded, summed, updated_twice, widened


@triton.jit
def mixing(pre, post, comb, row, T):
    """What each token mixes by: pre, post, and comb by columns; rows beyond the last take what is the last one's."""
    row = tl.minimum(row, T - 1)
    p = quad(pre + row * 4)
    if post is None:
        o, a, b, c, d = p, p, p, p, p
    else:
        o, at = quad(post + row * 4), comb + row * 16
        a, b, c, d = quad(at), quad(at + 4), quad(at + 8), quad(at + 12)
    to0, to1 = (a[0], b[0], c[0], d[0]), (a[1], b[1], c[1], d[1])
    return p, o, to0, to1, (a[2], b[2], c[2], d[2]), (a[3], b[3], c[3], d[3])


@triton.jit
def cross(
    X, F, pre, post, comb, fn, new, parts, squared, x, norm, base, scale, out_pre, out_post, out_comb, T, eps, hc_eps,
    C: tl.constexpr, M: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, SPLIT: tl.constexpr,
    PACKED: tl.constexpr, TURNED: tl.constexpr, MIX: tl.constexpr, ITERS: tl.constexpr,
    KEEP: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    TYPE: tl.constexpr = X.dtype.element_ty
    ROWS: tl.constexpr = 64 if SPLIT else 32
    PART: tl.constexpr = tl.cdiv(tl.cdiv(C, BLOCK), SPLITS) * BLOCK
    token = tl.program_id(0) * M + tl.arange(0, M)
    live, row = token < T, token.to(tl.int64)
    if PDL and FIRST:
        tl.extra.cuda.gdc_wait()  # for all that comes from kernels before
    p, o, to0, to1, to2, to3 = mixing(pre, post, comb, row, T)
    first = tl.program_id(1) * PART
    if PDL and PACKED:
        tl.extra.cuda.gdc_wait()  # for the weights
    if PDL and SPLITS > 1:
        tl.extra.cuda.gdc_launch_dependents()
    products = tl.zeros([M, 32] if TURNED else [ROWS, M], tl.float32)
    squares, square = tl.zeros([M, BLOCK // 8], tl.float32), tl.zeros([M, BLOCK // 8], tl.float32)
    for c0 in range(first, tl.minimum(first + PART, C), BLOCK):
        c = c0 + tl.arange(0, BLOCK)
        inside = live[:, None] & (c < C)[None, :]
        at = row[:, None] * (4 * C) + c[None, :]
        n = loaded(X + at, inside, C, KEEP)
        if TURNED:
            w = turned_weights(fn, c0, C)
        else:
            w = product_weights(fn, c0, C, BLOCK, SPLIT, PACKED)
        if SPLITS * BLOCK >= C and PDL:  # cards before Hopper have too few registers to wait for all at once
            tl.debug_barrier()  # else the compiler would wait for some loads before it starts others; F's follows
        s = widened(n[0]), widened(n[1]), widened(n[2]), widened(n[3])
        if F is not None:
            f = tl.load(F + row[:, None] * C + c[None, :], inside, other=0.0, eviction_policy=KEEP)
            n, s = updated_twice(o, to0, to1, to2, to3, widened(f), s, TYPE)
            tl.store(new + at, n[0], inside, eviction_policy=KEEP)
            tl.store(new + at + C, n[1], inside, eviction_policy=KEEP)
            tl.store(new + at + 2 * C, n[2], inside, eviction_policy=KEEP)
            tl.store(new + at + 3 * C, n[3], inside, eviction_policy=KEEP)
        squares += summed(mixed(s, s))
        if MIX:
            y, z = rounded(mixed(p, s), TYPE)
            tl.store(x + row[:, None] * C + c[None, :], y, inside, eviction_policy="evict_last")
            square += summed(z * z)
        if TURNED:
            products = turned_product(w, n, products, DOT, M // 16)
        else:
            w = parted(w) if SPLIT and not PACKED else w
            products = product(w, n, products, BLOCK, DOT, PRECISION)
    k = tl.arange(0, 32)
    to = parts + (row * SPLITS + tl.program_id(1)) * 32
    if TURNED:
        of = tl.program_id(0) * M + turned_token(M // 16)
        at = parts + (of.to(tl.int64) * SPLITS + tl.program_id(1))[:, None] * 32 + k[None, :]
        tl.store(at, products, (k < 24)[None, :] & (of < T)[:, None])
    else:
        if SPLIT:
            products = tl.sum(products.reshape(4, 2, 8, M), 1).reshape(32, M)
        tl.store(to[None, :] + k[:, None], products, (k < 24)[:, None] & live[None, :])
    tl.store(to + 24, tl.sum(squares, 1), live)
    square = tl.sum(square, 1)
    if SPLITS > 1:
        tl.store(squared + row * SPLITS + tl.program_id(1), square, live)
    else:
        tl.store(to + 25, square, live)
        tl.debug_barrier()  # what other threads of this program wrote is read from here on
        if MIX:
            r = tl.rsqrt(square / C + eps)
            N: tl.constexpr = 4 * BLOCK
            for back in tl.range(1, tl.cdiv(C, N) + 1, num_stages=3):  # what was written last is likeliest still in L2
                normalise(x, norm, row, live, r, (tl.cdiv(C, N) - back) * N, C, N)
        z = held(to, live, base, scale, eps, C)
        coefficients(z, row, live, out_pre, out_post, out_comb, hc_eps, ITERS)


@triton.jit
def column(z, K: tl.constexpr):
    return tl.gather(z, tl.full([z.shape[0], 1], K, tl.int32), 1).reshape(z.shape[0])


@triton.jit
def columns(z, K: tl.constexpr):
    """Four columns of z [tokens, 32], from K on."""
    return column(z, K), column(z, K + 1), column(z, K + 2), column(z, K + 3)


@triton.jit
def predicted(
    program, parts, kept, base, scale, out_pre, out_post, out_comb, T, eps, hc_eps,
    C: tl.constexpr, M: tl.constexpr, SPLITS: tl.constexpr, PADDED: tl.constexpr, ITERS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Add up the parts of M tokens, and make coefficients."""
    token, k, part = program * M + tl.arange(0, M), tl.arange(0, 32), tl.arange(0, PADDED)
    live, row = token < T, token.to(tl.int64)
    b = tl.load(base + k, k < 24, other=0.0)
    a = tl.load(scale + tl.minimum(k // 4, 2))
    if PDL:
        tl.extra.cuda.gdc_wait()
    at = parts + (row[:, None] * SPLITS + part[None, :])[:, :, None] * 32 + k
    there = live[:, None] & (part < SPLITS)[None, :]
    there = there[:, :, None] & (k < 28)[None, None]  # 25 count, but loads are of four
    total = tl.sum(tl.load(at, there, other=0.0), 1)
    square = column(total, 24) if M == 1 else tl.sum(tl.where(k[None, :] == 24, total, 0.0), 1)
    z = total * tl.rsqrt(square / (4 * C) + eps)[:, None] * a[None, :] + b[None, :]
    if M == 1:
        z = columns(z, 0), columns(z, 4), columns(z, 8), columns(z, 12), columns(z, 16), columns(z, 20)
    else:
        z = apart(z)
    coefficients(z, row, live, out_pre, out_post, out_comb, hc_eps, ITERS)
    tl.store(kept + row[:, None] * 32 + k[None, :], total, live[:, None] & (k < 25)[None, :])


@triton.jit
def normed(
    program, squared, kept, x, norm, T, eps,
    C: tl.constexpr, M: tl.constexpr, STEP: tl.constexpr, SPLITS: tl.constexpr, PADDED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Norm STEP channels of M tokens."""
    tiles = tl.cdiv(T, M)
    token, c = program % tiles * M + tl.arange(0, M), program // tiles * STEP + tl.arange(0, STEP)
    live, row = token < T, token.to(tl.int64)
    at, inside = x + row[:, None] * C + c[None, :], live[:, None] & (c < C)[None, :]
    w, part = tl.load(norm + c, c < C, other=0.0), tl.arange(0, PADDED)
    if PDL:
        tl.extra.cuda.gdc_wait()
    y = tl.load(at, inside, other=0.0)
    tl.debug_barrier()  # else the compiler would load y when it has waited for squares
    there = live[:, None] & (part < SPLITS)[None, :]
    square = tl.sum(tl.load(squared + row[:, None] * SPLITS + part[None, :], there, other=0.0), 1)
    tl.store(at, normal(y, tl.rsqrt(square / C + eps), w, x.dtype.element_ty), inside)
    tl.store(kept + row * 32 + 25, square, live & (program < tiles))


@triton.jit
def finish(
    parts, squared, kept, x, norm, base, scale, out_pre, out_post, out_comb, T, eps, hc_eps,
    C: tl.constexpr, M: tl.constexpr, HEADS: tl.constexpr, STEP: tl.constexpr, SPLITS: tl.constexpr,
    PADDED: tl.constexpr, ITERS: tl.constexpr, PDL: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """The first programs make coefficients of HEADS tokens each; others norm some channels of M tokens.

    PDL: it starts while `cross` still runs, and waits for it where what comes from elsewhere is on its way.
    """
    if PDL and FIRST:
        tl.extra.cuda.gdc_launch_dependents()
    program, groups = tl.program_id(0), tl.cdiv(T, HEADS)
    if program < groups:
        predicted(
            program, parts, kept, base, scale, out_pre, out_post, out_comb, T, eps, hc_eps,
            C, HEADS, SPLITS, PADDED, ITERS, PDL,
        )  # fmt: skip
    else:
        normed(program - groups, squared, kept, x, norm, T, eps, C, M, STEP, SPLITS, PADDED, PDL)
