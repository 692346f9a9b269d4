"""A query and the gradient of its output as one matrix: both meet the same keys, and both feed the keys' gradient.

Rows of eight heads alternate: 8 of q, 8 of the gradient, 8 of q ... A matrix unit leaves rows r and r + 8 of its
result in one thread, so scores and their gradients are parted, and joined again, without moving anything.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_pair(q, grad, token, head0, H: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr, DIMS: tl.constexpr):
    """[2 * HEADS, DIMS] of one token, heads head0 and on; zeros beyond head H and width D."""
    row, dim = tl.arange(0, 2 * HEADS), tl.arange(0, DIMS)
    head, begin = row // 16 * 8 + row % 8, (token * H + head0) * D
    at = head[:, None] * D + dim[None, :]
    where = tl.where((row // 8 % 2 == 0)[:, None], q + begin, grad + begin) + at
    if H % HEADS == 0 and D == DIMS:
        values = tl.load(where)
    else:
        values = tl.load(where, (head0 + head < H)[:, None] & (dim < D)[None, :], other=0.0)
    return values


@triton.jit
def part(x):
    """[2 * HEADS, N] of a pair's rows -> those of q, those of the gradient [HEADS, N]."""
    HEADS: tl.constexpr = x.shape[0] // 2
    N: tl.constexpr = x.shape[1]
    a, b = x.reshape(HEADS // 8, 2, 8, N).permute(0, 2, 3, 1).split()
    return a.reshape(HEADS, N), b.reshape(HEADS, N)


@triton.jit
def pair(a, b):
    """The inverse of `part`."""
    HEADS: tl.constexpr = a.shape[0]
    N: tl.constexpr = a.shape[1]
    return tl.join(a, b).reshape(HEADS // 8, 8, N, 2).permute(0, 3, 1, 2).reshape(2 * HEADS, N)


@triton.jit
def softmax_gradient(pairs, keys, log_sum, delta, exists, SCALE: tl.constexpr, PRECISION: tl.constexpr):
    """Weights p and gradients of scores [HEADS, N] of a pair's rows with keys [N, DIMS].

    log_sum, delta [HEADS, 1]: logarithm of the softmax's denominator, and gradient times output; exists: which
    keys a query reads.
    """
    LOG2E: tl.constexpr = 1.4426950408889634
    score, d_p = part(tl.dot(pairs, keys.T, input_precision=PRECISION))
    p = tl.where(exists, tl.exp2(score * (SCALE * LOG2E) - log_sum * LOG2E), 0.0)
    return p, p * (d_p - delta) * SCALE
