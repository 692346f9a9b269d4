"""The seam between two sublayers: update the streams, mix with the delayed coefficients, predict the next."""

from __future__ import annotations

from math import isqrt
from typing import NamedTuple

import torch
from torch import Tensor


class Next(NamedTuple):
    """What the next sublayer brings to the seam: its predictor, its pre-norm, and constants.

    fn [n(n+2), n*C], base [n(n+2)], scale [3] (pre, post, comb); norm [C]; eps of every norm;
    hc_eps and iters of Sinkhorn.
    """

    fn: Tensor
    base: Tensor
    scale: Tensor
    norm: Tensor
    eps: float
    hc_eps: float
    iters: int


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x [..., C] over its root mean square, times weight [C]; statistics in at least float32."""
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)


def sinkhorn(logits: Tensor, iters: int, eps: float) -> Tensor:
    """[..., n, n] logits -> nearly doubly stochastic: the last axis by softmax first, the first axis last.

    Only sums over the source axis (-2) are exact.
    """
    c = logits.softmax(-1).movedim((-2, -1), (0, 1)).contiguous() + eps  # [n, n, ...]: sums run along memory
    c = c / (c.sum(0, keepdim=True) + eps)
    for _ in range(iters - 1):
        c = c / (c.sum(1, keepdim=True) + eps)
        c = c / (c.sum(0, keepdim=True) + eps)
    return c.movedim((0, 1), (-2, -1)).contiguous()


def products(X: Tensor, into: Next) -> Tensor:
    """The streams X [T, n, C] as one normed vector, times fn: [T, n(n+2)]. Each number needs all of X."""
    flat = X.flatten(1).to(into.fn.dtype)  # [T, n * C]
    return (flat @ into.fn.T) * (flat.square().mean(-1, keepdim=True) + into.eps).rsqrt()


def coefficients(m: Tensor, into: Next) -> tuple[Tensor, Tensor, Tensor]:
    """From the products m [T, n(n+2)]: pre [T, n], post [T, n], comb [T, n, n] (source, destination)."""
    n = isqrt(m.shape[-1] + 1) - 1
    column = torch.arange(m.shape[-1], device=m.device)
    z = m * into.scale.index_select(0, (column >= n).long() + (column >= 2 * n)) + into.base
    pre, post, comb = z.split([n, n, n * n], -1)
    return (
        pre.sigmoid() + into.hc_eps,
        2 * post.sigmoid(),
        sinkhorn(comb.unflatten(-1, (n, n)), into.iters, into.hc_eps),
    )


def predict(X: Tensor, into: Next) -> tuple[Tensor, Tensor, Tensor]:
    """Coefficients from the streams X [T, n, C]: pre [T, n], post [T, n], comb [T, n, n] (source, destination)."""
    return coefficients(products(X, into), into)


def update(X: Tensor, F: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """X'_j = post_j F + sum_i comb[i, j] X_i: X [T, n, C], F [T, C], post [T, n], comb [T, n, n] -> [T, n, C]."""
    wide = comb.dtype
    mixed = comb.transpose(1, 2) @ X.to(wide)
    return torch.baddbmm(mixed, post[:, :, None], F[:, None].to(wide)).to(X.dtype)


def collapse(X: Tensor, pre: Tensor) -> Tensor:
    """Weighted sum of the streams: X [T, n, C], pre [T, n] -> [T, C]."""
    return (pre[:, None] @ X.to(pre.dtype))[:, 0].to(X.dtype)


def seam(
    X: Tensor, F: Tensor | None, pre: Tensor, post: Tensor | None, comb: Tensor | None, into: Next
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """One sublayer seam -> X' [T, n, C], normed input x [T, C], and the new pre', post', comb'.

    X [T, n, C] streams; F [T, C] output of the sublayer just run, with its post [T, n] and comb
    [T, n, n] (None where the streams were already updated: the start, and after an Engram); pre [T, n],
    the mix that the *previous* sublayer predicted: known before X' exists, so one pass is enough.
    The report writes A, C and B for pre, post and the transpose of comb. Source: official code.
    """
    if F is not None:
        X = update(X, F, post, comb)
    x = rms_norm(collapse(X, pre), into.norm, into.eps)
    return X, x, *predict(X, into)
