"""One pass over the streams for each sublayer seam: twin of `ops.seam`, differentiable.

A program of `cross` owns a tile of tokens, so that the predictor's 1.97 MB of weights are not read again by each token,
and walks over the channels: X' = update(X, F) goes out and, still in registers, feeds the delayed mix y, the sums of
squares, and 24 products by tensor cores. Predictor weights stand in the rows of the product as two bfloat16 parts, high
and low (X' is bfloat16 itself: the error left is 2**-17 of a weight); float32 activations use ieee. The pre-norm needs
all of y: y waits where x will be, and is read back from L2, the last first, by its own program, or, where few tokens
make several programs share the channels of a tile, by a second kernel, `finish`. Sinkhorn runs in registers.

Bytes a token, width C, bf16: X 8C + F 2C in, X' 8C + x 2C out: 102,400 at C = 5,120; y comes back from L2 (2C). Device
memory limits it from about 2,000 tokens on, below that the time of two launches, of which the second starts early.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from minidsv41.kernels.coefficients import coefficients, finish
from minidsv41.kernels.launch import dot_type, launch, require, starts_early
from minidsv41.kernels.predictor import pack, product
from minidsv41.kernels.seam_backward import seam_backward
from minidsv41.kernels.sinkhorn import mixed
from minidsv41.kernels.streams import four, narrow, normalise, streams, summed, updated, wide
from minidsv41.ops.seam import Next

KEPT = 32  # float32 numbers kept of each token: 24 products, sum of squares of X', sum of squares of y


class Tile(NamedTuple):
    """What a program of `cross` takes at once: tokens, channels; into how many parts the channels of a tile are split.

    packed: a small kernel parts the weights beforehand, instead of every program. finish: tokens for one of `finish`.
    early: `cross` after that small kernel, and `finish` after `cross`, start before the one before has ended.
    """

    tokens: int
    channels: int = 64
    splits: int = 1
    packed: bool = False
    warps: int = 8
    stages: int = 3
    finish: int = 1
    early: bool = True


def tile_for(tokens: int, width: int, dtype: torch.dtype) -> Tile:
    """Few tokens: small programs on all multiprocessors; more: at least 128 programs, with many bytes on their way."""
    if dtype == torch.float32:
        return Tile(16, 32, 1 if tokens > 2048 else min(8, triton.cdiv(width, 32)), warps=4, stages=1)
    blocks = triton.cdiv(width, 64)
    if tokens <= 16:
        return Tile(16, splits=blocks, warps=4, stages=1)
    if tokens <= 64:
        return Tile(32, splits=blocks, stages=1, finish=2)
    if tokens <= 128:
        return Tile(64, 32, splits=blocks, stages=1, finish=4)
    if tokens > 8192:
        return Tile(64, packed=True, early=False)
    splits = max(1, min(128 // triton.cdiv(tokens, 32), blocks))
    return Tile(32, splits=splits, packed=True, stages=3 if tokens <= 512 else 4, finish=4, early=False)


def seam(
    X: Tensor,
    F: Tensor | None,
    pre: Tensor,
    post: Tensor | None,
    comb: Tensor | None,
    into: Next,
    *,
    tile: Tile | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `ops.seam`: X' [T, 4, C], normed input x [T, C], pre' [T, 4], post' [T, 4], comb' [T, 4, 4]."""
    check(X, F, pre, post, comb, into)
    tensors = (X.contiguous(), F, pre, post, comb, into.fn, into.base, into.scale, into.norm)
    tensors = tuple(t if t is None else t.contiguous() for t in tensors)
    new, *rest = Crossing.apply(*tensors, into.eps, into.hc_eps, into.iters, tile)
    return (X if F is None else new), *rest


def check(X, F, pre, post, comb, into: Next) -> None:
    dot_type(X.dtype)
    require(X.ndim == 3 and X.shape[1] == 4, f"X.shape = {tuple(X.shape)}: allowed are four streams, [T, 4, C]")
    tokens, _, width = X.shape
    require(width % 16 == 0, f"C = {width}: allowed are multiples of 16")
    for name, value, shape in (
        *(("F", F, (tokens, width)), ("pre", pre, (tokens, 4)), ("post", post, (tokens, 4))),
        *(("comb", comb, (tokens, 4, 4)), ("into.fn", into.fn, (24, 4 * width)), ("into.base", into.base, (24,))),
        *(("into.scale", into.scale, (3,)), ("into.norm", into.norm, (width,))),
    ):
        if value is None:
            require(F is None and name in ("F", "post", "comb"), f"{name} = None: allowed where F is None")
            continue
        require(tuple(value.shape) == shape, f"{name}.shape = {tuple(value.shape)}: allowed is {shape}")
        kinds = (X.dtype,) if name == "F" else (torch.float32,)
        kinds = (*kinds, X.dtype) if name == "into.norm" else kinds
        require(value.dtype in kinds, f"{name}.dtype = {value.dtype}: allowed is {kinds[0]}")
    require(into.iters >= 1, f"into.iters = {into.iters}: allowed are 1 and more")


class Crossing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, X, F, pre, post, comb, fn, base, scale, norm, eps, hc_eps, iters, tile):
        into = Next(fn, base, scale, norm, eps, hc_eps, iters)
        out = crossed(X, F, pre, post, comb, into, tile=tile)
        ctx.constants = into[4:]
        ctx.save_for_backward(X, F, pre, post, comb, *into[:4], None if F is None else out.new, out.x, out.kept)
        return (None if F is None else out.new), out.x, out.pre, out.post, out.comb

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_new, *grads):
        *inputs, fn, base, scale, norm, new, x, kept = ctx.saved_tensors
        into = Next(fn, base, scale, norm, *ctx.constants)
        d_new = None if new is None else d_new.contiguous()
        grads = (g.contiguous() for g in grads)
        out = seam_backward(d_new, *grads, tuple(inputs), into, inputs[0] if new is None else new, x, kept)
        return *out, None, None, None, None


class Crossed(NamedTuple):
    new: Tensor
    x: Tensor
    pre: Tensor
    post: Tensor
    comb: Tensor
    kept: Tensor


def crossed(X, F, pre, post, comb, into: Next, *, tile: Tile | None = None, mix: bool = True) -> Crossed:
    """`seam` on contiguous tensors, without gradients, and what is kept [T, KEPT]; without `mix` there is no x."""
    tokens, _, width = X.shape
    tile = tile or tile_for(tokens, width, X.dtype)
    empty = dict(dtype=torch.float32, device=X.device)
    new, x = X if F is None else torch.empty_like(X), X.new_empty(tokens, width)
    out = dict(out_pre=torch.empty(tokens, 4, **empty), out_post=torch.empty(tokens, 4, **empty))
    out["out_comb"] = torch.empty(tokens, 4, 4, **empty)
    kept = torch.empty(tokens, KEPT, **empty)
    parts = kept if tile.splits == 1 else torch.empty(tile.splits, tokens, KEPT, **empty)
    split = X.dtype != torch.float32
    packed, early = split and tile.packed, tile.early and starts_early(X.device)
    last = dict(x=x, norm=into.norm, base=into.base, scale=into.scale, **out)
    last |= dict(T=tokens, eps=into.eps, hc_eps=into.hc_eps, ITERS=into.iters, C=width, MIX=mix, PDL=early)
    launch(
        cross,
        (triton.cdiv(tokens, tile.tokens), tile.splits),
        **dict(X=X, F=F, pre=pre, post=post, comb=comb, fn=pack(into.fn) if packed else into.fn, new=new, parts=parts),
        **dict(SPLITS=tile.splits, M=tile.tokens, BLOCK=tile.channels, PACKED=packed, SPLIT=split),
        **dict(KEEP="evict_first" if tile.splits == 1 else "", DOT=dot_type(X.dtype), **last),
        PRECISION="tf32" if split else "ieee",
        num_warps=tile.warps,
        num_stages=tile.stages,
        early=early and packed,
    )
    if tile.splits > 1:
        chunk = min(1024, triton.next_power_of_2(width))
        launch(
            finish,
            (triton.cdiv(tokens, tile.finish), 1 + mix * triton.cdiv(width, chunk)),
            **dict(parts=parts, kept=kept, SPLITS=tile.splits, PADDED=triton.next_power_of_2(tile.splits)),
            **dict(M=tile.finish, CHUNK=chunk, **last),
            num_warps=4,
            early=early,
        )
    return Crossed(new, x, *out.values(), kept)


@triton.jit
def cross(
    X, F, pre, post, comb, fn, new, parts, x, norm, base, scale, out_pre, out_post, out_comb, T, eps, hc_eps,
    C: tl.constexpr, M: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, SPLIT: tl.constexpr,
    PACKED: tl.constexpr, MIX: tl.constexpr, ITERS: tl.constexpr, KEEP: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL and PACKED:
        tl.extra.cuda.gdc_wait()  # for the weights
    if PDL and SPLITS > 1:
        tl.extra.cuda.gdc_launch_dependents()
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
    products = tl.zeros([ROWS, M], tl.float32)
    squares, square = tl.zeros([M, BLOCK // 8], tl.float32), tl.zeros([M, BLOCK // 8], tl.float32)
    first = tl.program_id(1) * PART
    for c0 in range(first, tl.minimum(first + PART, C), BLOCK):
        c = c0 + tl.arange(0, BLOCK)
        inside = live[:, None] & (c < C)[None, :]
        at = row[:, None] * (4 * C) + c[None, :]
        n = streams(X + at, inside, C, KEEP)
        s = n
        if F is not None:
            f = tl.load(F + row[:, None] * C + c[None, :], inside, other=0.0).to(tl.float32)
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
        products = product(fn, n, products, c0, C, BLOCK, SPLIT, PACKED, DOT, PRECISION)
    k = tl.arange(0, 32)
    if SPLIT:
        products = tl.sum(products.reshape(4, 2, 8, M), 1).reshape(32, M)
    to = parts + (tl.program_id(1).to(tl.int64) * T + row) * 32
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
        coefficients(to, row, live, base, scale, out_pre, out_post, out_comb, eps, hc_eps, C, ITERS)


def specimen(tokens: int, dtype: torch.dtype = torch.bfloat16, **choices):
    def made(*shape: int, kind: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=kind, device="meta")

    C = 5120
    into = Next(made(24, 4 * C), made(24), made(3), made(C, kind=dtype), 1e-20, 1e-6, 20)
    X, F = made(tokens, 4, C, kind=dtype), made(tokens, C, kind=dtype)
    return crossed(X, F, made(tokens, 4), made(tokens, 4), made(tokens, 4, 4), into, **choices)


SPECIMENS = {
    "seam T=4096": lambda: specimen(4096),
    "seam T=128": lambda: specimen(128),
    "seam T=128 float32": lambda: specimen(128, torch.float32),
}
