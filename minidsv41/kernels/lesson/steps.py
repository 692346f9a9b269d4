"""The seam, one token a program: in three launches and in one. Four streams; C is a multiple of BLOCK.

Coefficients of a token lie together, 24 numbers: pre 4, post 4, comb 16 (source, destination).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from minidsv41.kernels.launch import launch
from minidsv41.ops.seam import Next

BLOCK = 16


@triton.jit
def update(X, F, given, new, C: tl.constexpr, BLOCK: tl.constexpr):
    t, i = tl.program_id(0), tl.arange(0, 4)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    y = updated(X, F, given, t, c, C)
    tl.store(new + (t * 4 + i[:, None]) * C + c[None, :], y)


@triton.jit
def updated(X, F, given, t, c, C: tl.constexpr):
    i = tl.arange(0, 4)
    x, f = tl.load(X + (t * 4 + i[:, None]) * C + c[None, :]), tl.load(F + t * C + c)
    post = tl.load(given + t * 24 + 4 + i)
    comb = tl.load(given + t * 24 + 8 + i[:, None] * 4 + i[None, :])
    return post[:, None] * f[None, :] + tl.sum(comb[:, :, None] * x[:, None, :], 0)


@triton.jit
def predict(X, fn, base, scale, m, out, eps, hc_eps, C: tl.constexpr, BLOCK: tl.constexpr, ITERS: tl.constexpr):
    t, i = tl.program_id(0), tl.arange(0, 4)
    total, squares = tl.zeros([32], X.dtype.element_ty), tl.zeros([BLOCK], X.dtype.element_ty)
    for c0 in range(0, C, BLOCK):
        c = c0 + tl.arange(0, BLOCK)
        x = tl.load(X + (t * 4 + i[:, None]) * C + c[None, :])
        total += products(fn, x, c, C)
        squares += tl.sum(x * x, 0)
    r = tl.rsqrt(tl.sum(squares, 0) / (4 * C) + eps)
    tl.store(m + t * 32 + tl.arange(0, 32), total * r)
    coefficients(m + t * 32, base, scale, out + t * 24, hc_eps, ITERS)


@triton.jit
def products(fn, x, c, C: tl.constexpr):
    k, i = tl.arange(0, 32), tl.arange(0, 4)
    at = k[:, None, None] * 4 * C + i[None, :, None] * C + c[None, None, :]
    w = tl.load(fn + at, (k < 24)[:, None, None], other=0.0)
    return tl.sum(tl.sum(w * x[None], 2), 1)


@triton.jit
def coefficients(m, base, scale, out, hc_eps, ITERS: tl.constexpr):
    tl.debug_barrier()  # other threads of this program wrote m
    i = tl.arange(0, 4)
    ij = 8 + i[:, None] * 4 + i[None, :]
    a = tl.load(m + i) * tl.load(scale) + tl.load(base + i)
    b = tl.load(m + 4 + i) * tl.load(scale + 1) + tl.load(base + 4 + i)
    z = tl.load(m + ij) * tl.load(scale + 2) + tl.load(base + ij)
    z = tl.exp(z - tl.max(z, 1)[:, None])
    z = z / tl.sum(z, 1)[:, None] + hc_eps
    z /= (tl.sum(z, 0) + hc_eps)[None, :]
    for _ in range(ITERS - 1):
        z /= (tl.sum(z, 1) + hc_eps)[:, None]
        z /= (tl.sum(z, 0) + hc_eps)[None, :]
    tl.store(out + i, 1 / (1 + tl.exp(-a)) + hc_eps)
    tl.store(out + 4 + i, 2 / (1 + tl.exp(-b)))
    tl.store(out + ij, z)


@triton.jit
def collapse(X, given, norm, x, eps, C: tl.constexpr):
    t, i, c = tl.program_id(0), tl.arange(0, 4), tl.arange(0, C)
    streams = tl.load(X + (t * 4 + i[:, None]) * C + c[None, :])
    y = tl.sum(tl.load(given + t * 24 + i)[:, None] * streams, 0)
    y *= tl.rsqrt(tl.sum(y * y, 0) / C + eps)
    tl.store(x + t * C + c, y * tl.load(norm + c))


@triton.jit
def fused(
    X, F, given, fn, base, scale, norm, new, x, m, out, eps, hc_eps,
    C: tl.constexpr, BLOCK: tl.constexpr, ITERS: tl.constexpr,
):  # fmt: skip
    t, i = tl.program_id(0), tl.arange(0, 4)
    total, squares = tl.zeros([32], X.dtype.element_ty), tl.zeros([BLOCK], X.dtype.element_ty)
    own, pre = tl.zeros([BLOCK], X.dtype.element_ty), tl.load(given + t * 24 + i)
    for c0 in range(0, C, BLOCK):
        c = c0 + tl.arange(0, BLOCK)
        y = updated(X, F, given, t, c, C)
        tl.store(new + (t * 4 + i[:, None]) * C + c[None, :], y)
        total += products(fn, y, c, C)
        squares += tl.sum(y * y, 0)
        y = tl.sum(pre[:, None] * y, 0)
        tl.store(x + t * C + c, y)
        own += y * y
    r = tl.rsqrt(tl.sum(squares, 0) / (4 * C) + eps)
    tl.store(m + t * 32 + tl.arange(0, 32), total * r)
    coefficients(m + t * 32, base, scale, out + t * 24, hc_eps, ITERS)
    normalise(x + t * C, norm, tl.rsqrt(tl.sum(own, 0) / C + eps), C)


@triton.jit
def normalise(x, norm, r, C: tl.constexpr):
    c = tl.arange(0, C)
    tl.store(x + c, tl.load(x + c) * r * tl.load(norm + c))


def packed(pre: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    return torch.cat([pre, post, comb.flatten(1)], 1)


def unpacked(out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return out[:, :4], out[:, 4:8], out[:, 8:].unflatten(1, (4, 4))


Result = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def weights(into: Next) -> dict[str, Any]:
    return dict(fn=into.fn, base=into.base, scale=into.scale, eps=into.eps, hc_eps=into.hc_eps, ITERS=into.iters)


def in_three(X: Tensor, F: Tensor, pre: Tensor, post: Tensor, comb: Tensor, into: Next) -> Result:
    """As `ops.seam`, by three launches. The mix is the delayed one, so that results can be compared."""
    T, _, C = X.shape
    new, x, given = torch.empty_like(X), torch.empty_like(F), packed(pre, post, comb)
    m, out = X.new_empty(T, 32), torch.empty_like(given)
    launch(update, (T, C // BLOCK), X=X, F=F, given=given, new=new, C=C, BLOCK=BLOCK)
    launch(predict, (T,), X=new, m=m, out=out, C=C, BLOCK=BLOCK, **weights(into))
    launch(collapse, (T,), X=new, given=given, norm=into.norm, x=x, eps=into.eps, C=C)
    return new, x, *unpacked(out)


def in_one(X: Tensor, F: Tensor, pre: Tensor, post: Tensor, comb: Tensor, into: Next) -> Result:
    """As `ops.seam`, by one launch."""
    T, _, C = X.shape
    new, x, given = torch.empty_like(X), torch.empty_like(F), packed(pre, post, comb)
    m, out = X.new_empty(T, 32), torch.empty_like(given)
    rows = dict(X=X, F=F, given=given, norm=into.norm, new=new, x=x, m=m, out=out)
    launch(fused, (T,), **rows, **weights(into), C=C, BLOCK=BLOCK)
    return new, x, *unpacked(out)
