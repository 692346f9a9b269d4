"""The two kernels of a seam: `cross` passes over streams, `finish` adds up what several programs of a tile left."""

from __future__ import annotations

import triton
import triton.language as tl

from minidsv41.kernels.coefficients import apart, coefficients, held
from minidsv41.kernels.predictor import product, turned_product, turned_token, turned_weights
from minidsv41.kernels.sinkhorn import mixed
from minidsv41.kernels.streams import four, narrow, normal, normalise, streams, summed, updated, wide


@triton.jit
def cross(
    X, F, pre, post, comb, fn, new, parts, x, norm, base, scale, out_pre, out_post, out_comb, T, eps, hc_eps,
    C: tl.constexpr, M: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, SPLIT: tl.constexpr,
    PACKED: tl.constexpr, TURNED: tl.constexpr, MIX: tl.constexpr, ITERS: tl.constexpr,
    KEEP: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    TYPE: tl.constexpr = X.dtype.element_ty
    ROWS: tl.constexpr = 64 if SPLIT else 32
    PART: tl.constexpr = tl.cdiv(tl.cdiv(C, BLOCK), SPLITS) * BLOCK
    token = tl.program_id(0) * M + tl.arange(0, M)
    live, row = token < T, token.to(tl.int64)
    p = four(pre + row * 4, live, 1)
    if F is not None:
        o = four(post + row * 4, live, 1)
        to0, to1 = four(comb + row * 16, live, 4), four(comb + row * 16 + 1, live, 4)
        to2, to3 = four(comb + row * 16 + 2, live, 4), four(comb + row * 16 + 3, live, 4)
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
        n = streams(X + at, inside, C, KEEP)
        s = n
        if F is not None:
            f = tl.load(F + row[:, None] * C + c[None, :], inside, other=0.0, eviction_policy=KEEP).to(tl.float32)
        if TURNED:
            w = turned_weights(fn, c0, C)
        if F is not None:
            n = updated(o, to0, to1, to2, to3, f, s, TYPE)
            tl.store(new + at, n[0], inside, eviction_policy=KEEP)
            tl.store(new + at + C, n[1], inside, eviction_policy=KEEP)
            tl.store(new + at + 2 * C, n[2], inside, eviction_policy=KEEP)
            tl.store(new + at + 3 * C, n[3], inside, eviction_policy=KEEP)
            s = wide(n)
        squares += summed(mixed(s, s))
        if MIX:
            y = narrow(mixed(p, s), TYPE)
            tl.store(x + row[:, None] * C + c[None, :], y, inside, eviction_policy="evict_last")
            y = y.to(tl.float32)
            square += summed(y * y)
        if TURNED:
            products = turned_product(w, n, products, DOT, M // 16)
        else:
            products = product(fn, n, products, c0, C, BLOCK, SPLIT, PACKED, DOT, PRECISION)
    k = tl.arange(0, 32)
    part = tl.program_id(1).to(tl.int64) * T
    to = parts + (part + row) * 32
    if TURNED:
        of = tl.program_id(0) * M + turned_token(M // 16)
        tl.store(parts + (part + of)[:, None] * 32 + k[None, :], products, (k < 24)[None, :] & (of < T)[:, None])
    else:
        if SPLIT:
            products = tl.sum(products.reshape(4, 2, 8, M), 1).reshape(32, M)
        tl.store(to[None, :] + k[:, None], products, (k < 24)[:, None] & live[None, :])
    tl.store(to + 24, tl.sum(squares, 1), live)
    square = tl.sum(square, 1)
    tl.store(to + 25, square, live)
    if SPLITS == 1:
        tl.debug_barrier()  # what other threads of this program wrote is read from here on
        if MIX:
            r = tl.rsqrt(square / C + eps)
            N: tl.constexpr = 4 * BLOCK
            for back in tl.range(1, tl.cdiv(C, N) + 1, num_stages=3):  # what was written last is likeliest still in L2
                normalise(x, norm, row, live, r, (tl.cdiv(C, N) - back) * N, C, N)
        z = held(to, live, base, scale, eps, C)
        coefficients(z, row, live, out_pre, out_post, out_comb, hc_eps, ITERS)


@triton.jit
def root(parts, row, live, T, eps, C: tl.constexpr, SPLITS: tl.constexpr, PADDED: tl.constexpr):
    """What the norm of each token takes y times, from the sums that SPLITS programs left."""
    part = tl.arange(0, PADDED)
    at = parts + (part[None, :].to(tl.int64) * T + row[:, None]) * 32
    return tl.rsqrt(tl.sum(tl.load(at + 25, live[:, None] & (part < SPLITS)[None, :], other=0.0), 1) / C + eps)


@triton.jit
def finish(
    parts, kept, x, norm, base, scale, out_pre, out_post, out_comb, T, eps, hc_eps,
    C: tl.constexpr, M: tl.constexpr, STEP: tl.constexpr, SPLITS: tl.constexpr, PADDED: tl.constexpr,
    MIX: tl.constexpr, ITERS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The first program of a tile adds up the parts and makes coefficients; each of the others norms some channels.

    PDL: it starts while `cross` still runs, and waits for it where what comes from elsewhere is on its way.
    """
    token = tl.program_id(0) * M + tl.arange(0, M)
    live, row = token < T, token.to(tl.int64)
    if tl.program_id(1) == 0:
        k, part = tl.arange(0, 32), tl.arange(0, PADDED)
        b = tl.load(base + k, k < 24, other=0.0)
        group = tl.minimum(k // 4, 2)
        a = tl.load(scale + group)
        if PDL:
            tl.extra.cuda.gdc_wait()
        of = (part[None, :].to(tl.int64) * T + row[:, None]) * 32
        there = live[:, None] & (part < SPLITS)[None, :]
        total = tl.sum(tl.load(parts + of[:, :, None] + k, there[:, :, None] & (k < 24 + 2)[None, None], other=0.0), 1)
        tl.store(kept + row[:, None] * 32 + k[None, :], total, live[:, None] & (k < 24 + 2)[None, :])
        r = tl.rsqrt(tl.sum(tl.where(k[None, :] == 24, total, 0.0), 1) / (4 * C) + eps)
        z = apart(total * r[:, None] * a[None, :] + b[None, :])
        coefficients(z, row, live, out_pre, out_post, out_comb, hc_eps, ITERS)
    elif MIX:
        c = (tl.program_id(1) - 1) * STEP + tl.arange(0, STEP)
        at, inside = x + row[:, None] * C + c[None, :], live[:, None] & (c < C)[None, :]
        w = tl.load(norm + c, c < C, other=0.0)
        if PDL:
            tl.extra.cuda.gdc_wait()
        y = tl.load(at, inside, other=0.0)  # before the sums: they take longer
        r = root(parts, row, live, T, eps, C, SPLITS, PADDED)
        tl.store(at, normal(y, r, w, x.dtype.element_ty), inside)
