"""The seam as V4 crosses it, for comparison: three steps, because the mix waits for its own prediction.

`update` writes X'; `cross` without update and mix reads it for the predictor; `collapse` reads it again, mixes and
norms. X' goes through device memory three times: 18C elements a token (20C in V4, where the norm is a kernel apart)
against 10C in one pass. The predictor's step is the very kernel of the single pass: the passes alone make the gap.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from minidsv41.kernels.launch import launch
from minidsv41.kernels.seam import Tile as CrossTile
from minidsv41.kernels.seam import check, crossed
from minidsv41.kernels.sinkhorn import mixed
from minidsv41.kernels.streams import four, narrow, streams, updated
from minidsv41.ops.seam import Next


class Tile(NamedTuple):
    """Tokens and channels of a program of `update`; tokens of one of `collapse`; the tile of the predictor's step."""

    tokens: int = 4
    channels: int = 256
    whole: int = 1
    warps: int = 4
    cross: CrossTile | None = None


@torch.no_grad()
def seam_in_steps(
    X: Tensor,
    F: Tensor,
    pre: Tensor,
    post: Tensor,
    comb: Tensor,
    into: Next,
    *,
    delayed: bool = True,
    tile: Tile | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `ops.seam`, without gradients. V4 mixes by what it has just predicted: delayed=False."""
    check(X, F, pre, post, comb, into)
    tokens, _, width = X.shape
    tile = tile or Tile()
    X, F, pre, post, comb = (t.contiguous() for t in (X, F, pre, post, comb))
    new = torch.empty_like(X)
    launch(
        update,
        (triton.cdiv(tokens, tile.tokens), triton.cdiv(width, tile.channels)),
        **dict(X=X, F=F, post=post, comb=comb, new=new, T=tokens, C=width, M=tile.tokens, BLOCK=tile.channels),
        num_warps=tile.warps,
    )
    out = crossed(new, None, pre, None, None, into, tile=tile.cross, mix=False)
    launch(
        collapse,
        (triton.cdiv(tokens, tile.whole),),
        **dict(X=new, pre=pre if delayed else out.pre, norm=into.norm, x=out.x, T=tokens, eps=into.eps, C=width),
        **dict(M=tile.whole, BLOCK=triton.next_power_of_2(width)),
        num_warps=8,
    )
    return new, out.x, out.pre, out.post, out.comb


@triton.jit
def update(X, F, post, comb, new, T, C: tl.constexpr, M: tl.constexpr, BLOCK: tl.constexpr):
    TYPE: tl.constexpr = X.dtype.element_ty
    token, c = tl.program_id(0) * M + tl.arange(0, M), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live, row = token < T, token.to(tl.int64)
    o, comb = four(post + row * 4, live, 1), comb + row * 16
    inside, at = live[:, None] & (c < C)[None, :], row[:, None] * (4 * C) + c[None, :]
    s = streams(X + at, inside, C, "")
    f = tl.load(F + row[:, None] * C + c[None, :], inside, other=0.0).to(tl.float32)
    n = updated(
        o, four(comb, live, 4), four(comb + 1, live, 4), four(comb + 2, live, 4), four(comb + 3, live, 4), f, s, TYPE
    )
    tl.store(new + at, n[0], inside)
    tl.store(new + at + C, n[1], inside)
    tl.store(new + at + 2 * C, n[2], inside)
    tl.store(new + at + 3 * C, n[3], inside)


@triton.jit
def collapse(X, pre, norm, x, T, eps, C: tl.constexpr, M: tl.constexpr, BLOCK: tl.constexpr):
    TYPE: tl.constexpr = X.dtype.element_ty
    token, c = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, BLOCK)
    live, row = token < T, token.to(tl.int64)
    inside = live[:, None] & (c < C)[None, :]
    s = streams(X + row[:, None] * (4 * C) + c[None, :], inside, C, "")
    y = narrow(mixed(four(pre + row * 4, live, 1), s), TYPE).to(tl.float32)
    w = tl.load(norm + c, c < C, other=0.0).to(tl.float32)[None, :]
    y *= tl.rsqrt(tl.sum(y * y, 1) / C + eps)[:, None] * w
    tl.store(x + row[:, None] * C + c[None, :], narrow(y, TYPE), inside)


def specimen(tokens: int):
    def made(*shape: int, kind: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=kind, device="meta")

    C, kind = 5120, torch.bfloat16
    into = Next(made(24, 4 * C), made(24), made(3), made(C, kind=kind), 1e-20, 1e-6, 20)
    X, F = made(tokens, 4, C, kind=kind), made(tokens, C, kind=kind)
    return seam_in_steps(X, F, made(tokens, 4), made(tokens, 4), made(tokens, 4, 4), into)


SPECIMENS = {"seam in steps T=4096": lambda: specimen(4096)}
