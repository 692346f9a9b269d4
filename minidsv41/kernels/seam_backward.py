"""Gradients of the seam in four kernels, of which two touch the streams.

`row_products`, a few tokens a program: gradient of x . x, which the pre-norm's gradient needs before it begins.
`coefficients_backward`, a warp for 32 tokens: from the gradients of pre', post', comb' back through Sinkhorn to those
of the 24 products, by u and v of all its steps (640 B a token, in L2). `streams_backward` owns a tile of tokens and
walks over the channels once, as the seam does: X' is made again from X and F, its whole gradient G is put together in
registers, and X, F and all coefficients get theirs. `weights_backward` reads X' once more for the predictor's weights:
24 x 4C sums over tokens by tensor cores, in float32 parts added at the end.

Bytes a token at best, width C, bf16: X 8C + F 2C + gradients of X' 8C and of x 2C in, gradients of X 8C and F 2C out:
30C, 153,600 at C = 5,120. Here also x 2C, its gradient once more 2C, X' 8C: 42C, 1.4 times that. Device memory limits.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from minidsv41.kernels.launch import dot_type, launch
from minidsv41.kernels.sinkhorn import (
    by,
    load_four,
    logits,
    mixed,
    normed,
    over_softmax,
    plus,
    raised,
    shares,
    sigmoid,
    sinkhorn_backward,
    store_four,
    times,
)
from minidsv41.kernels.streams import four, narrow, streams, summed, updated, wide
from minidsv41.ops.seam import Next


class Tile(NamedTuple):
    """tokens, channels: what a program of `streams_backward` takes at once; dots: tokens of `row_products`.

    groups: parts that `weights_backward` splits the tokens into; columns, depth: its columns and tokens at once.
    """

    tokens: int = 32
    channels: int = 64
    warps: int = 8
    stages: int = 2
    dots: int = 4
    groups: int = 2
    columns: int = 128
    depth: int = 64


class Gradients(NamedTuple):
    X: Tensor
    F: Tensor | None
    pre: Tensor
    post: Tensor | None
    comb: Tensor | None
    fn: Tensor
    base: Tensor
    scale: Tensor
    norm: Tensor


def tile_for(tokens: int, dtype: torch.dtype) -> Tile:
    if dtype == torch.float32:
        return Tile(16, 32, 4, 1, columns=64, depth=32)
    return Tile(32 if tokens > 2048 else 16, warps=8 if tokens > 2048 else 4, groups=4 if tokens > 8192 else 2)


def seam_backward(
    d_new: Tensor | None,
    d_x: Tensor,
    d_pre: Tensor,
    d_post: Tensor,
    d_comb: Tensor,
    inputs: tuple,
    into: Next,
    new: Tensor,
    x: Tensor,
    kept: Tensor,
    *,
    tile: Tile | None = None,
) -> Gradients:
    """From the gradients of the seam's results to those of inputs (X, F, pre, post, comb) and of `into`.

    All contiguous. kept: what the seam kept of each token; d_new None where F is: then X's gradient lacks that of X'.
    """
    tokens, _, width = new.shape
    tile = tile or tile_for(tokens, new.dtype)
    empty = dict(dtype=torch.float32, device=new.device)
    given, sums, packed = coefficient_gradients(d_x, d_pre, d_post, d_comb, into, x, kept, tile)
    X, F, pre, post, comb = inputs
    tiles = triton.cdiv(tokens, tile.tokens)
    parts = torch.empty(tiles, width, **empty)
    out = [None if t is None else torch.empty_like(t) for t in inputs]
    launch(
        streams_backward,
        (tiles,),
        **dict(X=X, F=F, pre=pre, post=post, comb=comb, fn=into.fn, norm=into.norm, d_new=d_new, d_x=d_x, given=given),
        **dict(zip(("out_X", "out_F", "out_pre", "out_post", "out_comb"), out, strict=True), d_norm=parts, T=tokens),
        **dict(C=width, M=tile.tokens, BLOCK=tile.channels),
        PRECISION="ieee" if new.dtype == torch.float32 else "tf32",
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    base, per_product = sums.sum(0)
    scale = torch.stack([per_product[:4].sum(), per_product[4:8].sum(), per_product[8:].sum()])
    d_fn = weight_gradients(given if packed is None else packed, new, tile)
    return Gradients(*out, d_fn, base, scale, parts.sum(0).to(into.norm.dtype))


def coefficient_gradients(
    d_x, d_pre, d_post, d_comb, into: Next, x, kept, tile
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Of each token [T, 32]: gradients of 24 products before their norm, then three numbers for `streams_backward`;
    sums over tokens [tiles, 2, 24] for base and scale; in bf16 also the gradients in two parts [T, 48]."""
    tokens, width = x.shape
    empty = dict(dtype=torch.float32, device=x.device)
    given = torch.empty(tokens, 32, **empty)
    sums = torch.empty(triton.cdiv(tokens, 32), 2, 24, **empty)
    packed = None if x.dtype == torch.float32 else x.new_empty(tokens, 48)
    launch(
        row_products,
        (triton.cdiv(tokens, tile.dots),),
        **dict(x=x, d_x=d_x, kept=kept, given=given, T=tokens, eps=into.eps, C=width, M=tile.dots),
        N=min(1024, triton.next_power_of_2(width)),
        num_warps=4,
    )
    launch(
        coefficients_backward,
        (triton.cdiv(tokens, 32),),
        **dict(kept=kept, base=into.base, scale=into.scale, d_pre=d_pre, d_post=d_post, d_comb=d_comb, given=given),
        **dict(
            packed=packed,
            sums=sums,
            steps=torch.empty(into.iters, 8, tokens, **empty),
            T=tokens,
            eps=into.eps,
            hc_eps=into.hc_eps,
            C=width,
            M=32,
            ITERS=into.iters,
        ),
        num_warps=1,
    )
    return given, sums, packed


def weight_gradients(given: Tensor, new: Tensor, tile: Tile) -> Tensor:
    """[24, 4C]: sums over tokens of a product's gradient times X'."""
    tokens, _, width = new.shape
    parts = torch.empty(tile.groups, 24, 4 * width, dtype=torch.float32, device=new.device)
    launch(
        weights_backward,
        (triton.cdiv(4 * width, tile.columns), tile.groups),
        **dict(given=given, new=new, parts=parts, T=tokens, WIDE=4 * width, N=tile.columns, M=tile.depth),
        **dict(GROUPS=tile.groups, DOT=dot_type(new.dtype), SPLIT=new.dtype != torch.float32),
        num_warps=4,
        num_stages=1 if new.dtype == torch.float32 else 4,
    )
    return parts.sum(0)


@triton.jit
def row_products(x, d_x, kept, given, T, eps, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    token = tl.program_id(0) * M + tl.arange(0, M)
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
    for i in tl.static_range(4):
        tl.store(sums + FIRST + i, tl.sum(grad[i], 0))
        tl.store(sums + 24 + FIRST + i, tl.sum(grad[i] * m[i], 0))
    return mixed(d_m, m)


@triton.jit
def coefficients_backward(
    kept, base, scale, d_pre, d_post, d_comb, given, packed, sums, steps, T, eps, hc_eps,
    C: tl.constexpr, M: tl.constexpr, ITERS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * M + tl.arange(0, M)
    live, row = token < T, token.to(tl.int64)
    kept, given, sums = kept + row * 32, given + row * 32, sums + tl.program_id(0) * 48
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
def all_summed(total, g, x):
    """Add to four totals: four g times x, channel by channel."""
    return plus(total, (summed(g[0] * x), summed(g[1] * x), summed(g[2] * x), summed(g[3] * x)))


@triton.jit
def store_sums(to, total, live):
    store_four(to, (tl.sum(total[0], 1), tl.sum(total[1], 1), tl.sum(total[2], 1), tl.sum(total[3], 1)), live)


@triton.jit
def store_streams(to, x, inside, C: tl.constexpr):
    TYPE: tl.constexpr = to.dtype.element_ty
    tl.store(to, narrow(x[0], TYPE), inside)
    tl.store(to + C, narrow(x[1], TYPE), inside)
    tl.store(to + 2 * C, narrow(x[2], TYPE), inside)
    tl.store(to + 3 * C, narrow(x[3], TYPE), inside)


@triton.jit
def of_predictor(d, fn, c0, C: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr):
    """What the predictor adds to the gradient of BLOCK channels of four streams: d [tokens, 32] times its weights.

    One product for all four, taken apart along registers: the result then takes the layout of what it is added to.
    """
    k, column = tl.arange(0, 32), tl.arange(0, 4 * BLOCK)
    c = c0 + tl.max_contiguous(tl.multiple_of(column % BLOCK, 8), 8)
    inside = (k < 24)[:, None] & (c < C)[None, :]
    w = tl.load(fn + k[:, None] * (4 * C) + (column // BLOCK * C + c)[None, :], inside, other=0.0)
    x = tl.dot(d, w, input_precision=PRECISION).reshape(d.shape[0], 2, 2, BLOCK).permute(0, 3, 2, 1)
    low, high = x.split()
    a, b = low.split()
    c, d = high.split()
    return a, b, c, d


@triton.jit
def streams_backward(
    X, F, pre, post, comb, fn, norm, d_new, d_x, given, out_X, out_F, out_pre, out_post, out_comb, d_norm, T,
    C: tl.constexpr, M: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    TYPE: tl.constexpr = X.dtype.element_ty
    token, k = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, 32)
    live, row = token < T, token.to(tl.int64)
    d = tl.load(given + row[:, None] * 32 + k[None, :], live[:, None] & (k < 24)[None, :], other=0.0)
    of_new = tl.load(given + row * 32 + 24, live, other=0.0)[:, None]
    of_mix = tl.load(given + row * 32 + 25, live, other=0.0)[:, None]
    r = tl.load(given + row * 32 + 26, live, other=0.0)[:, None]
    p = four(pre + row * 4, live, 1)
    zero = tl.zeros([M, BLOCK // 8], tl.float32)
    zeros = (zero, zero, zero, zero)
    sums, f_sums, sums0, sums1, sums2, sums3 = zeros, zeros, zeros, zeros, zeros, zeros
    if F is not None:
        o = four(post + row * 4, live, 1)
        to0, to1 = four(comb + row * 16, live, 4), four(comb + row * 16 + 1, live, 4)
        to2, to3 = four(comb + row * 16 + 2, live, 4), four(comb + row * 16 + 3, live, 4)
    for c0 in range(0, C, BLOCK):
        c = c0 + tl.arange(0, BLOCK)
        inside = live[:, None] & (c < C)[None, :]
        G = of_predictor(d, fn, c0, C, BLOCK, PRECISION)  # first: then the layout of what is loaded later wins
        at, narrow_at = row[:, None] * (4 * C) + c[None, :], row[:, None] * C + c[None, :]
        s = streams(X + at, inside, C, "")
        n = s
        if F is not None:
            f = tl.load(F + narrow_at, inside, other=0.0).to(tl.float32)
            n = wide(updated(o, to0, to1, to2, to3, f, s, TYPE))
        g, y = tl.load(d_x + narrow_at, inside, other=0.0).to(tl.float32), mixed(p, n)
        tl.store(d_norm + tl.program_id(0) * C + c, tl.sum(g * y * r, 0), c < C)
        g = g * r * tl.load(norm + c, c < C, other=0.0).to(tl.float32)[None, :] - of_mix * y
        sums = all_summed(sums, n, g)
        G = plus(plus(G, by(p, g)), by(n, of_new))
        if F is None:
            store_streams(out_X + at, G, inside, C)
        else:
            G = plus(G, streams(d_new + at, inside, C, ""))
            tl.store(out_F + narrow_at, narrow(mixed(o, G), TYPE), inside)
            back = plus(plus(by(to0, G[0]), by(to1, G[1])), plus(by(to2, G[2]), by(to3, G[3])))
            store_streams(out_X + at, back, inside, C)
            f_sums = all_summed(f_sums, G, f)
            sums0, sums1 = all_summed(sums0, G, s[0]), all_summed(sums1, G, s[1])
            sums2, sums3 = all_summed(sums2, G, s[2]), all_summed(sums3, G, s[3])
    store_sums(out_pre + row * 4, sums, live)
    if F is not None:
        store_sums(out_post + row * 4, f_sums, live)
        store_sums(out_comb + row * 16, sums0, live)
        store_sums(out_comb + row * 16 + 4, sums1, live)
        store_sums(out_comb + row * 16 + 8, sums2, live)
        store_sums(out_comb + row * 16 + 12, sums3, live)


@triton.jit
def weights_backward(
    given, new, parts, T, WIDE: tl.constexpr, N: tl.constexpr, M: tl.constexpr, GROUPS: tl.constexpr,
    DOT: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    ROWS: tl.constexpr = 64 if SPLIT else 32
    HELD: tl.constexpr = 48 if SPLIT else 24
    STRIDE: tl.constexpr = 48 if SPLIT else 32
    k, c = tl.arange(0, ROWS), tl.program_id(0) * N + tl.arange(0, N)
    total = tl.zeros([ROWS, N], tl.float32)
    steps = tl.cdiv(tl.cdiv(T, GROUPS), M)
    first = tl.program_id(1) * steps * M
    for t0 in range(first, tl.minimum(first + steps * M, T), M):
        token = t0 + tl.arange(0, M)
        row, live = token.to(tl.int64), token < T
        d = tl.load(given + row[:, None] * STRIDE + k[None, :], live[:, None] & (k < HELD)[None, :], other=0.0)
        x = tl.load(new + row[:, None] * WIDE + c[None, :], live[:, None] & (c < WIDE)[None, :], other=0.0)
        total = tl.dot(d.to(DOT).T, x.to(DOT), total, input_precision="ieee")
    if SPLIT:
        total = tl.sum(total.reshape(4, 2, 8, N), 1).reshape(32, N)
    k = tl.arange(0, 32)
    to = parts + (tl.program_id(1) * 24 + k)[:, None] * WIDE + c[None, :]
    tl.store(to, total, (k < 24)[:, None] & (c < WIDE)[None, :])


def specimen(tokens: int, dtype: torch.dtype = torch.bfloat16, updated: bool = True) -> Gradients:
    def made(*shape: int, kind: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=kind, device="meta")

    C = 5120
    into = Next(made(24, 4 * C), made(24), made(3), made(C, kind=dtype), 1e-20, 1e-6, 20)
    X, F = made(tokens, 4, C, kind=dtype), made(tokens, C, kind=dtype)
    pre, comb = made(tokens, 4), made(tokens, 4, 4)
    inputs = (X, F, pre, pre, comb) if updated else (X, None, pre, None, None)
    return seam_backward(X if updated else None, F, pre, pre, comb, inputs, into, X, F, made(tokens, 32))


SPECIMENS = {
    "seam backward T=4096": lambda: specimen(4096),
    "seam backward T=4096, streams up to date": lambda: specimen(4096, updated=False),
    "seam backward T=4096 float32": lambda: specimen(4096, torch.float32),
}
