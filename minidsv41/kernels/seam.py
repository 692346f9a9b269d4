"""One pass over the streams for each sublayer seam: twin of `ops.seam`, differentiable.

A program of `cross` owns a tile of tokens, so that the predictor's 1.97 MB of weights are not read again by each token,
and walks over the channels: X' = update(X, F) goes out and, still in registers, feeds the delayed mix y, the sums of
squares, and 24 products by tensor cores. Predictor weights stand in the rows of the product as two bfloat16 parts, high
and low (X' is bfloat16 itself: the error left is 2**-17 of a weight); float32 activations use ieee. The pre-norm needs
all of y: y waits where x will be, and is read back from L2, the last first, by its own program, or, where few tokens
make several programs share the channels of a tile, by a second kernel, `finish`. Sinkhorn runs in registers.

Bytes a token, width C, bf16: X 8C + F 2C in, X' 8C + x 2C out: 102,400 at C = 5,120; y comes back from L2 (2C). Device
memory limits it from about 2,000 tokens on, below that the time of two launches; the second starts early, and up to 64
tokens the first too.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from minidsv41.kernels.crossing import cross, finish
from minidsv41.kernels.launch import dot_type, launch, require, starts_early
from minidsv41.kernels.predictor import pack
from minidsv41.kernels.seam_backward import seam_backward
from minidsv41.ops.seam import Next

KEPT = 32  # float32 numbers kept of each token: 24 products, sum of squares of X', sum of squares of y


class Tile(NamedTuple):
    """What a program of `cross` takes at once: tokens, channels; into how many parts the channels of a tile are split.

    packed: a small kernel parts the weights beforehand, instead of every program. finish: tokens that a program of
    `finish` norms; heads: those of which another one makes coefficients.
    early: `cross` after that small kernel, and `finish` after `cross`, start before the one before has ended; first: so
    does an unpacked `cross` after whatever runs before.
    turned: tokens are the rows of the product and come from registers: 16 tokens a warp, 32 channels, weights as given.
    """

    tokens: int
    channels: int = 64
    splits: int = 1
    packed: bool = False
    warps: int = 8
    stages: int = 3
    finish: int = 1
    early: bool = True
    turned: bool = False
    heads: int = 1
    first: bool = False


def tile_for(tokens: int, width: int, dtype: torch.dtype) -> Tile:
    """Few tokens: small programs on all multiprocessors; more: at least 128 programs, with many bytes on their way."""
    if dtype == torch.float32:
        return Tile(16, 32, 1 if tokens > 2048 else min(8, triton.cdiv(width, 32)), warps=4, stages=1)
    blocks = triton.cdiv(width, 64)
    if tokens <= 16:
        return Tile(16, splits=blocks, warps=4, stages=1, first=True)
    if tokens <= 64:
        return Tile(32, splits=blocks, stages=1, finish=2, first=True)
    if tokens <= 128:
        return Tile(64, 32, splits=triton.cdiv(width, 32), warps=4, stages=1, finish=2, turned=True, heads=2)
    if tokens > 8192:
        return Tile(64, packed=True, early=False)
    splits = max(1, min(128 // triton.cdiv(tokens, 32), blocks))
    return Tile(32, splits=splits, packed=True, stages=3 if tokens <= 512 else 4, finish=4, heads=16, early=False)


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
    if F is None:  # nothing is updated by them, then
        post = comb = None
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
    require(into.hc_eps >= 1e-12, f"into.hc_eps = {into.hc_eps}: allowed are 1e-12 and more, for products of four sums")


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


def check_tile(tile: Tile) -> None:
    where = "where tokens are rows of the product, allowed are 16 a warp, and 32 channels"
    require(not tile.turned or (tile.tokens, tile.channels) == (16 * tile.warps, 32), f"tile = {tile}: {where}")


def aligned(t: Tensor | None) -> Tensor | None:
    """The same from 16 bytes on: coefficients are loaded four at once."""
    return t if t is None or t.data_ptr() % 16 == 0 else t.clone()


def crossed(X, F, pre, post, comb, into: Next, *, tile: Tile | None = None, mix: bool = True) -> Crossed:
    """`seam` on contiguous tensors, without gradients, and what is kept [T, KEPT]; without `mix` there is no x."""
    tokens, _, width = X.shape
    tile = tile or tile_for(tokens, width, X.dtype)
    check_tile(tile)
    pre, post, comb = aligned(pre), aligned(post), aligned(comb)
    empty = dict(dtype=torch.float32, device=X.device)
    new, x = X if F is None else torch.empty_like(X), X.new_empty(tokens, width)
    out = dict(out_pre=torch.empty(tokens, 4, **empty), out_post=torch.empty(tokens, 4, **empty))
    out["out_comb"] = torch.empty(tokens, 4, 4, **empty)
    kept = torch.empty(tokens, KEPT, **empty)
    parts, squared = kept, None
    if tile.splits > 1:
        parts, squared = torch.empty(tokens, tile.splits, KEPT, **empty), torch.empty(tokens, tile.splits, **empty)
    split = X.dtype != torch.float32
    packed, early = split and tile.packed, tile.early and starts_early(X.device)
    last = dict(x=x, norm=into.norm, base=into.base, scale=into.scale, parts=parts, squared=squared, **out)
    last |= dict(T=tokens, eps=into.eps, hc_eps=into.hc_eps, ITERS=into.iters, C=width, PDL=early)
    last["FIRST"] = tile.first and not packed
    launch(
        cross,
        (triton.cdiv(tokens, tile.tokens), tile.splits),
        **dict(X=X, F=F, pre=pre, post=post, comb=comb, fn=pack(into.fn) if packed else into.fn, new=new, **last),
        **dict(M=tile.tokens, BLOCK=tile.channels, SPLITS=tile.splits, SPLIT=split, PACKED=packed),
        **dict(TURNED=split and tile.turned, MIX=mix, DOT=dot_type(X.dtype)),
        KEEP="evict_first" if tile.splits == 1 else "",
        PRECISION="tf32" if split else "ieee",
        num_warps=tile.warps,
        num_stages=tile.stages,
        early=early and (packed or tile.first),
    )
    if tile.splits > 1:
        step = min(1024, triton.next_power_of_2(width))
        launch(
            finish,
            (triton.cdiv(tokens, tile.heads) + mix * triton.cdiv(tokens, tile.finish) * triton.cdiv(width, step),),
            **dict(last, kept=kept, M=tile.finish, HEADS=tile.heads, STEP=step),
            **dict(SPLITS=tile.splits, PADDED=triton.next_power_of_2(tile.splits)),
            num_warps=4,
            early=early,
        )
    return Crossed(new, x, *out.values(), kept)


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
