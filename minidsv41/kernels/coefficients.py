"""The coefficients of a seam from the 24 products of each token, and their gradients."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from minidsv41.kernels.launch import launch
from minidsv41.kernels.sinkhorn import by, mixed, plus, sinkhorn, sinkhorn_backward, times
from minidsv41.kernels.streams import wide
from minidsv41.ops.seam import Next

TOKENS = 128  # for a program of `coefficients_backward`, as many as its threads


def coefficient_gradients(
    d_x, d_pre, d_post, d_comb, into: Next, x, kept, rows: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Of each token [T, 32]: gradients of 24 products before their norm, then three numbers for `streams_backward`;
    sums over tokens [tiles, 2, 24] for base and scale; in bf16 also the gradients in two parts [T, 48]."""
    tokens, width = x.shape
    empty = dict(dtype=torch.float32, device=x.device)
    given = torch.empty(tokens, 32, **empty)
    groups = triton.cdiv(tokens, TOKENS)
    sums = torch.empty(groups * (TOKENS // 32), 2, 24, **empty)
    packed = None if x.dtype == torch.float32 else x.new_empty(tokens, 48)
    launch(
        before_streams,
        (groups + triton.cdiv(tokens, rows),),
        **dict(kept=kept, base=into.base, scale=into.scale, d_pre=d_pre, d_post=d_post, d_comb=d_comb, given=given),
        **dict(packed=packed, sums=sums, steps=torch.empty(into.iters, 8, tokens, **empty), T=tokens, eps=into.eps),
        **dict(hc_eps=into.hc_eps, C=width, TOKENS=TOKENS, ITERS=into.iters, x=x, d_x=d_x, M=rows),
        N=min(1024, triton.next_power_of_2(width)),
        num_warps=TOKENS // 32,
    )
    return given, sums, packed


@triton.jit
def load_four(at, live):
    a, b = tl.load(at, live, other=0.0), tl.load(at + 1, live, other=0.0)
    return a, b, tl.load(at + 2, live, other=0.0), tl.load(at + 3, live, other=0.0)


@triton.jit
def store_four(at, a, live):
    tl.store(at, a[0], live)
    tl.store(at + 1, a[1], live)
    tl.store(at + 2, a[2], live)
    tl.store(at + 3, a[3], live)


@triton.jit
def sigmoid(z):
    return tl.sigmoid(z[0]), tl.sigmoid(z[1]), tl.sigmoid(z[2]), tl.sigmoid(z[3])


@triton.jit
def softmax(z):
    top = tl.maximum(tl.maximum(z[0], z[1]), tl.maximum(z[2], z[3]))
    e = tl.exp(z[0] - top), tl.exp(z[1] - top), tl.exp(z[2] - top), tl.exp(z[3] - top)
    return by(e, 1.0 / (e[0] + e[1] + e[2] + e[3]))


@triton.jit
def over_softmax(grad, p):
    """Gradients of logits from those of their softmax p."""
    return times(p, plus(grad, by((-1.0, -1.0, -1.0, -1.0), mixed(grad, p))))


@triton.jit
def logits(m, base, scale, FIRST: tl.constexpr, GROUP: tl.constexpr):
    """Logits from four products m; the first of them is number FIRST, they belong to coefficient group GROUP."""
    b = tl.load(base + FIRST), tl.load(base + FIRST + 1), tl.load(base + FIRST + 2), tl.load(base + FIRST + 3)
    return plus(by(m, tl.load(scale + GROUP)), b)


@triton.jit
def shares(m, base, scale):
    """What Sinkhorn begins with, less eps: softmax over destinations of 16 logits."""
    a, b = softmax(logits(m[0], base, scale, 8, 2)), softmax(logits(m[1], base, scale, 12, 2))
    return a, b, softmax(logits(m[2], base, scale, 16, 2)), softmax(logits(m[3], base, scale, 20, 2))


@triton.jit
def raised(P, eps):
    """P + eps."""
    e = eps, eps, eps, eps
    return plus(P[0], e), plus(P[1], e), plus(P[2], e), plus(P[3], e)


@triton.jit
def normed(kept, r, live):
    """The 16 products of comb, times r."""
    a, b = by(load_four(kept + 8, live), r), by(load_four(kept + 12, live), r)
    return a, b, by(load_four(kept + 16, live), r), by(load_four(kept + 20, live), r)


@triton.jit
def held(kept, live, base, scale, eps, C: tl.constexpr):
    """Logits of six times four coefficients from what was kept of each token (kept: where it lies)."""
    r = tl.rsqrt(tl.load(kept + 24, live, other=0.0) / (4 * C) + eps)
    a, b = by(load_four(kept, live), r), by(load_four(kept + 4, live), r)
    m = normed(kept, r, live)
    a, b = logits(a, base, scale, 0, 0), logits(b, base, scale, 4, 1)
    c, d = logits(m[0], base, scale, 8, 2), logits(m[1], base, scale, 12, 2)
    return a, b, c, d, logits(m[2], base, scale, 16, 2), logits(m[3], base, scale, 20, 2)


@triton.jit
def eight(x):
    """The columns of x [tokens, 8]."""
    x, y = x.reshape(x.shape[0], 4, 2).split()
    a, c = x.reshape(x.shape[0], 2, 2).split()
    b, d = y.reshape(x.shape[0], 2, 2).split()
    a, e = a.split()
    b, f = b.split()
    c, g = c.split()
    d, h = d.split()
    return a, b, c, d, e, f, g, h


@triton.jit
def apart(z):
    """The same from rows of logits z [tokens, 32]."""
    x, y = z.reshape(z.shape[0], 16, 2).split()
    p, r = x.reshape(x.shape[0], 8, 2).split()
    q, s = y.reshape(x.shape[0], 8, 2).split()
    p, q, r, s = eight(p), eight(q), eight(r), eight(s)
    a, b, c = (p[0], q[0], r[0], s[0]), (p[1], q[1], r[1], s[1]), (p[2], q[2], r[2], s[2])
    d, e, f = (p[3], q[3], r[3], s[3]), (p[4], q[4], r[4], s[4]), (p[5], q[5], r[5], s[5])
    return a, b, c, d, e, f


@triton.jit
def coefficients(z, row, live, out_pre, out_post, out_comb, hc_eps, ITERS: tl.constexpr):
    """pre, post and comb of some tokens from their logits z, six times four."""
    e = hc_eps, hc_eps, hc_eps, hc_eps
    pre, post = plus(sigmoid(z[0]), e), by(sigmoid(z[1]), 2.0)
    K = raised((softmax(z[2]), softmax(z[3]), softmax(z[4]), softmax(z[5])), hc_eps)
    store_four(out_pre + row * 4, pre, live)  # after all loads, which no store then delays
    store_four(out_post + row * 4, post, live)
    u, v = sinkhorn(K, hc_eps, ITERS)
    at = out_comb + row * 16
    store_four(at, by(times(K[0], v), u[0]), live)
    store_four(at + 4, by(times(K[1], v), u[1]), live)
    store_four(at + 8, by(times(K[2], v), u[2]), live)
    store_four(at + 12, by(times(K[3], v), u[3]), live)


@triton.jit
def row_products(program, x, d_x, kept, given, T, eps, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """Gradient of x . x, and the root of the pre-norm."""
    token = program * M + tl.arange(0, M)
    live, row = token < T, token.to(tl.int64)
    total = tl.zeros([M, N], tl.float32)
    for c0 in range(0, C, N):
        c = c0 + tl.arange(0, N)
        at, inside = row[:, None] * C + c[None, :], live[:, None] & (c < C)[None, :]
        total += tl.load(x + at, inside, other=0.0).to(tl.float32) * tl.load(d_x + at, inside, other=0.0).to(tl.float32)
    r = tl.rsqrt(tl.load(kept + row * 32 + 25, live, other=1.0) / C + eps)
    tl.store(given + row * 32 + 25, tl.sum(total, 1) * r * r / C, live)
    tl.store(given + row * 32 + 26, r, live)


@triton.jit
def group(grad, m, r, scale, given, packed, sums, live, FIRST: tl.constexpr, GROUP: tl.constexpr):
    """Store what follows from the gradients of four logits; returns the sum of products times their gradients."""
    d_m = by(grad, tl.load(scale + GROUP))
    d = by(d_m, r)
    store_four(given + FIRST, d, live)
    if packed is not None:
        to = packed + FIRST // 8 * 16 + FIRST % 8
        high = d[0].to(tl.bfloat16), d[1].to(tl.bfloat16), d[2].to(tl.bfloat16), d[3].to(tl.bfloat16)
        store_four(to, high, live)
        low = plus(d, by(wide(high), -1.0))
        store_four(
            to + 8,
            (low[0].to(tl.bfloat16), low[1].to(tl.bfloat16), low[2].to(tl.bfloat16), low[3].to(tl.bfloat16)),
            live,
        )
    WARPS: tl.constexpr = live.shape[0] // 32
    to = sums + FIRST + tl.arange(0, WARPS) * 48
    for i in tl.static_range(4):
        tl.store(to + i, tl.sum(grad[i].reshape(WARPS, 32), 1))
        tl.store(to + 24 + i, tl.sum((grad[i] * m[i]).reshape(WARPS, 32), 1))
    return mixed(d_m, m)


@triton.jit
def coefficients_backward(
    program, kept, base, scale, d_pre, d_post, d_comb, given, packed, sums, steps, T, eps, hc_eps,
    C: tl.constexpr, M: tl.constexpr, ITERS: tl.constexpr,
):  # fmt: skip
    """A thread for each token: it alone writes and reads the steps of its token."""
    token = program * M + tl.arange(0, M)
    live, row = token < T, token.to(tl.int64)
    kept, given, sums = kept + row * 32, given + row * 32, sums + program * (M // 32) * 48
    if packed is not None:
        packed += row * 48
    r = tl.rsqrt(tl.load(kept + 24, live, other=1.0) / (4 * C) + eps)
    m = normed(kept, r, live)
    P, g = shares(m, base, scale), d_comb + row * 16
    grad = load_four(g, live), load_four(g + 4, live), load_four(g + 8, live), load_four(g + 12, live)
    d = sinkhorn_backward(grad, raised(P, hc_eps), steps + row, T, live, hc_eps, ITERS)
    total = group(over_softmax(d[0], P[0]), m[0], r, scale, given, packed, sums, live, 8, 2)
    total += group(over_softmax(d[1], P[1]), m[1], r, scale, given, packed, sums, live, 12, 2)
    total += group(over_softmax(d[2], P[2]), m[2], r, scale, given, packed, sums, live, 16, 2)
    total += group(over_softmax(d[3], P[3]), m[3], r, scale, given, packed, sums, live, 20, 2)
    m = by(load_four(kept, live), r)
    s = sigmoid(logits(m, base, scale, 0, 0))
    slope = plus(s, by(times(s, s), -1.0))
    total += group(times(load_four(d_pre + row * 4, live), slope), m, r, scale, given, packed, sums, live, 0, 0)
    m = by(load_four(kept + 4, live), r)
    s = sigmoid(logits(m, base, scale, 4, 1))
    slope = by(plus(s, by(times(s, s), -1.0)), 2.0)
    total += group(times(load_four(d_post + row * 4, live), slope), m, r, scale, given, packed, sums, live, 4, 1)
    tl.store(given + 24, -total * r * r / (4 * C), live)


@triton.jit
def before_streams(
    kept, base, scale, d_pre, d_post, d_comb, given, packed, sums, steps, x, d_x, T, eps, hc_eps,
    C: tl.constexpr, TOKENS: tl.constexpr, ITERS: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """The first programs take coefficients back, which takes long but little of the card, all others rows of x."""
    program, groups = tl.program_id(0), tl.cdiv(T, TOKENS)
    if program < groups:
        coefficients_backward(
            program, kept, base, scale, d_pre, d_post, d_comb, given, packed, sums, steps, T, eps, hc_eps,
            C, TOKENS, ITERS,
        )  # fmt: skip
    else:
        row_products(program - groups, x, d_x, kept, given, T, eps, C, M, N)
