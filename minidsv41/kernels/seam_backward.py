"""Gradients of the seam in four kernels, of which two touch the streams.

`before_streams`: a few tokens a program, the gradient of x . x, which the pre-norm's gradient needs before it begins;
beside it, a thread for each token, from the gradients of pre', post', comb' back through Sinkhorn to those of the 24
products, by u and v of all its steps (640 B a token, in L2). `streams_backward` owns a tile of tokens and walks over
the channels once, as the seam does: X' is made again from X and F, its whole gradient G is put together in registers,
and X, F and all coefficients get theirs. `weights_backward` reads X' once more for the predictor's weights: 24 x 4C
sums over tokens by tensor cores, in float32 parts. `added_up` ends all sums over tokens.

Bytes a token at best, width C, bf16: X 8C + F 2C + gradients of X' 8C and of x 2C in, gradients of X 8C and F 2C out:
30C, 153,600 at C = 5,120. Here also x 2C, its gradient once more 2C, X' 8C, sums of the norm 2C: 44C, 1.5 times that.
Latency limits `streams_backward` (245 registers: 8 warps on a multiprocessor), so it asks L2 for its next step while it
computes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from minidsv41.kernels.coefficients import coefficient_gradients, store_four
from minidsv41.kernels.launch import launch
from minidsv41.kernels.predictor import of_predictor, weight_gradients
from minidsv41.kernels.sinkhorn import by, mixed, plus
from minidsv41.kernels.streams import fetch, fetch_streams, four, narrow, streams, summed, updated, wide
from minidsv41.kernels.sums import add_up
from minidsv41.ops.seam import Next


class Tile(NamedTuple):
    """tokens, channels: what a program of `streams_backward` takes at once; dots: tokens of `row_products`.

    groups: parts that `weights_backward` splits the tokens into; columns, depth: its columns and tokens at once.
    """

    tokens: int = 16
    channels: int = 64
    warps: int = 4
    stages: int = 2
    dots: int = 2
    groups: int = 3
    columns: int = 128
    depth: int = 32


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


def tile_for(dtype: torch.dtype) -> Tile:
    if dtype == torch.float32:
        return Tile(16, 32, 4, 1, columns=64, depth=32)
    return Tile()


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
    tile = tile or tile_for(new.dtype)
    empty = dict(dtype=torch.float32, device=new.device)
    given, sums, packed = coefficient_gradients(d_x, d_pre, d_post, d_comb, into, x, kept, tile.dots)
    X, F, pre, post, comb = inputs
    tiles = triton.cdiv(tokens, tile.tokens)
    warp_sums = torch.empty(tiles * tile.tokens // 4, width, **empty)
    parts = torch.empty(tiles, width, **empty)
    out = [None if t is None else torch.empty_like(t) for t in inputs]
    launch(
        streams_backward,
        (tiles,),
        **dict(X=X, F=F, pre=pre, post=post, comb=comb, fn=into.fn, norm=into.norm, d_new=d_new, d_x=d_x, given=given),
        **dict(zip(("out_X", "out_F", "out_pre", "out_post", "out_comb"), out, strict=True), d_norm=parts, T=tokens),
        **dict(warp_sums=warp_sums, C=width, M=tile.tokens, BLOCK=tile.channels),
        PRECISION="ieee" if new.dtype == torch.float32 else "tf32",
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    whose = given if packed is None else packed
    d_fn = weight_gradients(whose, new, groups=tile.groups, columns=tile.columns, depth=tile.depth)
    return Gradients(*out, *add_up(sums, parts, d_fn, into.norm.dtype))


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
def streams_backward(
    X, F, pre, post, comb, fn, norm, d_new, d_x, given, out_X, out_F, out_pre, out_post, out_comb, warp_sums, d_norm, T,
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
    of_warps = warp_sums + (tl.program_id(0) * (M // 4) + tl.arange(0, M // 4)).to(tl.int64)[:, None] * C
    if F is not None:
        o = four(post + row * 4, live, 1)
        to0, to1 = four(comb + row * 16, live, 4), four(comb + row * 16 + 1, live, 4)
        to2, to3 = four(comb + row * 16 + 2, live, 4), four(comb + row * 16 + 3, live, 4)
    for c0 in range(0, C, BLOCK):
        c = c0 + tl.arange(0, BLOCK)
        inside = live[:, None] & (c < C)[None, :]
        at, narrow_at = row[:, None] * (4 * C) + c[None, :], row[:, None] * C + c[None, :]
        if F is not None:
            ahead = tl.minimum(row, T - 1)[:, None]
            then = tl.minimum(c0 + BLOCK + tl.arange(0, BLOCK // 8) * 8, C - 1)[None, :]
            fetch_streams(X + ahead * (4 * C) + then, C)
            fetch_streams(d_new + ahead * (4 * C) + then, C)
            fetch(F + ahead * C + then)
            fetch(d_x + ahead * C + then)
        if F is None:  # the product stands before what is loaded last, whose layout then wins
            G = of_predictor(d, fn, c0, C, BLOCK, TYPE, PRECISION)
            n = streams(X + at, inside, C, "")
            g = tl.load(d_x + narrow_at, inside, other=0.0).to(tl.float32)
        else:
            s = streams(X + at, inside, C, "")
            f = tl.load(F + narrow_at, inside, other=0.0).to(tl.float32)
            g = tl.load(d_x + narrow_at, inside, other=0.0).to(tl.float32)
            G = of_predictor(d, fn, c0, C, BLOCK, TYPE, PRECISION)
            G = plus(G, streams(d_new + at, inside, C, ""))
            n = wide(updated(o, to0, to1, to2, to3, f, s, TYPE))
        y = mixed(p, n)
        of_four = tl.sum((g * y * r).reshape(M // 4, 4, BLOCK), 1)  # four rows lie in one warp
        tl.store(of_warps + c[None, :], of_four, (c < C)[None, :])
        g = g * r * tl.load(norm + c, c < C, other=0.0).to(tl.float32)[None, :] - of_mix * y
        sums = all_summed(sums, n, g)
        G = plus(plus(G, by(p, g)), by(n, of_new))
        if F is None:
            store_streams(out_X + at, G, inside, C)
        else:
            tl.store(out_F + narrow_at, narrow(mixed(o, G), TYPE), inside)
            back = plus(plus(by(to0, G[0]), by(to1, G[1])), plus(by(to2, G[2]), by(to3, G[3])))
            store_streams(out_X + at, back, inside, C)
            f_sums = all_summed(f_sums, G, f)
            sums0, sums1 = all_summed(sums0, G, s[0]), all_summed(sums1, G, s[1])
            sums2, sums3 = all_summed(sums2, G, s[2]), all_summed(sums3, G, s[3])
    tl.debug_barrier()  # what other warps wrote is read from here on
    for c0 in range(0, C, 16 * BLOCK):
        c = c0 + tl.arange(0, 16 * BLOCK)
        of_norm = tl.zeros([16 * BLOCK], tl.float32)
        for part in tl.static_range(M // 4):
            at = (tl.program_id(0) * (M // 4) + part).to(tl.int64) * C
            of_norm += tl.load(warp_sums + at + c, c < C, other=0.0)
        tl.store(d_norm + tl.program_id(0) * C + c, of_norm, c < C)
    store_sums(out_pre + row * 4, sums, live)
    if F is not None:
        store_sums(out_post + row * 4, f_sums, live)
        store_sums(out_comb + row * 16, sums0, live)
        store_sums(out_comb + row * 16 + 4, sums1, live)
        store_sums(out_comb + row * 16 + 8, sums2, live)
        store_sums(out_comb + row * 16 + 12, sums3, live)


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
